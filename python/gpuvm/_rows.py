"""Kernels over rows of arrays by numbers that lie where the GPU reaches them: of :mod:`gpuvm.ops`, and of PyTorch's operations."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, Tuple

from . import _core
from ._dtypes import Described
from ._kernel import Kernel, Launch, RawStream, _argument
from ._memory import Buffer
from ._shapes import launch
from .errors import ClosedError, DtypeError

if TYPE_CHECKING:
    from ._memory import Array
    from ._vm import Vm

#: Elements that can be added to, and those that can be summed, by the names that NumPy and PyTorch have for them: their names in C++.
ADDED = {"float32": "float", "float64": "double", "int32": "int", "int64": "long long"}
SHORT = {"float16": "half_t", "bfloat16": "bfloat16_t"}
SUMMED = {"float32": "float", "float64": "double", **SHORT}

_TAKES = {size: f"take<word<{size}>>" for size in (16, 8, 4, 2, 1)}
_PUTS = {size: f"put<word<{size}>>" for size in (16, 8, 4, 2, 1)}
KERNELS: List[str] = [
    *_TAKES.values(),
    *_PUTS.values(),
    *(f"index_add<{kind}>" for kind in ADDED.values()),
    *(f"index_add_short<{kind}>" for kind in SHORT.values()),
    *(f"embedding_bag<{kind}>" for kind in SUMMED.values()),
]

#: Kind, bytes, alignment and name of elements that NumPy does not have, or that are words of a row.
_WORDS = {size: ("V", size, size, f"word of {size} bytes") for size in (16, 8, 4, 2, 1)}
_ELEMENTS: dict[str, Described] = {
    "float32": ("f", 4, 4, "float32"),
    "float64": ("f", 8, 8, "float64"),
    "int32": ("i", 4, 4, "int32"),
    "int64": ("i", 8, 8, "int64"),
    "float16": _WORDS[2],
    "bfloat16": _WORDS[2],
}
_PAIR: Described = ("u", 4, 4, "uint32")

#: No row, as ``ops/rows.cu`` has it: lists of rows that were made on the GPU have it behind their last, and these are :class:`Numbers` that are ``LIST``.
NONE = -(1 << 63)
LIST = 2

#: Threads of a block.
_BLOCK = 256

#: Memory: a buffer, or an address of another library's with what keeps it.
Memory = Any


def at(addr: int, keep: Any = None, writer: int = 0) -> Memory:
    """Memory of another library, and the stream that writes it."""
    return ("u", 1, 1, "bytes"), addr, keep, writer


def _address(memory: Memory) -> int:
    # Of a buffer it does not matter: those begin at multiples of 256.
    return 0 if isinstance(memory, Buffer) else int(memory[1])


class Numbers(NamedTuple):
    """Numbers of rows, of 32 or, if they are ``wide``, 64 bits each."""

    memory: Memory
    wide: int
    size: int


class Rows(NamedTuple):
    """Rows of an array: this many of this many bytes, from a byte on, of elements of that name."""

    array: "Array"
    rows: int
    row_bytes: int
    dtype: str
    first: int = 0

    def in_elements(self) -> Tuple[int, int]:
        """Elements of a row, and the first of them."""
        size = _SIZES[self.dtype]
        return self.row_bytes // size, self.first // size


_SIZES = {name: element[1] for name, element in _ELEMENTS.items()}


class _Work(NamedTuple):
    """What is launched: ``args`` are between what tells numbers that are out of range and how many lanes a row has."""

    kernel: str
    element: Described
    writes: bool
    #: Rows or bags, and what each lane of one takes in turns.
    items: int
    width: int
    #: Pages that a warp holds where they are faults.
    spans: int
    args: Tuple[Any, ...]


def _kernel(vm: "Vm", name: str) -> Kernel:
    found = vm._kernels.get(name)
    if found is None:
        source, headers, defines = _core.operation("rows")
        # Of the simulated GPU's the wheel has all, and an NVIDIA GPU's compiler takes a while for them.
        names = KERNELS if vm.simulated else [name]
        module = vm.module(source, names, name="rows.cu", headers=dict(headers), defines=dict(defines))
        for one in names:
            vm._kernels[one] = module[one]
        found = vm._kernels[name]
    return found


def _launch(array: "Array", work: _Work, stream: Any) -> Optional[Launch]:
    """On a raw stream of another library: none where the library is not told of the launch. Else as launches are."""
    vm, core = array.vm, array._core
    kernel = _kernel(vm, work.kernel)
    if isinstance(stream, int):
        shift = min(5, (work.width - 1).bit_length())
        blocks = -(-(work.items << shift) // _BLOCK)
        numbers = [one[1] if isinstance(one, tuple) else one for one in work.args]
        if blocks < 1 << 31 and kernel._core.enqueue(core, work.writes, stream, (blocks, _BLOCK), [*numbers, shift]):
            return None
        stream = None if vm.simulated else RawStream(stream)
    told = ("u", 8, 8, "uint64"), core.told_addr(), core
    args = [one if isinstance(one, tuple) else _argument(vm, 0, one) for one in work.args]
    return launch(vm, kernel, work.items, work.spans, (core, work.element), told, *args, 5, stream=stream)


class Planned:
    """All that launches of :func:`take`, or of :func:`index_add`, over the same rows have in common, for callers that count microseconds: what rows are
    copied to begins at multiples of 16, and streams are raw ones of other libraries."""

    __slots__ = ("_core", "_kernel", "_last", "_shift", "_writes")

    def __init__(self, of: Rows, work: _Work) -> None:
        self._core, self._kernel, self._writes = of.array._core, _kernel(of.array.vm, work.kernel)._core, work.writes
        self._shift = min(5, (work.width - 1).bit_length())
        # Those that follow the number of rows.
        self._last = (*work.args[4:], self._shift)

    def wait_idle(self) -> None:
        """Waits for launches, and raises what they told."""
        self._core.wait_idle()

    def launch(self, ids: int, wide: int, count: int, rows: int, stream: int) -> bool:
        """False where pages are not looked up, and of a closed array."""
        blocks = ((count << self._shift) + _BLOCK - 1) // _BLOCK
        if blocks >= 1 << 31:
            return False
        try:
            return self._kernel.enqueue(self._core, self._writes, stream, (blocks, _BLOCK), [ids, rows, wide, count, *self._last])
        except ClosedError:
            return False


def take(of: Rows, ids: Numbers, out: Memory, stream: Any = None) -> Optional[Launch]:
    """Copies rows one behind the other to ``out``."""
    if ids.size == 0 or of.row_bytes == 0:
        return None
    return _launch(of.array, taking(of, ids, out), stream)


def taking(of: Rows, ids: Numbers, out: Memory) -> _Work:
    """What :func:`take` launches."""
    return _copying(_TAKES, of, ids, out)


def put(of: Rows, ids: Numbers, values: Memory, stream: Any = None) -> Optional[Launch]:
    """Stores rows that lie one behind the other as those with these numbers, which are different ones."""
    if ids.size == 0 or of.row_bytes == 0:
        return None
    return _launch(of.array, _copying(_PUTS, of, ids, values), stream)


def _copying(kernels: Dict[int, str], of: Rows, ids: Numbers, rows: Memory) -> _Work:
    word = math.gcd(16, of.row_bytes, of.first, _address(rows))
    width = of.row_bytes // word
    args = (ids.memory, rows, int(ids.wide), ids.size, width, of.rows, of.first // word)
    return _Work(kernels[word], _WORDS[word], kernels is _PUTS, ids.size, width, 1, args)


def index_add(of: Rows, ids: Numbers, values: Memory, stream: Any = None) -> Optional[Launch]:
    """Adds rows that lie one behind the other to those with these numbers."""
    if ids.size == 0 or of.row_bytes == 0:
        return None
    return _launch(of.array, adding(of, ids, values), stream)


def adding(of: Rows, ids: Numbers, values: Memory) -> _Work:
    """What :func:`index_add` launches."""
    kind, short = ADDED.get(of.dtype), SHORT.get(of.dtype)
    if kind is None and short is None:
        raise DtypeError(f"array `{of.array.name}` has {of.dtype}: this operation is for {', '.join([*ADDED, *SHORT])}")
    width, first = of.in_elements()
    args = (ids.memory, values, int(ids.wide), ids.size, width, of.rows, first)
    if kind is not None:
        return _Work(f"index_add<{kind}>", _ELEMENTS[of.dtype], True, ids.size, width, 1, args)
    if of.array.nbytes % 4:
        raise DtypeError(f"array `{of.array.name}` has {of.array.nbytes} bytes of {of.dtype}: their number is to be a multiple of 4")
    return _Work(f"index_add_short<{short}>", _PAIR, True, ids.size, width, 0, args)


class Bags(NamedTuple):
    """Where bags begin, of 32 or, if they are ``wide``, 64 bits each, and what each row counts."""

    memory: Memory
    wide: int
    size: int
    weights: Optional[Memory] = None
    mean: bool = False


def embedding_bag(of: Rows, ids: Numbers, bags: Bags, out: Memory, stream: Any = None) -> Optional[Launch]:
    """Sums or means of rows, a bag's each, one behind the other in ``out``."""
    if bags.size == 0 or of.row_bytes == 0:
        return None
    kind = SUMMED.get(of.dtype)
    if kind is None:
        raise DtypeError(f"array `{of.array.name}` has {of.dtype}: this operation is for {', '.join(SUMMED)}")
    width, first = of.in_elements()
    weights = at(0) if bags.weights is None else bags.weights
    numbers = (int(ids.wide), int(bags.wide), ids.size, bags.size, width, of.rows, first, int(bags.mean))
    args = (ids.memory, bags.memory, weights, out, *numbers)
    return _launch(of.array, _Work(f"embedding_bag<{kind}>", _ELEMENTS[of.dtype], False, bags.size, width, 0, args), stream)
