"""Slot caches on an NVIDIA GPU beside what bounds them: ``python bench/slots.py [--seconds ...]`` prints a line of JSON for each row.

Every row compares every byte of what its slots hold with the table. Times are CUDA events with the queue kept full, so that the host's time is in none.
"""

import argparse
import json
import statistics

import numpy as np
import torch

import gpuvm
import gpuvm.torch

#: An expert of 2048 x 768 by three matrices of bfloat16.
EXPERT = (3, 768, 2048)


def timed(steps, prepare, run):
    """Microseconds of ``run(n)`` for each step, behind ``prepare(n)``: medians are of a GPU that never waits for the host."""
    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(steps)]
    torch.cuda.synchronize()
    torch.cuda._sleep(100_000_000)
    for n, (begin, end) in enumerate(pairs):
        prepare(n)
        begin.record()
        run(n)
        end.record()
    torch.cuda.synchronize()
    return [1000 * begin.elapsed_time(end) for begin, end in pairs]


def captured(run):
    """A graph of ``run()``, which has run before."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


def check(cache, table, ids, slots):
    """What slots hold is what the table has; each row has one slot."""
    cache.wait()
    ids, slots = ids.reshape(-1), slots.reshape(-1)
    assert int(slots.min()) >= 0 and int(slots.max()) < len(cache.frames)
    # By parts: rows of experts are large.
    for part in range(0, ids.numel(), 1 << 16):
        some = slice(part, part + (1 << 16))
        found, wanted = cache.frames.index_select(0, slots[some]), table.index_select(0, ids[some])
        assert torch.equal(found.view(torch.uint8), wanted.view(torch.uint8))
    pairs = torch.stack([ids.long(), slots.long()]).unique(dim=1)
    assert pairs.shape[1] == pairs[0].unique().numel() == pairs[1].unique().numel()


def told(name, times, **more):
    times = sorted(times)
    row = {"row": name, "us_p50": round(statistics.median(times), 2), "us_p90": round(times[len(times) * 9 // 10], 2)}
    print(json.dumps({**row, **more}), flush=True)


def filled(vm, shape, dtype, seed):
    table = gpuvm.torch.zeros(shape, vm, dtype=dtype)
    torch.manual_seed(seed)
    table.view(torch.int32).random_()
    return table


def traces(rows, count, misses, steps, slots):
    """Ids of calls, on the GPU, each of which has as many rows that were not in the calls before as are to miss; the first fills the slots."""
    order = torch.randperm(rows, device="cuda")
    ids, fresh = order[:count].clone(), slots
    found = []
    for _ in range(steps):
        places = torch.randperm(count, device="cuda")[:misses]
        ids = ids.clone()
        ids[places] = order[torch.arange(fresh, fresh + misses, device="cuda") % rows]
        fresh += misses
        found.append(ids)
    return order[:slots], found


def rows_of(name, table, slots, count, misses, steps, layers=1):
    """Calls of ``count`` ids, ``misses`` of which miss, in a graph of ``layers`` calls with caches of their own."""
    vm_cache = [gpuvm.torch.SlotCache(table, slots) for _ in range(layers)]
    first, trace = traces(len(table), count, misses, steps, slots)
    given, out = torch.empty(count, dtype=torch.int64, device="cuda"), torch.empty((layers, count), dtype=torch.int32, device="cuda")
    for cache in vm_cache:
        for part in first.split(count):
            cache.ensure(part)
    given.copy_(trace[0])

    def calls():
        for cache, to in zip(vm_cache, out):
            cache.ensure(given, out=to)

    graph = captured(calls)
    before = [cache.counts() for cache in vm_cache]
    times = timed(steps, lambda n: given.copy_(trace[n]), lambda n: graph.replay())
    for cache, to in zip(vm_cache, out):
        check(cache, table, given, to)
    after = vm_cache[0].counts()
    # The first step repeats ids that have slots.
    times, met = times[1:], (after["misses"] - before[0]["misses"]) / (steps - 1)
    # What the wire allows: as many random rows of the table by PyTorch's own kernel.
    some = [torch.randint(len(table), (misses,), device="cuda") for _ in range(20)]
    wire = timed(20, lambda n: None, lambda n: table.index_select(0, some[n]))[5:]
    nbytes = table[0].numel() * table.element_size() * met
    more = {"layers": layers, "misses_each": met, "index_select_of_misses_us": round(statistics.median(wire), 2)}
    per = statistics.median(times) / layers
    told(name, times, us_a_call=round(per, 2), gb_s=round(nbytes / per / 1e3, 2), **more)
    for cache in vm_cache:
        cache.close()


def belady(calls, slots):
    """Hits of the best that can be done when each call's rows must all be there."""
    following = [{} for _ in calls]
    last = {}
    for n in range(len(calls) - 1, -1, -1):
        for row in calls[n]:
            following[n][row] = last.get(row, len(calls))
            last[row] = n
    there, hits = {}, 0
    for n, call in enumerate(calls):
        for row in call:
            hits += row in there
        for row in call:
            there[row] = following[n][row]
        while len(there) > slots:
            leaves = max((row for row in there if row not in call), key=there.__getitem__)
            del there[leaves]
    return hits


