"""A raw kernel of CuPy's over an array that is larger than the GPU memory for its pages. Its source is not changed."""

import cupy
import numpy as np

import gpuvm
import gpuvm.cupy

SOURCE = r"""
extern "C" __global__ void scale(float* x, float by, long long n) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) x[i] *= by;
}"""


def main() -> None:
    n = 1 << 20
    x = np.arange(n, dtype=np.float32)
    with gpuvm.Vm(memory=x.nbytes // 4) as vm:
        array = vm.array(x.copy())
        scale = gpuvm.cupy.paged(cupy.RawKernel(SOURCE, "scale"))
        scale((n // 256,), (256,), (array, np.float32(2), n))
        assert (array.numpy() == 2 * x).all()
        print(f"{x.nbytes >> 20} MiB on {vm.gpu}, with {vm.frames * vm.page_size >> 20} MiB for pages")


if __name__ == "__main__":
    main()
