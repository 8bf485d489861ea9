"""Ready operations do what NumPy does, for every element type and at the edges."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import gpuvm
import gpuvm._precompile
from gpuvm import errors, ops

NUMBERS = ["float32", "float64", "int32", "int64"]
FLOATS = ["float32", "float64"]
#: Rows and columns: none, one, a page exactly, not a multiple of one, a row of several pages.
TABLES = [(0, 4), (1, 1), (1, 5000), (8, 128), (1000, 33), (3000, 0), (9, 2500)]


def whole(numbers, shape, dtype):
    """Whole numbers, whose sums are exact in any order."""
    return numbers.integers(-50, 50, shape).astype(dtype)


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("shape", TABLES, ids=str)
def test_take(vm, numbers, dtype, shape):
    data = whole(numbers, shape, dtype)
    table = vm.array(data, read_only=True)
    for count in ((), (0,), (1,), (77,), (3, 5)):
        ids = numbers.integers(0, max(shape[0], 1), count)
        if shape[0] or ids.size == 0:
            assert (ops.take(table, ids).numpy() == data.take(ids, axis=0)).all()


def test_take_of_many_dimensions_and_kinds_of_ids(vm, numbers):
    data = whole(numbers, (50, 3, 7), np.float32)
    table, ids = vm.array(data, copy=True), [49, 0, 0, 7]
    out = vm.buffer((4, 3, 7), np.float32)
    for given in (ids, np.array(ids, np.uint8), vm.buffer(np.array(ids, np.int32)), vm.array(np.array(ids, np.int64))):
        assert ops.take(table, given, out=out) is out and (out.numpy() == data[ids]).all()
    assert ops.take(table, []).shape == (0, 3, 7)
    assert (ops.take(vm.array(np.arange(10, dtype=np.int32)), [9, 1]).numpy() == [9, 1]).all()


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("shape", TABLES, ids=str)
def test_scatter_add(vm, numbers, dtype, shape):
    data = whole(numbers, shape, dtype)
    table = vm.array(data, copy=True)
    ids = numbers.integers(0, max(shape[0], 1), 200 if shape[0] else 0)
    added = whole(numbers, (ids.size, *shape[1:]), dtype)
    ops.scatter_add(table, ids, added)
    ops.scatter_add(table, ids, vm.buffer(added))
    np.add.at(data, ids, added)
    np.add.at(data, ids, added)
    assert (table.numpy() == data).all()


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("size", [0, 1, 31, 1024, 4097, 100_000])
def test_sum(vm, numbers, dtype, size):
    data = whole(numbers, size, dtype)
    assert ops.sum(vm.array(data, read_only=True)) == data.sum(dtype="f8" if dtype in FLOATS else "i8")


def test_sum_is_precise_and_integers_wrap(vm):
    data = np.full(1 << 20, 0.1, np.float32)
    assert abs(ops.sum(vm.array(data)) - float(np.float32(0.1)) * (1 << 20)) < 1e-6
    assert ops.sum(vm.array(np.full(3, 2**62, np.int64))) == -(2**62)


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("columns", ["int32", "int64"])
def test_spmv(vm, numbers, dtype, columns):
    rows, width = 300, 500
    lengths = numbers.integers(0, 9, rows)
    # A row of many pages, and none at either end.
    lengths[[0, -1]], lengths[17] = 0, 6000
    starts = np.concatenate([[0], np.cumsum(lengths)])
    indices = numbers.integers(0, width, starts[-1]).astype(columns)
    data, x = whole(numbers, starts[-1], dtype), whole(numbers, width, dtype)
    expected = np.array([(data[a:b] * x[indices[a:b]]).sum() for a, b in zip(starts, starts[1:])])
    paged = vm.array(indices, read_only=True), vm.array(data, read_only=True)
    assert (ops.spmv(starts, *paged, x).numpy() == expected).all()
    assert (ops.spmv(vm.array(starts), *paged, vm.buffer(x)).numpy() == expected).all()


def test_spmv_of_nothing(vm):
    none = vm.zeros(0, np.int32), vm.zeros(0)
    assert ops.spmv(np.zeros(1, np.int64), *none, np.zeros(0, np.float32)).shape == (0,)
    assert (ops.spmv(np.zeros(4, np.int64), *none, np.zeros(2, np.float32)).numpy() == [0, 0, 0]).all()


def reference_bfs(offsets, neighbours, source):
    distances = np.full(offsets.size - 1, -1)
    distances[source], frontier, level = 0, [source], 0
    while frontier:
        level, reached = level + 1, []
        for vertex in frontier:
            for other in neighbours[offsets[vertex] : offsets[vertex + 1]]:
                if distances[other] < 0:
                    distances[other] = level
                    reached.append(other)
        frontier = reached
    return distances


@pytest.mark.parametrize("kinds", [("int64", "int32"), ("uint64", "uint32"), ("int32", "int64")])
def test_bfs(vm, numbers, kinds):
    vertices = 3001
    lengths = numbers.integers(0, 4, vertices)
    # A row long enough to be cut into pieces.
    lengths[5] = 5000
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(kinds[0])
    neighbours = numbers.integers(0, vertices, offsets[-1]).astype(kinds[1])
    expected = reference_bfs(offsets, neighbours, 5)
    distances = ops.bfs(offsets, neighbours, 5, vm=vm)
    assert distances.dtype == np.int32 and (distances.numpy() == expected).all()
    if kinds[0] == "uint64":
        paged = vm.array(offsets, read_only=True), vm.array(neighbours, read_only=True)
        assert (ops.bfs(*paged, 5).numpy() == expected).all()


def test_bfs_of_a_line_and_of_one_vertex(vm):
    line = np.arange(1, 40, dtype=np.int32)
    offsets = np.append(np.arange(40), 39)
    assert (ops.bfs(offsets, line, 0, vm=vm).numpy() == np.arange(40)).all()
    assert ops.bfs(np.zeros(2, np.int64), np.zeros(0, np.int32), 0, vm=vm).numpy().tolist() == [0]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("width", [1, 31, 130])
def test_embedding_bag(vm, numbers, dtype, mode, width):
    data = whole(numbers, (700, width), dtype)
    table, ids, offsets = vm.array(data, read_only=True), numbers.integers(0, 700, 90), [0, 0, 1, 50, 90]
    found = ops.embedding_bag(table, ids, offsets, mode).numpy()
    for bag, (begin, end) in enumerate(zip(offsets, [*offsets[1:], 90])):
        rows = data[ids[begin:end]]
        expected = rows.sum(0) if mode == "sum" or end == begin else rows.sum(0) / dtype_of(dtype, end - begin)
        assert (found[bag] == expected).all()
    assert ops.embedding_bag(table, [], []).shape == (0, width)
    assert not ops.embedding_bag(table, [], [0, 0]).numpy().any()


def dtype_of(dtype, value):
    return np.dtype(dtype).type(value)


def test_knn_of_infinite_and_unknown_distances(vm):
    query = np.zeros((2, 2), np.float32)
    query[1] = np.nan
    for rows, nearest in (
        # Squares of 3e19 are beyond float32.
        ([[0, 0], [3e19, 0], [0, 3e19], [1, 1]], [0, 3, 1, 2]),
        ([[np.nan, 0], [2, 0], [3e19, 3], [1, 1]], [3, 1, 2, 0]),
    ):
        distances, ids = gpuvm.ops.knn(vm.array(np.array(rows, np.float32)), query, 4)
        # NaN comes last, and what is equally far in the order of its number.
        assert (np.asarray(ids) == [nearest, [0, 1, 2, 3]]).all(), ids
        assert np.isnan(np.asarray(distances)[1]).all()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(1, 1), (40, 3), (1500, 17), (6, 2500)], ids=str)
def test_knn(vm, numbers, dtype, shape, monkeypatch):
    # Several launches, so that what is near is merged.
    monkeypatch.setattr(ops, "_DISTANCES", 4096)
    data, queries = whole(numbers, shape, dtype), whole(numbers, (7, shape[1]), dtype)
    table = vm.array(data, read_only=True)
    apart = ((data[None] - queries[:, None]) ** 2).sum(-1)
    for k in {1, min(5, shape[0]), min(70, shape[0]), min(shape[0], 100)}:
        nearest = np.argsort(apart, axis=1, kind="stable")[:, :k]
        distances, ids = ops.knn(table, queries, k)
        assert (ids == nearest).all() and (distances == np.take_along_axis(apart, nearest, 1)).all()
    assert ops.knn(table, queries[:0], 1)[1].shape == (0, 1)


def test_few_frames_are_enough():
    data = np.arange(40_000, dtype=np.float32).reshape(-1, 40)
    with gpuvm.Vm("16KiB", gpu="simulated") as vm:
        table = vm.array(data, read_only=True)
        assert (ops.take(table, np.arange(999, -1, -1)).numpy() == data[::-1]).all()
        assert ops.sum(table) == data.sum(dtype=np.float64)
        assert ops.knn(table, data[500:501], 1)[1] == [[500]]


def test_ids_out_of_range_are_found_before_anything_is_written(vm):
    data = np.ones((10, 4), np.float32)
    table, out = vm.array(data, copy=True), vm.buffer((2, 4))
    for ids in ([0, 10], [0, -1], [0, 2**40], np.array([0, 2**64 - 1], np.uint64)):
        for use in (
            lambda: ops.take(table, ids, out=out),
            lambda: ops.scatter_add(table, ids, np.ones((2, 4), np.float32)),
            lambda: ops.embedding_bag(table, ids, [0]),
        ):
            with pytest.raises(IndexError, match="out of range: there are 10 rows"):
                use()
    assert not out.numpy().any() and (table.numpy() == 1).all()
    columns, values = vm.array(np.array([0, 5], np.int32), read_only=True), vm.zeros(2)
    for _ in range(2):
        with pytest.raises(IndexError, match="columns have 5"):
            ops.spmv([0, 1, 2], columns, values, np.zeros(5, np.float32))
    assert (ops.spmv([0, 1, 2], columns, values, np.zeros(6, np.float32)).numpy() == 0).all()
    for offsets, neighbours, source in [([0, 1], [1], 0), ([0, 1], [-1], 0), ([0, 0], [], 1), ([0, 2], [0], 0), ([1, 1], [0], 0)]:
        with pytest.raises(IndexError):
            ops.bfs(np.array(offsets), np.array(neighbours, np.int32), source, vm=vm)
    for offsets in ([0, 5], [2, 1], [1]):
        with pytest.raises(IndexError):
            ops.embedding_bag(table, [1, 2], offsets)
    for k in (0, 11):
        with pytest.raises(IndexError, match="expected 1 to 10"):
            ops.knn(table, data[:1], k)


class Memory:
    """Another library's, of an NVIDIA GPU: of int64, at an address where nothing is."""

    def __init__(self, ordinal, stream):
        self.__cuda_array_interface__ = {"shape": (3,), "typestr": "<i8", "data": (1 << 40, False), "version": 3, "stream": stream}
        self.ordinal = ordinal

    def __dlpack_device__(self):
        return 2, self.ordinal