def experts(vm, policies, tokens=2000):
    table = filled(vm, (256, *EXPERT), torch.bfloat16, 3)
    nbytes = table[0].numel() * 2
    # All of eight miss, call by call.
    cache = gpuvm.torch.SlotCache(table, 64)
    given, out = torch.empty(8, dtype=torch.int64, device="cuda"), torch.empty(8, dtype=torch.int32, device="cuda")
    calls = [torch.arange(8 * n, 8 * n + 8, device="cuda") % 256 for n in range(60)]
    given.copy_(calls[0])
    graph = captured(lambda: cache.ensure(given, out=out))
    times = timed(60, lambda n: given.copy_(calls[n]), lambda n: graph.replay())[8:]
    check(cache, table, given, out)
    pinned, device = torch.empty(8 * nbytes, dtype=torch.uint8).pin_memory(), torch.empty(8 * nbytes, dtype=torch.uint8, device="cuda")
    engine = statistics.median(timed(10, lambda n: None, lambda n: device.copy_(pinned, non_blocking=True))[2:])
    lanes = statistics.median(timed(10, lambda n: None, lambda n: table.index_select(0, calls[n]))[2:])
    rate = 8 * nbytes / statistics.median(times) / 1e3
    told("experts, 8 of 8 miss", times, gb_s=round(rate, 2), copy_engine_gb_s=round(8 * nbytes / engine / 1e3, 2), index_select_gb_s=round(8 * nbytes / lanes / 1e3, 2))
    cache.close()
    chance = np.random.default_rng(7)
    weights = 1 / np.arange(1, 257) ** 0.99
    drawn = [chance.choice(256, 8, replace=False, p=weights / weights.sum()).tolist() for _ in range(tokens)]
    # Another favourite from time to time.
    moved = [[(row + 37 * (n // 400)) % 256 for row in call] for n, call in enumerate(drawn)]
    for name, trace in (("zipf", drawn), ("zipf whose favourites move", moved)):
        shares = {"belady": belady(trace, 64) / (8 * tokens)}
        on_gpu = torch.tensor(trace, device="cuda")
        for policy in policies:
            cache = gpuvm.torch.SlotCache(table, 64, policy=policy)
            for n in range(tokens):
                out = cache.ensure(on_gpu[n])
            check(cache, table, on_gpu[tokens - 1], out)
            shares[policy] = cache.counts()["hits"] / (8 * tokens)
            cache.close()
        print(json.dumps({"row": f"experts, hits of {name}", **{policy: round(share, 4) for policy, share in shares.items()}}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=16, help="bytes of the table of rows of 512 B")
    parser.add_argument("--policies", nargs="*", default=["lru", "frequency", "first-come"])
    asked = parser.parse_args()
    print(json.dumps({"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "gpuvm": gpuvm.__version__}))
    with gpuvm.Vm("64MiB", gpu="cuda:0") as vm:
        table = filled(vm, (int(asked.gib * 2**30) // 512, 128), torch.float32, 1)
        nothing = captured(lambda: [table.new_zeros(1, device="cuda") for _ in range(2)])
        told("a graph of two empty kernels", timed(300, lambda n: None, lambda n: nothing.replay()))
        rows_of("2,048 ids of 512 B, 4,096 slots, 2 missing", table, 4096, 2048, 2, 300)
        rows_of("the same, 16 calls in a graph", table, 4096, 2048, 2, 100, layers=16)
        rows_of("2,048 ids, 20 % missing", table, 4096, 2048, 410, 100)
        rows_of("204,800 ids, 409,600 slots, 20 % missing", table, 409600, 204800, 40960, 40)
        experts(vm, asked.policies)


if __name__ == "__main__":
    main()
