"""PyTorch Geometric over features and edges larger than GPU memory: its ``FeatureStore`` and ``GraphStore``, and a sampler that runs on the GPU.

>>> features, graph = gpuvm.pyg.FeatureStore(vm), gpuvm.pyg.GraphStore(vm)                           # doctest: +SKIP
>>> features["paper", "x", None] = x                                                                 # doctest: +SKIP
>>> graph["paper", "csc", True, (nodes, nodes)] = row, colptr                                        # doctest: +SKIP

They are for the loaders of torch_geometric 2.8, such as ``NeighborLoader((features, graph), ...)``, in the process that made the Vm: with
``num_workers=0``. What batches have of the features is on the GPU. PyG's own samplers run on processors, over a copy of the edges in host memory, and need
``pyg-lib`` or ``torch-sparse``; :class:`NeighborSampler` needs neither: ``NeighborLoader(..., neighbor_sampler=gpuvm.pyg.NeighborSampler(graph, [10, 5]))``.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple, Union

import numpy as np
import torch
from torch_geometric import data, sampler
from torch_geometric.data.graph_store import EdgeAttr, EdgeLayout

from ._memory import Array
from ._vm import Vm
from .errors import ArgumentError, LayoutError, OutOfRangeError, RegionError
from .torch import _bring_home, array_of, from_numpy, take, tensor_of, zeros

__all__ = ["FeatureStore", "GraphStore", "NeighborSampler"]


def _home(values: Union[Array, torch.Tensor, Any], vm: Vm) -> torch.Tensor:
    """A tensor over home memory: that of an array, or of a tensor of one, as it is; else a copy."""
    array = values if isinstance(values, Array) else array_of(values) if isinstance(values, torch.Tensor) else None
    if array is not None:
        if array.vm is not vm:
            raise ArgumentError("what is stored lies in home memory of another Vm")
        return tensor_of(array) if isinstance(values, Array) else values
    if not isinstance(values, torch.Tensor):
        return from_numpy(np.asarray(values), vm, copy=True)
    copy = zeros(tuple(values.shape), vm, dtype=values.dtype)
    copy.copy_(values)
    return copy


class FeatureStore(data.FeatureStore):
    """``torch_geometric.data.FeatureStore`` in home memory: tensors whose rows belong to nodes or edges, under a group and a name.

    ``store["paper", "x", None] = x`` copies ``x`` to home memory; arrays and tensors of this package, such as
    ``gpuvm.torch.from_numpy(numpy.load("x.npy", mmap_mode="r"), vm, read_only=True)``, are taken as they are. ``store["paper", "x", ids]`` are rows by their
    numbers, on the GPU, as :func:`gpuvm.torch.take` has them: ids that lie on the GPU stay there. Without ids it is all of the tensor, in place.
    """

    def __init__(self, vm: Vm) -> None:
        super().__init__()
        self._vm = vm
        self._kept: Dict[Tuple[Any, Optional[str]], torch.Tensor] = {}

    def _put_tensor(self, tensor: Any, attr: Any) -> bool:
        key = (attr.group_name, attr.attr_name)
        if attr.index is None:
            self._kept[key] = _home(tensor, self._vm)
            return True
        kept = self._kept.get(key)
        if kept is None:
            return False
        # What kernels wrote to the array before is there.
        array = array_of(kept)
        if array is not None:
            if array.read_only:
                raise RegionError(f"array `{array.name}` is read-only: nothing can be stored into it")
            array.flush()
        kept[_index(attr.index, kept.device)] = torch.as_tensor(tensor, dtype=kept.dtype, device=kept.device)
        return True

    def _get_tensor(self, attr: Any) -> Optional[torch.Tensor]:
        kept = self._kept.get((attr.group_name, attr.attr_name))
        if kept is None:
            return None
        if attr.index is None:
            return _current(kept)
        index = _index(attr.index, kept.device)
        if not isinstance(index, torch.Tensor):
            return _current(kept)[index]
        return take(kept, index.nonzero().view(-1) if index.dtype is torch.bool else index)

    def _remove_tensor(self, attr: Any) -> bool:
        return self._kept.pop((attr.group_name, attr.attr_name), None) is not None

    def _get_tensor_size(self, attr: Any) -> Optional[Tuple[int, ...]]:
        kept = self._kept.get((attr.group_name, attr.attr_name))
        return None if kept is None else tuple(kept.shape)

    def get_all_tensor_attrs(self) -> List[Any]:
        """Of each tensor its group and name, without an index."""
        return [self._tensor_attr_cls(group, name) for group, name in self._kept]


def _current(kept: torch.Tensor) -> torch.Tensor:
    """A tensor that PyTorch's own operations are about to read: with what kernels wrote to its array."""
    array = array_of(kept)
    if array is not None:
        _bring_home(array)
    return kept


