"""Ready operations over tensors of PyTorch: sparse products and nearest neighbours. :mod:`gpuvm.torch` has them."""

from __future__ import annotations

from typing import Any, Optional

import torch

from . import ops
from ._kernel import Launch, RawStream
from ._memory import Array
from ._rows import _ELEMENTS, Rows
from ._shapes import launch
from .errors import DtypeError, LayoutError, OutOfRangeError


def _enqueue(array: Array, stream: int, kernel: Any, warps: int, spans: int, *args: Any) -> Launch:
    """On the current stream of PyTorch; of the simulated GPU it has ended when this returns."""
    vm = array.vm
    given = [(_ELEMENTS[str(one.dtype)[6:]], one.data_ptr(), one) if isinstance(one, torch.Tensor) else one for one in args]
    launched = launch(vm, kernel, warps, spans, *given, stream=None if vm.simulated else RawStream(stream))
    if vm.simulated:
        launched.sync()
    return launched


def spmv(indptr: torch.Tensor, indices: Array, data: Array, x: torch.Tensor, stream: int) -> torch.Tensor:
    """See :func:`gpuvm.torch.spmv`. What is out of range is looked for first: a kernel would read there."""
    kind, column = ops._typed(data, ops._NUMBERS, "data"), ops._typed(indices, ops._COLUMNS, "indices")
    if data.ndim != 1 or indices.shape != data.shape:
        raise LayoutError(f"indices have shape {indices.shape} and data {data.shape}: expected one dimension, the same length")
    starts, rows = indptr.to(x.device, torch.int64).contiguous(), indptr.numel() - 1
    if rows < 0 or int(starts[0]) != 0 or int(starts[-1]) != data.size or bool((starts[1:] < starts[:-1]).any()):
        raise OutOfRangeError(f"indptr does not ascend from 0 to {data.size}, the number of entries")
    ops._check_all(indices, x.numel(), "columns")
    x, y = x.contiguous(), x.new_zeros(rows)
    if rows and data.size:
        kernel = ops.module(data.vm, "spmv")[f"spmv<{kind}, {column}>"]
        _enqueue(data, stream, kernel, rows, 2, starts, indices, data, x, y, rows)
    return y


def knn(of: Rows, queries: torch.Tensor, k: int, stream: int) -> "tuple[torch.Tensor, torch.Tensor]":
    """See :func:`gpuvm.torch.knn`."""
    kind: Optional[str] = ops._FLOATS.get(of.dtype)
    if kind is None:
        raise DtypeError(f"vectors have {of.dtype}: this operation is for {', '.join(ops._FLOATS)}")
    queries = queries.contiguous()
    count, width = queries.shape
    nearest = queries.new_full((count, k), torch.inf)
    numbers = torch.full((count, k), -1, dtype=torch.int64, device=queries.device)
    step = max(32, min(of.rows, ops._DISTANCES // max(count * queries.element_size(), 1)))
    apart, kernels, begin = queries.new_empty(count * step), ops.module(of.array.vm, "knn"), of.first // of.row_bytes
    measured: Optional[Launch] = None
    for first in range(0, of.rows, step):
        some = min(step, of.rows - first)
        if measured is not None:
            # Each may hold as many pages as there are frames.
            measured.sync()
        measured = _enqueue(of.array, stream, kernels[f"distances<{kind}>"], some, 1, of.array, queries, apart, width, begin + first, some, count)
        _enqueue(of.array, stream, kernels[f"select<{kind}>"], count, 0, apart, nearest, numbers, first, some, k, count)
    return nearest, numbers
