"""Caches of records over PyTorch's tensors: see :class:`gpuvm.torch.SlotCache`."""

from __future__ import annotations

import contextlib
from typing import Dict, Iterator, List, Optional, Sequence, Tuple, Union

import torch

from . import _slots
from ._memory import Array
from .errors import ArgumentError, ClosedError, LayoutError
from .torch import _device_of, _dtype_of, _numbers, _rows_of, _stream, array_of

Table = Union[torch.Tensor, Array]


class SlotCache:
    """Slots in GPU memory for rows of tables that are larger than it: tensors of this module's kind, or arrays.

    >>> cache = gpuvm.torch.SlotCache(keys, slots=4096)              # doctest: +SKIP
    >>> slots = cache.ensure(ids)                                    # doctest: +SKIP
    >>> rows = cache.frames[slots]                                   # doctest: +SKIP

    ``frames`` is a plain tensor of ``slots`` rows, or a list of them for a list of tables, of which one id names a row each. Rows are of any multiple
    of 16 bytes up to 64 MiB. Calls run on PyTorch's current stream, wait for nothing, and CUDA graphs capture them, once one has run; ids stay on the
    GPU. Otherwise as :class:`gpuvm.SlotCache`: ids of -1 stand for none; errors of ids are told by :meth:`wait`. ``policy``: ``"lru"``,
    ``"frequency"``, or ``"first-come"``, which is for scans that come again in the same order.
    """

    def __init__(self, tables: Union[Table, Sequence[Table]], slots: int, *, policy: str = "lru") -> None:
        self._several = not isinstance(tables, (torch.Tensor, Array))
        given: List[Table] = list(tables) if self._several else [tables]  # type: ignore[arg-type]
        arrays = [table if isinstance(table, Array) else _array_of(table) for table in given]
        if not arrays:
            raise ArgumentError("a slot cache needs a table")
        #: Those of PyTorch, whose versions say whether it wrote.
        self._tensors = [table for table in given if isinstance(table, torch.Tensor)]
        vm = arrays[0].vm
        self.device = _device_of(vm, arrays[0])
        if self.device.type == "cuda":
            torch.cuda.init()
        self._simulated = vm.simulated
        # The arrays live as long as it does.
        self._arrays = arrays
        self._core = _slots.make(vm, arrays, slots, policy)
        self._frames = [self._frame(n, array, slots) for n, array in enumerate(arrays)]
        self._counts: Optional[torch.Tensor] = torch.utils.dlpack.from_dlpack(self._core.stats_dlpack())

    def _frame(self, n: int, array: Array, slots: int) -> torch.Tensor:
        bytes: torch.Tensor = torch.utils.dlpack.from_dlpack(self._core.frames_dlpack(n))
        return bytes.view(_dtype_of(array)).view(slots, *array.shape[1:])

    @property
    def frames(self) -> Union[torch.Tensor, List[torch.Tensor]]:
        """The slots, a row each. Nothing is to write there."""
        if not self._frames:
            raise ClosedError("the slot cache is closed")
        return self._frames if self._several else self._frames[0]

    def _given(self, ids: torch.Tensor) -> Tuple[torch.Tensor, Tuple[int, int, bool]]:
        for table in self._tensors:
            # What PyTorch has written is noticed.
            _rows_of(table)
        ids = _numbers(ids, self.device)
        return ids, (ids.data_ptr(), ids.numel(), ids.dtype is torch.int64)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def ensure(self, ids: torch.Tensor, *, out: Optional[torch.Tensor] = None) -> torch.Tensor:
        """Has the rows of ``ids`` (int32, int64, of any shape) in slots, and returns in which: int32 of the same shape."""
        ids, given = self._given(ids)
        if out is None:
            out = torch.empty(ids.shape, dtype=torch.int32, device=self.device)
        elif out.dtype is not torch.int32 or out.shape != ids.shape or out.device != self.device or not out.is_contiguous():
            raise LayoutError(f"out is {tuple(out.shape)} of {out.dtype} on {out.device}: expected {tuple(ids.shape)} of int32, in order")
        self._core.ensure(_stream(self.device), given, out.data_ptr())
        if self._simulated:
            self._core.wait()
        return out

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def prefetch(self, ids: torch.Tensor) -> None:
        """Fetches rows ahead of a call that needs them, into slots that neither the last call nor a hold needs, as far as there are some."""
        _, given = self._given(ids)
        self._core.prefetch(_stream(self.device), given)
        if self._simulated:
            self._core.wait()

    @contextlib.contextmanager
    def hold(self, ids: torch.Tensor) -> Iterator[torch.Tensor]:
        """:meth:`ensure` whose rows stay in their slots until the end of the ``with`` block, whatever other calls need."""
        slots = self.ensure(ids)
        self._core.hold(_stream(self.device), slots.data_ptr(), slots.numel(), False)
        try:
            yield slots
        finally:
            self._core.hold(_stream(self.device), slots.data_ptr(), slots.numel(), True)

    def refresh(self) -> None:
        """Others have stored to the tables, past PyTorch and gpuvm: rows leave their slots, but for those that are held, which are fetched anew."""
        self._core.refresh(_stream(self.device))

    def wait(self) -> None:
        """Waits for its calls, and raises what they met: an ``IndexError`` for ids that no row has, a ``SlotsError`` for more rows than slots."""
        self._core.wait()

    @property
    def stats(self) -> torch.Tensor:
        """What calls have counted, on the GPU, as of where the stream is: hits, misses, rows fetched ahead, evictions, bytes."""
        if self._counts is None:
            raise ClosedError("the slot cache is closed")
        return self._counts[1:].clone()

    def counts(self) -> Dict[str, int]:
        """:attr:`stats` by name, after all calls have ended."""
        return dict(zip(_slots.COUNTS, self._core.stats()))

    def close(self) -> None:
        """Waits for its calls, and gives back what it has, but for frames that tensors have. Once is enough."""
        # Tensors of the caller's keep what they need.
        self._frames, self._counts = [], None
        self._core.close()


def _array_of(table: torch.Tensor) -> Array:
    array = array_of(table)
    if array is None:
        raise ArgumentError("a table is a tensor of no array: make it by gpuvm.torch.from_numpy, from_file, zeros, or array.tensor()")
    if table.data_ptr() != array._core.home()[0] or table.shape != array.shape:  # type: ignore[index]
        raise ArgumentError(f"a table is a part of array `{array.name}`: a slot cache takes all of it, of the array's shape")
    return array