def test_memory_of_other_libraries_is_the_gpus():
    class OfCuda:
        simulated, _machine = False, {"ordinal": 1}

    for stream, writer in ((None, 0), (1, 1), (77, 77)):
        assert gpuvm._kernel.cuda_memory(OfCuda, Memory(1, stream), "ids")["stream"] == writer
    with pytest.raises(errors.ArgumentError, match="ids: memory of cuda:0, and the Vm's GPU is cuda:1"):
        gpuvm._kernel.cuda_memory(OfCuda, Memory(0, None), "ids")
    with pytest.raises(errors.StreamError, match="its stream is 0"):
        gpuvm._kernel.cuda_memory(OfCuda, Memory(1, 0), "ids")
    with gpuvm.Vm("128KiB", gpu="sim") as vm:
        table = vm.zeros((10, 4))
        for use in (
            lambda: ops.take(table, Memory(0, None)),
            lambda: ops.scatter_add(table, Memory(0, None), np.zeros((3, 4), np.float32)),
            lambda: ops.embedding_bag(table, Memory(0, None), [0]),
            lambda: ops.embedding_bag(table, [0], Memory(0, None)),
        ):
            with pytest.raises(errors.ArgumentError, match="the Vm's GPU is simulated"):
                use()
        with pytest.raises(errors.StreamError, match="simulated"):
            ops.take(table, [0], stream=1)


