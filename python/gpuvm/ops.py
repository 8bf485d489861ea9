"""Operations that are ready: no kernel has to be written, and for the simulated GPU none is compiled on the user's machine.

Large operands are :class:`gpuvm.Array`, paged. Results are :class:`gpuvm.Buffer`, plain device memory, which the next operation, another
library (DLPack) or ``.numpy()`` takes; they are as large as the call makes them, so a call takes what GPU memory has room for. Ids that are
out of range are an ``IndexError`` before anything is written; they come to the host to be checked. Element types are float32, float64,
int32 and int64 where nothing else is said.
"""

from __future__ import annotations

import math
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

import numpy as np

from . import _core
from ._dtypes import unmasked
from ._kernel import Kernel, Launch, Module
from ._memory import Array, Buffer
from ._vm import Vm
from .errors import ArgumentError, DtypeError, LayoutError, OutOfRangeError, RegionError, SpansError

NdArray = np.ndarray[Any, np.dtype[Any]]
Ids = Union[Array, Buffer, NdArray, Sequence[int]]

__all__ = ["bfs", "embedding_bag", "knn", "scatter_add", "spmv", "sum", "take"]

_FLOATS = {"float32": "float", "float64": "double"}
_NUMBERS = {**_FLOATS, "int32": "int", "int64": "long long"}
_IDS = {"int32": "int", "int64": "long long", "uint32": "unsigned", "uint64": "unsigned long long"}
_COLUMNS = {"int32": "int", "int64": "long long"}

#: Threads of a block.
_BLOCK = 128
_WARPS = _BLOCK // 32
#: Blocks for each multiprocessor: as many as the kernels' launch bounds let run, twice, so that none is without work.
_BLOCKS = 8
#: Bytes of the distances that a launch of knn leaves.
_DISTANCES = 16 << 20

#: The kernels of each source: the very lists that are compiled when a wheel is made.
KERNELS: Dict[str, List[str]] = {
    "take": [f"{name}<{kind}>" for name in ("take", "scatter_add") for kind in _NUMBERS.values()],
    "reduce": [
        *(f"sum<{kind}, {'double' if kind in _FLOATS.values() else 'long long'}>" for kind in _NUMBERS.values()),
        *(f"bounds<{kind}>" for kind in _IDS.values()),
    ],
    "spmv": [f"spmv<{kind}, {column}>" for kind in _NUMBERS.values() for column in _COLUMNS.values()],
    "embedding_bag": [f"embedding_bag<{kind}>" for kind in _FLOATS.values()],
    "knn": [f"{name}<{kind}>" for name in ("distances", "select") for kind in _FLOATS.values()],
    "bfs": ["bfs_start", "bfs_level", "bfs_pieces"],
}


def module(vm: Vm, name: str) -> Module:
    """The compiled kernels of a source, compiled once for a Vm."""
    found = vm._modules.get(name)
    if found is None:
        source, headers, defines = _core.operation(name)
        macros: Dict[str, Optional[str]] = dict(defines)
        if name == "bfs":
            # Lanes of the simulated GPU run one after the other: each takes vertices of its own.
            macros["SEARCH_WORD_A_LANE"] = "1" if vm.simulated else "0"
        found = vm.module(source, KERNELS[name], name=f"{name}.cu", headers=dict(headers), defines=macros)
        vm._modules[name] = found
    return found


def _launch(vm: Vm, kernel: Kernel, warps: int, spans: int, *args: Any) -> Launch:
    """As many warps as have work, can run, and find frames for the pages that they hold: of those at most ``warps``."""
    shape = _shape_of(vm, warps, spans)
    while True:
        try:
            return kernel.launch(*shape, *args, warp_spans=spans)
        except SpansError:
            # Frames have left since they were counted, or other launches have theirs.
            fewer = _shape_of(vm, warps, spans)
            if math.prod(fewer) >= math.prod(shape):
                raise
            shape = fewer


