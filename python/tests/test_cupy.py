"""Kernels of CuPy as they are."""

from __future__ import annotations

import conftest
import numpy as np
import pytest

import gpuvm

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")

import gpuvm.cupy  # noqa: E402

N = 150_000


@pytest.fixture
def vm():
    """As the others', with pages that GPU threads copy themselves."""
    with gpuvm.Vm(conftest.SMALL, gpu=conftest.GPU, transport="direct") as made:
        yield made


def test_raw_kernels(vm, numbers):
    source = r"""
    extern "C" __global__ void scale(const float* x, float* out, float by, long long n) {
        long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
        if (i < n) out[i] = x[i] * by;
    }
    template <class T> __global__ void square(const T* x, T* out, long long n) {
        long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
        if (i < n) out[i] = x[i] * x[i];
    }"""
    x = numbers.integers(-99, 99, N).astype(np.float32)
    of_x, out, blocks = vm.array(x.copy()), vm.zeros(N, np.float32), ((N + 255) // 256,)
    scale = gpuvm.cupy.paged(cupy.RawKernel(source, "scale"))
    for by in (2, 3):
        scale(blocks, (256,), (of_x, out, np.float32(by), N))
        assert (out.numpy() == x * by).all()
    module = cupy.RawModule(code=source, name_expressions=["square<float>", "square<double>"])
    with pytest.raises(gpuvm.errors.CompileError, match="nothing"):
        gpuvm.cupy.paged(cupy.RawKernel('extern "C" __global__ void k() { nothing(); }', "k"))((1,), (1,), (of_x,))
    if vm.simulated:
        return
    square = gpuvm.cupy.paged(module.get_function("square<float>"))
    square(blocks, (256,), (of_x, out, N))
    assert (out.numpy() == x * x).all()
    # CuPy's own memory beside it, on its stream.
    theirs = cupy.zeros(N, np.float32)
    with cupy.cuda.Stream():
        scale(blocks, (256,), (of_x, theirs, 4.0, N))
        assert (cupy.asnumpy(theirs + 1) == x * 4 + 1).all()
    with pytest.raises(gpuvm.errors.ArgumentError, match="arrays of 0 Vms"):
        scale(blocks, (256,), (theirs, theirs, 1.0, N))


class TestElementwise:
    def test_arrays_and_numbers(self, vm, numbers):
        x, y = (numbers.integers(-99, 99, (300, 500)).astype(np.float32) for _ in range(2))
        of_x, of_y = vm.array(x.copy(), read_only=True), vm.array(y.copy())
        squared = cupy.ElementwiseKernel("T x, T y, float32 by", "T z", "z = (x - y) * (x - y) + by", "squared_difference")
        squared = gpuvm.cupy.paged(squared)
        out = squared(of_x, of_y, 2)
        assert out.shape == x.shape and (out.numpy() == (x - y) ** 2 + 2).all()
        # Into an array that is there, which is an input too.
        assert squared(of_x, of_y, 0, of_y) is of_y
        assert (of_y.numpy() == (x - y) ** 2).all()
        # Another type of T is another kernel.
        wide = vm.array(x.astype(np.float64))
        assert (squared(wide, wide, 1).numpy() == 1).all() and squared(wide, 0.5, 0).dtype == np.float64

    def test_broadcasting_and_several_outputs(self, vm, numbers):
        x, row, column = numbers.integers(-99, 99, (30, 500)), numbers.integers(-99, 99, 500), numbers.integers(-99, 99, (30, 1))
        both = gpuvm.cupy.paged(cupy.ElementwiseKernel("T x, T y", "T sum, bool less", "sum = x + y; less = x < y", "both"))
        for other in (row, column, column[0]):
            sum, less = both(vm.array(x), vm.array(other.copy()))
            assert (sum.numpy() == x + other).all() and (less.numpy() == (x < other)).all()
        sum, less = both(vm.array(row), vm.array(column))
        assert (sum.numpy() == row + column).all()

    def test_raw_arrays_the_index_and_what_surrounds_the_loop(self, vm, numbers):
        x = numbers.standard_normal((40, 500))
        kernel = cupy.ElementwiseKernel(
            "raw T x, raw S at, int64 columns",
            "T out",
            "const ptrdiff_t where[] = {at[i % 40], i / 40}; out = scale * twice(x[where]) + i",
            "gathered",
            preamble="template <class T> __device__ T twice(T x) { return 2 * x; }",
            loop_prep="const double scale = _ind.size() == 20000 ? 0.5 : 0",
        )
        at = numbers.permutation(40).astype(np.int16)
        out = vm.zeros(20_000, np.float64)
        gpuvm.cupy.paged(kernel)(vm.array(x), vm.array(at), 500, out)
        assert (out.numpy().reshape(500, 40) == x[at].T + np.arange(20_000).reshape(500, 40)).all()
        halves = cupy.ElementwiseKernel("raw float16 x, complex64 by", "raw complex64 y", "y[i] = (float)x[i] * by", "halves", no_return=True)
        half, out = numbers.standard_normal(999).astype(np.float16), vm.zeros(999, np.complex64)
        assert gpuvm.cupy.paged(halves)(vm.array(half), 1 - 2j, out, size=999) is None
        np.testing.assert_allclose(out.numpy(), half.astype(np.float32) * (1 - 2j), rtol=1e-6)

    def test_what_cannot_be_launched_is_told(self, vm):
        add = gpuvm.cupy.paged(cupy.ElementwiseKernel("T x, T y", "T z", "z = x + y", "add"))
        raw = gpuvm.cupy.paged(cupy.ElementwiseKernel("raw T x", "T y", "y = x[i]", "raw"))
        x, wide = vm.zeros(9, np.float32), vm.zeros(9, np.float64)
        for call, what in [
            (lambda: add(x), "1 arguments were given, it takes 2, or 3"),
            (lambda: add(x, np.zeros(9, np.float32)), "`y`, is an object of type ndarray"),
            (lambda: add(x, wide), "`y` is float32, and an array of float64 was given"),
            (lambda: add(x, vm.zeros(8, np.float32)), "cannot be broadcast"),
            (lambda: add(x, x, vm.zeros((1, 9), np.float32)), None),
            (lambda: add(x, x, vm.array(np.zeros(9, np.float32), read_only=True)), "argument 3, `z`, is written"),
            (lambda: raw(x), "say size="),
            (lambda: add(1, 2), "arrays of 0 Vms"),
        ]:
            if what is None:
                assert call().shape == (1, 9)
                continue
            with pytest.raises(gpuvm.Error, match=what):
                call()


class TestReduction:
    def test_all_of_it_and_along_axes(self, vm, numbers):
        x = numbers.integers(-9, 9, (30, 50, 70)).astype(np.float32)
        of_x = vm.array(x.copy(), read_only=True)
        norm = gpuvm.cupy.paged(cupy.ReductionKernel("T x", "T y", "x * x", "a + b", "y = sqrt(a)", "0", "l2norm"))
        for axis in (None, 0, 1, -1, (0, 2), (1, 2), (2, 0, 1)):
            wanted = np.sqrt((x.astype(np.float64) ** 2).sum(axis=axis))
            found = norm(of_x, axis=axis)
            assert found.shape == wanted.shape and found.dtype == np.float32
            np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-6)
        assert norm(of_x, axis=1, keepdims=True).shape == (30, 1, 70)
        out = vm.buffer(50, np.float32)
        assert norm(of_x, axis=(0, 2), out=out) is out
        np.testing.assert_allclose(out.numpy(), np.sqrt((x.astype(np.float64) ** 2).sum(axis=(0, 2))), rtol=1e-6)

    def test_structures_of_its_own_and_two_inputs(self, vm, numbers):
        x, weight = numbers.integers(-9999, 9999, (40, 1500)), numbers.integers(1, 9, 1500)
        kernel = cupy.ReductionKernel(
            "T x, T weight",
            "T y, int64 at",
            "best(x * weight, _j)",
            "a.value > b.value || (a.value == b.value && a.at < b.at) ? a : b",
            "y = a.value; at = a.at",
            "best(-1e18, 0)",
            "heaviest",
            reduce_type="best",
            preamble="""struct best {
                long long value; ptrdiff_t at;
                __device__ best() {}
                __device__ best(long long value, ptrdiff_t at) : value(value), at(at) {}
            };""",
        )
        y, at = gpuvm.cupy.paged(kernel)(vm.array(x), vm.array(weight))
        assert y.shape == () and y.numpy() == (x * weight).max() and at.numpy() == (x * weight).argmax()

    def test_nothing_to_reduce(self, vm):
        sum = gpuvm.cupy.paged(cupy.ReductionKernel("T x", "T y", "x", "a + b", "y = a + 1", "0", "sum_and_one"))
        assert (sum(vm.zeros((3, 0)), axis=1).numpy() == 1).all()
        with pytest.raises(gpuvm.Error, match="axis 3 is wrong"):
            sum(vm.zeros((3, 4)), axis=3)


