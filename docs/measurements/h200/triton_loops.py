"""The loops of `gpuvm bench natural` in Triton, launched over PyTorch's tensors on the GPU, over host memory in place, and over paged arrays.

    python triton_loops.py [GIB [LOOP ...]]

The kernels are the same; no line of them knows of gpuvm. Times are CUDA events around the whole launch on PyTorch's stream, so what gpuvm
does between launches counts. Each result is compared with the one over tensors.
"""

import ctypes
import statistics
import sys
import time

import cupy
import gpuvm
import gpuvm.triton
import numpy as np
import torch
import triton
import triton.language as tl

GIB = float(sys.argv[1]) if len(sys.argv) > 1 else 1
N = int(GIB * (1 << 28))
ROW = 4096
WIDTH = 8192
GATHERED, ROWS, COLUMNS = 1 << 22, 1 << 20, 128


@triton.jit
def total(x, out, n, BLOCK: tl.constexpr, STEPS: tl.constexpr):
    base = tl.program_id(0).to(tl.int64) * BLOCK * STEPS
    sum = tl.zeros((BLOCK,), tl.float32)
    for step in range(STEPS):
        at = base + step * BLOCK + tl.arange(0, BLOCK)
        sum += tl.load(x + at, mask=at < n, other=0)
    tl.store(out + tl.program_id(0), tl.sum(sum, 0))


@triton.jit
def saxpy(x, y, a, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = at < n
    tl.store(y + at, tl.load(y + at, mask=there) + a * tl.load(x + at, mask=there), mask=there)


@triton.jit
def stencil(x, y, w, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = (at >= w) & (at < n - w)
    sum = tl.load(x + at, mask=there) + tl.load(x + at - 1, mask=there) + tl.load(x + at + 1, mask=there)
    sum += tl.load(x + at - w, mask=there) + tl.load(x + at + w, mask=there)
    tl.store(y + at, sum * 0.25, mask=there)


@triton.jit
def row_sums(x, out, W: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    tl.store(out + row, tl.sum(tl.load(x + row * W + tl.arange(0, W)), 0))


@triton.jit
def neighbours(x, out, n, BLOCK: tl.constexpr):
    first = (tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)) * 32
    sum = tl.zeros((BLOCK,), tl.float32)
    for k in range(32):
        sum += tl.load(x + first + k, mask=first + k < n, other=0)
    tl.store(out + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), sum)


@triton.jit
def gather(x, ids, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + tl.load(ids + at)))