def _index(index: Any, device: torch.device) -> Any:
    if isinstance(index, np.ndarray):
        index = torch.from_numpy(index)
    return index.to(device) if isinstance(index, torch.Tensor) else index


class GraphStore(data.GraphStore):
    """``torch_geometric.data.GraphStore`` in home memory. Edges are copied there; arrays and tensors of this package are taken as they are.

    Samplers of PyG are given a copy of the edges, in memory of the host's own. Store edges as ``"csc"``, the sources of all edges and where those of each
    destination begin: samplers want them so, and PyG makes them of other layouts anew for each sampler.
    """

    def __init__(self, vm: Vm) -> None:
        super().__init__()
        self._vm = vm
        self._kept: Dict[Tuple[Any, EdgeLayout], Tuple[EdgeAttr, torch.Tensor, torch.Tensor]] = {}

    def _put_edge_index(self, edge_index: Any, edge_attr: EdgeAttr) -> bool:
        row, col = (_home(part, self._vm) for part in edge_index)
        self._kept[edge_attr.edge_type, edge_attr.layout] = edge_attr, row, col
        return True

    def _get_edge_index(self, edge_attr: EdgeAttr) -> Optional[Tuple[torch.Tensor, torch.Tensor]]:
        kept = self._kept.get((edge_attr.edge_type, edge_attr.layout))
        return None if kept is None else (_current(kept[1]).cpu(), _current(kept[2]).cpu())

    def _remove_edge_index(self, edge_attr: EdgeAttr) -> bool:
        return self._kept.pop((edge_attr.edge_type, edge_attr.layout), None) is not None

    def get_all_edge_attrs(self) -> List[EdgeAttr]:
        """Of all edges their type and layout."""
        return [kept[0] for kept in self._kept.values()]

    def in_place(self, edge_type: Any = None) -> Tuple[torch.Tensor, torch.Tensor]:
        """Edges that were stored as ``"csc"``, on the GPU's device and in home memory: sources, and where those of each destination begin."""
        kept = self._kept.get((edge_type, EdgeLayout.CSC))
        if kept is None:
            raise ArgumentError(f"no edges of type {edge_type!r} are stored as 'csc': this sampler reads no other layout")
        return kept[1], kept[2]


#: Edges of which one operation of PyTorch finds the smallest and the largest number.
_EDGES = 1 << 26


def _expect_edges(row: torch.Tensor, colptr: torch.Tensor) -> None:
    """Raises where edges lead out of the graph: samples would have nodes that are none."""
    nodes, edges = colptr.numel() - 1, row.numel()
    if int(colptr[0]) != 0 or int(colptr[-1]) != edges or any(bool((part[1:] < part[:-1]).any()) for part in _overlapping(colptr)):
        raise OutOfRangeError(f"where the edges of each node begin does not ascend from 0 to {edges}, the number of edges")
    for part in row.split(_EDGES):
        if part.numel() and not 0 <= int(part.min()) <= int(part.max()) < nodes:
            raise OutOfRangeError(f"sources of edges are out of range: there are {nodes} nodes")


def _overlapping(values: torch.Tensor) -> Iterator[torch.Tensor]:
    """Parts, each with the first element of the next one."""
    return (values[first : first + _EDGES + 1] for first in range(0, values.numel(), _EDGES))


