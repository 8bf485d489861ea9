"""Wrong use: each is an error that names the thing and the cause, and nothing that was there before is lost."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

import gpuvm
from gpuvm import errors


def refused(kind, *texts):
    """The error is of this kind, and has these texts."""
    return pytest.raises(kind, match="(?s)" + ".*".join(texts))


def test_a_closed_array(vm, kernels):
    data = np.ones(5000, np.float32)
    array = vm.array(data, name="weights")
    kernels["scale"][20, 256](array, 2)
    array.close()
    array.close()
    assert (data == 2).all()
    for use in (array.numpy, array.flush, lambda: array[0], lambda: kernels["scale"][1, 32](array, 2), lambda: gpuvm.ops.sum(array)):
        with refused(errors.ClosedError, "array `weights` was closed"):
            use()


def test_a_closed_vm():
    data = np.ones(5000, np.float32)
    vm = gpuvm.Vm("64KiB", gpu="simulated")
    array, buffer, stream = vm.array(data), vm.buffer(5), vm.stream()
    kernel = vm.kernel("__global__ void nothing() {}", "nothing")
    array[0] = 5
    vm.close()
    vm.close()
    assert data[0] == 5
    for use in (vm.stats, lambda: vm.zeros(5), array.numpy, buffer.numpy, kernel[1, 1], lambda: kernel[1, 1](stream=stream), vm.sync):
        with refused(errors.ClosedError, "closed"):
            use()


def test_a_closed_buffer(vm, kernels):
    buffer = vm.buffer(8, np.uint32)
    buffer.close()
    with refused(ValueError, "a buffer of 8 x u32 was closed"):
        kernels["deaf"][1, 1](buffer)


@pytest.mark.parametrize("dtype", ["O", "U4", "M8[s]", ">f4", "f4,O"])
def test_elements_that_no_kernel_takes(vm, dtype):
    with refused(TypeError, "dtype"):
        vm.array(np.zeros(4, dtype))
    with refused(errors.DtypeError, "dtype"):
        vm.zeros(4, dtype)


def test_a_wrong_dtype_for_the_kernel(vm, kernels):
    with refused(TypeError, "kernel `scale`", "argument 1", "of f64"):
        kernels["scale"][1, 1](vm.zeros(4, np.float64), 2)


def test_memory_that_is_not_contiguous(vm):
    data = np.zeros((8, 8), np.float32)
    for part in (data[:, ::2], data.T, data[::-1]):
        with refused(errors.LayoutError, "not contiguous", "copy=True"):
            vm.array(part)
    with refused(ValueError, "not contiguous"):
        vm.array(memoryview(bytearray(10))[::2])


def test_memory_that_is_read_only(vm):
    data = np.zeros(8, np.float32)
    data.flags.writeable = False
    for source in (data, bytes(8)):
        with refused(errors.LayoutError, "its memory is read-only", "read_only=True"):
            vm.array(source)
        assert vm.array(source, read_only=True).size == 8


def test_a_source_without_memory(vm):
    for source in ([1, 2], 5, None, "text"):
        with refused(errors.DtypeError, "no memory of its own"):
            vm.array(source)


def test_memory_that_is_resized_while_it_is_lent(vm):
    source = bytearray(5000)
    array = vm.array(source)
    with refused(BufferError, "cannot be re-sized"):
        source.extend(b"more")
    data = np.zeros(100, np.float32)
    other = vm.array(data)
    with refused(ValueError, "resize"):
        data.resize(10_000_000)
    array[0], other[0] = 5, 5
    array.close()
    other.close()
    del array, other
    gc.collect()
    assert source[0] == 5 and data[0] == 5
    source.extend(b"more")


def test_things_of_another_kind(vm, kernels):
    array, launch = vm.zeros(4, name="numbers"), kernels["scale"][1, 32](vm.zeros(4), 2)
    for other in (launch, vm, kernels["scale"], vm.stream(), np.zeros(4, np.float32), "numbers"):
        with refused(TypeError, "argument 1"):
            kernels["scale"][1, 1](other, 2)
    with refused(TypeError, "argument 2"):
        kernels["scale"][1, 1](array, array)
    with refused(TypeError, "argument 1", "buffer"):
        kernels["scale"][1, 1](vm.buffer(4), 2)
    launch.sync()


def test_two_arrays_over_the_same_memory(vm):
    data = np.zeros(100, np.float32)
    array = vm.array(data, name="one")
    with refused(errors.OverlapError, "`two` overlaps region `one`"):
        vm.array(data[50:], name="two")
    array.close()
    assert vm.array(data).size == 100


def test_stores_to_what_is_read_only(vm, kernels):
    array = vm.array(np.zeros(100, np.float32), read_only=True, name="facts")
    with refused(errors.RegionError, "`facts`", "read-only"):
        array[0] = 1
    with refused(errors.ArgumentError, "read-only region `facts`", "const"):
        kernels["scale"][1, 1](array, 2)
    with refused(errors.RegionError, "`facts` is read-only"):
        gpuvm.ops.scatter_add(array, [0], np.zeros(1, np.float32))


def test_indices_and_values_that_do_not_fit(vm):
    array = vm.zeros((10, 4), np.int32, name="table")
    for key in (10, -11):
        with refused(IndexError, "out of range", "`table` has 10 rows"):
            array[key]
    with refused(TypeError, "gpuvm.ops.take"):
        array[[1, 2]]
    with refused(ValueError, "broadcast"):
        array[0] = [1, 2, 3]
    for value in (1.5, np.float32(2), np.ones(4)):
        with refused(errors.DtypeError, "would lose values"):
            array[0] = value
    with refused(OverflowError, "."):
        array[0] = 1 << 40
    assert not array.numpy().any()


def test_numbers_that_do_not_fit(vm, kernels):
    out = vm.buffer(8, np.float64)
    good = [255, -32768, 2**32 - 1, -(2**63), 2**64 - 1, 1.5, 2.5, True]
    kernels["numbers"][1, 1](*good, out).sync()
    assert (out.numpy() == np.array(good, np.float64)).all()
    for place, value in [(0, 256), (0, -1), (1, 32768), (2, 2**32), (3, 2**63), (4, 2**64), (4, -1), (5, 1e39), (6, 10**400), (7, 2)]:
        args = [*good]
        args[place] = value
        with refused(errors.ArgumentRangeError, "kernel `numbers`", f"argument {place + 1}", "does not fit"):
            kernels["numbers"][1, 1](*args, out)
    for place, value in [(0, 1.0), (5, "1"), (5, None), (2, np.int64(1)), (6, np.float32(1)), (8, np.zeros(8))]:
        args = [*good, out]
        args[place] = value
        with refused(TypeError, f"argument {place + 1}"):
            kernels["numbers"][1, 1](*args)
    exact = [np.uint8(1), np.int16(2), np.uint32(3), np.int64(4), np.uint64(5), np.float32(6), np.float64(7), np.bool_(True)]
    kernels["numbers"][1, 1](*exact, out).sync()
    assert out.numpy().tolist() == [1, 2, 3, 4, 5, 6, 7, 1]


def test_too_few_arguments_and_shapes_that_cannot_be(vm, kernels):
    array = vm.zeros(4)
    with refused(errors.ArgumentError, "1 arguments were given", "2"):
        kernels["scale"][1, 1](array)
    for grid, block in [((1, 1, 1, 1), 1), (1, ())]:
        with refused(errors.LayoutError, "one to three lengths"):
            kernels["scale"][grid, block](array, 2)
    for grid, block in [(0, 1), (1, 0), (-1, 1), (1 << 40, 1), (1.5, 1), (None, 1), (1, "64"), (True, 1)]:
        with refused(errors.LayoutError, "a length of", "expected a whole number from 1"):
            kernels["scale"][grid, block](array, 2)
    for setting in ("shared", "thread_spans", "warp_spans", "deadline"):
        for value in (-1, "4"):
            with refused(errors.SettingError, f"{setting} is {value!r}"):
                kernels["scale"].launch(1, 1, array, 2, **{setting: value})
    with refused(errors.LaunchError, "scale"):
        kernels["scale"][1, 4096](array, 2)
    with refused(errors.LayoutError, "kernel\\[grid, block\\]"):
        kernels["scale"][1]
    with refused(errors.SpansError, "frames"):
        kernels["scale"].launch(4, 128, array, 2, thread_spans=100)


def test_source_that_does_not_compile_and_kernels_that_are_not_there(vm):
    with refused(errors.CompileError, "kernels.cu", "nonsense"):
        vm.kernel("__global__ void f() { nonsense; }", "f")
    with refused(LookupError, "no kernel named `g`"):
        vm.kernel("__global__ void f() {}", "g")
    with refused(errors.KernelNotFoundError, "h", "it has: f"):
        vm.module("__global__ void f() {}", ["f"])["h"]
    with refused(ValueError, "expected a list of names"):
        vm.module("__global__ void f() {}", "f")
    with refused(errors.SettingError, "expected a list of names"):
        vm.load(b".version 8.0", "f")
    with refused(errors.FileError, "no-such.cubin", "No such file"):
        vm.load("no-such.cubin", ["f"])
    with refused(errors.UnavailableError, "compiles their source"):
        vm.load(b".version 8.0", ["f"])


def test_an_index_past_the_end_in_a_kernel(vm, kernels):
    launch = kernels["past"][1, 1](vm.array(np.zeros(10, np.float32), read_only=True, name="short"), vm.buffer(1))
    with refused(IndexError, "index 10", "short"):
        launch.sync()
    # The Vm goes on.
    assert gpuvm.ops.sum(vm.array(np.ones(10, np.float32))) == 10


def test_an_error_that_nobody_waited_for(vm, kernels):
    array = vm.array(np.zeros(10, np.float32), read_only=True, name="short")
    kernels["past"][1, 1](array, vm.buffer(1))
    with refused(errors.IndexFaultError, "short"):
        vm.sync()
    vm.sync()


def test_settings_that_cannot_be():
    for settings, text in [
        ({"memory": "lots"}, "memory is `lots`"),
        ({"memory": 0}, "memory is `0`"),
        ({"memory": "4KiB", "page_size": 5000}, "page"),
        ({"gpu": "cuda:x"}, "gpu"),
        ({"gpu": "simulated", "transport": "pigeon"}, "transport"),
        ({"gpu": "simulated", "launch_deadline": -1}, "launch_deadline"),
        ({"gpu": "simulated", "launch_deadline": "soon"}, "launch_deadline is `soon`: expected seconds"),
        ({"gpu": "simulated", "launch_deadline": [5]}, r"launch_deadline is \[5\]: expected seconds"),
        ({"gpu": 0}, "gpu is 0: expected a text"),
        ({"gpu": "simulated", "workers": 0}, "workers is `0`"),
        ({"gpu": "simulated", "workers": "two"}, "workers is `two`"),
        ({"gpu": "simulated", "workers": True}, "workers is `true`"),
        ({"gpu": "simulated", "workers": 2, "sim_workers": 2}, "set twice"),
        ({"gpu": "sim,sim"}, "one GPU in Python"),
        ({"gpu": "simulated", "workers": 2, "transport": "mlx5"}, "."),
        ({"gpu": "simulated", "timeline": 5}, "timeline is 5: expected a text"),
        ({"gpu": "simulated", "timeline": "t.json", "timeline_one_in": 0}, "timeline_one_in is `0`"),
        ({"gpu": "simulated", "timeline_one_in": 2}, "it requires `timeline`"),
        ({"gpu": "simulated", "file_cache_on_gpu": True}, "it requires `file_cache`"),
    ]:
        with refused((errors.SettingError, errors.UnavailableError), text):
            gpuvm.Vm(**settings)
    with pytest.raises(TypeError, match="no setting is named `regions`: it is `regions_max`"):
        gpuvm.Vm(regions=2)
    with refused((errors.UnavailableError, errors.GpuError), "cuda:99"):
        gpuvm.Vm(gpu="cuda:99")


def test_files_that_are_not_what_was_said(vm, tmp_path):
    path = tmp_path / "data"
    path.write_bytes(bytes(10))
    with refused(OSError, "nothing"):
        vm.map_file(tmp_path / "nothing")
    with refused(errors.RegionError, "10 bytes"):
        vm.map_file(path, np.float32)
    with refused(ValueError, "shape"):
        vm.map_file(path, np.uint8, (3, 4))


def test_another_librarys_stream(vm, kernels):
    class Foreign:
        def __cuda_stream__(self):
            return 0, 12345

    array = vm.array(np.ones(10, np.float32))
    with refused(NotImplementedError, "cannot take a CUDA stream: it is simulated"):
        kernels["scale"][1, 32](array, 2, stream=Foreign())
    Foreign.__cuda_stream__ = lambda self: (1, 12345)
    with refused(errors.StreamError, "version 1 of the CUDA stream protocol"):
        kernels["scale"][1, 32](array, 2, stream=Foreign())
    with refused(TypeError, "stream is neither"):
        kernels["scale"][1, 32](array, 2, stream="5")
    with refused(NotImplementedError, "cannot take a CUDA stream: it is simulated"):
        kernels["scale"][1, 32](array, 2, stream=5)
    with refused(errors.ArgumentError, "stream is -1: expected a whole number"):
        kernels["scale"][1, 32](array, 2, stream=-1)
    kernels["scale"][1, 32](array, 2, stream=vm.stream()).sync()
    assert (array.numpy() == 2).all()


def test_plain_memory_that_is_none(vm):
    array = vm.zeros(10)
    for use in (lambda: np.from_dlpack(array), lambda: array.__dlpack__()):
        with refused(BufferError, "its pages come and go", "never_evicted"):
            use()
    with refused(BufferError, "never reach its home"):
        np.from_dlpack(vm.zeros(10, never_evicted=True))
    with refused(BufferError, "device"):
        vm.buffer(10).__dlpack__(dl_device=(2, 0))
    assert not array.resident and not hasattr(array, "__cuda_array_interface__")
    with refused(AttributeError, "simulated"):
        vm.buffer(3).__cuda_array_interface__


def test_arrays_of_another_vm(vm, kernels):
    with gpuvm.Vm("64KiB", gpu="simulated") as other:
        array = other.zeros(10)
        with refused(errors.ArgumentError, "."):
            kernels["scale"][1, 1](array, 2).sync()
        with refused(errors.ArgumentError, "another Vm"):
            gpuvm.ops.take(vm.zeros(4), [0], out=other.buffer(1))


def test_an_exception_in_the_middle(kernels):
    data = np.ones(100_000, np.float32)
    with pytest.raises(RuntimeError, match="in the middle"), gpuvm.Vm("64KiB", gpu="simulated") as vm:
        array = vm.array(data)
        array[5] = 7
        gpuvm.ops.scatter_add(array, np.arange(100_000), np.ones(100_000, np.float32))
        raise RuntimeError("in the middle")
    assert data[5] == 8 and data[6] == 2 and vm.closed


def test_many_threads(vm, kernels):
    data = np.ones(200_000, np.float32)
    array, failures = vm.array(data, name="shared"), []

    def use():
        try:
            for _ in range(5):
                kernels["scale"][100, 256](array, 1).sync()
                array[100:200]
                gpuvm.ops.take(array, [5, 6]).numpy()
        except errors.ClosedError:
            pass
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    array.close()
    for thread in threads:
        thread.join(60)
    assert not failures and not any(thread.is_alive() for thread in threads)
    assert (data == 1).all()


def test_others_go_on_while_one_waits(vm, kernels):
    launch = kernels["endless"][1, 1](vm.zeros(4), vm.buffer(1, np.uint32))
    waits = threading.Thread(target=lambda: pytest.raises(errors.Error, launch.sync))
    waits.start()
    assert not launch.done and not launch.wait(0.05)
    launch.abort()
    waits.join(30)
    assert not waits.is_alive() and launch.done


@pytest.mark.parametrize("kernel", ["endless", "deaf"])
def test_an_interrupt_stops_what_is_waited_for(vm, kernels, kernel):
    data = np.ones(10_000, np.float32)
    array, ticks = vm.array(data), vm.buffer(1, np.uint32)
    array[7] = 9
    args = (array, ticks) if kernel == "endless" else (ticks,)
    launch = kernels[kernel][1, 32](*args)
    timer = threading.Timer(0.3, lambda: signal.raise_signal(signal.SIGINT))
    timer.start()
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        launch.sync()
    timer.join()
    assert time.monotonic() - begun < 20 and launch.done
    array.flush()
    assert data[7] == 9
    assert gpuvm.ops.sum(array) == 10_008


def test_an_interrupt_while_an_array_waits_for_its_launches(vm, kernels):
    array = vm.zeros(4)
    kernels["endless"][1, 1](array, vm.buffer(1, np.uint32))
    timer = threading.Timer(0.2, lambda: signal.raise_signal(signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        array.numpy()
    timer.join()
    assert not array.numpy().any()


@pytest.mark.parametrize("kernel", ["endless", "deaf"])
def test_an_interrupt_at_the_end_stops_all_launches(vm, kernels, kernel):
    data = np.ones(10_000, np.float32)
    array, ticks = vm.array(data), vm.buffer(1, np.uint32)
    array[7] = 9
    args = (array, ticks) if kernel == "endless" else (ticks,)
    for stream in (None, None, vm.stream()):
        kernels[kernel].launch(1, 1, *args, stream=stream)
    timer = threading.Timer(0.3, lambda: signal.raise_signal(signal.SIGINT))
    timer.start()
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        vm.close()
    timer.join()
    assert time.monotonic() - begun < 20 and vm.closed
    assert data[7] == 9


def test_a_deadline(vm, kernels):
    launch = kernels["deaf"][1, 1](vm.buffer(1, np.uint32), deadline=0.2)
    with refused(errors.Error, "deaf"):
        launch.sync()
    for timeout in (-1, "1", None):
        with refused(errors.SettingError, "timeout is"):
            launch.wait(timeout)


FORK = """
    import os, sys, numpy as np, gpuvm
    data = np.ones(5000, np.float32)
    vm = gpuvm.Vm("64KiB", gpu="simulated")
    array, buffer = vm.array(data, name="parents"), vm.buffer(4)
    child = os.fork()
    if child == 0:
        refused = 0
        for use in (vm.stats, array.numpy, buffer.numpy, array.close, vm.close, lambda: vm.zeros(4), lambda: gpuvm.ops.sum(array)):
            try:
                use()
            except gpuvm.errors.ForkError as error:
                refused += "fork" in str(error)
        del array, buffer
        with gpuvm.Vm("64KiB", gpu="simulated") as own:
            assert gpuvm.ops.sum(own.array(data)) == 5000
        # An ordinary end, which runs what Python runs at its end.
        sys.exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    array[0] = 3
    vm.close()
    assert data[0] == 3
    print("parent goes on")
