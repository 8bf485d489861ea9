"""Training over home memory on an NVIDIA GPU: ``python bench/training.py [--rows 2e6 ...]`` prints a table and ends in less than four minutes.

A step of an embedding whose ids follow a zipf law: ours; PyTorch's sparse embedding over managed memory, with as much GPU memory left free as ours has
frames; and rows gathered and updated by processors. Then an epoch of GraphSAGE whose features are four times the frames: gathered by the GPU, by
processors behind the same sampler, and by PyG's own loader where that has a sampler. Times are of the host's clock, around steps that are waited for
together. The tables are compared after the first steps, and features of each batch of an epoch.
"""

import argparse
import ctypes
import faulthandler
import gc
import math
import statistics
import time

import torch
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import GraphSAGE
from torch_geometric.typing import WITH_PYG_LIB, WITH_TORCH_SPARSE

import gpuvm
import gpuvm.optim
import gpuvm.pyg
import gpuvm.torch

#: Steps after which tables are compared.
COMPARED = 4
#: GPU memory that PyTorch may have besides frames.
WORKSPACE = 3 << 29
RATE = 0.05
OURS = {"SGD": gpuvm.optim.SGD, "Adagrad": gpuvm.optim.Adagrad}
THEIRS = {"SGD": torch.optim.SGD, "Adagrad": torch.optim.Adagrad}


