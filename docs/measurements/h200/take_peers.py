"""A million random rows of 512 bytes by gpuvm.ops.take and by what reads them in place: take_peers.py [GIB] [SECONDS]

The table has so many GiB (64) and lies in the host's memory, gpuvm has frames for an eighth of it. Peers are `index_select` of PyTorch and
indexing of CuPy over pinned memory and over managed memory that stays on the host, and WholeGraph without and with a cache of an eighth, each
where it is installed. A time is that from numbers of NumPy to rows on the GPU; each run has other numbers, and all rows are compared. Only one
table is there at a time: the host needs a little more memory than it has. Ends after so many seconds (540), whatever hangs.
"""

import ctypes
import importlib
import signal
import sys
import time

import numpy as np

ROWS, COLUMNS, RUNS, EXPONENT = 1_000_000, 128, 8, 0.99
GIB = int(sys.argv[1]) if len(sys.argv) > 1 else 64
LIMIT = int(sys.argv[2]) if len(sys.argv) > 2 else 540
N, BYTES = (GIB << 30) // (4 * COLUMNS), GIB << 30
LOW = 1 << 20
HOST, DEVICE = 2, 1
numbers = np.random.default_rng(1)
cu = ctypes.CDLL("libcuda.so.1")


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


def call(name, *args):
    code = getattr(cu, name)(*args)
    if code:
        raise RuntimeError(f"{name}: CUDA error {code}")


def library(name):
    try:
        return importlib.import_module(name)
    except Exception as error:
        print(f"{name} is left out: {error!r}"[:200], flush=True)
        return None


def ids(law):
    if law == "uniform":
        return numbers.integers(0, N, ROWS)
    u = numbers.random(ROWS)
    rank = ((float(N) ** (1 - EXPONENT) - 1) * u + 1) ** (1 / (1 - EXPONENT)) - 1
    # Popular rows lie anywhere.
    return np.minimum(rank, N - 1).astype(np.int64) * 2654435761 % N