def test_results_are_those_of_cupy(vm, numbers):
    """Bit for bit, where no order of sums is left open."""
    if vm.simulated:
        pytest.skip("CuPy's own launches need a GPU")
    x, y = (numbers.standard_normal((300, 700)).astype(np.float32) for _ in range(2))
    kernel = cupy.ElementwiseKernel("T x, T y", "T z", "z = exp(-x * x) / (1 + sin(y)) + rsqrt(x * x + y * y)", "smooth")
    plain = cupy.asnumpy(kernel(cupy.asarray(x), cupy.asarray(y)))
    assert gpuvm.cupy.paged(kernel)(vm.array(x.copy()), vm.array(y.copy())).numpy().tobytes() == plain.tobytes()
    # CuPy's arrays beside ours, with strides of their own.
    mixed = gpuvm.cupy.paged(kernel)(vm.array(x.copy()), cupy.asarray(y.T.copy()).T)
    assert mixed.numpy().tobytes() == plain.tobytes()
    most = cupy.ReductionKernel("T x", "T y", "abs(x)", "max(a, b)", "y = a", "0", "most")
    plain = cupy.asnumpy(most(cupy.asarray(x), axis=0))
    assert gpuvm.cupy.paged(most)(vm.array(x.copy()), axis=0).numpy().tobytes() == plain.tobytes()
