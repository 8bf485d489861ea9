"""Kernels of Numba as they are."""

from __future__ import annotations

import math

import conftest
import numpy as np
import pytest

import gpuvm

numba = pytest.importorskip("numba", reason="Numba is not installed")
cuda = pytest.importorskip("numba.cuda", reason="Numba has no CUDA", exc_type=Exception)

import gpuvm.numba  # noqa: E402, F401 - makes launches take arrays

N = 150_000


@pytest.fixture
def vm():
    """As the others', with pages that GPU threads copy themselves."""
    with gpuvm.Vm(conftest.SMALL, gpu=conftest.GPU, transport="direct") as made:
        yield made


@cuda.jit
def axpy(x, y, a):
    i = cuda.grid(1)
    if i < x.size:
        y[i] += a * x[i]


@cuda.jit
def transposed(source, out):
    i, j = cuda.grid(2)
    if i < source.shape[0] and j < source.shape[1]:
        out[j, i] = source[i, j]


@cuda.jit
def sums(x, out):
    """A block's sum in shared memory, and an atomic for each block."""
    part = cuda.shared.array(128, numba.float64)
    me, total = cuda.threadIdx.x, 0.0
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        total += x[i]
    part[me] = total
    cuda.syncthreads()
    step = 64
    while step:
        if me < step:
            part[me] += part[me + step]
        cuda.syncthreads()
        step //= 2
    if me == 0:
        cuda.atomic.add(out, 0, part[0])


@cuda.jit(fastmath=True, launch_bounds=256)
def shapes(x, out, factor, pair, which):
    i = cuda.grid(1)
    if i < x.shape[0]:
        value = math.exp(-abs(x[i, -1])) if which else pair[1]
        out[i] = factor.real * value + factor.imag * pair[0]


class TestNumba:
    def test_launches_take_arrays(self, vm, numbers):
        x, y = (numbers.integers(-99, 99, N).astype(np.float32) for _ in range(2))
        of_x, of_y = vm.array(x.copy(), read_only=True), vm.array(y.copy())
        for factor in (2, 0.5, np.float32(3)):
            axpy[(N + 255) // 256, 256](of_x, of_y, factor)
            y = (y + np.float64(factor) * x).astype(np.float32)
            assert (of_y.numpy() == y).all()
        axpy.forall(N)(of_x, of_y, 1).sync()
        assert (of_y.numpy() == y + x).all()
        assert len(vm._kernels) == 3, "one for each type of the factor"

    def test_shapes_tuples_and_numbers(self, vm, numbers):
        x = numbers.standard_normal((300, 7))
        of_x, out = vm.array(x.copy()), vm.zeros(300)
        shapes[2, 256](of_x, out, 2 - 1j, (3, np.float32(0.5)), True)
        np.testing.assert_allclose(out.numpy(), 2 * np.exp(-abs(x[:, -1])) - 3, rtol=1e-5)
        shapes[2, 256](of_x, out, np.complex64(4), (3, np.float32(0.5)), False)
        assert (out.numpy() == 2).all()
        back = vm.zeros((7, 300), np.float64)
        transposed[(10, 1), (32, 8)](of_x, back)
        assert (back.numpy() == x.T).all()

    def test_shared_memory_and_atomics(self, vm, numbers):
        x = numbers.integers(-99, 99, N).astype(np.float32)
        of_x, out = vm.array(x.copy(), read_only=True), vm.buffer(1, np.float64)
        sums[20, 128](of_x, out)
        assert out.numpy()[0] == x.sum(dtype=np.float64)

    def test_what_cannot_be_launched_is_told(self, vm, numbers):
        x = vm.array(np.zeros(N, np.float32), read_only=True)
        with pytest.raises(gpuvm.errors.ArgumentError, match="argument 2 is a NumPy array"):
            axpy[1, 32](x, np.zeros(N, np.float32), 1.0)
        with pytest.raises(numba.core.errors.TypingError, match="readonly|Cannot modify"):
            axpy[1, 32](x, x, 1.0)
        with gpuvm.Vm("64KiB", gpu="sim") as other, pytest.raises(gpuvm.errors.ArgumentError, match="several Vms"):
            axpy[1, 32](x, other.zeros(N), 1.0)
        with pytest.raises(gpuvm.errors.UnavailableError, match="linked"):
            cuda.jit(link=["some.cu"])(axpy.py_func)[1, 32](x, vm.zeros(N), 1.0)

    def test_other_memory_and_streams_on_a_gpu(self, vm, numbers):
        if vm.simulated:
            pytest.skip("Numba's own memory needs a GPU")
        x, y = (numbers.integers(-99, 99, N).astype(np.float32) for _ in range(2))
        blocks = (N + 255) // 256
        plain = cuda.to_device(y)
        axpy[blocks, 256](cuda.to_device(x), plain, np.float32(2))
        stream = cuda.stream()
        # Ours beside theirs, every second element, on their stream.
        theirs = cuda.to_device(np.repeat(y, 2), stream=stream)
        axpy[blocks, 256, stream](vm.array(x.copy()), theirs[::2], np.float32(2))
        stream.synchronize()
        assert (theirs.copy_to_host()[::2] == plain.copy_to_host()).all()
        declared = cuda.jit("void(float32[:], float32[:], float64)")(axpy.py_func)
        of_y = vm.array(y.copy())
        declared[blocks, 256](vm.array(x.copy()), of_y, 2)
        assert (of_y.numpy() == y + 2 * x).all()
