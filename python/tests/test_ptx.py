"""Kernels that know nothing of gpuvm: PTX of nvcc, and kernels of Triton as they are."""

from __future__ import annotations

import pathlib
import re
import runpy
import sys

import numpy as np
import pytest

import conftest
import gpuvm

#: Of plain pointers, by nvcc.
PLAIN = pathlib.Path(__file__).parents[2] / "ptx" / "tests" / "inputs" / "plain.ptx"
N = 150_000


@pytest.fixture
def vm(request):
    """As the others', with pages that GPU threads copy themselves, unless a test asks for another transport."""
    with gpuvm.Vm(conftest.SMALL, gpu=conftest.GPU, transport=getattr(request, "param", "direct")) as made:
        yield made


#: Pages that are looked up, and those that come by faults.
each_transport = pytest.mark.parametrize("vm", ["direct", "soft"], indirect=True)



def arrays(vm, numbers, count=2, **how):
    data = [numbers.integers(-99, 99, N).astype(np.float32) for _ in range(count)]
    return data, [vm.array(one.copy(), **how) for one in data]


@pytest.mark.parametrize("placement", ["fetch", "auto", "look-up", "in-place"])
def test_a_kernel_of_nvcc_takes_arrays_of_any_placement(vm, numbers, placement):
    (x, y), (of_x, of_y) = arrays(vm, numbers, placement=placement)
    axpy = vm.load_ptx(PLAIN)["axpy"]
    assert axpy.parameters == [".u64", ".u64", ".f32", ".u64"]
    for factor in (2.0, 0.5, -3):
        axpy[40, 128](of_x, of_y, factor, N).sync()
        y += np.float32(factor) * x
        assert (of_y.numpy() == y).all()
        # What the host stores counts.
        of_x[3:9] = 7
        x[3:9] = 7
    total = vm.buffer(1, np.float64)
    vm.load_ptx(PLAIN.read_text())["total"][8, 256](of_y, N, total).sync()
    assert total.numpy()[0] == y.sum(dtype=np.float64)


