"""Rows of a table in home memory by numbers on the GPU: gpuvm.torch against PyTorch's own operations over the same tensor.

    python torch_rows.py [GiB of the table, 64] [seconds that it may take, 190]

Times are CUDA events around single calls, the median of those behind the first ones, each with numbers of its own; every value is compared.
"""

import statistics
import sys
import time

import torch

import gpuvm
import gpuvm.torch as paged

GIB = float(sys.argv[1]) if len(sys.argv) > 1 else 64.0
LIMIT = float(sys.argv[2]) if len(sys.argv) > 2 else 190.0
BEGUN = time.perf_counter()
COUNT = 1 << 20
WORDS = 128


def left() -> float:
    return LIMIT - (time.perf_counter() - BEGUN)


def say(*what: object) -> None:
    print(f"[{time.perf_counter() - BEGUN:6.1f} s]", *what, flush=True)


def expected(ids: torch.Tensor) -> torch.Tensor:
    """What rows hold: each word is another."""
    return ((ids * 2654435761)[:, None] + torch.arange(WORDS, device="cuda")).to(torch.int32)


def fill(vm: gpuvm.Vm) -> torch.Tensor:
    """The table, of a power of two rows; as much of it as there is time for."""
    rows = 1 << (int(GIB * (1 << 30) / 512).bit_length() - 1)
    table = paged.zeros((rows, WORDS), vm, dtype=torch.int32, name="table")
    step, begun, at = 1 << 20, time.perf_counter(), 0
    while at < rows:
        table[at : at + step] = expected(torch.arange(at, at + step, device="cuda"))
        at += step
        if at & (at - 1) == 0:
            torch.cuda.synchronize()
            passed = time.perf_counter() - begun
            if 2 * passed > LIMIT / 3 and at < rows:
                say(f"filling is slow: {at * 512 / passed / 1e9:.1f} GB/s; the table is cut to {at * 512 / (1 << 30):.0f} GiB")
                return table[:at]
    torch.cuda.synchronize()
    passed = time.perf_counter() - begun
    say(f"filled {rows * 512 / (1 << 30):.0f} GiB by PyTorch in {passed:.1f} s, {rows * 512 / passed / 1e9:.1f} GB/s")
    return table


def uniform(rows: int) -> torch.Tensor:
    return torch.randint(rows, (COUNT,), device="cuda")


def zipf(rows: int) -> torch.Tensor:
    """A law of 0.99, its ranks all over the rows: `rows` is a power of two."""
    u = torch.rand(COUNT, device="cuda", dtype=torch.float64)
    ranks = ((u * (rows**0.01 - 1) + 1) ** 100).long().clamp_(1, rows) - 1
    return (ranks * 0x9E3779B1) % rows


def measure(call, draw, times: int, skip: int, check) -> float:
    taken = []
    for n in range(times):
        ids = draw()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        found = call(ids)
        end.record()
        end.synchronize()
        if n >= skip:
            taken.append(start.elapsed_time(end))
        if n % 8 == 0 or n == times - 1:
            assert check(found, ids), "wrong rows"
        del found
    return statistics.median(taken)


def line(what: str, theirs: float, ours: float, bytes: int) -> None:
    say(f"{what:<44} {theirs:9.3f} ms {ours:9.3f} ms {ours / theirs:6.2f}  {COUNT * bytes / ours / 1e6:7.1f} GB/s")


def enqueue_cost(call) -> float:
    """Microseconds of the host's for a call that it does not wait for."""
    taken = []
    for _ in range(12):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(200):
            call()
        taken.append((time.perf_counter() - begun) / 200 * 1e6)
    torch.cuda.synchronize()
    return statistics.median(taken)


