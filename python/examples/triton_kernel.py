"""A kernel of Triton's tutorial over arrays that are larger than the GPU memory for their pages. Neither it nor its launch is changed."""

import numpy as np
import triton
import triton.language as tl

import gpuvm
import gpuvm.triton


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = at < n
    tl.store(out + at, tl.load(x + at, mask=there) + tl.load(y + at, mask=there), mask=there)


def main() -> None:
    n = 300_000
    x, y = np.arange(n, dtype=np.float32), np.ones(n, dtype=np.float32)
    with gpuvm.Vm(memory=3 * x.nbytes // 4, transport="direct") as vm:
        of_x, of_y, out = vm.array(x, read_only=True), vm.array(y, read_only=True), vm.zeros(n, np.float32)
        add[(triton.cdiv(n, 1024),)](of_x, of_y, out, n, BLOCK=1024)
        assert (out.numpy() == x + y).all()
        print(f"{3 * x.nbytes >> 10} KiB on {vm.gpu}, with {vm.frames * vm.page_size >> 10} KiB for pages")


if __name__ == "__main__":
    main()
