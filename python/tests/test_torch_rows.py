"""Tables as tensors, and operations whose numbers of rows stay on the GPU: against PyTorch's own, where pages are looked up and where they are faults."""

from __future__ import annotations

import concurrent.futures
import ctypes
import gc
import os
import weakref
from typing import Iterator

import numpy as np
import pytest

import gpuvm

torch = pytest.importorskip("torch", minversion="2.4", reason="PyTorch is not installed: its wheels bring gigabytes of CUDA")

import gpuvm.torch as paged  # noqa: E402 - it imports PyTorch

GPU = os.environ.get("GPUVM_TEST_GPU", "sim")
DTYPES = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8", "int16", "int32", "int64", "uint8"]
#: Frames are fewer than the tables have pages.
FEW = "128KiB"


@pytest.fixture(params=["direct"] if GPU != "sim" else ["direct", "soft"])
def vm(request: pytest.FixtureRequest) -> Iterator[gpuvm.Vm]:
    with gpuvm.Vm(FEW, gpu=GPU, transport=request.param) as made:
        yield made


def values(numbers, shape, dtype):
    """Whole numbers that all types have."""
    return torch.from_numpy(numbers.integers(0, 8, shape).astype(np.float32)).to(dtype)


def table_of(vm, numbers, shape, name):
    dtype = getattr(torch, name)
    own = values(numbers, shape, dtype)
    table = paged.zeros(shape, vm, dtype=dtype)
    table.copy_(own)
    return table, own.to(table.device)


def same(one, other):
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("width", [1, 3, 8, 33, 144, 256, 5000])
def test_take_copies_rows_of_any_type_and_width(vm, numbers, name, width):
    rows = 300 if width < 1000 else 20
    table, own = table_of(vm, numbers, (rows, width), name)
    for kind in (torch.int64, torch.int32):
        ids = torch.from_numpy(numbers.integers(0, rows, (7, 11))).to(kind).to(table.device)
        # The second time some pages have come to frames.
        for _ in range(2):
            found = paged.take(table, ids, check=True)
            assert found.dtype == table.dtype and found.shape == (7, 11, width) and found.device == table.device
            assert same(found, own.view(torch.uint8)[ids.long()])
    none = paged.take(table, torch.zeros((0, 3), dtype=torch.int64, device=table.device))
    assert none.shape == (0, 3, width)


def test_slices_and_more_dimensions(vm, numbers):
    table, own = table_of(vm, numbers, (200, 3, 5), "float32")
    ids = torch.from_numpy(numbers.integers(0, 100, 50)).to(table.device)
    assert torch.equal(paged.take(table[37:], ids), own[37:][ids])
    assert torch.equal(paged.take(table, ids), own[ids])
    # PyTorch's own operations do for rows that do not lie behind each other.
    assert torch.equal(paged.take(table[:, 1], ids), own[:, 1][ids])
    assert torch.equal(paged.take(own, ids), own[ids])
    assert paged.array_of(table[3:]) is paged.array_of(table) and paged.array_of(own) is None


def test_what_pytorch_writes_operations_see(vm, numbers):
    table, own = table_of(vm, numbers, (400, 64), "float32")
    ids = torch.arange(400, device=table.device)
    for step in range(4):
        paged.take(table, ids)
        for one in (table, own):
            one[step::3] += step + 1
            one.view(-1)[step] = -1
            one.detach()[17].zero_()
        assert torch.equal(paged.take(table, ids), own)
    # No one sees this but who is told.
    paged.array_of(table).numpy()
    np.asarray(table.cpu() if GPU != "sim" else table.numpy())
    if GPU == "sim":
        table.numpy()[5] = 99
        paged.array_of(table).wrote()
        assert (paged.take(table, ids)[5] == 99).all()


def fused_step(table):
    weight = torch.nn.Parameter(table)
    weight.grad = torch.ones_like(weight)
    torch.optim.SGD([weight], lr=1.0, fused=True).step()