"""


def run(text, **settings):
    """Runs a program of its own."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)], capture_output=True, text=True, timeout=100, env={**os.environ, **settings}
    )


def test_a_fork():
    done = run(FORK)
    assert done.returncode == 0 and "parent goes on" in done.stdout, done.stderr


def test_the_end_of_the_interpreter_with_everything_open():
    done = run(
        """
        import numpy as np, gpuvm
        vm = gpuvm.Vm("64KiB", gpu="simulated")
        array = vm.array(np.ones(5000, np.float32))
        kernel = vm.kernel("__global__ void nothing() {}", "nothing")
        launch, stream = kernel[1, 1](), vm.stream()
        view = np.from_dlpack(vm.buffer(8))
        print("end")
        """
    )
    assert done.returncode == 0 and done.stdout == "end\n" and not done.stderr, done.stderr


def test_ready_operations_need_no_compiler(tmp_path):
    """Of an installed wheel; the package of the source tree has no compiled kernels."""
    if os.path.exists(os.path.join(os.path.dirname(gpuvm.__file__), "..", "pyproject.toml")):
        pytest.skip("this package is not an installed wheel")
    done = run(
        """
        import numpy as np, gpuvm
        for transport, capacity in [("soft", None), ("direct", None), ("soft", "1MiB"), ("direct", "1MiB")]:
            with gpuvm.Vm("64KiB", gpu="simulated", transport=transport, frame_capacity=capacity) as vm:
                for name in gpuvm.ops.KERNELS:
                    gpuvm.ops.module(vm, name)
                assert gpuvm.ops.sum(vm.array(np.ones(5000, np.float32))) == 5000
                try:
                    vm.kernel("__global__ void own() {}", "own")
                except gpuvm.errors.CompileError as error:
                    print(error)
        """,
        GPUVM_CXX="no-such-compiler",
        GPUVM_CACHE_DIR=str(tmp_path),
    )
    assert done.returncode == 0 and done.stdout.count("no C++ compiler") == 4, done.stderr


