"""Stores and the sampler of PyTorch Geometric: against its own over tensors in memory, and under its loader."""

from __future__ import annotations

import collections
import pathlib
import runpy

import numpy as np
import pytest

import gpuvm

torch = pytest.importorskip("torch", minversion="2.4", reason="PyTorch is not installed: its wheels bring gigabytes of CUDA")
geometric = pytest.importorskip("torch_geometric", minversion="2.8", reason="torch_geometric is not installed")

from torch_geometric.data import Data, TensorAttr  # noqa: E402 - it may not be there
from torch_geometric.loader import NeighborLoader  # noqa: E402
from torch_geometric.sampler import EdgeSamplerInput, NodeSamplerInput  # noqa: E402
from torch_geometric.utils import coalesce, sort_edge_index  # noqa: E402

import gpuvm.pyg as pyg  # noqa: E402
import gpuvm.torch as paged  # noqa: E402

NODES, EDGES, COLUMNS = 2000, 9000, 40
own_samplers = pytest.mark.skipif(
    not (geometric.typing.WITH_PYG_LIB or geometric.typing.WITH_TORCH_SPARSE),
    reason="PyG's own samplers need pyg-lib, which PyPI does not have, or torch-sparse, which is compiled for minutes",
)


@pytest.fixture
def graph(numbers):
    """Features, labels and edges: a few nodes have thousands of neighbours, some have none."""
    source = numbers.integers(0, NODES, EDGES)
    target = (numbers.random(EDGES) ** 3 * (NODES - 100)).astype(np.int64)
    edges = sort_edge_index(coalesce(torch.from_numpy(np.stack([source, target]))), sort_by_row=False)
    x = torch.from_numpy(numbers.standard_normal((NODES, COLUMNS)).astype(np.float32))
    return Data(x=x, y=torch.arange(NODES), edge_index=edges)


def colptr_of(edges):
    return torch.cat([torch.zeros(1, dtype=torch.int64), torch.bincount(edges[1], minlength=NODES).cumsum(0)])


def stores(vm, graph):
    features, edges = pyg.FeatureStore(vm), pyg.GraphStore(vm)
    features["node", "x", None] = graph.x
    features["node", "y", None] = graph.y.numpy()
    edges[None, "csc", True, (NODES, NODES)] = graph.edge_index[0], colptr_of(graph.edge_index)
    return features, edges


def test_a_feature_store(vm, graph):
    features, _ = stores(vm, graph)
    kept = features["node", "x", None]
    assert paged.array_of(kept) is not None and torch.equal(kept.cpu(), graph.x)
    ids = torch.tensor([3, 1999, 3, 0])
    for index in (ids, ids.int(), slice(5, 90, 2), 7, torch.arange(NODES) % 3 == 0):
        assert torch.equal(features["node", "x", index].cpu(), graph.x[index])
        assert torch.equal(features["node", "y", index].cpu(), graph.y[index])
    # PyG's own checks take no array of NumPy's.
    assert torch.equal(features._get_tensor(TensorAttr("node", "x", ids.numpy())).cpu(), graph.x[ids])
    assert features.get_tensor_size(group_name="node", attr_name="x") == (NODES, COLUMNS)
    assert [(attr.group_name, attr.attr_name, attr.is_set("index")) for attr in features.get_all_tensor_attrs()] == [("node", "x", False), ("node", "y", False)]
    # Rows are stored, also over what kernels wrote.
    paged.index_add_(kept, torch.tensor([3], device=kept.device), torch.ones((1, COLUMNS), device=kept.device))
    graph.x[3] += 1
    # What kernels wrote is there, too, where PyTorch reads the tensor itself.
    assert torch.equal(features["node", "x", slice(2, 5)].cpu(), graph.x[2:5]) and torch.equal(features["node", "x", None].cpu(), graph.x)
    assert features.put_tensor(torch.zeros(2, COLUMNS), "node", "x", torch.tensor([5, 1999]))
    graph.x[[5, 1999]] = 0
    assert torch.equal(features["node", "x", torch.arange(NODES)].cpu(), graph.x)
    assert not features.put_tensor(torch.zeros(2, COLUMNS), "node", "z", ids)
    assert features.remove_tensor("node", "x", None) and not features.remove_tensor("node", "x", None)
    assert features.get_tensor("node", "x", ids) is None and features.get_tensor_size("node", "x") is None