def test_a_kernel_of_numba_is_called_by_hand(vm, numbers):
    (x, y), (of_x, of_y) = arrays(vm, numbers)
    # What Numba makes of an array: two owners, length, size of an element, address, shape, strides.
    array = lambda data: (0, 0, N, 4, data, N, 4)  # noqa: E731
    vm.load_ptx(PLAIN.with_name("numba_axpy.ptx"))["axpy"][(N + 255) // 256, 256](*array(of_x), *array(of_y), 2.0).sync()
    assert (of_y.numpy() == y + 2 * x).all()


def test_kernels_of_cub_reduce_and_scan(vm, numbers):
    """What CUB's host code launches for `cub.cu`, with its own structures, of which the scan's blocks wait for each other."""
    x = numbers.integers(-9, 99, N).astype(np.float32)
    of_x, out = vm.array(x.copy(), read_only=True), vm.zeros(N, np.float32)
    text = PLAIN.with_name("cub.ptx").read_text()
    module = vm.load_ptx(text, name="cub.ptx")
    last = next(name for name in re.findall(r"\.entry (\w+)", text) if "SingleTile" in name and "EPfSC_i" in name)
    shares = np.zeros((), [("tiles", "i4"), ("big", "i4", 3), ("base", "i4"), ("items", "u4"), ("grid", "i4"), ("block", "i4", 3)])[()]
    for name in ("DeviceReduceKernel", last, "DeviceScanInitKernel", "DeviceScanKernel"):
        assert module[name].at_home is None, "each access looks its page up"
    blocks = shares["grid"] = -(-N // 4096)
    shares["items"] = N
    parts, total, operator = vm.buffer(blocks), vm.buffer(1), np.uint8(0)
    module["DeviceReduceKernel"][blocks, 256](of_x, parts, np.uint32(N), shares, operator, operator)
    module[last][1, 256](parts, total, np.int32(blocks), operator, np.float32(0), operator).sync()
    assert total.numpy()[0] == x.sum(dtype=np.float64)
    tiles = -(-N // (288 * 8))
    tile_states = vm.buffer(32 + tiles, np.uint64)
    module["DeviceScanInitKernel"][-(-tiles // 128), 128](tile_states, tiles)
    module["DeviceScanKernel"][tiles, 288](of_x, out, tile_states, 0, operator, operator, np.uint32(N)).sync()
    assert (out.numpy() == x.cumsum(dtype=np.float64)).all()


def test_kernels_are_found_in_what_nvcc_builds(vm, numbers, tmp_path):
    (x, y), (of_x, of_y) = arrays(vm, numbers)
    # A program, as far as who looks for kernels is concerned: something before and behind them.
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF" + bytes(100) + PLAIN.with_suffix(".fatbin").read_bytes() + bytes(100))
    vm.load_ptx(program)["axpy"][40, 128](of_x, of_y, 2.0, N).sync()
    assert (of_y.numpy() == y + 2 * x).all()
    with pytest.raises(gpuvm.errors.GpuError, match="it has no PTX: compile it with"):
        vm.load_ptx("/bin/true")
    with pytest.raises(gpuvm.errors.GpuError, match="cut off or damaged"):
        vm.load_ptx(program.read_bytes()[:500])


def test_numbers_become_what_the_text_says(vm, numbers):
    (_, _), (x, y) = arrays(vm, numbers)
    module = vm.load_ptx(PLAIN.read_bytes(), name="mine.ptx")
    axpy = module["axpy"]
    for args, what in [
        ((x, y, 1.0), "3 arguments were given, it takes 4"),
        ((x, y, 1.0, 2.5), r"float was given for `.u64`"),
        ((x, y, "1", N), r"str was given for `.f32`"),
        ((x, y, None, N), r"NoneType was given for `.f32`"),
        ((x, y, x, N), "has 8 bytes, for a parameter of 4"),
        ((x, y, np.float64(1), N), "has 8 bytes, for a parameter of 4"),
    ]:
        with pytest.raises(gpuvm.errors.ArgumentError, match=what):
            axpy[1, 32](*args)
    with pytest.raises(OverflowError, match="does not fit `.u64`"):
        axpy[1, 32](x, y, 1.0, 1 << 64)
    with pytest.raises(OverflowError, match="does not fit `.f32`"):
        axpy[1, 32](x, y, 1e39, N)
    # Pointers that are not used: no element is.
    axpy[1, 32](None, 0, np.float32(1), np.uint64(0)).sync()


def test_what_is_wrong_is_told(vm, numbers, tmp_path):
    with pytest.raises(gpuvm.errors.GpuError, match=r"mine.ptx(.|\n)*line 2"):
        vm.load_ptx(".version 8.0\nnothing\n", name="mine.ptx")
    with pytest.raises(gpuvm.errors.FileError, match="no.ptx"):
        vm.load_ptx("no.ptx")
    with pytest.raises(gpuvm.errors.FileError):
        vm.load_ptx(tmp_path)
    with pytest.raises(gpuvm.errors.KernelNotFoundError, match="subtract(.|\n)*axpy"):
        vm.load_ptx(PLAIN)["subtract"]
    # Its pages come by faults, one of which this one is.
    whole = vm.array(np.ones(9, np.float32), name="whole", never_evicted=True)
    axpy = vm.load_ptx(PLAIN)["axpy"]
    axpy[1, 32](whole, whole, 1.0, 9).sync()
    assert (whole.numpy() == 2).all()
    with pytest.raises(gpuvm.errors.FaultError, match="`whole`"):
        axpy[1, 32](whole, whole, 1.0, 10).sync()


@each_transport
def test_arrays_behind_a_nic_are_taken(vm):
    x = np.arange(N, dtype=np.float32)
    paged, out = vm.array(x), vm.zeros(N, np.float32)
    axpy = vm.load_ptx(PLAIN)["axpy"]
    for turn in (1, 2):
        axpy[3, 64](paged, out, 2.0, N).sync()
        assert (out.numpy() == 2 * turn * x).all()


@pytest.mark.parametrize("name", ["take", "triton_kernel", "numba_kernel", "cupy_kernel"])
def test_examples_run(name, capsys):
    library = name.split("_")[0]
    if library != name:
        pytest.importorskip(library, reason=f"{library} is not installed")
    runpy.run_path(str(PLAIN.parents[3] / "python" / "examples" / f"{name}.py"), run_name="__main__")
    assert "iB" in capsys.readouterr().out


class TestTriton:
    """Triton's own kernels, launched as ever."""

    @pytest.fixture(autouse=True)
    def triton(self):
        triton = pytest.importorskip("triton", reason="Triton is not installed")
        import gpuvm.triton  # noqa: F401 - makes launches take arrays

        sys.path.insert(0, str(PLAIN.parent))
        return triton

    @each_transport
    def test_tutorial_kernels(self, vm, numbers):
        import triton_kernels as kernels

        (x, y), (of_x, of_y) = arrays(vm, numbers)
        out = vm.zeros(N, np.float32)
        for _ in range(3):
            kernels.add[lambda meta: (-(-N // meta["BLOCK"]),)](of_x, of_y, out, N, BLOCK=1024)
            assert (out.numpy() == x + y).all()
            of_x[5] = x[5] = x[5] + 1
        rows, columns = 150, 1000
        kernels.softmax[(rows,)](of_x, out, columns, BLOCK=1024)
        wide = x.reshape(rows, columns).astype(np.float64)
        wide = np.exp(wide - wide.max(1, keepdims=True))
        np.testing.assert_allclose(out.numpy().reshape(rows, columns), wide / wide.sum(1, keepdims=True), rtol=1e-5, atol=1e-9)
        kernels.layer_norm[(rows,)](of_x, of_y, of_y, out, columns, 1e-5, BLOCK=1024)
        wide = x.reshape(rows, columns).astype(np.float64)
        wide = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
        np.testing.assert_allclose(out.numpy().reshape(rows, columns), wide * y[:columns] + y[:columns], rtol=1e-4, atol=1e-3)

    @each_transport
    def test_attention(self, vm, numbers):
        import triton_kernels as kernels

        heads, length, width = 2, 128, 64
        given = [numbers.standard_normal((heads, length, width)).astype(np.float16) for _ in range(3)]
        q, k, v = (vm.array(one.copy(), read_only=True) for one in given)
        out = vm.zeros((heads, length, width), np.float16)
        launch = kernels.attention[(length // 64, heads)](q, k, v, out, 0.125, length, ROWS=64, COLUMNS=32, WIDTH=width)
        launch.sync()
        q, k, v = (one.astype(np.float64) for one in given)
        weights = np.exp(q @ k.transpose(0, 2, 1) * 0.125)
        np.testing.assert_allclose(out.numpy(), weights @ v / weights.sum(2, keepdims=True), rtol=1e-2, atol=2e-3)

    def test_what_cannot_be_launched_is_told(self, vm, numbers):
        import triton_kernels as kernels

        (_, _), (x, y) = arrays(vm, numbers)
        with gpuvm.Vm("64KiB", gpu="sim") as other:
            foreign = other.zeros(N, np.float32)
            with pytest.raises(gpuvm.errors.ArgumentError, match="several Vms"):
                kernels.add[(1,)](x, foreign, y, N, BLOCK=1024)

    def test_plain_kernels_stay_plain(self, vm, numbers):
        torch = pytest.importorskip("torch", reason="PyTorch is not installed")
        if vm.simulated:
            pytest.skip("tensors on a GPU need one")
        import triton_kernels as kernels

        (x, y), (of_x, _) = arrays(vm, numbers)
        tensors = [torch.from_numpy(one).cuda() for one in (x, y)]
        out = torch.zeros(N, device="cuda")
        for _ in range(2):
            kernels.add[(-(-N // 1024),)](*tensors, out, N, BLOCK=1024)
            assert torch.equal(out.cpu(), torch.from_numpy(x + y))
            # A paged array beside tensors, on PyTorch's stream.
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                ours = torch.zeros(N, device="cuda")
                kernels.add[(-(-N // 1024),)](of_x, tensors[1], ours, N, BLOCK=1024)
                doubled = ours * 2
            stream.synchronize()
            assert torch.equal(doubled.cpu(), torch.from_numpy((x + y) * 2))
        bfloats = vm.array((tensors[0].to(torch.bfloat16)).view(torch.int16).cpu().numpy().view(np.uint16))
        bfloats.stored = "BF16"
        kernels.add[(-(-N // 1024),)](bfloats, tensors[1], out, N, BLOCK=1024)
        assert torch.equal(out.cpu(), torch.from_numpy(x).to(torch.bfloat16).float() + torch.from_numpy(y))

    def test_results_are_those_of_plain_launches(self, vm, numbers):
        """Bit for bit, over more pages than there are frames."""
        torch = pytest.importorskip("torch", reason="PyTorch is not installed")
        if vm.simulated:
            pytest.skip("tensors on a GPU need one")
        import triton_kernels as kernels

        def compared(kernel, grid, given, out, *rest, **constants):
            plain = torch.zeros(out.shape, dtype=getattr(torch, out.dtype.name), device="cuda")
            kernel[grid](*(torch.from_numpy(one).cuda() for one in given), plain, *rest, **constants)
            launch = kernel[grid](*(vm.array(one.copy(), read_only=True) for one in given), out, *rest, **constants)
            launch.sync()
            plain = plain.cpu().numpy()
            assert plain.any() and out.numpy().tobytes() == plain.tobytes(), kernel.fn.__name__

        rows, columns = 300, 1000
        x, y = (numbers.standard_normal((rows, columns)).astype(np.float32) for _ in range(2))
        compared(kernels.add, (-(-x.size // 1024),), [x, y], vm.zeros(x.shape), x.size, BLOCK=1024)
        compared(kernels.softmax, (rows,), [x], vm.zeros(x.shape), columns, BLOCK=1024)
        compared(kernels.layer_norm, (rows,), [x, y[0], y[1]], vm.zeros(x.shape), columns, 1e-5, BLOCK=1024)
        a, b = (numbers.standard_normal((512, 512)).astype(np.float16) for _ in range(2))
        compared(kernels.matmul, (8, 8), [a, b], vm.zeros(a.shape), 512, 512, 512, 512, M=64, N=64, TILE=32)
        heads = [numbers.standard_normal((4, 1024, 64)).astype(np.float16) for _ in range(3)]
        out = vm.zeros((4, 1024, 64), np.float16)
        compared(kernels.attention, (16, 4), heads, out, 0.125, 1024, ROWS=64, COLUMNS=32, WIDTH=64)

    def test_operators_in_compiled_functions(self, vm, numbers):
        """A kernel over an array is the body of an operator, which torch.compile calls as it is."""
        torch = pytest.importorskip("torch", reason="PyTorch is not installed")
        if vm.simulated:
            pytest.skip("tensors on a GPU need one")
        import triton_kernels as kernels

        (x, y), (of_x, _) = arrays(vm, numbers)

        @torch.library.custom_op("gpuvm_tests::add_paged", mutates_args=(), schema="(Tensor other) -> Tensor")
        def add_paged(other):
            out = torch.empty_like(other)
            kernels.add[(-(-N // 1024),)](of_x, other, out, N, BLOCK=1024)
            return out

        add_paged.register_fake(torch.empty_like)
        compiled = torch.compile(lambda other: add_paged(other * 2) + 1)
        for _ in range(2):
            assert torch.equal(compiled(torch.from_numpy(y).cuda()).cpu(), torch.from_numpy(x + 2 * y + 1))

    def test_autotuned_kernels_are_tuned_over_arrays(self, triton, vm, numbers):
        if vm.simulated:
            pytest.skip("the simulated GPU's times say nothing")
        import triton_kernels as kernels

        configs = [triton.Config({"BLOCK": block}, num_warps=warps) for block, warps in [(256, 2), (1024, 4), (2048, 8)]]
        tuned = triton.autotune(configs, key=["n"])(kernels.add)
        (x, y), (of_x, of_y) = arrays(vm, numbers)
        out = vm.zeros(N, np.float32)
        for _ in range(2):
            tuned[lambda meta: (-(-N // meta["BLOCK"]),)](of_x, of_y, out, N)
            assert (out.numpy() == x + y).all()
        assert tuned.best_config.kwargs["BLOCK"] in (256, 1024, 2048)