WRITES = {
    "view": lambda table: table[3:].t().mul_(2),
    "detached": lambda table: table.detach().add_(1),
    "parameter": torch.no_grad()(lambda table: torch.nn.Parameter(table).add_(1)),
    "other type": lambda table: table.view(torch.int32).bitwise_xor_(1),
    "strides": lambda table: table.as_strided((9,), (40,)).add_(1),
    "out": lambda table: torch.add(table, 1, out=table),
    "all of a list": lambda table: torch._foreach_add_([table[5:]], 3),
    "fused optimizer": fused_step,
    "inference mode": torch.inference_mode()(lambda table: table[4:].add_(1)),
    "loaded": lambda table: torch.nn.Embedding.from_pretrained(table).load_state_dict({"weight": table + 1}),
    "compiled": lambda table: torch.compile(lambda one: one[3:].mul_(2), backend="aot_eager")(table),
}


@pytest.mark.parametrize("write", WRITES)
def test_whatever_way_pytorch_writes_operations_see_it(vm, numbers, write):
    table, own = table_of(vm, numbers, (400, 40), "float32")
    ids = torch.arange(400, device=table.device)
    array = paged.array_of(table)
    kept = table.view(torch.uint8)
    del table
    # Another tensor of the array, while views of the first live on.
    table = array.tensor()
    for _ in range(2):
        for through in (kept.view(torch.float32), table, table.detach()):
            assert torch.equal(paged.take(table, ids), own)
            for one in (through, own):
                WRITES[write](one)
            assert torch.equal(paged.take(table[1:], ids[1:] - 1), own[1:])
            assert torch.equal(torch.from_numpy(array.numpy()).to(own.device), own)


def test_arrays_in_place_of_tensors_stay_in_frames(vm, numbers):
    array, own = vm.zeros((100, 8)), torch.ones(50, 8)
    ids = torch.arange(50, device=array.tensor().device)
    for turn in range(1, 3):
        paged.index_add_(array, ids, own.to(ids.device))
        assert (paged.take(array, ids) == turn).all()
        assert (paged.embedding_bag(ids, array, ids) == turn).all()
        assert not array._core.is_home_current
    assert (array.tensor()[:50] == turn).all() and array._core.is_home_current


def test_writes_of_pytorch_over_those_of_kernels_are_an_error(vm, numbers):
    for before in (lambda array: array.numpy(), lambda array: array[1], lambda array: array.tensor(), lambda array: gpuvm.ops.sum(array)):
        table, own = table_of(vm, numbers, (400, 64), "float32")
        array, ids = paged.array_of(table), torch.tensor([3], device=table.device)
        added = torch.ones((1, 64), device=table.device)
        paged.index_add_(table, ids, added)
        own[3] += 1
        table[300] = 5
        for use in (before, lambda array: paged.take(array, ids), lambda array: paged.index_add_(table, ids, added), lambda array: array.flush()):
            with pytest.raises(gpuvm.errors.RegionError, match="array.tensor\\(\\) before PyTorch writes"):
                use(array)
        array.wrote()
        own[300] = 5
        assert torch.equal(paged.take(table, torch.arange(400, device=table.device)), own) and torch.equal(array.tensor(), own)
    paged.index_add_(table, ids, added)
    table[300] = 6
    with pytest.raises(gpuvm.errors.RegionError, match="before PyTorch writes"):
        array.close()
    assert array.closed


def test_what_kernels_write_the_tensor_has(vm, numbers):
    table, own = table_of(vm, numbers, (500, 40), "float32")
    array = paged.array_of(table)
    for step in range(3):
        ids = torch.from_numpy(numbers.integers(0, 500, 300)).to(table.device)
        added = values(numbers, (300, 40), torch.float32).to(table.device)
        assert paged.index_add_(table, ids, added, alpha=2) is table
        own.index_add_(0, ids, added, alpha=2)
        assert torch.equal(paged.take(table, ids), own[ids])
        assert array.tensor() is table and torch.equal(table, own)
        table.mul_(0.5)
        own.mul_(0.5)
    assert torch.equal(torch.from_numpy(array.numpy()).to(table.device), own)


@pytest.mark.parametrize("name", ["float64", "float32", "float16", "bfloat16", "int32", "int64"])
@pytest.mark.parametrize("width", [1, 6, 33])
def test_index_add(vm, numbers, name, width):
    table, own = table_of(vm, numbers, (100, width), name)
    ids = torch.from_numpy(numbers.integers(0, 30, 200).astype(np.int32)).to(table.device)
    added = values(numbers, (200, width), table.dtype).to(table.device)
    paged.index_add_(table, ids, added, check=True)
    # Small whole numbers: exact in each order.
    own.index_add_(0, ids.long(), added)
    assert torch.equal(paged.array_of(table).tensor(), own)


