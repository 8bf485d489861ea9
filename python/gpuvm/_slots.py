"""Caches of records: slots in GPU memory for rows of arrays, which calls on the GPU fill without the host."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Sequence, Tuple, Union

import numpy as np

from . import _core
from ._dtypes import described, text, whole
from ._memory import Array, Buffer
from .errors import ArgumentError, ClosedError, DtypeError, LayoutError, SettingError

if TYPE_CHECKING:
    from ._vm import Vm

#: What calls count, in the order of the core.
COUNTS = ("hits", "misses", "prefetched", "evictions", "bytes")


def make(vm: "Vm", arrays: Sequence[Array], slots: int, policy: str) -> _core.SlotCache:
    """The core's cache of arrays whose rows are records."""
    tables: List[Tuple[_core.Region, int]] = []
    for array in arrays:
        if not isinstance(array, Array):
            raise ArgumentError(f"a table is of type {type(array).__name__}: expected a gpuvm.Array, as vm.array(...) makes it")
        if array.vm is not vm:
            raise ArgumentError(f"array `{array.name}` belongs to another Vm")
        if array.ndim == 0:
            raise LayoutError(f"array `{array.name}` has no dimension: its rows are the records of a slot cache")
        tables.append((array._core, math.prod(array.shape[1:]) * array.dtype.itemsize))
    count = whole(slots, "slots of a slot cache", 1, error=SettingError)
    return vm._core.slot_cache(tables, count, text(policy, "policy of a slot cache"))


class _Slots(Buffer):
    """A buffer that calls of a cache fill: the thread that looks at it from the host waits for them."""

    def __init__(self, cache: "SlotCache", shape: Tuple[int, ...], dtype: np.dtype[Any], core: _core.Buffer) -> None:
        super().__init__(cache.vm, shape, dtype, core)
        self._cache = cache

    def numpy(self) -> Any:
        self._cache._wait_idle()
        return super().numpy()

    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]:
        self._cache._wait_idle()
        return super().__cuda_array_interface__

    def __dlpack__(self, **kwargs: Any) -> Any:
        self._cache._wait_idle()
        return super().__dlpack__(**kwargs)


class SlotCache:
    """Slots in GPU memory for rows of one or several arrays, which is made by :meth:`Vm.slot_cache`; of PyTorch's tensors
    :class:`gpuvm.torch.SlotCache`.

    A call (:meth:`ensure`, :meth:`prefetch`, :meth:`hold`) returns at once; the GPU finds which rows have slots, chooses whose leave, and fetches the
    others. Calls of one cache are to run one behind the other. Rows of a call, and those that are held, stay in their slots until the next call.
    Ids of -1 stand for none. Ids that no row has, and more different rows than slots, get slot -1, and are an ``IndexError`` and a ``SlotsError`` of
    whatever waits next: :meth:`wait`, ``numpy()`` of slots or frames, ``Vm.sync``. What is stored to an array the next call sees, of stores by its own
    methods and by launches; of others after :meth:`gpuvm.Array.wrote`.
    """

    def __init__(self, vm: "Vm", arrays: Sequence[Array], slots: int, policy: str) -> None:
        self._vm, self._arrays = vm, tuple(arrays)
        self._core = make(vm, arrays, slots, policy)
        self._frames = tuple(self._frame(n, array, slots) for n, array in enumerate(arrays))

    def _frame(self, n: int, array: Array, slots: int) -> Buffer:
        core = self._core.frames(n, described(array.dtype, f"array `{array.name}`"))
        return _Slots(self, (slots, *array.shape[1:]), array.dtype, core)

    @property
    def vm(self) -> "Vm":
        """The Vm that it belongs to."""
        return self._vm

    @property
    def frames(self) -> Union[Buffer, Tuple[Buffer, ...]]:
        """The slots: plain GPU memory of a row each, which kernels take as ``T*``. Of several arrays a tuple. Nothing is to write there."""
        return self._frames[0] if len(self._frames) == 1 else self._frames

    def _ids(self, ids: Any) -> Tuple[Tuple[int, int, bool], Tuple[int, ...], Any]:
        """Address, number and width of ids, their shape, and what keeps them."""
        if not isinstance(ids, Buffer):
            values = np.asarray(ids)
            if values.size == 0 and not isinstance(ids, np.ndarray):
                values = values.astype(np.int64)
            ids = self._vm.buffer(np.array(values, order="C"))
        if ids.vm is not self._vm:
            raise ArgumentError("ids are a buffer of another Vm")
        if ids.dtype not in (np.int32, np.int64):
            raise DtypeError(f"ids have {ids.dtype}: expected int32 or int64")
        return (ids._core.addr(), ids.size, ids.dtype == np.int64), ids.shape, ids

    def ensure(self, ids: Any, *, out: Optional[Buffer] = None, stream: Optional[int] = None) -> Buffer:
        """Has the rows of ``ids`` in slots, and returns in which: a buffer of int32 of the shape of ``ids``, which are a buffer of int32 or int64, or of
        the host. ``stream``: a raw stream of another library; none: behind the Vm's launches, and ahead of those to come."""
        given, shape, _ = self._ids(ids)
        if out is None:
            out = _Slots(self, shape, np.dtype(np.int32), self._vm.buffer(shape, np.int32)._core)
        elif out.dtype != np.int32 or out.shape != shape:
            raise LayoutError(f"out has shape {out.shape} of {out.dtype}: expected {shape} of int32")
        self._core.ensure(stream, given, out._core.addr())
        self._told()
        return out

    def prefetch(self, ids: Any, *, stream: Optional[int] = None) -> None:
        """Fetches rows ahead of a call that needs them, into slots that neither the last call nor a hold needs, as far as there are some."""
        given, _, _ = self._ids(ids)
        self._core.prefetch(stream, given)
        self._told()

    @contextlib.contextmanager
    def hold(self, ids: Any, *, stream: Optional[int] = None) -> Iterator[Buffer]:
        """:meth:`ensure` whose rows stay in their slots until the end of the ``with`` block, whatever other calls need."""
        slots = self.ensure(ids, stream=stream)
        held = slots._core.addr(), slots.size
        self._core.hold(stream, *held, False)
        try:
            yield slots
        finally:
            self._core.hold(stream, *held, True)

    def refresh(self, *, stream: Optional[int] = None) -> None:
        """Others have stored to the arrays, past gpuvm: rows leave their slots, but for those that are held, which are fetched anew."""
        self._core.refresh(stream)

    def wait(self) -> None:
        """Waits for its calls, and raises what they met."""
        self._core.wait()

    def _wait_idle(self) -> None:
        """As :meth:`wait`, of one that may be closed."""
        with contextlib.suppress(ClosedError):
            self._core.wait()

    def _told(self) -> None:
        # Of the simulated GPU each call has ended.
        if self._vm.simulated:
            self._core.wait()

    @property
    def stats(self) -> Dict[str, int]:
        """What calls have counted, after they have ended: ``hits``, ids whose row had a slot; ``misses``, rows that were fetched because a call
        needed them; ``prefetched``; ``evictions``; ``bytes``."""
        return dict(zip(COUNTS, self._core.stats()))

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._core.closed

    def close(self) -> None:
        """Waits for its calls, and gives back what it has. Once is enough."""
        self._core.close()

    def __enter__(self) -> "SlotCache":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        names = ", ".join(repr(array.name) for array in self._arrays)
        return f"<gpuvm.SlotCache of {names}: {'closed' if self.closed else f'{self._frames[0].shape[0]} slots'}>"
