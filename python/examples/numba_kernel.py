"""A kernel of Numba's over arrays that are larger than the GPU memory for their pages. Neither it nor its launch is changed."""

import numpy as np
from numba import cuda

import gpuvm
import gpuvm.numba


@cuda.jit
def axpy(x, y, factor):
    i = cuda.grid(1)
    if i < x.size:
        y[i] += factor * x[i]


def main() -> None:
    n = 300_000
    x, y = np.arange(n, dtype=np.float32), np.ones(n, dtype=np.float32)
    with gpuvm.Vm(memory=x.nbytes, transport="direct") as vm:
        of_x, of_y = vm.array(x, read_only=True), vm.array(y.copy())
        axpy[(n + 255) // 256, 256](of_x, of_y, np.float32(2))
        assert (of_y.numpy() == y + 2 * x).all()
        print(f"{2 * x.nbytes >> 10} KiB on {vm.gpu}, with {vm.frames * vm.page_size >> 10} KiB for pages")


if __name__ == "__main__":
    main()