@pytest.mark.parametrize("name", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("mode", ["sum", "mean", "weights"])
@pytest.mark.parametrize("width", [1, 40])
def test_embedding_bag(vm, numbers, name, mode, width):
    table, own = table_of(vm, numbers, (300, width), name)
    dtype, device = table.dtype, table.device
    ids = torch.from_numpy(numbers.integers(0, 300, 120)).to(device)
    offsets = torch.tensor([0, 0, 7, 7, 60, 119], device=device)
    weights = values(numbers, (120,), dtype).to(device) if mode == "weights" else None
    how = "mean" if mode == "mean" else "sum"
    # In more precision than the type has: PyTorch's own rounds to it each time, on processors.
    wide = torch.float64
    expected = torch.nn.functional.embedding_bag(
        ids, own.to(wide), offsets, mode=how, per_sample_weights=None if weights is None else weights.to(wide)
    )
    found = paged.embedding_bag(ids, table, offsets, mode=how, per_sample_weights=weights, check=True)
    exact = name in ("float64", "float32") and how == "sum"
    assert found.dtype == dtype
    torch.testing.assert_close(found.to(wide), expected, rtol=0 if exact else None, atol=0 if exact else None) if exact else torch.testing.assert_close(
        found, expected.to(dtype)
    )
    two = ids[:120].reshape(12, 10)
    assert torch.equal(paged.embedding_bag(two, table, mode=how), paged.embedding_bag(ids, table, torch.arange(0, 120, 10, device=device), mode=how))


def test_half_precision_rounds_as_pytorch_does(vm):
    """A bag of one row converts each number there and back; one of weight 1/3 rounds."""
    for name in ("float16", "bfloat16"):
        dtype = getattr(torch, name)
        bits = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)
        own = bits.view(dtype).reshape(64, 1024)
        table = paged.zeros((64, 1024), vm, dtype=dtype)
        table.copy_(own)
        ids, offsets = torch.arange(64, device=table.device), torch.arange(64, device=table.device)
        found = paged.embedding_bag(ids, table, offsets).cpu()
        numbers = ~own.isnan()
        assert torch.equal(found[numbers], own[numbers]) and bool(found[~numbers].isnan().all())
        third = torch.full((64,), 1 / 3, dtype=dtype)
        weighted = paged.embedding_bag(ids, table, offsets, per_sample_weights=third.to(table.device)).cpu()
        expected = (own.float() * third.float().unsqueeze(-1)).to(dtype)
        assert torch.equal(weighted[numbers], expected[numbers])


def test_gradients_are_pytorchs(vm, numbers):
    table, own = table_of(vm, numbers, (100, 12), "float32")
    device = table.device
    ids = torch.from_numpy(numbers.integers(0, 100, 60)).to(device)
    offsets = torch.tensor([0, 10, 10, 55], device=device)
    weights = [values(numbers, (60,), torch.float32).to(device).requires_grad_() for _ in range(1)] * 2
    weights = [weights[0].detach().clone().requires_grad_() for _ in range(2)]
    paged_weight, own_weight = table.detach().requires_grad_(), own.detach().clone().requires_grad_()
    functional = torch.nn.functional
    for mode in ("sum", "mean", "weights"):
        how = "mean" if mode == "mean" else "sum"
        outputs = []
        for weight, bag, per in ((paged_weight, paged.embedding_bag, weights[0]), (own_weight, functional.embedding_bag, weights[1])):
            given = per if mode == "weights" else None
            outputs.append((bag(ids, weight, offsets, mode=how, per_sample_weights=given) ** 2).sum())
        for output in outputs:
            output.backward()
    (paged.take(paged_weight, ids) ** 3).sum().backward()
    (own_weight[ids] ** 3).sum().backward()
    torch.testing.assert_close(paged_weight.grad.to_dense(), own_weight.grad)
    torch.testing.assert_close(weights[0].grad, weights[1].grad)


