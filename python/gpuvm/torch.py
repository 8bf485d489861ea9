"""PyTorch over arrays larger than GPU memory.

>>> import gpuvm, gpuvm.torch, numpy, torch                                                         # doctest: +SKIP
>>> with gpuvm.Vm("1GiB") as vm:                                                                     # doctest: +SKIP
...     table = vm.array(numpy.lib.format.open_memmap("table.npy", mode="r+"))
...     embedding = gpuvm.torch.Embedding(table, vm)
...     loss = embedding(torch.tensor([3, 5, 3])).square().sum()
...     loss.backward()
...     embedding.sgd_step(lr=0.01)
"""

from __future__ import annotations

from typing import Any, List, Optional, Tuple

import numpy as np
import torch

from . import ops
from ._memory import Array
from ._vm import Vm
from .errors import ArgumentError, DtypeError, LayoutError, RegionError

__all__ = ["Embedding"]


class _Lookup(torch.autograd.Function):
    """Rows of the table. Its gradient goes to the module: the table is no tensor."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, embedding: "Embedding", ids: torch.Tensor) -> torch.Tensor:
        ctx.embedding, ctx.ids = embedding, ids
        rows = ops.take(embedding.table, ids.detach().cpu().numpy())
        if rows.size == 0:
            return torch.empty(rows.shape, dtype=anchor.dtype, device=embedding.device)
        # The buffer lives as long as the tensor.
        found: torch.Tensor = torch.from_dlpack(rows)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Tuple[torch.Tensor, None, None]:
        (gradient,) = gradients
        embedding = ctx.embedding
        embedding._pending.append((ctx.ids.reshape(-1), gradient.detach().reshape(-1, embedding.embedding_dim)))
        return torch.zeros_like(embedding._anchor), None, None


class Embedding(torch.nn.Module):
    """``torch.nn.Embedding`` whose weight is a paged array: ``table`` of float32 or float64, of rows and columns.

    The weight is no parameter, and optimizers do not see it: gradients are gathered by the module. :attr:`grad` has them as a sparse
    tensor, :meth:`sgd_step` applies them to the table, :meth:`zero_grad` forgets them.
    """

    def __init__(self, table: Array, vm: Optional[Vm] = None) -> None:
        super().__init__()
        if not isinstance(table, Array):
            raise ArgumentError(f"table is of type {type(table).__name__}: expected a gpuvm.Array, as vm.array(...) makes it")
        if vm is not None and table.vm is not vm:
            raise ArgumentError("table belongs to another Vm")
        if table.ndim != 2:
            raise LayoutError(f"table has shape {table.shape}: expected rows and columns")
        if table.dtype.name not in ("float32", "float64"):
            raise DtypeError(f"table has {table.dtype}: expected float32 or float64")
        self.table = table
        self.num_embeddings, self.embedding_dim = table.shape
        kind, number = (1, 0) if table.vm.simulated else table._core.dlpack_device()
        self.device = torch.device("cpu") if kind == 1 else torch.device("cuda", number)
        # What makes autograd call the module back. No parameter: nothing may train it.
        dtype = torch.float32 if table.dtype == np.float32 else torch.float64
        self._anchor = torch.zeros((), dtype=dtype, device=self.device, requires_grad=True)
        self._pending: List[Tuple[torch.Tensor, torch.Tensor]] = []

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows by their numbers: a tensor of shape ``ids.shape + (embedding_dim,)``."""
        found: torch.Tensor = _Lookup.apply(self._anchor, self, ids)  # type: ignore[no-untyped-call]
        return found

    def _gathered(self) -> Optional[Tuple[torch.Tensor, torch.Tensor]]:
        if not self._pending:
            return None
        ids = torch.cat([ids.to(self.device) for ids, _ in self._pending])
        rows = torch.cat([rows.to(self.device) for _, rows in self._pending])
        return ids, rows

    @property
    def grad(self) -> Optional[torch.Tensor]:
        """The gradient of the table, summed over what was propagated back since :meth:`zero_grad`: a coalesced sparse COO tensor."""
        gathered = self._gathered()
        if gathered is None:
            return None
        ids, rows = gathered
        size = (self.num_embeddings, self.embedding_dim)
        return torch.sparse_coo_tensor(ids.reshape(1, -1), rows, size).coalesce()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets what was propagated back."""
        super().zero_grad(set_to_none)
        self._pending.clear()

    def sgd_step(self, lr: float) -> None:
        """Adds ``-lr`` times the gradient to the table, row by row, and forgets it. Rows without a gradient are not touched."""
        if self.table.read_only:
            raise RegionError(f"array `{self.table.name}` is read-only: it cannot be trained")
        gradient = self.grad
        if gradient is None:
            return
        ids = gradient.indices().reshape(-1).cpu().numpy()
        steps = (-lr * gradient.values()).contiguous().cpu().numpy()
        ops.scatter_add(self.table, ids, steps)
        self._pending.clear()

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}, paged"