class Timer:
    """Milliseconds of ``run(n)`` for n from 0 on: medians of groups, until ``seconds`` have passed."""

    def __init__(self, device, seconds):
        self.device, self.seconds = device, seconds

    def wait(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def steps(self, run, most, group):
        self.wait()
        begun, times, done = time.perf_counter(), [], 0
        while done < most and (not times or time.perf_counter() - begun < self.seconds):
            start = time.perf_counter()
            for n in range(done, done + group):
                run(n)
            self.wait()
            times.append(1000 * (time.perf_counter() - start) / group)
            done += group
        # The later half: what is used most has come to frames by then, as far as it will.
        return statistics.median(times[len(times) // 2 :]), done


def told(name, milliseconds, ours=None, more=""):
    ratio = "" if ours is None else f"{milliseconds / ours:9.2f}"
    print(f"{name:<58} {milliseconds:10.3f} {ratio:>9}  {more}", flush=True)


def fill(table, device):
    """Each element is another, between -0.5 and 0.5."""
    columns = torch.arange(table.shape[1], device=device) * 40503
    for first in range(0, len(table), 1 << 18):
        rows = torch.arange(first, min(first + (1 << 18), len(table)), device=device) * 2654435761
        table[first : first + len(rows)] = ((rows.unsqueeze(1) + columns) % 65521).float() / 65521 - 0.5


def zipf(count, rows, device):
    """A law of 0.99, its ranks all over the rows."""
    factor = 0x9E3779B1
    assert math.gcd(factor, rows) == 1
    u = torch.rand(count, device=device, dtype=torch.float64)
    return ((((u * (rows**0.01 - 1) + 1) ** 100).long().clamp_(1, rows) - 1) * factor) % rows


def train(rows, optimizer):
    rows.square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def managed(shape, device):
    """A tensor over managed memory, of PyTorch's GPU, and how it is given back."""
    driver, address = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64()
    code = driver.cuMemAllocManaged(ctypes.byref(address), ctypes.c_size_t(4 * math.prod(shape)), 1)
    assert code == 0, f"cuMemAllocManaged: {code}"

    class Memory:
        __cuda_array_interface__ = {"shape": shape, "typestr": "<f4", "data": (address.value, False), "version": 3, "strides": None}

    tensor = torch.as_tensor(Memory(), device=device)
    assert tensor.data_ptr() == address.value
    return tensor, lambda: driver.cuMemFree_v2(address)


def by_gpuvm(asked, draws, timer):
    """Milliseconds of a step, and the rows that the first steps used, as they left them."""
    with gpuvm.Vm(asked.frames, gpu=asked.gpu, page_size=4096, transport="direct") as vm:
        table = gpuvm.torch.zeros((asked.rows, asked.columns), vm)
        fill(table, table.device)
        embedding = gpuvm.torch.Embedding(table)
        optimizer = OURS[asked.optimizer]([embedding.weight], lr=RATE)
        for ids in draws[:COMPARED]:
            train(embedding(ids), optimizer)
        used = gpuvm.torch.take(embedding.weight.detach(), torch.cat(draws[:COMPARED]), check=True)
        took, done = timer.steps(lambda n: train(embedding(draws[n % len(draws)]), optimizer), 400, 10)
        stats = vm.stats()
    return took, used, f"{done} steps, {stats['pages_fetched']} pages fetched"


def by_managed(asked, draws, timer, expected):
    device = draws[0].device
    free, _ = torch.cuda.mem_get_info()
    ballast = torch.empty(max(0, free - asked.frames - WORKSPACE), dtype=torch.uint8, device=device)
    shape = (asked.rows, asked.columns)
    (weight, release), (kept, release_kept) = managed(shape, device), managed(shape if asked.optimizer == "Adagrad" else (1,), device)
    fill(weight, device)
    kept.zero_()
    weight.requires_grad_()
    optimizer = torch.optim.SGD([weight], lr=RATE)
    if asked.optimizer == "Adagrad":
        # Made over one row, so that what it keeps is managed, too.
        optimizer = torch.optim.Adagrad([torch.zeros(1, device=device, requires_grad=True)], lr=RATE)
        state = optimizer.state.pop(optimizer.param_groups[0]["params"][0])
        optimizer.param_groups[0]["params"] = [weight]
        optimizer.state[weight] = {**state, "sum": kept}
    step = lambda n: train(torch.nn.functional.embedding(draws[n % len(draws)], weight, sparse=True), optimizer)  # noqa: E731
    for n in range(COMPARED):
        step(n)
    # PyTorch adds each of thousands of gradients of a popular row to it, and rounds each time; ours are added up first.
    torch.testing.assert_close(weight.detach().index_select(0, torch.cat(draws[:COMPARED])), expected, rtol=1e-3, atol=1e-5)
    took, done = timer.steps(step, 40, 1)
    del weight, optimizer, kept, ballast, step
    torch.cuda.synchronize()
    release(), release_kept()
    torch.cuda.empty_cache()
    return took, f"{done} steps"


def by_host(asked, draws, timer, expected):
    """Rows are gathered and updated by processors, gradients are of the GPU."""
    device = draws[0].device
    table = torch.empty(asked.rows, asked.columns)
    fill(table, device)
    kept = torch.zeros_like(table) if asked.optimizer == "Adagrad" else None

    def step(n):
        ids, back = draws[n % len(draws)].unique(return_inverse=True)
        on_host = ids.cpu()
        used = table.index_select(0, on_host)
        rows = (used.pin_memory() if device.type == "cuda" else used).to(device, non_blocking=True).detach().requires_grad_()
        rows.index_select(0, back).square().sum().backward()
        gradient = rows.grad.cpu()
        if kept is None:
            used.add_(gradient, alpha=-RATE)
        else:
            total = kept.index_select(0, on_host).add_(gradient.square())
            kept.index_copy_(0, on_host, total)
            used.addcdiv_(gradient, total.sqrt_().add_(1e-10), value=-RATE)
        table.index_copy_(0, on_host, used)

    for n in range(COMPARED):
        step(n)
    torch.testing.assert_close(table.index_select(0, torch.cat(draws[:COMPARED]).cpu()).to(device), expected)
    took, done = timer.steps(step, 40, 1)
    return took, f"{done} steps"


def embeddings(asked, device):
    timer = Timer(device, asked.seconds / 8)
    draws = [zipf(asked.batch, asked.rows, device) for _ in range(32)]
    different = draws[0].unique().numel()
    print(f"{asked.rows} rows of {asked.columns} floats, batch {asked.batch} ({different} different), {asked.optimizer}, frames of {asked.frames >> 20} MiB")
    ours, used, more = by_gpuvm(asked, draws, timer)
    told("step of gpuvm.torch.Embedding and gpuvm.optim", ours, None, more)
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        took, more = by_managed(asked, draws, timer, used)
        told("step of torch.nn.functional.embedding, managed memory", took, ours, more)
    took, more = by_host(asked, draws, timer, used)
    told("step of rows gathered and updated by processors", took, ours, more)


class HostFeatures(gpuvm.pyg.FeatureStore):
    """Rows are gathered by processors, and copied."""

    def __init__(self, vm, x, device):
        super().__init__(vm)
        self._x, self._device = x, device

    def _get_tensor(self, attr):
        return self._x.index_select(0, attr.index.cpu()).to(self._device)

    def get_all_tensor_attrs(self):
        return [self._tensor_attr_cls("node", "x")]


def epoch(loader, columns, device, expected=None):
    """Seconds, and batches; with ``expected`` features are compared, untimed."""
    torch.manual_seed(7)
    model = GraphSAGE(columns, 128, num_layers=2, out_channels=16).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    begun, batches = time.perf_counter(), 0
    for batch in loader:
        x, edge_index = batch.x.to(device), batch.edge_index.to(device)
        if expected is not None:
            assert torch.equal(x.cpu(), expected[batch.n_id.cpu()]), "wrong features"
        optimizer.zero_grad()
        found = model(x, edge_index)[: batch.batch_size]
        torch.nn.functional.cross_entropy(found, batch.n_id[: batch.batch_size].to(device) % 16).backward()
        optimizer.step()
        batches += 1
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begun, batches


def graphs(asked, device):
    columns, degree, fan = 128, 15, [10, 5]
    x = torch.empty(asked.nodes, columns)
    fill(x, device)
    row, colptr = zipf(asked.nodes * degree, asked.nodes, device), torch.arange(0, asked.nodes * degree + 1, degree)
    seeds = torch.randperm(asked.nodes)[: asked.seeds]
    frames = x.nbytes // 4
    print(f"GraphSAGE: {asked.nodes} nodes of {columns} floats, {degree} edges each, {len(seeds)} seeds, frames of {frames >> 20} MiB")
    with gpuvm.Vm(frames, gpu=asked.gpu, page_size=4096, transport="direct") as vm:
        features, graph = gpuvm.pyg.FeatureStore(vm), gpuvm.pyg.GraphStore(vm)
        features["node", "x", None] = x
        graph[None, "csc", True, (asked.nodes, asked.nodes)] = row, colptr
        sampler = gpuvm.pyg.NeighborSampler(graph, fan)
        settings = {"num_neighbors": fan, "input_nodes": seeds, "batch_size": 1024}
        loaders = {
            "epoch, features and neighbours of gpuvm.pyg": NeighborLoader((features, graph), neighbor_sampler=sampler, **settings),
            "epoch, the same neighbours, features by processors": NeighborLoader((HostFeatures(vm, x, device), graph), neighbor_sampler=sampler, **settings),
        }
        if WITH_PYG_LIB or WITH_TORCH_SPARSE:
            edges = torch.stack([row.cpu(), torch.arange(asked.nodes).repeat_interleave(degree)])
            loaders["epoch, PyG's sampler, features by processors"] = NeighborLoader(Data(x=x, edge_index=edges), is_sorted=True, **settings)
        else:
            print("PyG's own sampler is not measured: neither pyg-lib nor torch-sparse is installed")
        ours = None
        for name, loader in loaders.items():
            # The first epoch compares, and has what is used most come to frames.
            epoch(loader, columns, device, x)
            seconds, batches = epoch(loader, columns, device)
            told(name, 1000 * seconds, ours, f"{batches} batches")
            ours = ours or 1000 * seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    whole = lambda text: int(float(text))  # noqa: E731
    parser.add_argument("--rows", type=whole, default=100_000_000, help="of the table")
    parser.add_argument("--columns", type=whole, default=64)
    parser.add_argument("--batch", type=whole, default=65_536, help="ids of a step")
    parser.add_argument("--optimizer", choices=OURS, default="SGD")
    parser.add_argument("--share", type=whole, default=8, help="frames are for one in this many parts of the table")
    parser.add_argument("--nodes", type=whole, default=4_000_000)
    parser.add_argument("--seeds", type=whole, default=100_000, help="nodes of an epoch")
    parser.add_argument("--seconds", type=float, default=200, help="that it may take, about")
    parser.add_argument("--gpu", default="cuda:0", help="or sim, to try the script")
    asked = parser.parse_args()
    asked.frames = max(asked.rows * asked.columns * 4 // asked.share, 1 << 20)
    device = torch.device("cpu" if asked.gpu == "sim" else asked.gpu)
    name = "the simulated GPU, whose times say nothing" if device.type == "cpu" else torch.cuda.get_device_name(device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    print(f"{name}, PyTorch {torch.__version__}, gpuvm {gpuvm.__version__}")
    print(f"{'':<58} {'ms':>10} {'to ours':>9}")
    torch.manual_seed(1)
    # Whatever hangs, it ends.
    faulthandler.dump_traceback_later(asked.seconds + 35, exit=True)
    embeddings(asked, device)
    graphs(asked, device)


if __name__ == "__main__":
    main()