OPTIMIZERS = {
    "SGD": lambda weights: torch.optim.SGD(weights, lr=0.1),
    "momentum": lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9, nesterov=True),
    "Adagrad": lambda weights: torch.optim.Adagrad(weights, lr=0.1),
    "SparseAdam": lambda weights: torch.optim.SparseAdam(weights, lr=0.1),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_optimizer_of_pytorch_trains_the_table_where_it_is(vm, numbers, optimizer):
    data = numbers.random((300, 16)).astype(np.float32)
    embedding = paged.Embedding(vm.array(data.copy(), copy=True))
    own = torch.nn.Embedding.from_pretrained(torch.from_numpy(data.copy()), freeze=False, sparse=True).to(embedding.device)
    optimizers = [OPTIMIZERS[optimizer]([weight]) for weight in (embedding.weight, own.weight)]
    for _ in range(4):
        ids = torch.from_numpy(numbers.integers(0, 300, 80)).to(embedding.device)
        for module, one in zip((embedding, own), optimizers):
            one.zero_grad()
            (module(ids) ** 2).sum().backward()
            one.step()
        if vm.simulated:
            assert torch.equal(embedding(ids), own(ids))
        else:
            # On a GPU PyTorch adds up what a row gets of several ids, and of several steps, in any order.
            torch.testing.assert_close(embedding(ids), own(ids))


def test_numbers_out_of_range_are_told(vm, numbers):
    table, own = table_of(vm, numbers, (10, 4), "float32")
    device = table.device
    for bad in (10, -1, 1 << 40, -(1 << 63)):
        with pytest.raises(IndexError, match=f"ids have {bad}, out of range"):
            paged.take(table, torch.tensor([3, bad, 0], device=device), check=True)
        with pytest.raises(IndexError, match=f"ids have {bad}"):
            paged.index_add_(table, torch.tensor([bad], device=device), torch.ones((1, 4), device=device), check=True)
        with pytest.raises(IndexError, match=f"ids have {bad}"):
            paged.embedding_bag(torch.tensor([bad], device=device), table, torch.tensor([0], device=device), check=True)
    for offsets in ([0, 3], [1], [2, 1], [0, -1], [0, 2, 1]):
        with pytest.raises(IndexError, match="offsets have"):
            paged.embedding_bag(torch.tensor([1, 2], device=device), table, torch.tensor(offsets, device=device), check=True)
    # It was told once, and nothing was changed.
    assert torch.equal(paged.array_of(table).tensor(), own)


def test_numbers_out_of_range_have_no_gradient(vm, numbers):
    table, _ = table_of(vm, numbers, (10, 4), "float32")
    offsets = torch.tensor([0, 1], device=table.device)
    for bad in (10, -1, 1 << 40, -(1 << 63)):
        for use in (lambda ids: paged.take(weight, ids), lambda ids: paged.embedding_bag(ids, weight, offsets)):
            for numbers_then, rows in (([3, bad, 3], [3]), ([bad, bad, 0], [0])):
                weight = table.detach().requires_grad_()
                ids = torch.tensor([3, 3, 3], device=table.device)
                found = use(ids)
                # As numbers on a GPU are, of which it tells later.
                ids.data.copy_(torch.tensor(numbers_then))
                found.sum().backward()
                gradient = weight.grad.coalesce()
                assert gradient.indices().tolist() == [rows] and (gradient.values() == numbers_then.count(rows[0])).all()
    begins = offsets.clone()
    found = paged.embedding_bag(torch.tensor([3, 4, 5], device=table.device), weight, begins)
    begins.data.fill_(2)
    found.sum().backward()


def test_nothing_waits_in_a_capture(vm, numbers, monkeypatch):
    table, own = table_of(vm, numbers, (100, 4), "float32")
    ids, array = torch.arange(50, device=table.device), paged.array_of(table)

    def refused(*uses):
        with monkeypatch.context() as patched:
            patched.setattr(paged, "_is_capturing", lambda device: True)
            for use in uses:
                with pytest.raises(gpuvm.errors.StreamError, match="before the capture"):
                    use()

    paged.take(table, ids)
    refused(lambda: paged.take(table, ids, check=True))
    table[7] = own[7] = 3
    refused(lambda: paged.take(table, ids), lambda: paged.index_add_(array, ids, own[:50]), array.wrote)
    assert torch.equal(paged.take(table, ids), own[:50])
    paged.index_add_(table, ids, own[:50])
    refused(array.tensor, lambda: paged.take(table[:, 1:], ids))
    own[:50] *= 2
    assert torch.equal(array.tensor(), own)