def check(rows, idx):
    """A row begins with its number in two parts that float32 holds, and is zero behind."""
    wanted = np.stack([idx % LOW, idx // LOW], axis=1).astype(np.float32)
    if rows.shape != (len(idx), COLUMNS) or not np.array_equal(rows[:, :2], wanted) or rows[:, 2:].any():
        # Not caught below: what follows would mean nothing.
        sys.exit("WRONG ROWS")


def measure(what, take, to_numpy):
    """A row of the table: `take(idx)` gives rows that are on the GPU and there, `to_numpy` brings them."""
    for law in ("uniform", f"zipf {EXPONENT}"):
        try:
            # Not counted: what is compiled, loaded and allocated.
            idx = ids(law)[:10]
            check(to_numpy(take(idx)), idx)
            took = []
            for _ in range(RUNS):
                idx = ids(law)
                began = time.perf_counter()
                rows = take(idx)
                took.append((time.perf_counter() - began) * 1e3)
                check(to_numpy(rows), idx)
                del rows
            rest = sorted(took[1:])
            print(f"| {what} | {law} | {took[0]:.1f} | {rest[len(rest) // 2]:.1f} | {rest[0]:.1f} | {ROWS * RUNS} rows |", flush=True)
        except Exception as error:
            print(f"| {what} | {law} | not measured: {error!r}"[:300] + " | | | |", flush=True)


class Table:
    """Rows at an address, for libraries that take CUDA's array interface."""

    def __init__(self, address):
        self.__cuda_array_interface__ = {"shape": (N, COLUMNS), "typestr": "<f4", "data": (address, False), "version": 3}


def by_torch(torch, address):
    table = torch.as_tensor(Table(address), device="cuda")
    assert table.data_ptr() == address

    def take(idx):
        rows = table.index_select(0, torch.from_numpy(idx).cuda())
        torch.cuda.synchronize()
        return rows

    return table, take, lambda rows: rows.cpu().numpy()


def by_cupy(cupy, address, owner):
    memory = cupy.cuda.UnownedMemory(address, BYTES, owner)
    table = cupy.ndarray((N, COLUMNS), cupy.float32, cupy.cuda.MemoryPointer(memory, 0))

    def take(idx):
        rows = table[cupy.asarray(idx)]
        cupy.cuda.Stream.null.synchronize()
        return rows

    return table, take, lambda rows: rows.get()


def in_place(what, address, owner, torch, cupy):
    for name, make in (
        ("PyTorch index_select", torch and (lambda: by_torch(torch, address))),
        ("CuPy data[idx]", cupy and (lambda: by_cupy(cupy, address, owner))),
    ):
        if make:
            try:
                _, take, to_numpy = make()
                measure(f"{name}, {what}, in place", take, to_numpy)
            except Exception as error:
                print(f"| {name}, {what}, in place | | not measured: {error!r}"[:300] + " | | | |", flush=True)


def filled_on_host():
    table = np.zeros((N, COLUMNS), np.float32)
    row = np.arange(N, dtype=np.int64)
    table[:, 0], table[:, 1] = row % LOW, row // LOW
    return table


def by_gpuvm(gpuvm, table):
    for placement in ("fetch", "auto"):
        with gpuvm.Vm(memory=BYTES // 8, gpu="cuda:0") as vm:
            array = vm.array(table, read_only=True, placement=placement)
            name = "default" if placement == "fetch" else placement
            measure(f"gpuvm.ops.take, {name}", lambda idx: gpuvm.ops.take(array, idx), lambda rows: rows.numpy())


def by_managed(torch, cupy):
    free, total, address = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_uint64()
    call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    what = "managed memory kept on the host"
    if BYTES > free.value * 8 // 10:
        print(f"| {what} | | not measured: the card has {free.value >> 30} GiB free, and more managed memory can hang it | | | |", flush=True)
        return
    call("cuMemAllocManaged", ctypes.byref(address), ctypes.c_size_t(BYTES), 1)
    place, size, host = address.value, ctypes.c_size_t(BYTES), Location(HOST, 0)
    try:
        # Preferred on the host (3), accessed by the GPU (5).
        call("cuMemAdvise_v2", ctypes.c_uint64(place), size, 3, host)
        call("cuMemAdvise_v2", ctypes.c_uint64(place), size, 5, Location(DEVICE, 0))
        call("cuMemPrefetchAsync_v2", ctypes.c_uint64(place), size, host, 0, None)
        call("cuCtxSynchronize")
        # By the GPU, in place, which is faster than by the processor.
        if torch:
            rows, table = torch.arange(N, device="cuda"), by_torch(torch, place)[0]
            table.zero_()
            table[:, 0], table[:, 1] = rows % LOW, rows // LOW
            torch.cuda.synchronize()
        else:
            rows, table = cupy.arange(N), by_cupy(cupy, place, None)[0]
            table.fill(0)
            table[:, 0], table[:, 1] = rows % LOW, rows // LOW
            cupy.cuda.Stream.null.synchronize()
        del rows, table
        in_place(what, place, None, torch, cupy)
    finally:
        call("cuMemFree_v2", ctypes.c_uint64(place))


def by_wholegraph(wholegraph, torch):
    wholegraph.init_torch_env(0, 1, 0, 1, "warn")
    communicator = wholegraph.get_global_communicator("nccl")
    for share in (0.0, 0.125):
        policy = wholegraph.create_builtin_cache_policy("local_device", "continuous", "cpu", "readonly", share) if share else None
        embedding = wholegraph.create_embedding(communicator, "continuous", "cpu", torch.float32, [N, COLUMNS], cache_policy=policy)
        table, _ = embedding.get_embedding_tensor().get_local_tensor(host_view=True)
        table.zero_()
        row = torch.arange(N)
        table[:, 0], table[:, 1] = row % LOW, row // LOW
        del row

        def take(idx):
            rows = embedding.gather(torch.from_numpy(idx).cuda())
            torch.cuda.synchronize()
            return rows

        measure(f"WholeGraph, {'a cache of 1/8' if share else 'no cache'}", take, lambda rows: rows.cpu().numpy())
        # Its host memory is a System V segment, which stays until this is called.
        del table
        wholegraph.destroy_embedding(embedding)


def available_bytes():
    with open("/proc/meminfo") as info:
        return next(int(line.split()[1]) << 10 for line in info if line.startswith("MemAvailable"))


def main():
    # Not caught by Python: it ends the process also while a library is in a call.
    signal.alarm(LIMIT)
    if available_bytes() < BYTES * 11 // 10:
        sys.exit(f"the host has {available_bytes() >> 30} GiB of memory available, too little for a table of {GIB} GiB; give fewer")
    gpuvm, torch, cupy = library("gpuvm"), library("torch"), library("cupy")
    wholegraph = torch and library("pylibwholegraph.torch")
    print(f"{ROWS} rows of {4 * COLUMNS} B of {GIB} GiB; milliseconds of {RUNS} runs, each with other rows\n", flush=True)
    print("| what | rows | first | median of the others | best | compared |\n|---|---|---|---|---|---|", flush=True)
    table = filled_on_host()
    if gpuvm:
        by_gpuvm(gpuvm, table)
    # A context for the driver's calls below.
    if torch:
        torch.zeros(1, device="cuda")
    elif cupy:
        cupy.zeros(1)
    else:
        return
    address, size = ctypes.c_uint64(table.ctypes.data), ctypes.c_size_t(BYTES)
    try:
        # For all contexts and mapped (1 and 2).
        call("cuMemHostRegister_v2", address, size, 3)
        in_place("pinned memory", address.value, table, torch, cupy)
        call("cuMemHostUnregister", address)
    except Exception as error:
        print(f"| pinned memory | | not measured: {error!r} | | | |", flush=True)
    del table
    for name, part in (("managed memory", lambda: by_managed(torch, cupy)), ("WholeGraph", lambda: wholegraph and by_wholegraph(wholegraph, torch))):
        try:
            part()
        except Exception as error:
            print(f"| {name} | | not measured: {error!r}"[:300] + " | | | |", flush=True)


if __name__ == "__main__":
    main()