def _shape_of(vm: Vm, warps: int, spans: int) -> Tuple[int, int]:
    most = min(warps, vm.multiprocessors * _BLOCKS * _WARPS)
    if spans:
        most = min(most, (vm.frames - 1) // spans)
    if most < _WARPS:
        return max(most, 1), 32
    return -(-most // _WARPS) if not spans else most // _WARPS, _BLOCK


def _typed(array: Any, names: Dict[str, str], what: str) -> str:
    """The C++ name of an array's elements."""
    if not isinstance(array, Array):
        raise ArgumentError(f"{what} is of type {type(array).__name__}: expected a gpuvm.Array, as vm.array(...) makes it")
    name = names.get(array.dtype.name)
    if name is None:
        raise DtypeError(f"{what} has {array.dtype}: this operation is for {', '.join(names)}")
    return name


def _table(table: Any, names: Dict[str, str], what: str) -> Tuple[str, int, int]:
    """The C++ name of a table's elements, its rows and their elements."""
    name = _typed(table, names, what)
    if table.ndim < 1:
        raise LayoutError(f"{what} has no dimension: a table has rows")
    return name, table.shape[0], math.prod(table.shape[1:])


def _host(values: Any) -> NdArray:
    if isinstance(values, (Array, Buffer)):
        return values.numpy()
    return np.asarray(unmasked(values, "an operand"))


def _ids(ids: Ids, rows: int, what: str) -> NdArray:
    """Ids as the kernels take them, all of them checked."""
    found = _host(ids)
    if found.size == 0 and not isinstance(ids, (Array, Buffer, np.ndarray)):
        found = found.astype(np.int64)
    if found.dtype.kind not in "iu":
        raise DtypeError(f"{what} have dtype {found.dtype}: expected integers")
    if found.size:
        low, high = int(found.min()), int(found.max())
        if low < 0 or high >= rows:
            bad = low if low < 0 else high
            raise OutOfRangeError(f"{what} have {bad}, out of range: there are {rows} rows, counted from 0")
    return np.ascontiguousarray(found, dtype=np.int64)


def _same_vm(vm: Vm, **given: Any) -> None:
    for name, value in given.items():
        if isinstance(value, (Array, Buffer)) and value.vm is not vm:
            raise ArgumentError(f"{name} belongs to another Vm")


def take(table: Array, ids: Ids, *, out: Optional[Buffer] = None) -> Buffer:
    """Rows of ``table`` by their numbers: ``numpy.take(table, ids, axis=0)``.

    ``ids``: integers of any shape. The result, or ``out``, has shape ``ids.shape + table.shape[1:]`` and the table's dtype.
    Raises ``IndexError`` for a number that is no row's; numbers below 0 are none.
    """
    kind, rows, width = _table(table, _NUMBERS, "table")
    numbers = _ids(ids, rows, "ids")
    vm, shape = table.vm, (*numbers.shape, *table.shape[1:])
    if out is None:
        out = vm.buffer(shape, table.dtype)
    elif out.shape != shape or out.dtype != table.dtype:
        raise LayoutError(f"out has shape {out.shape} of {out.dtype}: expected {shape} of {table.dtype}")
    _same_vm(vm, out=out)
    if numbers.size * width:
        kernel = module(vm, "take")[f"take<{kind}>"]
        _launch(vm, kernel, numbers.size, 1, table, vm.buffer(numbers), out, width, numbers.size).sync()
    return out


def scatter_add(table: Array, ids: Ids, values: Union[Array, Buffer, NdArray]) -> None:
    """Adds rows to those of ``table``: ``numpy.add.at(table, ids, values)``.

    ``values`` has shape ``ids.shape + table.shape[1:]`` and the table's dtype. A row that is named several times gets all of them, in no
    order that is known. Raises ``IndexError`` before anything is added.
    """
    kind, rows, width = _table(table, _NUMBERS, "table")
    if table.read_only:
        raise RegionError(f"array `{table.name}` is read-only: nothing can be added to it")
    numbers = _ids(ids, rows, "ids")
    vm, shape = table.vm, (*numbers.shape, *table.shape[1:])
    _same_vm(vm, values=values)
    given = values if isinstance(values, Buffer) else _host(values)
    if given.dtype != table.dtype:
        raise DtypeError(f"values have {given.dtype}, and the table has {table.dtype}: convert them by .astype")
    if given.shape != shape:
        raise LayoutError(f"values have shape {given.shape}: expected {shape}")
    if numbers.size * width:
        added = given if isinstance(given, Buffer) else vm.buffer(given)
        kernel = module(vm, "take")[f"scatter_add<{kind}>"]
        _launch(vm, kernel, numbers.size, 1, table, vm.buffer(numbers), added, width, numbers.size).sync()


def _reduce(array: Array, kernel: str, nothing: NdArray) -> NdArray:
    """What each warp has found; ``nothing`` where it had no work."""
    vm = array.vm
    warps = math.prod(_shape_of(vm, -(-array.nbytes // vm.page_size), 1)) // 32
    found = vm.buffer(np.tile(nothing, (warps, 1)))
    _launch(vm, module(vm, "reduce")[kernel], warps, 1, array, found, array.size).sync()
    return found.numpy()


def sum(array: Array) -> Any:  # noqa: A001 - as numpy.sum
    """The sum of all elements: a ``numpy.float64`` of floats, each added in double precision; a ``numpy.int64`` of integers, which wraps."""
    kind = _typed(array, _NUMBERS, "array")
    total = np.float64 if kind in _FLOATS.values() else np.int64
    if array.size == 0:
        return total(0)
    sums = _reduce(array, f"sum<{kind}, {'double' if total is np.float64 else 'long long'}>", np.zeros(1, total))
    return sums.sum(dtype=total)


def _check_all(array: Array, rows: int, what: str) -> None:
    """Whether all elements of a paged array are numbers of rows. What cannot change is looked at once."""
    kind = _typed(array, _IDS, what)
    if array.size == 0:
        return
    high = array._largest if array.read_only else None
    if high is None:
        whole = np.iinfo(np.int64)
        bounds = _reduce(array, f"bounds<{kind}>", np.array([whole.max, whole.min]))
        low, high = int(bounds[:, 0].min()), int(bounds[:, 1].max())
        if low < 0:
            raise OutOfRangeError(f"{what} have {low}, out of range: they count from 0")
        array._largest = high
    if high >= rows:
        raise OutOfRangeError(f"{what} have {high}, out of range: there are {rows}, counted from 0")


def _starts(starts: Union[Array, Buffer, NdArray], entries: int, what: str) -> NdArray:
    """Where compressed rows begin and the last one ends."""
    found = _host(starts)
    if found.ndim != 1 or found.size == 0 or found.dtype.kind not in "iu":
        raise LayoutError(f"{what} has shape {found.shape} of {found.dtype}: expected integers, one more than rows")
    if int(found[0]) != 0 or int(found[-1]) != entries or bool((found[1:] < found[:-1]).any()):
        raise OutOfRangeError(f"{what} does not ascend from 0 to {entries}, the number of entries")
    return np.ascontiguousarray(found, dtype=np.int64)


def spmv(indptr: Union[Array, Buffer, NdArray], indices: Array, data: Array, x: Union[Buffer, NdArray]) -> Buffer:
    """A matrix of compressed sparse rows, as ``scipy.sparse.csr_matrix`` has it, times a vector: ``A @ x``.

    ``indices`` (int32 or int64) and ``data`` are paged; ``indptr`` and ``x`` get room in GPU memory. ``x`` has the dtype of ``data``, and
    so has the result, one element a row. Raises ``IndexError`` for a column that ``x`` does not have.
    """
    kind, column = _typed(data, _NUMBERS, "data"), _typed(indices, _COLUMNS, "indices")
    vm = data.vm
    _same_vm(vm, indptr=indptr, indices=indices, x=x)
    if data.ndim != 1 or indices.shape != data.shape:
        raise LayoutError(f"indices have shape {indices.shape} and data {data.shape}: expected one dimension, the same length")
    starts = _starts(indptr, data.size, "indptr")
    vector = x if isinstance(x, Buffer) else np.ascontiguousarray(unmasked(x, "x"))
    if vector.dtype != data.dtype:
        raise DtypeError(f"x has {vector.dtype}, and data has {data.dtype}: convert it by .astype")
    if vector.ndim != 1:
        raise LayoutError(f"x has shape {vector.shape}: expected one dimension")
    _check_all(indices, vector.size, "columns")
    rows = starts.size - 1
    y = vm.buffer((rows,), data.dtype)
    if rows and data.size:
        given = vector if isinstance(vector, Buffer) else vm.buffer(vector)
        kernel = module(vm, "spmv")[f"spmv<{kind}, {column}>"]
        _launch(vm, kernel, rows, 2, vm.buffer(starts), indices, data, given, y, rows).sync()
    return y


def embedding_bag(table: Array, ids: Ids, offsets: Ids, mode: str = "sum") -> Buffer:
    """Sums (``mode="sum"``) or means (``"mean"``) of rows of ``table``, as ``torch.nn.functional.embedding_bag`` has them.

    Bag b has rows ``ids[offsets[b]:offsets[b + 1]]``, the last one the rest; an empty bag's result is 0. The table is of float32 or
    float64, and of two dimensions. Raises ``IndexError`` for a number that is no row's, and for offsets that do not ascend.
    """
    kind, rows, width = _table(table, _FLOATS, "table")
    if mode not in ("sum", "mean"):
        raise ArgumentError(f"mode is {mode!r}: expected 'sum' or 'mean'")
    if table.ndim != 2:
        raise LayoutError(f"table has shape {table.shape}: expected rows and columns")
    numbers = _ids(ids, rows, "ids").reshape(-1)
    begins = _ids(offsets, numbers.size + 1, "offsets").reshape(-1)
    vm, bags = table.vm, begins.size
    out = vm.buffer((bags, width), table.dtype)
    if bags == 0:
        return out
    starts = _starts(np.append(begins, numbers.size), numbers.size, "offsets")
    if numbers.size * width:
        kernel = module(vm, "embedding_bag")[f"embedding_bag<{kind}>"]
        args = (table, vm.buffer(numbers), vm.buffer(starts), out, width, bags, int(mode == "mean"))
        _launch(vm, kernel, bags, 0, *args).sync()
    return out


def knn(vectors: Array, queries: Union[Array, Buffer, NdArray], k: int) -> Tuple[NdArray, NdArray]:
    """The ``k`` nearest of ``vectors`` for each of ``queries``, by a look at every vector: squared Euclidean distances, ascending, and
    the vectors' numbers, each of shape ``(queries, k)``. Of equal distances the lower number comes first. float32 or float64.
    """
    kind, rows, width = _table(vectors, _FLOATS, "vectors")
    vm, asked = vectors.vm, np.ascontiguousarray(_host(queries))
    if vectors.ndim != 2 or asked.ndim != 2 or asked.shape[1] != width:
        raise LayoutError(f"vectors have shape {vectors.shape} and queries {asked.shape}: expected rows of the same length")
    if asked.dtype != vectors.dtype:
        raise DtypeError(f"queries have {asked.dtype}, and vectors have {vectors.dtype}: convert them by .astype")
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or not 1 <= k <= rows:
        raise OutOfRangeError(f"k is {k!r}: expected 1 to {rows}, the number of vectors")
    count = asked.shape[0]
    if count == 0 or width == 0:
        return np.zeros((count, k), vectors.dtype), np.tile(np.arange(k, dtype=np.int64), (count, 1))
    nearest, numbers = vm.buffer(np.full((count, k), np.inf, vectors.dtype)), vm.buffer(np.full((count, k), -1, np.int64))
    step = max(32, min(rows, _DISTANCES // (count * vectors.dtype.itemsize)))
    apart, given = vm.buffer((count * step,), vectors.dtype), vm.buffer(asked)
    kernels = module(vm, "knn")
    for first in range(0, rows, step):
        some = min(step, rows - first)
        measured = _launch(vm, kernels[f"distances<{kind}>"], some, 1, vectors, given, apart, width, first, some, count)
        selected = _launch(vm, kernels[f"select<{kind}>"], count, 0, apart, nearest, numbers, first, some, int(k), count)
        # First: its error is the cause of the other's.
        measured.sync()
        selected.sync()
    return nearest.numpy(), numbers.numpy()


def _lent(vm: Vm, values: Any, dtype: Any, signed: Any, what: str) -> Tuple[Array, bool]:
    """Indices of a graph as a paged array, and whether that was made here."""
    if isinstance(values, Array):
        if values.dtype != dtype or values.ndim != 1:
            raise DtypeError(
                f"{what} is an array of {values.dtype} with shape {values.shape}: expected one dimension of {np.dtype(dtype)}; "
                f"of {np.dtype(signed)} make it by vm.array(values.view({np.dtype(dtype).name!r}))"
            )
        return values, False
    found = _host(values)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise LayoutError(f"{what} has shape {found.shape} of {found.dtype}: expected integers of one dimension")
    if found.size and int(found.min()) < 0:
        raise OutOfRangeError(f"{what} has {int(found.min())}, out of range: numbers count from 0")
    same = found.view(dtype) if found.dtype == signed and found.flags.c_contiguous else found.astype(dtype)
    if found.size and int(found.max()) != int(same.max()):
        raise OutOfRangeError(f"{what} has {int(found.max())}, which is more than {np.dtype(dtype)} holds")
    return vm.array(np.ascontiguousarray(same), read_only=True, name=what), True


def bfs(
    offsets: Union[Array, NdArray],
    neighbours: Union[Array, NdArray],
    source: int,
    *,
    vm: Optional[Vm] = None,
) -> Array:
    """Edges from ``source`` to every vertex of a graph, -1 where there is no path: an array of int32, paged.

    Neighbours of vertex v are ``neighbours[offsets[v]:offsets[v + 1]]``. Both are paged: arrays of uint64 and of uint32, or NumPy arrays,
    whose memory is lent for the call; ``vm`` says where, if neither is an Array. Raises ``IndexError`` for a source or a neighbour that
    is no vertex.
    """
    for given in (offsets, neighbours):
        vm = given.vm if vm is None and isinstance(given, Array) else vm
    if vm is None:
        raise ArgumentError("neither offsets nor neighbours is a gpuvm.Array: say vm=")
    _same_vm(vm, offsets=offsets, neighbours=neighbours)
    made: List[Array] = []
    try:
        starts, own = _lent(vm, offsets, np.uint64, np.int64, "offsets")
        made += [starts] * own
        edges, own = _lent(vm, neighbours, np.uint32, np.int32, "neighbours")
        made += [edges] * own
        _starts(starts, edges.size, "offsets")
        vertices = starts.size - 1
        if isinstance(source, bool) or not isinstance(source, (int, np.integer)) or not 0 <= source < vertices:
            raise OutOfRangeError(f"source is {source!r}, out of range: there are {vertices} vertices, counted from 0")
        if vertices >= 1 << 31:
            raise RegionError(f"the graph has {vertices} vertices: at most 2^31 - 1 have numbers here")
        _check_all(edges, vertices, "neighbours")
        return _search(vm, starts, edges, vertices, int(source))
    finally:
        for array in made:
            array.close()


def _search(vm: Vm, starts: Array, edges: Array, vertices: int, source: int) -> Array:
    distances = vm.zeros((vertices,), np.int32, name="distances")
    try:
        defines = dict(_core.operation("bfs")[2])
        piece, head = int(defines["ROW_PIECE_EDGES"]), int(defines["ROW_LIST_HEAD"])
        words = -(-vertices // 32)
        visited = vm.buffer((words,), np.uint32)
        frontiers = [vm.buffer((words,), np.uint32) for _ in range(3)]
        # A row is listed from four pieces on, so pieces that are not whole are half of them at most.
        listed, totals = vm.buffer((head + -(-2 * edges.size // piece),), np.uint64), vm.buffer((3,), np.uint64)
        kernels = module(vm, "bfs")
        a, b, c = frontiers
        _launch(vm, kernels["bfs_start"], words, 1, distances, visited, a, b, c, listed, totals, vertices, source).sync()
        blocks, reached = max(1, min(-(-words // 64), vm.multiprocessors * _BLOCKS)), 1
        for level in range(1, vertices + 1):
            a, b, c = (frontiers[turn % 3] for turn in (level - 1, level, level + 1))
            rows = kernels["bfs_level"].launch(blocks, 64, starts, edges, distances, visited, a, b, c, listed, totals, vertices, level)
            pieces = kernels["bfs_pieces"].launch(blocks, 64, edges, distances, visited, b, listed, totals, level)
            # First: its error is the cause of the other's.
            rows.sync()
            pieces.sync()
            now = int(totals.numpy()[0])
            if now == reached:
                break
            reached = now
        return distances
    except BaseException:
        distances.close()
        raise