def test_wrong_uses(vm, numbers):
    table, _ = table_of(vm, numbers, (10, 4), "int16")
    read_only = vm.array(np.zeros((4, 2), np.float32), read_only=True)
    ids = torch.tensor([1], device=table.device)
    for kind, use in [
        (TypeError, lambda: paged.take(table, ids.float())),
        (TypeError, lambda: paged.index_add_(table, ids, torch.zeros((1, 4), dtype=torch.int16, device=table.device))),
        (TypeError, lambda: paged.embedding_bag(ids, table, ids * 0)),
        (ValueError, lambda: paged.index_add_(table, ids, torch.zeros((1, 4), device=table.device))),
        (ValueError, lambda: paged.index_add_(read_only, ids, torch.zeros((1, 2), device=table.device))),
        (TypeError, lambda: paged.index_add_(table, ids, torch.zeros(1, requires_grad=True, device=table.device))),
    ]:
        with pytest.raises(kind):
            use()


@pytest.mark.parametrize("name", ["float32", "int64"])
@pytest.mark.parametrize("columns", ["int32", "int64"])
def test_spmv(vm, numbers, name, columns):
    lengths = numbers.integers(0, 9, 300)
    lengths[17] = 3000
    starts = np.concatenate([[0], np.cumsum(lengths)])
    indices, data = numbers.integers(0, 500, starts[-1]).astype(columns), numbers.integers(-9, 9, starts[-1]).astype(name)
    x = numbers.integers(-9, 9, 500).astype(name)
    expected = np.array([(data[a:b] * x[indices[a:b]]).sum() for a, b in zip(starts, starts[1:])])
    # Not lent: CUDA copies nothing that shares a page with memory that is.
    paged_indices, paged_data = vm.array(indices, read_only=True, copy=True), vm.array(data, copy=True).tensor()
    given, begins = torch.from_numpy(x).to(paged_data.device), torch.from_numpy(starts).to(paged_data.device)
    assert torch.equal(paged.spmv(begins, paged_indices, paged_data, given).cpu(), torch.from_numpy(expected))
    # What PyTorch writes is seen, and what is out of range found before it is read.
    paged_data.mul_(2)
    assert torch.equal(paged.spmv(begins, paged_indices, paged_data, given).cpu(), torch.from_numpy(2 * expected))
    for wrong in (lambda: paged.spmv(begins, paged_indices, paged_data, given[:400]), lambda: paged.spmv(begins[1:], paged_indices, paged_data, given)):
        with pytest.raises(IndexError):
            wrong()


@pytest.mark.parametrize("name", ["float32", "float64"])
def test_knn(vm, numbers, name, monkeypatch):
    # Several launches, so that what is near is merged.
    monkeypatch.setattr(gpuvm.ops, "_DISTANCES", 4096)
    table, own = table_of(vm, numbers, (900, 17), name)
    queries = values(numbers, (7, 17), table.dtype).to(table.device)
    for some, all_of in ((table, own), (paged.array_of(table), own), (table[100:], own[100:])):
        apart = ((all_of[None] - queries[:, None]) ** 2).sum(-1)
        nearest = torch.argsort(apart, dim=1, stable=True)[:, :5]
        distances, ids = paged.knn(some, queries, 5)
        assert torch.equal(ids, nearest) and torch.equal(distances, apart.gather(1, nearest))
    assert paged.knn(table, queries[:0], 1)[1].shape == (0, 1)
    for kind, wrong in ((IndexError, lambda: paged.knn(table, queries, 901)), (ValueError, lambda: paged.knn(table, queries[:, 1:], 1)), (TypeError, lambda: paged.knn(own, queries, 1))):
        with pytest.raises(kind):
            wrong()


def test_a_tensor_keeps_its_array(vm, numbers):
    table, own = table_of(vm, numbers, (100, 8), "float32")
    ids = torch.arange(100, device=table.device)
    paged.index_add_(table, ids, own)
    view = table[10:20]
    del table
    gc.collect()
    assert torch.equal(paged.take(view, ids[:10]), 2 * own[10:20])
    array = paged.array_of(view)
    assert torch.equal(array.tensor(), 2 * own)
    array.close()
    assert torch.equal(view, 2 * own[10:20])
    # Of a closed array the memory is there still: PyTorch's own operations read it.
    assert torch.equal(paged.take(view, ids[:10]), 2 * own[10:20])