def test_operands_of_wrong_types(vm):
    table = vm.zeros((10, 4))
    for kind, use in [
        (errors.ArgumentError, lambda: ops.take(np.zeros((3, 3)), [0])),
        (errors.DtypeError, lambda: ops.scatter_add(vm.zeros(3, np.int16), [0], np.zeros(1, np.int16))),
        (errors.DtypeError, lambda: ops.take(table, [0.5])),
        (errors.LayoutError, lambda: ops.take(table, [0], out=vm.buffer(3))),
        (errors.DtypeError, lambda: ops.scatter_add(table, [0], np.zeros((1, 4)))),
        (errors.LayoutError, lambda: ops.scatter_add(table, [0], np.zeros(4, np.float32))),
        (errors.ArgumentError, lambda: ops.embedding_bag(table, [0], [0], "max")),
        (errors.LayoutError, lambda: ops.knn(table, np.zeros((1, 5), np.float32), 1)),
        (errors.ArgumentError, lambda: ops.bfs(np.zeros(2, np.int64), np.zeros(0, np.int32), 0)),
    ]:
        with pytest.raises(kind):
            use()


def test_kernels_are_compiled_for_gpus_that_are_not_there(tmp_path):
    """As for a wheel, by the NVRTC of the package ``nvidia-cuda-nvrtc``, which nothing else has loaded."""
    pytest.importorskip("nvidia", reason="the package nvidia-cuda-nvrtc is not installed")
    code = (
        "import sys, gpuvm, gpuvm._core as core, gpuvm._precompile as ahead\n"
        "core.precompile(sys.argv[1], 90)\n"
        "ahead._nvidia(sys.argv[1], 90, 'reduce', gpuvm.ops.KERNELS['reduce'][:1])\n"
    )
    environment = {name: value for name, value in os.environ.items() if name not in ("LD_LIBRARY_PATH", "GPUVM_NVRTC", "CUDA_HOME", "CUDA_PATH")}
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "shelf")], check=True, env=environment)
    # The runtime's, those of slot caches, and a kernel's four forms.
    assert len(list((tmp_path / "shelf").iterdir())) == 6


def test_modules_of_wheels_are_those_that_operations_compile():
    modules = list(gpuvm._precompile.modules())
    assert ("rows", ["take<word<16>>"]) in modules and ("knn", gpuvm.ops.KERNELS["knn"]) in modules
    assert sum(len(kernels) for _, kernels in modules) == sum(map(len, gpuvm.ops.KERNELS.values()))
