"""What the tests share."""

from __future__ import annotations

import os
import signal
from typing import Iterator

import numpy as np
import pytest

import gpuvm

# A shell that puts a program into the background has it ignore Ctrl-C, which tests wait for.
signal.signal(signal.SIGINT, signal.default_int_handler)

# PyTorch's threads wait for each other by spinning: on a machine that is busy tests of small tensors take four times as long with two.
os.environ.setdefault("OMP_NUM_THREADS", "1")

#: The GPU of the small Vm: ``GPUVM_TEST_GPU=cuda:0 python -m pytest tests/test_ops.py`` tries the operations on a real one.
GPU = os.environ.get("GPUVM_TEST_GPU", "simulated")

#: Frames of the small Vm: fewer than the arrays of the tests have pages.
SMALL = "128KiB"

SCALE = r"""
#include <gpuvm/gpuvm.cuh>
__global__ void scale(gpuvm::array<float> a, float by) {
    unsigned long long i = blockIdx.x * 1ull * blockDim.x + threadIdx.x;
    if (i < a.size()) a[i] = a[i] * by;
}
// Never ends by itself.
__global__ void endless(gpuvm::array<float> a, unsigned* ticks) {
    while (!a.failed()) atomicAdd(ticks, 1u);
}
// Does not even look whether it is to end.
__global__ void deaf(unsigned* ticks) {
    while (true) atomicAdd(ticks, 1u);
}
__global__ void past(gpuvm::array<const float> a, float* out) { *out = a[a.size()]; }
__global__ void numbers(unsigned char u8, short i16, unsigned u32, long long i64, unsigned long long u64, float f32, double f64,
                        bool flag, double* out) {
    out[0] = u8, out[1] = i16, out[2] = u32, out[3] = i64, out[4] = u64, out[5] = f32, out[6] = f64, out[7] = flag;
}
"""
NAMES = ["scale", "endless", "deaf", "past", "numbers"]


@pytest.fixture
def vm() -> Iterator[gpuvm.Vm]:
    """A small virtual memory, on the simulated GPU unless another is named."""
    with gpuvm.Vm(SMALL, gpu=GPU) as made:
        yield made


@pytest.fixture
def kernels(vm: gpuvm.Vm) -> gpuvm.Module:
    """The kernels above."""
    return vm.module(SCALE, NAMES, name="tests.cu")


@pytest.fixture
def numbers() -> "np.random.Generator":
    """Random numbers, the same in each run."""
    return np.random.default_rng(7)