class NeighborSampler(sampler.BaseSampler):
    """Neighbours of nodes on the GPU, over edges in home memory, for ``NeighborLoader`` and ``NodeLoader`` of graphs with one type of nodes and edges.

    ``num_neighbors``: for each hop this many neighbours at most of each node that the hop before has found, -1 for all; chosen without repetition, each
    subset as likely. ``edges``: whether batches have ``e_id``. Random numbers are those of PyTorch on the device. All edges are read once, for a look
    whether they are in range: ``IndexError``.
    """

    def __init__(self, graph: GraphStore, num_neighbors: Sequence[int], *, edge_type: Any = None, edges: bool = False) -> None:
        self._row, self._colptr = graph.in_place(edge_type)
        if not num_neighbors or any(isinstance(most, bool) or not isinstance(most, int) or most < -1 for most in num_neighbors):
            raise ArgumentError(f"num_neighbors are {num_neighbors!r}: expected a number for each hop, or -1")
        if self._row.dim() != 1 or self._colptr.dim() != 1 or self._colptr.numel() == 0:
            raise LayoutError(f"edges have shapes {tuple(self._row.shape)} and {tuple(self._colptr.shape)}: expected vectors")
        _expect_edges(_current(self._row), _current(self._colptr))
        self._most, self._edges = list(num_neighbors), edges

    def sample_from_nodes(self, index: Any, **_: Any) -> Any:
        """See ``torch_geometric.sampler.BaseSampler``."""
        if index.time is not None or index.input_type is not None:
            raise ArgumentError("this sampler knows neither times nor types of nodes: use PyG's own, which needs pyg-lib or torch-sparse")
        seeds, there = index.node, self._colptr.numel() - 1
        if seeds.numel() and not 0 <= int(seeds.min()) <= int(seeds.max()) < there:
            raise OutOfRangeError(f"nodes are out of range: there are {there}")
        nodes = seeds.to(self._row.device, torch.int64)
        found = sampler.SamplerOutput(nodes, nodes[:0], nodes[:0], nodes[:0], num_sampled_nodes=[nodes.numel()], num_sampled_edges=[])
        for most in self._most:
            self._hop(found, most)
        found.edge = found.edge if self._edges else None
        found.metadata = (index.input_id, index.time)
        return found

    def sample_from_edges(self, index: Any, neg_sampling: Any = None) -> Any:
        """Is refused: batches begin with nodes."""
        raise ArgumentError("this sampler begins with nodes: for LinkNeighborLoader use PyG's own, which needs pyg-lib or torch-sparse")

    def _hop(self, found: Any, most: int) -> None:
        before = found.node.numel()
        begin = before - found.num_sampled_nodes[-1]
        chosen, of = self._choose(found.node[begin:], most)
        sources = take(self._row, chosen).long()
        # Each node once: those that were there keep their places, new ones come behind them.
        known, places = found.node.sort()
        unique, back = sources.unique(return_inverse=True)
        at = torch.searchsorted(known, unique).clamp_(max=before - 1)
        is_new = known[at] != unique if before else torch.ones_like(unique, dtype=torch.bool)
        local = torch.where(is_new, before - 1 + is_new.cumsum(0), places[at] if before else 0)
        found.node = torch.cat([found.node, unique[is_new]])
        found.row, found.col = torch.cat([found.row, local[back]]), torch.cat([found.col, begin + of])
        found.edge = torch.cat([found.edge, chosen])
        found.num_sampled_nodes.append(found.node.numel() - before)
        found.num_sampled_edges.append(sources.numel())

    def _choose(self, nodes: torch.Tensor, most: int) -> Tuple[torch.Tensor, torch.Tensor]:
        """Numbers of edges into nodes, and into which of them each leads."""
        first = take(self._colptr, nodes).long()
        degree = take(self._colptr, nodes + 1).long() - first
        if most < 0:
            of = torch.repeat_interleave(degree)
            return torch.arange(of.numel(), device=of.device) - (degree.cumsum(0) - degree)[of] + first[of], of
        # Floyd's: the k-th of them is any of the first (degree - most + k + 1), or if that is taken, the last of those.
        chosen = torch.empty((nodes.numel(), most), dtype=torch.int64, device=nodes.device)
        for k in range(most):
            last = (degree - most).clamp_(min=0) + k
            any_of = (torch.rand(nodes.numel(), dtype=torch.float64, device=nodes.device) * (last + 1)).long().minimum(last)
            taken = (chosen[:, :k] == any_of.unsqueeze(1)).any(1)
            chosen[:, k] = torch.where(taken, last, any_of)
        is_there = torch.arange(most, device=nodes.device) < degree.unsqueeze(1)
        of = is_there.nonzero()[:, 0]
        return (chosen + first.unsqueeze(1))[is_there], of
