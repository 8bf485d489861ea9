"""Plain device memory whose chunks lie on the GPU or in host memory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Tuple, Union

import numpy as np

from . import _core
from ._dtypes import bytes_of, priority_of, rows_of, text, whole
from ._memory import Buffer, _Sliced
from .errors import RegionError

if TYPE_CHECKING:
    from ._vm import Vm


class Moved(NamedTuple):
    """What a move of chunks was."""

    #: Chunks that came to the GPU.
    came: int
    #: Chunks that went to host memory.
    left: int
    #: Seconds that the caller was held, without the time that launches took to end.
    took: float


class TieredBuffer(Buffer, _Sliced):
    """A :class:`Buffer` that may be larger than GPU memory: chunks of it, 2 MiB on NVIDIA GPUs, lie on the GPU or in host memory, at one address.

    Made by :meth:`Vm.tiered_buffer`. Kernels of any library read and write each chunk where it lies: on the GPU at its memory's speed, in host
    memory over the wire. Chunks move between launches alone: by :meth:`move_to` and :meth:`set_budget`, and to host memory when something else
    of the :class:`Vm` finds no GPU memory. A buffer that another library has, by DLPack or ``__cuda_array_interface__``, is moved by those two
    alone: they wait for all work of the GPU, and the library is to enqueue nothing with it meanwhile.
    """

    _kind = "tiered buffer"

    def __init__(self, vm: "Vm", name: str, shape: Tuple[int, ...], dtype: np.dtype[Any], core: _core.Buffer) -> None:
        super().__init__(vm, shape, dtype, core)
        self._name = name
        # Both bases have one.
        self._core: _core.Buffer = core

    @property
    def resident_bytes(self) -> int:
        """Bytes of the chunks that lie on the GPU now."""
        return self._core.tiers()[0]

    @property
    def budget(self) -> int:
        """Bytes that may lie on the GPU."""
        return self._core.tiers()[1]

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a chunk."""
        return self._core.tiers()[2]

    def place_of(self, row: int) -> str:
        """Where the first element of a row lies: ``"gpu"`` or ``"host"``."""
        return self._core.place_of(whole(row, f"row of {self._what}", error=RegionError) * rows_of(self._shape))

    def move_to(self, place: str, start: int = 0, stop: Optional[int] = None) -> Moved:
        """Moves the chunks that hold rows from ``start`` to ``stop``, all rows without them, to ``"gpu"`` or ``"host"``.

        What comes to the GPU beyond the budget has chunks leave that came longest ago. Raises ``OutOfMemoryError`` where that place has no
        memory and nothing gives any up: then nothing has moved.
        """
        row = rows_of(self._shape)
        first = whole(start, f"first row of {self._what}", error=RegionError)
        end = (self._shape[0] if self._shape else 1) if stop is None else whole(stop, f"end of rows of {self._what}", error=RegionError)
        return Moved(*self._core.move_to(first * row, end * row, text(place, f"place of {self._what}")))

    def set_budget(self, budget: Union[int, str]) -> Moved:
        """Says how much of it may lie on the GPU, bytes or a size such as ``"2GiB"``. Chunks beyond leave; where there is room chunks come, as far as
        GPU memory is free."""
        return Moved(*self._core.set_budget(bytes_of(budget, f"budget of {self._what}", low=0)))

    def set_priority(self, priority: int) -> None:
        """Whose chunks leave first when GPU memory is short: those of low priority, as with elastic buffers and frames."""
        self._core.set_priority(priority_of(priority, f"priority of {self._what}"))

    def __enter__(self) -> "TieredBuffer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
