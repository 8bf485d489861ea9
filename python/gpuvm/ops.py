"""Operations that are ready: no kernel has to be written, and for the simulated GPU none is compiled on the user's machine.

Large operands are :class:`gpuvm.Array`, paged. Results are :class:`gpuvm.Buffer`, plain device memory, which the next operation, another
library (DLPack) or ``.numpy()`` takes; they are as large as the call makes them, so a call takes what GPU memory has room for. Ids of the host that are
out of range are an ``IndexError`` before anything is written; those in GPU memory stay there. Element types are float32, float64,
int32 and int64 where nothing else is said. For PyTorch's tensors there is :mod:`gpuvm.torch`.
"""

from __future__ import annotations

import math
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

import numpy as np

from . import _core, _rows
from ._dtypes import unmasked
from ._kernel import Launch, Module, by_handle, cuda_memory
from ._memory import Array, Buffer
from ._rows import Bags, Numbers, Rows, at
from ._shapes import BLOCKS, launch, shape_of
from ._vm import Vm
from .errors import ArgumentError, DtypeError, LayoutError, OutOfRangeError, RegionError

NdArray = np.ndarray[Any, np.dtype[Any]]
Ids = Union[Array, Buffer, NdArray, Sequence[int]]

__all__ = ["bfs", "embedding_bag", "knn", "scatter_add", "spmv", "sum", "take"]

_FLOATS = {"float32": "float", "float64": "double"}
_NUMBERS = {**_FLOATS, "int32": "int", "int64": "long long"}
_IDS = {"int32": "int", "int64": "long long", "uint32": "unsigned", "uint64": "unsigned long long"}
_COLUMNS = {"int32": "int", "int64": "long long"}

#: Bytes of the distances that a launch of knn leaves.
_DISTANCES = 16 << 20

#: The kernels of each source: the very lists that are compiled when a wheel is made.
KERNELS: Dict[str, List[str]] = {
    "rows": _rows.KERNELS,
    "reduce": [
        *(f"sum<{kind}, {'double' if kind in _FLOATS.values() else 'long long'}>" for kind in _NUMBERS.values()),
        *(f"bounds<{kind}>" for kind in _IDS.values()),
    ],
    "spmv": [f"spmv<{kind}, {column}>" for kind in _NUMBERS.values() for column in _COLUMNS.values()],
    "knn": [f"{name}<{kind}>" for name in ("distances", "select") for kind in _FLOATS.values()],
    "bfs": ["bfs_start", "bfs_level", "bfs_pieces"],
}


def _source(name: str, simulated: bool) -> Tuple[str, Dict[str, str], Dict[str, Optional[str]]]:
    """Text, headers and macros of an operation."""
    source, headers, defines = _core.operation(name)
    macros: Dict[str, Optional[str]] = dict(defines)
    if name == "bfs":
        # Lanes of the simulated GPU run one after the other: each takes vertices of its own.
        macros["SEARCH_WORD_A_LANE"] = "1" if simulated else "0"
    return source, dict(headers), macros


def module(vm: Vm, name: str) -> Module:
    """The compiled kernels of a source, compiled once for a Vm."""
    found = vm._modules.get(name)
    if found is None:
        source, headers, defines = _source(name, vm.simulated)
        found = vm.module(source, KERNELS[name], name=f"{name}.cu", headers=headers, defines=defines)
        vm._modules[name] = found
    return found


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


def _numbers(vm: Vm, ids: Any, rows: int, what: str) -> Tuple[Numbers, Tuple[int, ...], bool]:
    """Numbers of rows where kernels reach them, their shape, and whether all were checked."""
    if isinstance(ids, Buffer) and ids.dtype.name in ("int32", "int64"):
        return Numbers(ids, ids.dtype.itemsize == 8, ids.size), ids.shape, False
    on_gpu = None if isinstance(ids, (Array, Buffer)) else cuda_memory(vm, ids, what)
    if on_gpu is not None:
        dtype, shape = np.dtype(on_gpu["typestr"]), tuple(on_gpu["shape"])
        if dtype.name not in ("int32", "int64"):
            raise DtypeError(f"{what} have dtype {dtype}: expected int32 or int64, of numbers in GPU memory")
        return Numbers(at(on_gpu["data"][0], ids, on_gpu["stream"]), dtype.itemsize == 8, math.prod(shape)), shape, False
    checked = _ids(ids, rows, what)
    return Numbers(vm.buffer(checked) if checked.size else None, True, checked.size), checked.shape, True


def _checked(table: Array, launched: Optional[Launch], check: bool) -> None:
    if check and launched is not None:
        launched.sync()
        table._core.wait_idle()


def _some(numbers: Numbers, rows: int, what: str) -> None:
    if numbers.size and rows == 0:
        raise OutOfRangeError(f"{what} are out of range: there is no row")


def _name_of(table: Array) -> str:
    """Of its elements, those that NumPy does not have as well."""
    return {"BF16": "bfloat16"}.get(table.stored or "", table.dtype.name)


def _rows_of(table: Any) -> Rows:
    if not isinstance(table, Array):
        raise ArgumentError(f"table is of type {type(table).__name__}: expected a gpuvm.Array, as vm.array(...) makes it")
    if table.ndim < 1:
        raise LayoutError("table has no dimension: a table has rows")
    table._notice()
    return Rows(table, table.shape[0], math.prod(table.shape[1:]) * table.dtype.itemsize, _name_of(table))


