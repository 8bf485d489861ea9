"""Device memory that grows and shrinks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Tuple

import numpy as np

from . import _core
from ._dtypes import priority_of, whole
from ._memory import NdArray, _Sliced
from .errors import RegionError

if TYPE_CHECKING:
    from ._vm import Vm


class Grown(NamedTuple):
    """What a growth was."""

    #: The first new element.
    first: int
    #: Its memory was pre-mapped: only the length has moved.
    premapped: bool
    #: Bytes that were copied, since another buffer began where this one grew.
    moved_bytes: int
    #: Seconds that the caller was held.
    took: float


class ElasticBuffer(_Sliced):
    """Plain device memory that grows and shrinks at one address, which kernels take as ``T*``. It has one dimension and is not paged.

    Made by :meth:`Vm.elastic_buffer`. What new elements hold is unspecified. Growing waits for no launch, but where another buffer begins
    behind one that was made with a length; launches that run go on with the elements that there were. What is behind the new length after
    a shrinking must not be used any more, also by launches that run. Whatever reads or writes it from Python waits for the launches that
    were given it.
    """

    _kind = "elastic buffer"

    def __init__(self, vm: "Vm", name: str, most: int, dtype: np.dtype[Any], core: _core.Elastic) -> None:
        super().__init__(vm, name, (most,), dtype)
        self._core: _core.Elastic = core

    @property
    def shape(self) -> Tuple[int, ...]:
        """Its length now, as the one dimension."""
        return (self._core.length,)

    @property
    def max_length(self) -> int:
        """The most elements that it can have."""
        return self._shape[0]

    @property
    def capacity(self) -> int:
        """Elements that it can have without waiting for memory; 0 while it is paused."""
        return self._core.capacity

    @property
    def address(self) -> int:
        """Device address of element 0, for as long as it is not closed."""
        return self._core.address

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._core.closed

    def grow(self, elements: int) -> Grown:
        """Makes it longer by ``elements``. After an error (``BeyondMaxError``, ``PausedError``, ``OutOfMemoryError``) it is as before."""
        return Grown(*self._core.grow(whole(elements, f"growth of {self._what}", error=RegionError)))

    def ensure(self, elements: int) -> Grown:
        """Makes it ``elements`` long, if it is shorter. Errors as for :meth:`grow`."""
        return Grown(*self._core.ensure(whole(elements, f"length of {self._what}", error=RegionError)))

    def shrink(self, elements: int) -> None:
        """Makes it shorter by ``elements``; an ``IndexError`` when it has fewer."""
        self._core.shrink(whole(elements, f"shrinking of {self._what}", error=RegionError))

    def set_priority(self, priority: int) -> None:
        """Who gives up memory that is mapped and not in use when GPU memory is short: those of low priority first, among elastic buffers
        and frames (:meth:`Vm.set_frame_priority`)."""
        self._core.set_priority(priority_of(priority, f"priority of {self._what}"))

    def numpy(self) -> NdArray:
        """A copy of all elements, after the launches that were given it."""
        values: NdArray = self[:]
        return values

    def close(self) -> None:
        """Gives it back: the memory is for others when the launches that were given it have ended. Once is enough."""
        self._core.close()

    def __enter__(self) -> "ElasticBuffer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        now = "closed" if self.closed else f"{len(self)} of {self.max_length}"
        return f"<gpuvm.ElasticBuffer {self._name!r}: {now}, {self._dtype}>"