@triton.jit
def rows(x, ids, out, BLOCK: tl.constexpr, W: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column = tl.arange(0, W)[None, :]
    tl.store(out + row[:, None] * W + column, tl.load(x + tl.load(ids + row)[:, None] * W + column))


@triton.jit
def fill(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, ((at * 2654435761) % 251).to(tl.float32), mask=at < n)


DEVICE = dict(device="cuda")
WORDS = torch.randint(0, N, (GATHERED,), **DEVICE)
IDS = torch.randint(0, N // COLUMNS, (ROWS,), **DEVICE)
HALF = N // 2
# Name, elements of x and of y, how it is launched (x, y, out), elements of out, bytes that it counts.
LOOPS = {
    "sum": (N, 0, lambda x, y, out: total[(triton.cdiv(N, 16384),)](x, out, N, BLOCK=1024, STEPS=16), triton.cdiv(N, 16384), 4 * N),
    "saxpy": (HALF, HALF, lambda x, y, out: saxpy[(triton.cdiv(HALF, 1024),)](x, y, 0.5, HALF, BLOCK=1024), 0, 12 * HALF),
    "stencil": (HALF, HALF, lambda x, y, out: stencil[(triton.cdiv(HALF, 1024),)](x, y, WIDTH, HALF, BLOCK=1024), 0, 8 * HALF),
    "row-sums": (N, 0, lambda x, y, out: row_sums[(N // ROW,)](x, out, W=ROW), N // ROW, 4 * N),
    "neighbours": (N, 0, lambda x, y, out: neighbours[(N // 32 // 256,)](x, out, N, BLOCK=256), N // 32, 4 * N),
    "gather": (N, 0, lambda x, y, out: gather[(GATHERED // 512,)](x, WORDS, out, BLOCK=512), GATHERED, 4 * GATHERED),
    "rows": (N, 0, lambda x, y, out: rows[(ROWS // 8,)](x, IDS, out, BLOCK=8, W=COLUMNS), ROWS * COLUMNS, 512 * ROWS),
}


def filled(memory, n):
    fill[(triton.cdiv(n, 4096),)](memory, n, BLOCK=4096)
    return memory


class Location(ctypes.Structure):
    """CUmemLocation."""

    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


DRIVER = ctypes.CDLL("libcuda.so.1")


def in_place(n):
    """Managed memory that stays on the host and that the GPU reads there: the better kind of host memory."""
    if n == 0:
        return None
    memory = cupy.cuda.malloc_managed(n * 4)
    # Preferred location host (CU_MEM_LOCATION_TYPE_HOST), accessed by this GPU.
    for advice, location in ((3, Location(2, 0)), (5, Location(1, 0))):
        assert DRIVER.cuMemAdvise_v2(ctypes.c_uint64(memory.ptr), ctypes.c_size_t(n * 4), advice, location) == 0
    shape = cupy.ndarray((n,), cupy.float32, memory)
    return torch.as_tensor(shape, device="cuda")


def timed(launch, times, together=1):
    """Milliseconds of a launch, of so many that are enqueued together: then the GPU does not wait for Python in between."""
    found = []
    for _ in range(times):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        first.record()
        for _ in range(together):
            launch()
        last.record()
        torch.cuda.synchronize()
        found.append(first.elapsed_time(last) / together)
    return found


def result(x, y, out):
    if y is None:
        return out.clone()
    return y.clone() if isinstance(y, torch.Tensor) else torch.from_numpy(y.numpy()).cuda()


def run(name):
    of_x, of_y, launch, of_out, counted = LOOPS[name]

    def measure(make, evict=lambda memory: None):
        """Milliseconds of the first launch and of later ones, and what came out of the first one."""
        memories = [make(n) if n else None for n in (of_x, of_y)]
        out = torch.zeros(max(of_out, 1), **DEVICE)
        # Compiled and loaded before it is timed.
        for _ in range(2):
            for memory, n in zip(memories, (of_x, of_y)):
                if memory is not None:
                    filled(memory, n)
                    evict(memory)
            times = timed(lambda: launch(*memories, out), 1)
        found = result(*memories, out)
        timed(lambda: launch(*memories, out), 10)
        return times[0], statistics.median(timed(lambda: launch(*memories, out), 5, together=5)), found

    _, raw, wanted = measure(lambda n: torch.zeros(n, **DEVICE))
    _, place, found = measure(in_place)
    assert torch.equal(found, wanted)
    gb = lambda ms: counted / ms / 1e6
    line = f"{name:11} raw {gb(raw):8.1f} GB/s  in place {gb(place):6.1f}"
    bytes = 4 * (of_x + of_y)
    for share in (1, 2, 4):
        # Frames for all, and some for what is rounded.
        with gpuvm.Vm(bytes // share + (64 << 20 if share == 1 else 0), gpu="cuda:0", page_size=4096, launch_deadline=120) as vm:
            first, steady, found = measure(lambda n: vm.zeros(n, np.float32), gpuvm.Array.evict)
            assert torch.equal(found, wanted), name
            line += f" | 1/{share}: launch 1 {place / first:5.2f} of in place, steady {gb(steady):8.1f}"
            line += f" ({raw / steady * 100:5.1f} % of raw)" if share == 1 else f" ({place / steady:5.2f} of in place)"
    print(line, flush=True)


def main():
    print(f"{GIB} GiB, {torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}, pages of 4 KiB", flush=True)
    begun = time.time()
    for name in sys.argv[2:] or LOOPS:
        run(name)
    with gpuvm.Vm(1 << 20, gpu="cuda:0", page_size=4096) as vm:
        for what, memory in (("a tensor", torch.zeros(4096, **DEVICE)), ("an array", vm.zeros(4096, np.float32))):
            for _ in range(20):
                filled(memory, 4096)
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(200):
                filled(memory, 4096)
            print(f"a launch over {what} takes Python {(time.perf_counter() - start) / 200 * 1e6:.1f} us")
            torch.cuda.synchronize()
    print(f"every result was compared; {time.time() - begun:.0f} s")


if __name__ == "__main__":
    main()