def test_masks_are_refused_and_matrices_are_arrays(vm, kernels):
    masked = np.ma.array(np.arange(6.0), mask=[0, 1, 0, 0, 1, 0])
    target, buffer = vm.array(np.zeros(6), name="target"), vm.buffer(6, np.float64)
    calls = (
        lambda: vm.array(masked),
        lambda: vm.array(masked, copy=True),
        lambda: vm.buffer(masked),
        lambda: buffer.write(masked),
        lambda: target.__setitem__(slice(None), masked),
        lambda: gpuvm.ops.take(target, np.ma.array([0, 1], mask=[0, 1])),
    )
    for call in calls:
        with refused(errors.LayoutError, "masked array", "filled"):
            call()
    # A mask that hides nothing changes nothing.
    assert gpuvm.ops.sum(vm.array(np.ma.array(np.arange(6.0)))) == 15.0
    matrix = np.matrix([[1.0, 2.0], [3.0, 4.0]])
    for copy in (False, True):
        array = vm.array(matrix, copy=copy)
        assert array.shape == (2, 2) and array.numpy().tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert vm.buffer(matrix).numpy().tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_code_that_others_may_have_written_is_not_loaded(vm, tmp_path):
    image = tmp_path / "kernels.ptx"
    image.write_text(".version 8.0")
    image.chmod(0o666)
    with refused(errors.FileError, "kernels.ptx", "chmod o-w"):
        vm.load(image, ["f"])
    image.chmod(0o644)
    with refused(errors.UnavailableError, "compiles their source"):
        vm.load(os.fsencode(image).decode(), ["f"])
