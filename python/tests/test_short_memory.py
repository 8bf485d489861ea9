"""Who stays and who gives way when GPU memory is short, frames whose number changes, and buffers that grow."""

from __future__ import annotations

import signal
import threading
import time

import numpy as np
import pytest

import gpuvm
from conftest import NAMES, SCALE
from gpuvm import errors

PAGE = 4096
#: Bytes of a handle of the simulated GPU's memory.
HANDLE = 64 << 10


def changing(**settings):
    """A Vm of four handles of frames, which may become eight."""
    return gpuvm.Vm(4 * HANDLE, gpu="simulated", frame_capacity=8 * HANDLE, **settings)


def until(what, happens):
    limit = time.monotonic() + 30
    while not happens():
        assert time.monotonic() < limit, what
        time.sleep(0.005)


def lost(vm, of, stream):
    """Pages of an array that have left after two passes over another."""
    for array in (of, stream, stream):
        gpuvm.ops.sum(array)
    before = vm.stats()["pages_fetched"]
    assert gpuvm.ops.sum(of) == of.numpy().sum()
    return vm.stats()["pages_fetched"] - before


def pages(count):
    return np.arange(count * PAGE // 8, dtype=np.int64)


@pytest.mark.parametrize("transport", ["soft", "direct"])
def test_pages_of_low_priority_leave_first(transport):
    with gpuvm.Vm(70 * PAGE, gpu="simulated", transport=transport, workers=1, placement="fetch") as vm:
        kept, stream = vm.array(pages(24), read_only=True), vm.array(pages(500), read_only=True)
        assert (kept.priority, lost(vm, kept, stream) > 12) == (0, True)
        stream.set_priority(-3)
        assert (stream.priority, lost(vm, kept, stream)) == (-3, 0)
        stream.set_priority(0)
        assert lost(vm, kept, stream) > 12
        favourite = vm.array(pages(24), read_only=True, priority=7)
        assert (favourite.priority, lost(vm, favourite, stream)) == (7, 0)


def test_every_array_may_have_a_priority(vm, tmp_path):
    path = tmp_path / "data"
    path.write_bytes(bytes(8))
    makings = [
        lambda priority: vm.zeros(4, priority=priority),
        lambda priority: vm.array(np.zeros(4), copy=True, priority=priority),
        lambda priority: vm.map_file(path, priority=priority),
    ]
    for make in makings:
        array = make(-(2**31))
        assert array.priority == -(2**31)
        array.close()
        for priority in (2**31, 1.5, None, True):
            with pytest.raises(errors.SettingError, match="priority of array .* expected a whole number"):
                make(priority)
    with pytest.raises(errors.SettingError, match="priority of array"):
        vm.zeros(4).set_priority("high")
    with pytest.raises(errors.ClosedError, match="was closed"):
        array.set_priority(1)


def test_frames_come_and_go():
    data = np.ones(3 * HANDLE, np.float32)
    with changing() as vm:
        scale = vm.module(SCALE, NAMES, name="tests.cu")["scale"]
        array = vm.array(data)
        assert (vm.frames, vm.frame_capacity) == (4 * HANDLE // PAGE, 8 * HANDLE // PAGE)
        for units in (2, 1, 5, 8, 3):
            resized = vm.resize_frames(units * HANDLE, within=10)
            assert resized[:3] == (units * HANDLE, 0, 0) and 0 <= resized.took < 10
            assert vm.frames == units * HANDLE // PAGE and f"{vm.frames} frames" in repr(vm)
            scale[data.size // 256, 256](array, 2).sync()
            assert gpuvm.ops.sum(array) == data.size * array[0]
        assert (array.numpy() == 2**5).all()
        assert vm.trim("1GiB") > 0 and vm.trim("1GiB") == 0
    assert "closed" in repr(vm)


def test_frames_that_cannot_change(vm):
    assert vm.frame_capacity == vm.frames
    with pytest.raises(errors.UnavailableError, match="frame_capacity"):
        vm.resize_frames("64KiB")
    with changing() as other:
        for memory in (9 * HANDLE, 100):
            with pytest.raises(errors.SettingError, match="frame"):
                other.resize_frames(memory)
        for memory in (0, -1, "many"):
            with pytest.raises(errors.SettingError, match="memory is"):
                other.resize_frames(memory)
        for within in (-1, "1"):
            with pytest.raises(errors.SettingError, match="within is"):
                other.resize_frames(HANDLE, within=within)
        with pytest.raises(errors.SettingError, match="priority of frames"):
            other.set_frame_priority(2**31)
        assert other.frames == 4 * HANDLE // PAGE
    with pytest.raises(errors.ClosedError):
        other.resize_frames(HANDLE)


@pytest.mark.parametrize(
    "settings, text",
    [
        ({"frame_capacity": "4KiB"}, "frame capacity"),
        ({"frame_capacity": "lots"}, "frame_capacity is `lots`"),
        ({"frame_minimum": "64KiB"}, "frame minimum"),
        ({"frame_capacity": "1MiB", "frame_minimum": "1MiB"}, "frame minimum"),
        ({"frames_leave_free": "64KiB"}, "set frame_capacity"),
        ({"frame_priority": 2**40}, "frame_priority is"),
        ({"gpu": "cuda:0", "gpu_memory": "1MiB"}, "gpu_memory is `1MiB`: only simulated GPUs have it"),
    ],
)
def test_settings_of_frames_that_cannot_be(settings, text):
    with pytest.raises(errors.SettingError, match=text):
        gpuvm.Vm(**{"memory": "128KiB", "gpu": "simulated", **settings})


def test_frames_follow_what_is_free():
    # More is never free than there is: they go down to their minimum.
    with changing(frames_leave_free="1TiB", frame_minimum=2 * HANDLE) as vm:
        until("they do not give way", lambda: vm.frames == 2 * HANDLE // PAGE)
    # Pages leave their frames, and memory is free.
    with changing(frames_leave_free=HANDLE) as vm:
        array = vm.array(pages(400), read_only=True)
        until("they do not grow", lambda: gpuvm.ops.sum(array) > 0 and vm.frames == vm.frame_capacity)


def test_a_buffer_that_finds_no_memory_has_that_of_frames():
    def fill(vm):
        """Buffers of a handle each until there is no memory."""
        made = []
        with pytest.raises(MemoryError, match="memory"):
            while True:
                made.append(vm.buffer(HANDLE, np.uint8))
        return len(made)

    settings = {"gpu": "simulated", "gpu_memory": "8MiB"}
    with gpuvm.Vm(32 * HANDLE, **settings) as vm:
        fixed = fill(vm)
        assert vm.frames == 32 * HANDLE // PAGE
    with gpuvm.Vm(32 * HANDLE, frame_capacity=32 * HANDLE, frame_minimum=4 * HANDLE, **settings) as vm:
        given = fill(vm)
        assert vm.frames == 4 * HANDLE // PAGE
    assert given > fixed + 16


@pytest.mark.parametrize("frames_first", [True, False])
@pytest.mark.parametrize("later", [True, False])
def test_who_gives_memory_first(frames_first, later):
    frames, mapped = (-1, 1) if frames_first else (1, -1)
    with changing(gpu_memory="8MiB", frame_priority=0 if later else frames) as vm:
        ahead = vm.elastic_buffer(1 << 20, np.uint8, name="ahead", priority=0 if later else mapped)
        ahead.grow(HANDLE)
        if later:
            vm.set_frame_priority(frames)
            ahead.set_priority(mapped)
        until("nothing is mapped ahead", lambda: ahead.capacity > len(ahead))
        before = vm.frames, ahead.capacity
        needs = vm.elastic_buffer(16 << 20, np.uint8, name="needs", priority=9)
        while (vm.frames, ahead.capacity) == before:
            needs.grow(HANDLE)
        assert (vm.frames < before[0], ahead.capacity < before[1]) == (frames_first, not frames_first)


FILL = r"""
__global__ void fill(unsigned* at, unsigned long long count) {
    for (unsigned long long i = blockIdx.x * 1ull * blockDim.x + threadIdx.x; i < count; i += gridDim.x * 1ull * blockDim.x) at[i] = i;
}
__global__ void endless(unsigned* at) { while (true) atomicAdd(at, 1u); }
"""


def test_an_elastic_buffer_grows_and_shrinks_at_one_address(vm):
    fill = vm.kernel(FILL, "fill")
    buffer, length = vm.elastic_buffer(1_000_000, np.uint32, name="keys"), 0
    address = buffer.address
    assert (len(buffer), buffer.max_length, buffer.shape, buffer.nbytes) == (0, 1_000_000, (0,), 0)
    for more in (1, 1000, 0, 200_000):
        grown = buffer.grow(more)
        assert (grown.first, buffer.address) == (length, address) and grown.took >= 0
        length += more
        fill[4, 64](buffer, len(buffer)).sync()
        assert buffer.capacity >= len(buffer) == buffer.size == length
        assert (buffer.numpy() == np.arange(length)).all()
    buffer.shrink(200_000)
    assert buffer.ensure(500).first == 1001 == len(buffer)
    buffer[-3:] = [7, 8, 9]
    assert buffer[-1] == 9 and (buffer[997::2] == [997, 8]).all()
    assert (np.asarray(buffer) == [*range(998), 7, 8, 9]).all()
    assert "1001 of 1000000" in repr(buffer)
    stats = vm.elastic_stats()
    assert (stats["buffers"], stats["used_bytes"], stats["handle_bytes"]) == (1, 4004, HANDLE)
    buffer.close()
    buffer.close()
    assert buffer.closed and "closed" in repr(buffer) and vm.elastic_stats()["buffers"] == 0


def test_elastic_buffers_that_are_paused(vm):
    fill = vm.kernel(FILL, "fill")
    buffer = vm.elastic_buffer(100_000, np.uint32, length=50_000, tag="cache")
    other = vm.elastic_buffer(1000, np.uint32, length=1000)
    fill[4, 64](buffer, len(buffer))
    assert vm.pause("cache") == 200_000 and vm.elastic_stats()["paused_bytes"] == 200_000
    for use in (lambda: fill[1, 1](buffer, 1), buffer.numpy, lambda: buffer.grow(1), lambda: buffer.shrink(1)):
        with pytest.raises(errors.PausedError, match="resume tag `cache`"):
            use()
    other[:] = 5
    for tag in (None, 5):
        with pytest.raises(errors.SettingError, match="tag is"):
            vm.pause(tag)
        with pytest.raises(errors.SettingError, match="tag is"):
            vm.resume(tag)
    assert vm.pause("nothing") == 0 and buffer.capacity == 0
    assert vm.resume("cache") == 200_000 and (buffer.numpy() == np.arange(50_000)).all()


def test_an_interrupt_while_a_pause_waits_for_launches(vm):
    buffer = vm.elastic_buffer(1000, np.uint32, length=1000, tag="cache")
    launch = vm.kernel(FILL, "endless")[1, 1](buffer)
    timer = threading.Timer(0.2, lambda: signal.raise_signal(signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        vm.pause("cache")
    timer.join()
    assert launch.done and vm.pause("cache") == 4000


def test_wrong_use_of_elastic_buffers(vm, kernels):
    buffer = vm.elastic_buffer(100, np.float32, name="keys")
    buffer.grow(10)
    buffer[:] = 3
    with pytest.raises(errors.BeyondMaxError, match="`keys` cannot grow to 110 elements: it was made for at most 100"):
        buffer.grow(100)
    with pytest.raises(IndexError, match="keys"):
        buffer.shrink(11)
    with pytest.raises(IndexError, match="elastic buffer `keys` has 10 rows"):
        buffer[10]
    with pytest.raises(errors.DtypeError, match="elastic buffer `keys`"):
        buffer[0] = 1 + 2j
    for count in (-1, 1.5, None, 1 << 63):
        for use in (buffer.grow, buffer.ensure, buffer.shrink, vm.elastic_buffer):
            with pytest.raises(errors.RegionError, match="expected a whole number"):
                use(count)
    with pytest.raises(errors.SettingError, match="greater than zero"):
        vm.elastic_buffer(0)
    with pytest.raises(errors.SettingError, match="priority of elastic buffer `keys`"):
        buffer.set_priority(1 << 31)
    with pytest.raises(errors.ArgumentError, match="argument 1"):
        kernels["scale"][1, 1](buffer, 2)
    assert len(buffer) == 10 and (buffer.numpy() == 3).all()
    vm.close()
    for use in (buffer.numpy, lambda: buffer.grow(1), lambda: len(buffer), lambda: vm.pause("x"), lambda: vm.elastic_buffer(5)):
        with pytest.raises(errors.ClosedError):
            use()


def test_a_tiered_buffer_keeps_address_and_values_when_chunks_move(vm):
    fill = vm.kernel(FILL, "fill")
    words = HANDLE // 4
    with vm.tiered_buffer((5 * words // 8, 8), np.uint32, name="weights", budget=3 * HANDLE) as buffer:
        assert (buffer.shape, buffer.dtype, buffer.chunk_bytes) == ((5 * words // 8, 8), np.uint32, HANDLE)
        assert (buffer.resident_bytes, buffer.budget) == (3 * HANDLE, 3 * HANDLE) and not buffer.numpy().any()
        fill[4, 64](buffer, buffer.size)
        shown = np.from_dlpack(buffer)
        address = shown.ctypes.data
        moved = buffer.move_to("host", 0, words // 8 + 1)
        assert (moved.came, moved.left) == (0, 2) and moved.took >= 0
        places = [buffer.place_of(row) for row in range(0, len(buffer), words // 8)]
        assert places == ["host", "host", "gpu", "host", "host"]
        # By kernels and by NumPy, wherever it lies.
        assert (buffer.numpy().ravel() == np.arange(buffer.size)).all() and (shown == buffer.numpy()).all()
        buffer[-1] = 7
        assert (shown[-1] == 7).all() and (buffer[-2:] == shown[-2:]).all() and buffer[3, 2] == 26
        assert buffer.set_budget("1MiB").came == 4 == buffer.move_to("host").left - 1
        assert buffer.set_budget(0)[:2] == (0, 0) and buffer.resident_bytes == 0
        assert np.from_dlpack(buffer).ctypes.data == address and (shown[-1] == 7).all()
        del shown
    assert buffer.closed and "weights" in repr(buffer)


def test_who_is_short_of_memory_has_a_tiered_buffer_leave():
    with gpuvm.Vm("128KiB", gpu="simulated", gpu_memory="4MiB") as vm:
        buffer = vm.tiered_buffer(HANDLE * 40 // 4, np.uint32, priority=-1)
        # What a launch uses would stay.
        vm.kernel(FILL, "fill")[4, 64](buffer, buffer.size).sync()
        had = buffer.resident_bytes
        needs = vm.elastic_buffer(16 << 20, np.uint8, name="needs")
        while buffer.resident_bytes:
            needs.grow(HANDLE)
        assert had > 0 and (buffer.numpy() == np.arange(buffer.size)).all()
        with pytest.raises(errors.OutOfMemoryError):
            while True:
                needs.grow(HANDLE)
        with pytest.raises(errors.OutOfMemoryError, match="cannot move 40 chunks of tiered buffer .* to the GPU"):
            buffer.move_to("gpu")
        assert (buffer.numpy() == np.arange(buffer.size)).all()


def test_wrong_use_of_tiered_buffers(vm, kernels):
    buffer = vm.tiered_buffer(100, np.float32, name="weights")
    with pytest.raises(errors.SettingError, match="it must be greater than zero"):
        vm.tiered_buffer((3, 0))
    with pytest.raises(errors.SettingError, match='place is "moon": expected "gpu" or "host"'):
        buffer.move_to("moon")
    with pytest.raises(errors.SettingError, match="place of tiered buffer `weights`"):
        buffer.move_to(0)  # type: ignore[arg-type]
    for use in (lambda: buffer.move_to("host", 0, 101), lambda: buffer.move_to("host", 5, 4), lambda: buffer.place_of(100), lambda: buffer[100]):
        with pytest.raises(IndexError, match="weights"):
            use()
    with pytest.raises(errors.RegionError, match="first row of tiered buffer `weights`"):
        buffer.move_to("host", -1)
    with pytest.raises(errors.SettingError, match="budget of tiered buffer `weights`"):
        buffer.set_budget(-1)
    with pytest.raises(errors.SettingError, match="the budget of `weights` is 0 chunks"):
        buffer.set_budget(1)
        buffer.move_to("gpu")
    with pytest.raises(errors.SettingError, match="priority of tiered buffer `weights`"):
        buffer.set_priority(1 << 31)
    with pytest.raises(errors.ArgumentError, match="argument 1"):
        kernels["scale"][1, 1](buffer, 2)
    vm.close()
    for use in (buffer.numpy, lambda: buffer.move_to("host"), lambda: buffer.resident_bytes, lambda: vm.tiered_buffer(5)):
        with pytest.raises(errors.ClosedError):
            use()


def test_memory_that_is_short_changes_nothing():
    with gpuvm.Vm("128KiB", gpu="simulated", gpu_memory="4MiB") as vm:
        buffer = vm.elastic_buffer(1 << 30, np.uint8, name="hoard")
        buffer.grow(1000)
        buffer[:] = 7
        with pytest.raises(errors.OutOfMemoryError, match="out of GPU memory"):
            buffer.grow(1 << 29)
        assert len(buffer) == 1000 and (buffer.numpy() == 7).all()


def test_an_operation_whose_frames_have_left_is_launched_smaller(monkeypatch):
    data, true, counted = pages(300), gpuvm.Vm.frames, []

    def stale(vm):
        counted.append(true.fget(vm))
        return vm.frame_capacity if len(counted) < 3 else counted[-1]

    with changing(workers=64) as vm:
        array = vm.array(data, read_only=True)
        vm.resize_frames(HANDLE)
        monkeypatch.setattr(gpuvm.Vm, "frames", property(stale))
        assert gpuvm.ops.sum(array) == data.sum() and len(counted) == 3
        monkeypatch.setattr(gpuvm.Vm, "frames", gpuvm.Vm.frame_capacity)
        with pytest.raises(errors.SpansError, match="frames"):
            gpuvm.ops.sum(array)


def test_operations_while_frames_come_and_go():
    data = pages(300)
    with changing() as vm:
        array, ended, failures = vm.array(data, read_only=True), threading.Event(), []

        def change():
            try:
                for units in 10 * (1, 8, 2, 6):
                    vm.resize_frames(units * HANDLE)
            except errors.UnavailableError:
                # Frames of an earlier change come back still.
                pass
            except BaseException as error:
                failures.append(error)
            finally:
                ended.set()

        thread = threading.Thread(target=change)
        thread.start()
        rounds = 0
        while not ended.is_set() or not rounds:
            assert gpuvm.ops.sum(array) == data.sum()
            rounds += 1
        thread.join(30)
        assert not failures and not thread.is_alive()