def test_inference_mode(vm, numbers):
    own = values(numbers, (101, 8), torch.float32)
    # Not of the mode: the backward pass below keeps them.
    ids = torch.arange(0, 100, 3, device=torch.device("cpu") if vm.simulated else torch.device("cuda"))
    with torch.inference_mode():
        table = paged.from_numpy(own.numpy().copy(), vm)
        embedding = paged.Embedding(vm.array(own.numpy().copy()))
        own = own.to(table.device)
        for _ in range(2):
            assert torch.equal(paged.take(table, ids), own[ids]) and torch.equal(embedding(ids), own[ids])
            for one in (table, embedding.weight.detach(), own):
                one.add_(1)
                one[6].zero_()
            assert torch.equal(paged.take(table[1:], ids), own[1:][ids]) and torch.equal(embedding(ids), own[ids])
        paged.index_add_(table, ids, own[ids])
        own.index_add_(0, ids, own[ids])
        assert torch.equal(paged.array_of(table).tensor(), own)
        # Nothing is known of what is written to a tensor that has no version.
        alias = torch.from_dlpack(table)
        assert alias.is_inference()
        for _ in range(2):
            alias.add_(1)
            own.add_(1)
            assert torch.equal(paged.take(alias, ids), own[ids])
    assert torch.equal(paged.take(table, ids), own[ids])
    embedding(ids).sum().backward()
    assert embedding.grad._nnz() == len(ids)


def test_an_array_ends_with_its_last_reference(vm):
    data, ids = np.zeros((200, 64), np.float32), torch.arange(200)
    # Memory is lent once at a time, and what is in frames is written back at the end.
    for turn in range(1, 3):
        table = paged.from_numpy(data, vm)
        for _ in range(2):
            paged.index_add_(table, ids.to(table.device), torch.ones((200, 64), device=table.device), check=True)
            paged.take(table, ids.to(table.device), check=True)
        array = weakref.ref(paged.array_of(table))
        del table
        assert array() is None and (data == 2 * turn).all()


def test_torch_compile_takes_operations(vm, numbers):
    table, own = table_of(vm, numbers, (100, 8), "float32")
    device = table.device
    scale = torch.ones(8, device=device, requires_grad=True)

    def model(table, ids, offsets):
        rows = paged.take(table, ids) * scale
        return rows.sum() + paged.embedding_bag(ids, table, offsets, mode="mean").sum()

    ids, offsets = torch.from_numpy(numbers.integers(0, 100, 50)).to(device), torch.tensor([0, 20], device=device)
    backend = "inductor" if device.type == "cuda" else "aot_eager"
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    for _ in range(2):
        result = compiled(table, ids, offsets)
        (expected,) = [(own[ids] * scale).sum() + torch.nn.functional.embedding_bag(ids, own, offsets, mode="mean").sum()]
        torch.testing.assert_close(result, expected)
        result.backward()
        torch.testing.assert_close(scale.grad, own[ids].sum(0))
        scale.grad = None
    added = torch.ones((50, 8), device=device)
    for _ in range(2):
        torch.ops.gpuvm.index_add_(table, ids, added)
        own.index_add_(0, ids, added)
        # As compiled programs do at their end.
        torch.autograd.graph.increment_version(table)
        assert torch.equal(paged.take(table, ids), own[ids])
    torch.library.opcheck(torch.ops.gpuvm.take, (table, ids), test_utils=("test_schema", "test_faketensor"))
    torch.library.opcheck(torch.ops.gpuvm.embedding_bag, (table, ids, offsets, None), test_utils=("test_schema", "test_faketensor"))


def test_files_and_numpys_memory(vm, numbers, tmp_path):
    data = numbers.integers(0, 99, (50, 6)).astype(np.int64)
    data.tofile(tmp_path / "table")
    # Before its pages are pinned in part.
    own, ids = torch.from_numpy(data.copy()).to("cpu" if GPU == "sim" else GPU), [3, 49, 0]
    for table in (
        paged.from_file(tmp_path / "table", vm, dtype=torch.int64, shape=(50, 6)),
        paged.from_numpy(data, vm),
        paged.from_numpy(data, vm, copy=True),
    ):
        assert torch.equal(table, own)
        assert torch.equal(paged.take(table, torch.tensor(ids, device=table.device)), own[ids])


cuda = pytest.mark.skipif(GPU == "sim", reason="the simulated GPU has no streams of CUDA: GPUVM_TEST_GPU=cuda:0 names one")


