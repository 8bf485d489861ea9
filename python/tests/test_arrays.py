"""Arrays and buffers hold what NumPy holds."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

import gpuvm


def test_lent_memory_is_not_copied(vm, kernels):
    data = np.arange(100_000, dtype=np.float32)
    array = vm.array(data)
    kernels["scale"][400, 256](array, 2).sync()
    assert array.numpy() is data
    assert (data == 2 * np.arange(100_000, dtype=np.float32)).all()
    assert vm.stats()["pages_fetched"] >= array.nbytes // vm.page_size


def test_a_copy_leaves_its_source_alone(vm, kernels):
    data = np.arange(5_000, dtype=np.float32)[::2]
    array = vm.array(data, copy=True)
    kernels["scale"][10, 256](array, 3).sync()
    assert (array.numpy() == 3 * data).all() and data[1] == 2


@pytest.mark.parametrize("kind", [bytearray, mmap.mmap])
def test_whatever_has_a_buffer_can_be_lent(vm, kind):
    source = bytearray(range(200)) if kind is bytearray else mmap.mmap(-1, 8192)
    array = vm.array(source)
    array[3] = 77
    array.flush()
    assert source[3] == 77 and array.dtype == np.uint8 and len(array) == len(source)
    array.close()


def test_a_memmap_is_lent_and_its_file_written(vm, kernels, tmp_path):
    path = tmp_path / "data"
    file = np.memmap(path, np.float32, "w+", shape=(64, 100))
    file[:] = 1
    array = vm.array(file)
    kernels["scale"][25, 256](array, 5).sync()
    array.close()
    file.flush()
    assert (np.fromfile(path, np.float32) == 5).all()


def test_a_file_is_mapped(vm, kernels, tmp_path):
    path = tmp_path / "data"
    np.arange(6_000, dtype=np.float32).tofile(path)
    read = vm.map_file(path, np.float32, (60, 100))
    assert read.shape == (60, 100) and read.read_only and read[59, 99] == 5_999
    read.close()
    array = vm.map_file(str(path), np.float32, read_only=False)
    kernels["scale"][24, 256](array, 2).sync()
    array.close()
    assert np.fromfile(path, np.float32)[5_999] == 2 * 5_999


@pytest.mark.parametrize("on_gpu", [False, True])
def test_a_file_larger_than_the_memory_before_it(tmp_path, on_gpu):
    path = tmp_path / "data"
    words = np.arange(3 * 256 * 1024 // 4, dtype=np.uint32)
    words.tofile(path)
    with gpuvm.Vm("64KiB", gpu="simulated", file_cache="256KiB", file_cache_on_gpu=on_gpu) as vm:
        array = vm.map_file(path, np.uint32, read_only=False)
        assert (array.numpy() == words).all()
        array[70_000] = 7
        array.flush()
    words[70_000] = 7
    assert (np.fromfile(path, np.uint32) == words).all()


@pytest.mark.parametrize("shape", [(), (0,), (1,), (1023,), (4096,), (7, 0, 3), (37, 61), (3, 5, 129)])
@pytest.mark.parametrize("dtype", ["u1", "i2", "f4", "f8", "i8", "c8", "?", "f2"])
def test_any_shape_comes_back(vm, numbers, shape, dtype):
    data = numbers.integers(0, 2, shape).astype(dtype)
    for how in ({}, {"copy": True}, {"read_only": True}):
        array = vm.array(data, **how)
        assert array.shape == shape and array.dtype == data.dtype
        assert (array.numpy() == data).all() and (np.asarray(array) == data).all()
        array.close()
    zeros = vm.zeros(shape, dtype)
    assert zeros.nbytes == data.nbytes and not zeros.numpy().any()


def test_a_structure_is_an_element(vm):
    data = np.zeros(300, np.dtype([("key", "u4"), ("value", "f4")]))
    data["key"] = np.arange(300)
    array = vm.array(data)
    array[7] = (9, 0.5)
    assert array[7]["value"] == 0.5 and array[8]["key"] == 8


KEYS = [
    3,
    -1,
    np.int64(4),
    slice(None),
    slice(2, 9),
    slice(None, None, 3),
    slice(None, None, -2),
    slice(9, 2, -1),
    slice(5, 5),
    slice(-3, None),
    slice(100, 200),
    Ellipsis,
    (2, 3),
    (slice(1, 5), 3),
    (slice(1, 9, 2), slice(None, None, -1)),
    (Ellipsis, 2),
    (slice(2, 8), None, 3),
    (),
]


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_slices_read_and_write_as_numpy_does(vm, numbers, key):
    data = numbers.integers(0, 1000, (12, 500)).astype(np.int32)
    array = vm.array(data, copy=True)
    found, expected = array[key], data[key]
    assert np.shape(found) == np.shape(expected) and (found == expected).all()
    data[key] = array[key] = -expected
    assert (array.numpy() == data).all()
    data[key] = array[key] = 8
    assert (array.numpy() == data).all()


def test_kernels_see_what_was_stored(vm, kernels):
    array = vm.zeros((4, 4096), np.float32)
    kernels["scale"][64, 256](array, 2).sync()
    array[1:3] = np.full((2, 4096), 4)
    kernels["scale"][64, 256](array, 2).sync()
    assert (array[1:3] == 8).all() and not array[0].any() and not array[3].any()


def test_buffers_are_exported_and_live_as_long_as_their_views(vm):
    buffer = vm.buffer(np.arange(12, dtype=np.int16).reshape(3, 4))
    assert not hasattr(buffer, "__cuda_array_interface__")
    view = np.from_dlpack(buffer)
    assert (view == np.arange(12).reshape(3, 4)).all()
    buffer.write(np.ones((3, 4), np.int16))
    assert (view == 1).all()
    buffer.close()
    vm.buffer(np.zeros(12, np.int16))
    assert (view == 1).all()


def test_a_capsule_that_nobody_takes_gives_its_memory_back(vm):
    for version in (None, (1, 0)):
        for _ in range(40):
            # 40 x 64 MiB are more than the GPU has.
            buffer = vm.buffer((16 << 20,), np.float32)
            buffer.__dlpack__(max_version=version)
            buffer.close()


def test_a_resident_array_is_exported_for_reading(vm):
    data = np.arange(10_000, dtype=np.float64)
    array = vm.array(data, read_only=True, never_evicted=True)
    assert not array.resident
    with pytest.raises(BufferError, match="not all of its pages are in GPU memory yet"):
        np.from_dlpack(array)
    assert gpuvm.ops.sum(array) == data.sum()
    assert array.resident
    view = np.from_dlpack(array)
    assert (view == data).all() and not view.flags.writeable


def test_advice_is_followed_or_said_not_to_be(vm):
    array = vm.zeros(1000)
    assert array.advise("sequential") and array.advise("normal")
    assert not array.advise("in_place") and not array.advise("in-place")
    assert array.effective.startswith("fetch, and not in-place: ")


def test_settings_and_counters_have_names():
    settings = gpuvm.settings()
    assert settings["frame_memory"].startswith("(bytes") and settings["memory"].endswith("The same as `frame_memory`.")
    assert all(what for what in settings.values()) and len(settings) > 50
    for name in ("memory", "frame_memory", "frame-memory"):
        given = {name: "64KiB", "gpu": "sim", "sim-workers": np.int64(2), "wait_limit": 2.5, "reliable_regions": False, "nics": None}
        with gpuvm.Vm(**given) as vm:
            assert vm.frames == 16 and vm.multiprocessors == 2
            arrays = [vm.array(np.ones(8), placement=how) for how in ("while-free", "while_free", "fetch")]
            assert [gpuvm.ops.sum(array) for array in arrays] == [8, 8, 8]
            with pytest.raises(gpuvm.errors.SettingError, match="placement: `home` is none of auto, fetch, in-place, while-free"):
                vm.array(np.ones(8), placement="home")
            stats = vm.stats()
            assert stats["page_bytes"] == 4096 and stats["pages_fetched"] == 3 and {"doorbells", "helped"} <= stats.keys()
            assert vm.elastic_stats()["on_demand_ns"] == 0


def test_what_was_waited_for_lets_go(vm, kernels, tmp_path):
    data = np.ones(1000, np.float32)
    for wait in (lambda launch: launch.sync(), lambda launch: launch.wait(60)):
        array = vm.array(data)
        wait(kernels["scale"][4, 256](array, 2))
        del array
        # It is home when the array goes, and nothing writes over what its owner stores from now on.
        assert (data == 2).all()
        data[:] = 1
        vm.sync()
        assert (data == 1).all()
    path = tmp_path / "data"
    data.tofile(path)
    array = vm.map_file(path, np.float32, read_only=False)
    kernels["scale"][4, 256](array, 2).sync()
    del array
    assert (np.fromfile(path, np.float32) == 2).all()


def test_what_is_lent_lives_as_long_as_the_array(vm):
    array = vm.array(np.full(3000, 5, np.float32))
    assert (array[:] == 5).all() and gpuvm.ops.sum(array) == 15_000


def test_a_vm_closes_its_arrays_and_writes_them_home(tmp_path):
    data = np.ones(50_000, np.float32)
    with gpuvm.Vm("64KiB", gpu="simulated") as vm:
        from conftest import NAMES, SCALE

        array = vm.array(data)
        # Nothing waits for it but the end.
        vm.module(SCALE, NAMES, name="tests.cu")["scale"][200, 256](array, 2)
    assert (data == 2).all() and array.closed and vm.closed


@pytest.mark.parametrize("transport", ["soft", "direct"])
def test_both_transports_of_the_simulated_gpu(transport):
    data = np.arange(90_000, dtype=np.float32)
    with gpuvm.Vm("64KiB", gpu="simulated", transport=transport, page_size="8KiB", workers=2) as vm:
        assert vm.transport == transport and vm.page_size == 8192 and vm.frames == 8 and vm.multiprocessors == 2
        assert gpuvm.ops.sum(vm.array(data, read_only=True)) == data.sum(dtype=np.float64)


def test_the_example_runs(capsys):
    example = Path(__file__).parent.parent / "examples" / "take.py"
    exec(compile(example.read_text(), str(example), "exec"), {"__name__": "__main__"})
    assert "rows" in capsys.readouterr().out
