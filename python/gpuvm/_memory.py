"""Arrays that kernels reach page by page, and plain device memory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Dict, Optional, Protocol, Tuple, Union

import numpy as np

from . import _core
from ._dtypes import Bytes, as_bytes, priority_of, rows_of, unmasked
from .errors import DtypeError, LayoutError, OutOfRangeError, RegionError

if TYPE_CHECKING:
    from ._vm import Vm

NdArray = np.ndarray[Any, np.dtype[Any]]


class _Shaped:
    """Shape and dtype, which the core does not know."""

    #: What messages call things of this kind.
    _kind = "array"

    def __init__(self, vm: "Vm", name: str, shape: Tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._vm = vm
        self._name = name
        self._shape = shape
        self._dtype = dtype

    @property
    def vm(self) -> "Vm":
        """The Vm that it belongs to."""
        return self._vm

    @property
    def name(self) -> str:
        """What errors call it."""
        return self._name

    @property
    def shape(self) -> Tuple[int, ...]:
        """Lengths of its dimensions. Kernels see all elements in one row."""
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of its elements."""
        return self._dtype

    @property
    def ndim(self) -> int:
        """Dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self._dtype.itemsize

    def __len__(self) -> int:
        shape = self.shape
        if not shape:
            raise TypeError(f"{self!r} has no dimension")
        return shape[0]

    def numpy(self) -> NdArray:
        """All elements."""
        raise NotImplementedError

    def __array__(self, dtype: Optional[np.dtype[Any]] = None, copy: Optional[bool] = None) -> NdArray:
        if copy is False:
            raise ValueError(f"{self!r} cannot be given without a copy")
        values = self.numpy()
        return values if dtype is None else values.astype(dtype, copy=False)

    def __repr__(self) -> str:
        return f"<gpuvm.{type(self).__name__} {self._name!r}: {self._shape}, {self._dtype}>"


class _Elements(Protocol):
    """Objects of the core whose elements can be read and written from any one on."""

    def read(self, first: int, out: Bytes) -> None: ...
    def write(self, first: int, values: Bytes) -> None: ...


class _Sliced(_Shaped):
    """What is read and written by the first elements of its rows."""

    _core: _Elements

    @property
    def _what(self) -> str:
        """What messages call it."""
        return f"{type(self)._kind} `{self._name}`"

    def _span(self, key: Any) -> Tuple[int, int, Any]:
        """First and last row that a key needs, and the rest of the key for NumPy."""
        if not self.shape:
            return 0, 1, key
        keys = key if isinstance(key, tuple) else (key,)
        first, rest = (keys[0], keys[1:]) if keys else (Ellipsis, ())
        rows = self.shape[0]
        if first is Ellipsis:
            return 0, rows, keys
        if isinstance(first, slice):
            start, stop, step = first.indices(rows)
            count = len(range(start, stop, step))
            if count == 0:
                return 0, 0, (slice(0, 0), *rest)
            last = start + (count - 1) * step
            low, high = min(start, last), max(start, last) + 1
            if step > 0:
                within = slice(0, high - low, step)
            else:
                within = slice(high - low - 1, None, step)
            return low, high, (within, *rest)
        if isinstance(first, (int, np.integer)) and not isinstance(first, (bool, np.bool_)):
            at = int(first)
            if not -rows <= at < rows:
                raise OutOfRangeError(f"index {at} is out of range: {self._what} has {rows} rows")
            at %= rows
            return at, at + 1, (0, *rest)
        raise TypeError(
            f"{self._what} takes integers and slices, not {type(first).__name__}: gpuvm.ops.take gathers rows by their numbers"
        )

    def _notice(self) -> None:
        """Before its elements are used."""

    def _rows(self, low: int, high: int) -> NdArray:
        part = np.empty((high - low, *self.shape[1:]) if self.shape else (), self._dtype)
        row = rows_of(self.shape)
        self._core.read(low * row, as_bytes(part))
        return part

    def __getitem__(self, key: Any) -> Any:
        """A copy of elements, of which as many whole rows are read as the first index needs."""
        low, high, rest = self._span(key)
        self._notice()
        found = self._rows(low, high)[rest]
        return found.copy() if isinstance(found, np.ndarray) and found.base is not None else found

    def __setitem__(self, key: Any, values: Any) -> None:
        """Stores elements. Kernels that are launched later see them."""
        unmasked(values, f"what is stored in {self._what}")
        low, high, rest = self._span(key)
        row = rows_of(self.shape)
        shape = (high - low, *self.shape[1:]) if self.shape else ()
        given = values if isinstance(values, (np.ndarray, np.generic, tuple)) else np.asarray(values)
        if not isinstance(given, tuple):
            # Python's whole numbers fit or do not; NumPy says so below.
            whole = not isinstance(values, (np.ndarray, np.generic)) and given.dtype.kind in "iu" and self._dtype.kind in "iufc"
            if not whole and not np.can_cast(given.dtype, self._dtype, "same_kind"):
                raise DtypeError(f"{self._what} has {self._dtype}, and {given.dtype} would lose values: convert it by .astype")
            given = values if whole else given
        self._notice()
        # Rows that are overwritten whole need not be read.
        places = np.empty(shape, self._dtype)[rest] if row and high > low else None
        covered = isinstance(places, np.ndarray) and places.size == math.prod(shape)
        part = np.empty(shape, self._dtype) if covered else self._rows(low, high)
        part[rest] = given
        self._core.write(low * row, as_bytes(part))


class Array(_Sliced):
    """An array of any size, which kernels take as ``gpuvm::array<T>``, or ``gpuvm::array<const T>``.

    Made by :meth:`Vm.array`, :meth:`Vm.zeros` and :meth:`Vm.map_file`. Its memory is the host's, of which pages are in GPU memory
    while kernels use them. Whatever reads or writes it from Python waits for the launches that were given it.
    """

    def __init__(self, vm: "Vm", name: str, shape: Tuple[int, ...], dtype: np.dtype[Any], core: _core.Region, never_evicted: bool) -> None:
        super().__init__(vm, name, shape, dtype)
        self._core: _core.Region = core
        self._never_evicted = never_evicted
        self._largest: Optional[int] = None
        #: The type of the elements in the file, where that says one: ``BF16`` of a ``uint16``.
        self.stored: Optional[str] = None
        #: Its tensor, weakly; what is written to that; what operations over its rows have in common; and what stands for a tensor.
        self._tensor: Any = None
        self._writes: Any = None
        self._plans: Dict[int, Any] = {}
        self._stand_in: Any = None

    def __repr__(self) -> str:
        return super().__repr__() if self.stored is None else f"{super().__repr__()[:-1]}, {self.stored} in the file>"

    @property
    def read_only(self) -> bool:
        """Whether kernels may only read it."""
        return self._core.read_only

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._core.closed

    def _has_news(self) -> bool:
        """Whether PyTorch has written to its tensor since frames agreed with that. It is an error where frames hold what kernels wrote."""
        if self._writes is None or not self._writes.are_new:
            return False
        if not self._core.is_home_current:
            raise RegionError(
                f"array `{self.name}`: PyTorch has written to its tensor, and frames have what kernels wrote before, or graphs that were captured may: say "
                "array.tensor() before PyTorch writes. Now array.wrote() goes on, and of pages that both wrote has the kernels'"
            )
        return True

    def _notice(self) -> None:
        """Has frames drop what PyTorch has written over."""
        if self._has_news():
            self.wrote()

    def numpy(self) -> NdArray:
        """All elements: after a flush, the very array whose memory was lent by :meth:`Vm.array`, else a copy.

        Of lent memory NumPy sees what kernels wrote up to this call; after later launches call it, or :meth:`flush`, again.
        """
        lent = self._core.lent
        if lent is not None:
            self.flush()
            view: NdArray = lent
            return view
        self._notice()
        out = np.empty(self._shape, self._dtype)
        self._core.read(0, as_bytes(out))
        return out

    def __array__(self, dtype: Optional[np.dtype[Any]] = None, copy: Optional[bool] = None) -> NdArray:
        values = self.numpy()
        if copy is False and (self._core.lent is None or (dtype is not None and dtype != self._dtype)):
            raise ValueError(f"{self!r} cannot be given without a copy")
        if dtype is not None and dtype != self._dtype:
            return values.astype(dtype)
        return values.copy() if copy and self._core.lent is not None else values

    def flush(self) -> None:
        """Writes back what launches before this call wrote."""
        self._notice()
        self._core.flush()

    def evict(self) -> None:
        """Writes dirty pages back and gives the frames back, so that the next launch finds no page in GPU memory."""
        self._notice()
        self._core.evict()

    def tensor(self) -> Any:
        """A ``torch.Tensor`` whose memory is its home's: on the GPU, where any operation reads and writes it in place; of the simulated GPU on the CPU.

        What launches wrote before this call is there, for which it waits; after later ones call it, or :meth:`flush`, again. What PyTorch writes to it
        the next launch, or other use of the array, notices: :mod:`gpuvm.torch` says which ways of writing it cannot. The tensor keeps the array. Raises
        ``UnavailableError`` where GPU threads do not reach the home.
        """
        from .torch import tensor_of

        return tensor_of(self)

    def wrote(self) -> None:
        """Says that others have written to its home, by :meth:`tensor` or where its memory was lent: waits for all work of the GPU, and drops what frames
        hold of it. What kernels wrote since the last :meth:`flush` or :meth:`tensor` is written back first, over what others wrote to the same pages."""
        # Of what is written meanwhile nothing is known.
        version = None
        if self._writes is not None:
            self._writes.expect_no_capture(self.name)
            version = self._writes.counter._version
        self._core.wrote()
        if version is not None:
            self._writes.seen = version

    def step(self) -> None:
        """Has pages that operations used at home since the last time come to frames, as far as those are free or have pages that are used less. Operations
        do it themselves now and then, and not while a graph is captured or replayed."""
        self._core.step()

    def forget_graphs(self) -> None:
        """Says that CUDA graphs into which operations with it were captured are replayed no more. While they may be, its pages stay in the frames that they
        have, and :meth:`evict`, :meth:`wrote` and stores from Python raise ``RegionError``."""
        self._core.forget_graphs()

    def advise(self, advice: str) -> bool:
        """Says how kernels will use it; results never depend on it. Returns whether the array follows.

        ``normal``, ``sequential``, ``random``, ``read_once``, ``keep_resident``, ``write_once``, ``in_place``, ``fetch``.
        """
        return self._core.advise(advice)

    @property
    def effective(self) -> str:
        """Where kernels use its pages, and why not where ``placement`` and :meth:`advise` asked: ``"look-up"``, or
        ``"fetch, and not look-up: GPU threads do not reach its home by loads: queue pairs bring its pages; looked up while all pages have frames"``."""
        return self._core.effective

    @property
    def priority(self) -> int:
        """Whose pages stay while frames are short, as :meth:`set_priority` or its making said."""
        return self._core.priority

    def set_priority(self, priority: int) -> None:
        """Whose pages stay while frames are short: those of an array of lower priority leave first. Launches that run follow it from some
        moment on."""
        self._core.set_priority(priority_of(priority, f"priority of {self._what}"))

    @property
    def resident(self) -> bool:
        """Whether all of it lies in GPU memory as plain memory for good, as other libraries may read it: of an array that is read-only
        and never evicted, once kernels have touched every page."""
        return self._never_evicted and self.read_only and self._core.resident_addr() is not None

    def _why_not_plain(self) -> str:
        if not self._never_evicted:
            return "its pages come and go: make it with never_evicted=True, or use vm.buffer"
        if not self.read_only:
            return "what other libraries write to its frames would never reach its home: make it with read_only=True, or use vm.buffer"
        return "not all of its pages are in GPU memory yet: launch a kernel that reads all of it, such as gpuvm.ops.sum"

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self._vm.simulated or not (self._never_evicted and self.read_only):
            raise AttributeError(f"{self!r} has no __cuda_array_interface__: " + _no_cuda(self._vm, self._why_not_plain()))
        address = self._core.resident_addr()
        if address is None:
            raise AttributeError(f"{self!r} has no __cuda_array_interface__: {self._why_not_plain()}")
        return _interface(self, address, True)

    def __dlpack_device__(self) -> Tuple[int, int]:
        return self._core.dlpack_device()

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: Optional[Tuple[int, int]] = None,
        dl_device: Optional[Tuple[int, int]] = None,
        copy: Optional[bool] = None,
    ) -> Any:
        _check_dlpack(self, self.__dlpack_device__(), dl_device, copy)
        if self._never_evicted and self.read_only:
            capsule = self._core.dlpack(self._dtype.kind, list(self._shape), max_version is not None and max_version[0] >= 1)
            if capsule is not None:
                return capsule
        raise BufferError(f"{self!r} is no plain memory: {self._why_not_plain()}")

    def close(self) -> None:
        """Waits for its launches, writes its dirty pages back and gives back what it has. Once is enough."""
        try:
            if not self.closed:
                self._has_news()
        finally:
            self._core.close()

    def __enter__(self) -> "Array":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Buffer(_Shaped):
    """Plain device memory of a fixed size, which kernels take as ``T*``. It is not paged."""

    def __init__(self, vm: "Vm", shape: Tuple[int, ...], dtype: np.dtype[Any], core: _core.Buffer) -> None:
        super().__init__(vm, "buffer", shape, dtype)
        self._core = core

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._core.closed

    def numpy(self) -> NdArray:
        """A copy of all elements, after the launches that were given it."""
        out = np.empty(self._shape, self._dtype)
        self._core.read(0, as_bytes(out))
        return out

    def write(self, values: Any) -> None:
        """Stores all elements, after the launches that were given it."""
        given = np.asarray(unmasked(values, "what is stored in a buffer"))
        if given.dtype != self._dtype:
            raise DtypeError(f"a buffer of {self._dtype} was given {given.dtype}: convert it by .astype")
        if given.shape != self._shape:
            raise LayoutError(f"a buffer of shape {self._shape} was given shape {given.shape}")
        self._core.write(0, as_bytes(np.ascontiguousarray(given).reshape(self._shape)))

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self._vm.simulated:
            raise AttributeError(f"{self!r} has no __cuda_array_interface__: " + _no_cuda(self._vm, ""))
        return _interface(self, self._core.addr(), False)

    def __dlpack_device__(self) -> Tuple[int, int]:
        return self._core.dlpack_device()

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: Optional[Tuple[int, int]] = None,
        dl_device: Optional[Tuple[int, int]] = None,
        copy: Optional[bool] = None,
    ) -> Any:
        _check_dlpack(self, self.__dlpack_device__(), dl_device, copy)
        return self._core.dlpack(self._dtype.kind, list(self._shape), max_version is not None and max_version[0] >= 1)

    def close(self) -> None:
        """Gives it back: the memory goes when no launch and no other library has it. Once is enough."""
        self._core.close()


def _no_cuda(vm: "Vm", otherwise: str) -> str:
    return "its GPU is simulated, and its memory is the host's: use numpy.from_dlpack" if vm.simulated else otherwise


def _interface(of: Union[Array, Buffer], address: int, read_only: bool) -> dict[str, Any]:
    # No stream: the launches that were given it have ended.
    return {"shape": of.shape, "typestr": of.dtype.str, "data": (address, read_only), "version": 3, "strides": None, "stream": None}


def _check_dlpack(of: _Shaped, here: Tuple[int, int], wanted: Optional[Tuple[int, int]], copy: Optional[bool]) -> None:
    if wanted is not None and tuple(wanted) != here:
        raise BufferError(f"{of!r} lies on DLPack's device {here}, and device {wanted} was asked for: copy it by .numpy()")
    if copy:
        raise BufferError(f"{of!r} is exported in place: copy it afterwards")