def test_what_lies_in_home_memory_is_taken_as_it_is(vm, graph):
    features, edges = pyg.FeatureStore(vm), pyg.GraphStore(vm)
    array = vm.array(graph.x.numpy(), read_only=True)
    features["node", "x", None] = array
    assert features["node", "x", None] is array.tensor()
    with pytest.raises(gpuvm.errors.RegionError, match="read-only"):
        features.put_tensor(torch.zeros(2, COLUMNS), "node", "x", torch.tensor([5, 1999]))
    row, colptr = paged.from_numpy(graph.edge_index[0].numpy(), vm), paged.from_numpy(colptr_of(graph.edge_index).numpy(), vm)
    edges[None, "csc"] = row, colptr
    assert edges.in_place()[0] is row and edges.in_place()[1] is colptr
    with gpuvm.Vm("64KiB", gpu="sim") as other, pytest.raises(gpuvm.errors.ArgumentError, match="another Vm"):
        pyg.FeatureStore(other)["node", "x", None] = array


def test_a_graph_store(vm, graph):
    _, edges = stores(vm, graph)
    (row, colptr, perm), sizes = edges.csc(), [attr.size for attr in edges.get_all_edge_attrs()]
    assert torch.equal(row, graph.edge_index[0]) and torch.equal(colptr, colptr_of(graph.edge_index)) and perm is None
    assert row.device.type == "cpu" and sizes == [(NODES, NODES)]
    assert torch.equal(torch.stack(edges.coo()[:2]), graph.edge_index)
    typed = pyg.GraphStore(vm)
    typed[("user", "likes", "item"), "coo"] = graph.edge_index
    rows, colptrs, _ = typed.csc()
    assert torch.equal(colptrs["user", "likes", "item"], colptr_of(graph.edge_index)[: int(graph.edge_index[1].max()) + 2])
    assert typed.remove_edge_index(("user", "likes", "item"), "coo") and not typed.remove_edge_index(("user", "likes", "item"), "coo")
    with pytest.raises(KeyError):
        typed.get_edge_index(("user", "likes", "item"), "coo")
    with pytest.raises(gpuvm.errors.ArgumentError, match="'csc'"):
        pyg.NeighborSampler(typed, [2], edge_type=("user", "likes", "item"))


def expect_sampled(found, graph, seeds, most):
    """What is sampled is of the graph, each node once, hop by hop this many of the neighbours that there are, none twice."""
    node, row, col = found.node.cpu(), found.row.cpu(), found.col.cpu()
    assert torch.equal(node[: len(seeds)], seeds) and len(node.unique()) == len(node) == sum(found.num_sampled_nodes)
    assert len(row) == len(col) == sum(found.num_sampled_edges)
    there = set(map(tuple, graph.edge_index.t().tolist()))
    pairs = list(zip(node[row].tolist(), node[col].tolist()))
    assert set(pairs) <= there and len(set(pairs)) == len(pairs)
    degree, begin, first_edge = torch.bincount(graph.edge_index[1], minlength=NODES), 0, 0
    for hop, limit in enumerate(most):
        expanded = node[begin : begin + found.num_sampled_nodes[hop]]
        expected = degree[expanded] if limit < 0 else degree[expanded].clamp(max=limit)
        edges = col[first_edge : first_edge + found.num_sampled_edges[hop]] - begin
        assert torch.equal(torch.bincount(edges, minlength=len(expanded)), expected)
        begin, first_edge = begin + len(expanded), first_edge + len(edges)


@pytest.mark.parametrize("most", [[3, 2], [-1, 2, 4], [100], [0, 5]], ids=str)
def test_a_sampler_finds_neighbours(vm, graph, most):
    _, edges = stores(vm, graph)
    sampler = pyg.NeighborSampler(edges, most, edges=True)
    for seeds in (torch.tensor([1, 0, 1999, 50]), torch.arange(300, 340), torch.zeros(0, dtype=torch.int64)):
        found = sampler.sample_from_nodes(NodeSamplerInput(input_id=None, node=seeds))
        expect_sampled(found, graph, seeds, most)
        edge = found.edge.cpu()
        assert torch.equal(graph.edge_index[:, edge], torch.stack([found.node[found.row], found.node[found.col]]).cpu())


