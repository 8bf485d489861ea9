"""Launches on streams of CuPy and PyTorch, in their order: streams.py"""

import cupy
import numpy as np
import torch

import gpuvm

SOURCE = r"""
#include <gpuvm/gpuvm.cuh>
__global__ void add(gpuvm::array<const float> table, float* out, unsigned long long count) {
    for (auto i = blockIdx.x * 1ull * blockDim.x + threadIdx.x; i < count && !table.failed(); i += gridDim.x * blockDim.x)
        out[i] += table[i];
}
"""
COUNT = 1 << 24


def main() -> None:
    with gpuvm.Vm(gpu="cuda:0", memory="16MiB", transport="direct") as vm:
        numbers = np.arange(COUNT, dtype=np.float32)
        table = vm.array(numbers, read_only=True)
        add = vm.kernel(SOURCE, "add")
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            # What the kernel adds to comes late, and what it made is used at once.
            out = cupy.zeros(COUNT, cupy.float32)
            for _ in range(50):
                out += 1
            launch = add[528, 256](table, out, COUNT, stream=stream)
            twice = out * 2
            stream.synchronize()
        launch.sync()
        assert np.array_equal(cupy.asnumpy(out), numbers + 50)
        assert np.array_equal(cupy.asnumpy(twice), (numbers + 50) * 2)
        print("CuPy: a launch on its stream ran behind 50 kernels and before the next one")
        theirs = torch.cuda.Stream()
        with torch.cuda.stream(theirs):
            tensor = torch.zeros(COUNT, device="cuda")
            for _ in range(50):
                tensor += 1
            launch = add[528, 256](table, tensor, COUNT, stream=theirs)
            twice = tensor * 2
        theirs.synchronize()
        launch.sync()
        assert np.array_equal(twice.cpu().numpy(), (numbers + 50) * 2)
        print("PyTorch: the same")


if __name__ == "__main__":
    main()
