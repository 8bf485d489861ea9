"""Kernels of CuPy's over an array that is larger than the GPU memory for its pages. Their sources are not changed."""

import cupy
import numpy as np

import gpuvm
import gpuvm.cupy

SOURCE = r"""
extern "C" __global__ void scale(float* x, float by, long long n) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) x[i] *= by;
}"""


softened = cupy.ElementwiseKernel("T x, T by", "T y", "y = x / (abs(x) + by)", "softened")
total = cupy.ReductionKernel("T x", "float64 y", "x", "a + b", "y = a", "0", "total", reduce_type="double")


def main() -> None:
    n = 1 << 18
    x = np.arange(n, dtype=np.float32)
    with gpuvm.Vm(memory=x.nbytes // 4, transport="direct") as vm:
        array = vm.array(x.copy())
        scale = gpuvm.cupy.paged(cupy.RawKernel(SOURCE, "scale"))
        scale((n // 256,), (256,), (array, np.float32(2), n))
        assert (array.numpy() == 2 * x).all()
        assert gpuvm.cupy.paged(total)(array).numpy() == 2 * x.sum(dtype=np.float64)
        soft = gpuvm.cupy.paged(softened)(array, 1)
        np.testing.assert_allclose(soft.numpy(), 2 * x / (2 * x + 1), rtol=1e-6)
        print(f"{x.nbytes >> 10} KiB on {vm.gpu}, with {vm.frames * vm.page_size >> 10} KiB for pages")


if __name__ == "__main__":
    main()