def test_each_subset_of_neighbours_is_as_likely(vm, graph):
    _, edges = stores(vm, graph)
    torch.manual_seed(5)
    sampler = pyg.NeighborSampler(edges, [2])
    degree = torch.bincount(graph.edge_index[1], minlength=NODES)
    node = int((degree == 5).nonzero()[0])
    counts, times = collections.Counter(), 1000
    for _ in range(times):
        found = sampler.sample_from_nodes(NodeSamplerInput(input_id=None, node=torch.tensor([node])))
        counts[frozenset(found.node[found.row].tolist())] += 1
    assert {len(subset) for subset in counts} == {2} and len(counts) == 10
    # A tenth each, within five of its deviations.
    assert all(abs(count - times / 10) < 5 * (times * 0.09) ** 0.5 for count in counts.values())


def test_edges_that_lead_out_of_the_graph_are_refused(vm, graph):
    for row, colptr in ([3], [0, 1]), ([-1], [0, 1]), ([0, 0], [0, 1]), ([0, 0], [0, 2, 1, 2]), ([0], [1, 1]):
        edges = pyg.GraphStore(vm)
        edges[None, "csc"] = torch.tensor(row), torch.tensor(colptr)
        with pytest.raises(IndexError, match="out of range|ascend"):
            pyg.NeighborSampler(edges, [2])


def test_wrong_uses_of_the_sampler(vm, graph):
    _, edges = stores(vm, graph)
    sampler, node = pyg.NeighborSampler(edges, [2]), torch.tensor([1])
    for kind, use in [
        (TypeError, lambda: sampler.sample_from_nodes(NodeSamplerInput(None, node, time=node))),
        (TypeError, lambda: sampler.sample_from_nodes(NodeSamplerInput(None, node, input_type="paper"))),
        (TypeError, lambda: sampler.sample_from_edges(EdgeSamplerInput(None, node, node))),
        (IndexError, lambda: sampler.sample_from_nodes(NodeSamplerInput(None, torch.tensor([NODES])))),
        (IndexError, lambda: sampler.sample_from_nodes(NodeSamplerInput(None, torch.tensor([-1])))),
        (TypeError, lambda: pyg.NeighborSampler(edges, [])),
        (TypeError, lambda: pyg.NeighborSampler(edges, [-2])),
    ]:
        with pytest.raises(kind):
            use()


def expect_batches(loader, graph, seeds):
    met = []
    for batch in loader:
        node = batch.n_id.cpu()
        assert torch.equal(batch.x.cpu(), graph.x[node]) and torch.equal(batch.y.cpu(), graph.y[node])
        met.append(node[: batch.batch_size])
        pairs = node[batch.edge_index.cpu()]
        assert set(map(tuple, pairs.t().tolist())) <= set(map(tuple, graph.edge_index.t().tolist()))
    assert torch.equal(torch.cat(met), seeds)


def test_a_loader_over_our_sampler(vm, graph):
    features, edges = stores(vm, graph)
    seeds = torch.arange(0, NODES, 7)
    sampler = pyg.NeighborSampler(edges, [4, 3])
    loader = NeighborLoader((features, edges), num_neighbors=[4, 3], input_nodes=seeds, batch_size=64, neighbor_sampler=sampler)
    expect_batches(loader, graph, seeds)


@own_samplers
def test_a_loader_over_pygs_sampler(vm, graph):
    features, edges = stores(vm, graph)
    seeds = torch.arange(0, NODES, 7)
    expect_batches(NeighborLoader((features, edges), num_neighbors=[4, 3], input_nodes=seeds, batch_size=64), graph, seeds)


@own_samplers
def test_a_loader_of_several_types(vm, graph):
    features, edges = pyg.FeatureStore(vm), pyg.GraphStore(vm)
    features["user", "x", None], features["item", "x", None] = graph.x, graph.x * 2
    edges[("user", "likes", "item"), "csc", True, (NODES, NODES)] = graph.edge_index[0], colptr_of(graph.edge_index)
    seeds = torch.arange(0, 500, 3)
    for batch in NeighborLoader((features, edges), num_neighbors=[4], input_nodes=("item", seeds), batch_size=50):
        for name, factor in (("user", 1), ("item", 2)):
            assert torch.equal(batch[name].x.cpu(), factor * graph.x[batch[name].n_id])


def test_the_example(capsys):
    runpy.run_path(str(pathlib.Path(__file__).parents[1] / "examples" / "graphsage.py"), run_name="__main__")
    assert "epoch" in capsys.readouterr().out