@cuda
def test_a_graph_captures_operations(vm, numbers):
    table, own = table_of(vm, numbers, (4000, 128), "float32")
    array = paged.array_of(table)
    ids = torch.randint(4000, (512,), device=table.device)
    added = torch.ones((512, 128), device=table.device)
    paged.take(table, ids)
    paged.index_add_(table, ids, added)
    own.index_add_(0, ids, added)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = paged.take(table, ids)
        paged.index_add_(table, ids, added)
    for _ in range(5):
        ids.random_(4000)
        graph.replay()
        assert torch.equal(found, own[ids])
        own.index_add_(0, ids, added)
        # A thread that reads it waits for the graph, and sees what it wrote.
        assert torch.equal(array.tensor(), own)
        assert torch.equal(torch.from_numpy(array.numpy()).cuda(), own)
        gpuvm.ops.take(array, [1, 2])
        array.step()
    with pytest.raises(gpuvm.errors.RegionError, match="forget_graphs"):
        array.evict()
    array.forget_graphs()
    array.evict()
    assert torch.equal(paged.take(table, ids), own[ids])


@cuda
def test_a_capture_of_pages_that_are_not_ready_is_refused(vm):
    table = paged.zeros((1000, 64), vm)
    paged.take(table, torch.zeros(1, dtype=torch.int64, device="cuda"))
    paged.array_of(table).numpy()
    ids = torch.arange(10, device="cuda")
    with pytest.raises(gpuvm.errors.StreamError, match="before the capture"):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            paged.take(table, ids)
    paged.take(table, ids)
    table[3] = 5
    with pytest.raises(gpuvm.errors.StreamError, match="before the capture"):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            paged.take(table, ids)
    assert torch.equal(paged.take(table, ids), table[:10])


@cuda
def test_ready_operations_run_behind_the_stream_of_numbers(vm, numbers):
    table, own = table_of(vm, numbers, (400, 64), "float32")
    ids, others = torch.zeros(50, dtype=torch.int64, device="cuda"), torch.randint(400, (50,), device="cuda")
    writer = torch.cuda.Stream()

    class Ids:
        __cuda_array_interface__ = {**ids.__cuda_array_interface__, "version": 3, "stream": writer.cuda_stream}

    for stream in (None, torch.cuda.Stream(), torch.cuda.Stream().cuda_stream):
        torch.cuda.synchronize()
        with torch.cuda.stream(writer):
            torch.cuda._sleep(200_000_000)
            ids.copy_(others)
        found = gpuvm.ops.take(paged.array_of(table), Ids(), stream=stream)
        assert torch.equal(torch.from_numpy(found.numpy()), own[others].cpu())
        ids.zero_()


@cuda
def test_the_threads_context_is_what_others_made_it():
    driver = ctypes.CDLL("libcuda.so.1")
    assert driver.cuInit(0) == 0

    def current():
        context = ctypes.c_void_p()
        assert driver.cuCtxGetCurrent(ctypes.byref(context)) == 0
        return context.value

    def use():
        # A thread that has none, as one of PyTorch has another GPU's.
        assert current() is None
        with gpuvm.Vm(FEW, gpu=GPU) as vm:
            assert current() is None
            array, buffer = vm.array(np.ones((100, 8), np.float32)), vm.buffer((3,), np.float32)
            assert gpuvm.ops.sum(array) == 800 and current() is None
            gpuvm.ops.scatter_add(array, [1], np.ones((1, 8), np.float32))
            assert array.numpy().sum() == 808 and current() is None
            vm.stream()
            del array, buffer
            assert current() is None
        assert current() is None

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(use).result()


@cuda
def test_two_streams(vm, numbers):
    table, own = table_of(vm, numbers, (4000, 128), "float32")
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    ids = [torch.randint(4000, (2000,), device="cuda") for _ in streams]
    torch.cuda.synchronize()
    for _ in range(20):
        found = []
        for stream, some in zip(streams, ids):
            with torch.cuda.stream(stream):
                found.append(paged.take(table, some))
        for stream, some, rows in zip(streams, ids, found):
            with torch.cuda.stream(stream):
                assert torch.equal(rows, own[some])


@cuda
def test_ids_stay_on_the_gpu_and_nobody_waits(vm, numbers):
    table, own = table_of(vm, numbers, (4000, 128), "float32")
    ids = torch.randint(4000, (512,), device="cuda")
    paged.take(table, ids, check=True)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.cuda._sleep(200_000_000)
        begun = torch.cuda.Event()
        found = paged.take(table, ids)
        begun.record()
        assert not begun.query()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(found, own[ids])
