"""The rows of gpuvm.ops.take in docs/PERFORMANCE.md: take.py GIB [MANAGED_GIB]

A million random rows of 512 bytes of a table of so many GiB, frames for an eighth of it; and the same by CuPy over managed memory, whose pages
the host has touched. What is read is compared. GIB is at most what the card has free, since managed memory beyond it can hang a GPU.
"""

import ctypes
import sys
import time

import numpy as np

import gpuvm

ROWS, COLUMNS, RUNS = 1_000_000, 128, 4
gib = int(sys.argv[1])
managed_gib = int(sys.argv[2]) if len(sys.argv) > 2 else 0
n = gib * (1 << 30) // (4 * COLUMNS)
numbers = np.random.default_rng(1)
table = np.zeros((n, COLUMNS), np.float32)
table[:, 0] = np.arange(n, dtype=np.float32)


def check(out, idx):
    assert out.shape == (ROWS, COLUMNS)
    assert np.array_equal(out[:, 0], idx.astype(np.float32)) and not out[:, 1:].any()


with gpuvm.Vm(memory=gib * (1 << 27), gpu="cuda:0") as vm:
    a = vm.array(table, read_only=True)
    for run in range(RUNS + 1):
        idx = numbers.integers(0, n, ROWS)
        before = vm.stats()
        began = time.perf_counter()
        out = gpuvm.ops.take(a, idx)
        took = time.perf_counter() - began
        check(out.numpy(), idx)
        after = vm.stats()
        fetched = after["pages_fetched"] - before["pages_fetched"]
        # The first one compiles.
        print(f"gpuvm{' (first)' if run == 0 else ''}: {took * 1e3:.1f} ms, {ROWS / took / 1e6:.2f} M rows/s, {fetched} pages fetched", flush=True)
del table, a, out
if managed_gib:
    import cupy

    n = managed_gib * (1 << 30) // (4 * COLUMNS)
    memory = cupy.cuda.malloc_managed(n * 4 * COLUMNS)
    data = cupy.ndarray((n, COLUMNS), cupy.float32, memory)
    # The host touches all of it first, so its pages are there.
    numbers_of_host = (ctypes.c_float * (n * COLUMNS)).from_address(memory.ptr)
    on_host = np.frombuffer(numbers_of_host, np.float32).reshape(n, COLUMNS)
    on_host.fill(0)
    on_host[:, 0] = np.arange(n, dtype=np.float32)
    # Not timed: CuPy compiles.
    cupy.zeros((10, COLUMNS), cupy.float32)[cupy.arange(3)].get()
    stream = cupy.cuda.Stream.null
    for run in range(RUNS):
        idx = numbers.integers(0, n, ROWS)
        began = time.perf_counter()
        out = data[cupy.asarray(idx)]
        stream.synchronize()
        took = time.perf_counter() - began
        check(out.get(), idx)
        print(f"CuPy over {managed_gib} GiB of managed memory: {took * 1e3:.1f} ms, {ROWS / took / 1e6:.2f} M rows/s", flush=True)