def take(table: Array, ids: Any, *, out: Optional[Buffer] = None, stream: Any = None, check: bool = True) -> Buffer:
    """Rows of ``table`` by their numbers: ``numpy.take(table, ids, axis=0)``, of elements of any type.

    ``ids``: integers of any shape; those in GPU memory, a :class:`Buffer` or another library's memory of int32 or int64, stay there: the launch runs behind the
    stream that their ``__cuda_array_interface__`` names. PyTorch's names none: give ``stream=torch.cuda.current_stream()`` with them. The result, or
    ``out``, has shape ``ids.shape + table.shape[1:]`` and the table's dtype. ``stream``: as for :meth:`Kernel.launch`.

    A number that is no row's is an ``IndexError``, and so are numbers below 0: before anything is written, or of ids in GPU memory at the end, for
    which ``check`` waits. Without ``check`` the call waits for nothing, and whatever waits for ``table`` next raises it.
    """
    of = _rows_of(table)
    vm = table.vm
    _same_vm(vm, ids=ids, out=out)
    numbers, lengths, _ = _numbers(vm, ids, of.rows, "ids")
    _some(numbers, of.rows, "ids")
    shape = (*lengths, *table.shape[1:])
    if out is None:
        out = vm.buffer(shape, table.dtype)
    elif out.shape != shape or out.dtype != table.dtype:
        raise LayoutError(f"out has shape {out.shape} of {out.dtype}: expected {shape} of {table.dtype}")
    _checked(table, _rows.take(of, numbers, out, by_handle(stream)), check)
    return out


def scatter_add(table: Array, ids: Any, values: Union[Array, Buffer, NdArray], *, stream: Any = None, check: bool = True) -> None:
    """Adds rows to those of ``table``: ``numpy.add.at(table, ids, values)``, of float32, 64, 16, int32, int64, and bfloat16 as files name it.

    ``values`` has shape ``ids.shape + table.shape[1:]`` and the table's dtype. A row that is named several times gets all of them, in no
    order that is known. ``ids``, ``stream`` and ``check`` are as for :func:`take`: rows of numbers that are out of range are left out.
    """
    of = _rows_of(table)
    if table.read_only:
        raise RegionError(f"array `{table.name}` is read-only: nothing can be added to it")
    vm = table.vm
    _same_vm(vm, ids=ids, values=values)
    numbers, lengths, _ = _numbers(vm, ids, of.rows, "ids")
    _some(numbers, of.rows, "ids")
    shape = (*lengths, *table.shape[1:])
    given = values if isinstance(values, Buffer) else _host(values)
    if given.dtype != table.dtype:
        raise DtypeError(f"values have {given.dtype}, and the table has {table.dtype}: convert them by .astype")
    if given.shape != shape:
        raise LayoutError(f"values have shape {given.shape}: expected {shape}")
    if numbers.size and of.row_bytes:
        added = given if isinstance(given, Buffer) else vm.buffer(given)
        _checked(table, _rows.index_add(of, numbers, added, by_handle(stream)), check)


def _reduce(array: Array, kernel: str, nothing: NdArray) -> NdArray:
    """What each warp has found; ``nothing`` where it had no work."""
    vm = array.vm
    warps = math.prod(shape_of(vm, -(-array.nbytes // vm.page_size), 1)) // 32
    found = vm.buffer(np.tile(nothing, (warps, 1)))
    launch(vm, module(vm, "reduce")[kernel], warps, 1, array, found, array.size).sync()
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
        launch(vm, kernel, rows, 2, vm.buffer(starts), indices, data, given, y, rows).sync()
    return y


def embedding_bag(table: Array, ids: Any, offsets: Any, mode: str = "sum", *, stream: Any = None, check: bool = True) -> Buffer:
    """Sums (``mode="sum"``) or means (``"mean"``) of rows of ``table``, as ``torch.nn.functional.embedding_bag`` has them.

    Bag b has rows ``ids[offsets[b]:offsets[b + 1]]``, the last one the rest; an empty bag's result is 0. The table is of float32, 64, 16, or
    bfloat16 as files name it, and of two dimensions. ``ids``, ``offsets``, ``stream`` and ``check`` are as for :func:`take`; offsets that do not ascend are an
    ``IndexError`` as well.
    """
    of = _rows_of(table)
    if mode not in ("sum", "mean"):
        raise ArgumentError(f"mode is {mode!r}: expected 'sum' or 'mean'")
    if table.ndim != 2:
        raise LayoutError(f"table has shape {table.shape}: expected rows and columns")
    vm = table.vm
    _same_vm(vm, ids=ids, offsets=offsets)
    numbers, _, _ = _numbers(vm, ids, of.rows, "ids")
    _some(numbers, of.rows, "ids")
    begins, lengths, here = _numbers(vm, offsets, numbers.size + 1, "offsets")
    if here:
        _starts(np.append(_host(offsets).reshape(-1).astype(np.int64), numbers.size), numbers.size, "offsets")
    out = vm.buffer((math.prod(lengths), table.shape[1]), table.dtype)
    nothing = at(0)
    bags = Bags(begins.memory or nothing, begins.wide, begins.size, mean=mode == "mean")
    numbers = numbers._replace(memory=numbers.memory or nothing)
    _checked(table, _rows.embedding_bag(of, numbers, bags, out, by_handle(stream)), check)
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
        measured = launch(vm, kernels[f"distances<{kind}>"], some, 1, vectors, given, apart, width, first, some, count)
        selected = launch(vm, kernels[f"select<{kind}>"], count, 0, apart, nearest, numbers, first, some, int(k), count)
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
        launch(vm, kernels["bfs_start"], words, 1, distances, visited, a, b, c, listed, totals, vertices, source).sync()
        blocks, reached = max(1, min(-(-words // 64), vm.multiprocessors * BLOCKS)), 1
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