def main() -> None:
    say(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, gpuvm {gpuvm.__version__}")
    with gpuvm.Vm(f"{GIB / 8}GiB", gpu="cuda:0", page_size=4096, transport="direct") as vm:
        table = fill(vm)
        rows = len(table)
        array = paged.array_of(table)
        right = lambda found, ids: torch.equal(found, expected(ids))  # noqa: E731
        begun = time.perf_counter()
        paged.take(table, torch.arange(4, device="cuda"), check=True)
        say(f"the first call: {time.perf_counter() - begun:.2f} s; {array!r}, {array.effective}, frames for 1/8 of it, {vm.page_size} B each")
        print(f"{'1 Mi rows':<55} {'index_select':>12} {'take':>12} {'ratio':>7}")
        theirs = measure(lambda ids: table.index_select(0, ids), lambda: uniform(rows), 8, 2, right)
        ours = measure(lambda ids: paged.take(table, ids), lambda: uniform(rows), 12, 2, right)
        line("uniform, 512 B, first calls", theirs, ours, 512)
        ours = measure(lambda ids: paged.take(table, ids), lambda: uniform(rows), 48, 24, right)
        line("uniform, 512 B, steady", theirs, ours, 512)
        theirs = measure(lambda ids: table.index_select(0, ids), lambda: zipf(rows), 8, 2, right)
        ours = measure(lambda ids: paged.take(table, ids), lambda: zipf(rows), 8, 2, right)
        line("zipf 0.99, 512 B, first calls", theirs, ours, 512)
        for turn in range(4):
            if left() < LIMIT / 3:
                break
            ours = measure(lambda ids: paged.take(table, ids), lambda: zipf(rows), 120, 80, right)
            line(f"zipf 0.99, 512 B, after {(turn + 1) * 120} calls", theirs, ours, 512)
        short = table.view(torch.bfloat16).view(2 * rows, WORDS)
        bits = lambda one: one.view(torch.int16)  # noqa: E731
        as_theirs = lambda found, ids: torch.equal(bits(found), bits(short.index_select(0, ids)))  # noqa: E731
        for name, draw in (("uniform", uniform), ("zipf 0.99", zipf)):
            theirs = measure(lambda ids: short.index_select(0, ids), lambda: draw(2 * rows), 8, 2, as_theirs)
            ours = measure(lambda ids: paged.take(short, ids), lambda: draw(2 * rows), 32, 16, as_theirs)
            line(f"{name}, bfloat16, 256 B", theirs, ours, 256)
        bags, offsets = zipf(rows), torch.arange(0, COUNT, 32, device="cuda")
        floats = paged.zeros((1 << 20, 64), vm, name="floats")
        floats.copy_(torch.randint(9, (1 << 20, 64), device="cuda"))
        some = bags % len(floats)
        of_bags = torch.nn.functional.embedding_bag
        for _ in range(12):
            theirs = measure(lambda ids: of_bags(ids, floats, offsets, mode="sum"), lambda: some, 3, 1, lambda *_: True)
            ours = measure(
                lambda ids: paged.embedding_bag(ids, floats, offsets),
                lambda: some,
                3,
                1,
                lambda found, ids: torch.equal(found, of_bags(ids, floats, offsets, mode="sum")),
            )
        line("embedding_bag, 32 rows of 256 B each", theirs, ours, 256)
        added = torch.ones((1 << 16, 64), device="cuda")
        own = floats.clone()
        for _ in range(10):
            ids = torch.randint(len(floats), (1 << 16,), device="cuda")
            paged.index_add_(floats, ids, added)
            own.index_add_(0, ids, added)
        assert torch.equal(paged.array_of(floats).tensor(), own), "wrong sums"
        few = torch.arange(64, device="cuda")
        small = torch.zeros((1000, WORDS), dtype=torch.int32, device="cuda")
        print("enqueued from Python, us of the host a call:")
        for name, call in (
            ("x + 1", lambda: few + 1),
            ("index_select of a small tensor", lambda: small.index_select(0, few)),
            ("embedding of a small tensor", lambda: torch.nn.functional.embedding(few, small)),
            ("gpuvm.torch.take", lambda: paged.take(table, few)),
            ("gpuvm.torch.take, all in frames", lambda: paged.take(floats, few)),
            ("torch.ops.gpuvm.take", lambda: torch.ops.gpuvm.take(floats, few)),
            ("gpuvm.torch.index_add_", lambda: paged.index_add_(floats, few, added[:64])),
        ):
            print(f"    {name:<40} {enqueue_cost(call):7.2f}")
        graph = torch.cuda.CUDAGraph()
        paged.take(table, few)
        with torch.cuda.graph(graph):
            captured = paged.take(table, few)
        few.copy_(torch.randint(rows, (64,), device="cuda"))
        graph.replay()
        assert right(captured, few), "wrong rows of a graph"
        say("a captured graph: right")
        array.forget_graphs()
        say({name: value for name, value in vm.stats().items() if value and "page" in name})


if __name__ == "__main__":
    main()
