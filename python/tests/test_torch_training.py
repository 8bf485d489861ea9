"""Training of tables: gpuvm.optim against torch.optim over torch.nn's embeddings, states, and a restart."""

from __future__ import annotations

import copy
import os
import types
from typing import Iterator

import numpy as np
import pytest

import gpuvm

torch = pytest.importorskip("torch", minversion="2.4", reason="PyTorch is not installed: its wheels bring gigabytes of CUDA")

import gpuvm.optim  # noqa: E402 - it imports PyTorch
import gpuvm.torch as paged  # noqa: E402

GPU = os.environ.get("GPUVM_TEST_GPU", "sim")
#: Frames are fewer than the tables have pages.
FEW = "128KiB"
ROWS, COLUMNS = 900, 48


@pytest.fixture(params=["direct"] if GPU != "sim" else ["direct", "soft"])
def vm(request: pytest.FixtureRequest) -> Iterator[gpuvm.Vm]:
    with gpuvm.Vm(FEW, gpu=GPU, transport=request.param) as made:
        yield made


def same(one, other):
    """To the bit; but on a GPU PyTorch adds up what a row gets of several ids in any order."""
    one, other = one.detach().cpu(), other.detach().cpu()
    torch.testing.assert_close(one, other, **({"rtol": 0, "atol": 0} if GPU == "sim" else {}))
    return True


def contents(array, like):
    return torch.from_numpy(np.array(array.numpy()).reshape(-1).view(np.uint8)).view(like.dtype).view(like.shape)


def tables(vm, numbers, dtype="float32"):
    """An embedding of this package, and one of PyTorch's over the same rows."""
    data = torch.from_numpy(numbers.standard_normal((ROWS, COLUMNS)).astype(np.float32)).to(getattr(torch, dtype))
    array = vm.zeros((ROWS, COLUMNS), np.uint16 if dtype == "bfloat16" else dtype)
    if dtype == "bfloat16":
        array.stored = "BF16"
    embedding = paged.Embedding(array, vm)
    embedding.load_state_dict({"weight": data})
    own = torch.nn.Embedding.from_pretrained(data.clone(), freeze=False, sparse=True).to(embedding.device)
    return embedding, own


def some(numbers, device, count=200, most=ROWS):
    """Many of them repeat."""
    return torch.from_numpy(numbers.integers(0, most, count) * numbers.integers(0, 2, count)).to(device)


PAIRS = {
    "SGD": (lambda weights: gpuvm.optim.SGD(weights, lr=0.1), lambda weights: torch.optim.SGD(weights, lr=0.1)),
    "Adagrad": (
        lambda weights: gpuvm.optim.Adagrad(weights, lr=0.1, lr_decay=0.01, initial_accumulator_value=0.5),
        lambda weights: torch.optim.Adagrad(weights, lr=0.1, lr_decay=0.01, initial_accumulator_value=0.5),
    ),
    "SparseAdam": (lambda weights: gpuvm.optim.SparseAdam(weights, lr=0.1), lambda weights: torch.optim.SparseAdam(weights, lr=0.1)),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", PAIRS)
def test_an_optimizer_is_torchs(vm, numbers, name, dtype):
    embedding, own = tables(vm, numbers, dtype)
    ours, theirs = PAIRS[name][0]([embedding.weight]), PAIRS[name][1]([own.weight])
    scale = torch.from_numpy(numbers.standard_normal(COLUMNS)).to(embedding.device, own.weight.dtype)
    for step in range(4):
        uses = [some(numbers, embedding.device, 1 + 150 * step), some(numbers, embedding.device, 20, 50).reshape(4, 5)]
        if name == "SGD":
            # PyTorch's adds what a row gets of each id by itself.
            uses = [ids.unique() for ids in uses[:1]]
        for module, optimizer in ((embedding, ours), (own, theirs)):
            optimizer.zero_grad()
            assert module.weight.grad is None
            for ids in uses:
                (module(ids) ** 2 * scale).sum().backward()
            optimizer.step()
        assert same(contents(embedding.table, own.weight), own.weight)
        assert same(embedding(uses[0]), own(uses[0]))
    for kept in ("sum", "exp_avg", "exp_avg_sq"):
        if kept in theirs.state[own.weight]:
            assert same(ours.state_dict()["state"][0][kept], theirs.state[own.weight][kept])


def test_gradients_of_repeated_rows_are_summed_first(vm, numbers):
    embedding, own = tables(vm, numbers)
    optimizer = gpuvm.optim.SGD([embedding.weight], lr=0.5)
    ids = some(numbers, embedding.device, 500, 7)
    for module in (embedding, own):
        (module(ids) * torch.arange(500, device=ids.device).unsqueeze(1)).sum().backward()
    optimizer.step()
    gradient = own.weight.grad.coalesce()
    expected = own.weight.detach().clone()
    expected[gradient.indices()[0]] -= 0.5 * gradient.values()
    assert same(contents(embedding.table, expected), expected)


def test_rowwise_adagrad(vm, numbers):
    embedding, own = tables(vm, numbers)
    optimizer = gpuvm.optim.RowwiseAdagrad([embedding.weight], lr=0.1, eps=1e-6)
    expected, sums = own.weight.detach().clone().double(), torch.zeros(ROWS, dtype=torch.float64, device=embedding.device)
    for _ in range(3):
        ids = some(numbers, embedding.device)
        optimizer.zero_grad()
        embedding(ids).square().sum().backward()
        gradient = embedding.grad
        optimizer.step()
        rows, values = gradient.indices()[0], gradient.values().double()
        sums[rows] += values.square().mean(1)
        expected[rows] -= 0.1 * values / (sums[rows].sqrt() + 1e-6).unsqueeze(1)
        torch.testing.assert_close(contents(embedding.table, own.weight), expected.float().cpu())
    kept = optimizer.state_dict()["state"][0]
    assert kept["sum"].shape == (ROWS,)
    torch.testing.assert_close(kept["sum"].cpu(), sums.float().cpu())
    unused = torch.ones(ROWS, dtype=torch.bool)
    unused[sums.cpu() > 0] = False
    assert unused.any() and same(contents(embedding.table, own.weight)[unused], own.weight.cpu()[unused])


def test_rows_without_a_gradient_are_not_touched(vm, numbers):
    """Not even a zero's sign is."""
    embedding, _ = tables(vm, numbers)
    zeros = torch.full((ROWS, COLUMNS), -0.0)
    embedding.load_state_dict({"weight": zeros})
    for make in (*(pair[0] for pair in PAIRS.values()), gpuvm.optim.RowwiseAdagrad):
        optimizer = make([embedding.weight])
        optimizer.zero_grad()
        embedding(torch.full((64,), 7, device=embedding.device)).sum().backward()
        optimizer.step()
    found = contents(embedding.table, zeros)
    assert (found[7] != 0).all()
    found[7] = -0.0
    assert torch.signbit(found).all()


@pytest.mark.parametrize("mode", ["sum", "mean", "weights"])
def test_bags_are_trained(vm, numbers, mode):
    plain, own = tables(vm, numbers)
    how = "mean" if mode == "mean" else "sum"
    bags = paged.EmbeddingBag(plain.table, mode=how)
    theirs = torch.nn.EmbeddingBag.from_pretrained(own.weight.detach().clone(), freeze=False, sparse=True, mode=how).to(bags.device)
    optimizers = [gpuvm.optim.Adagrad([bags.weight], lr=0.1), torch.optim.Adagrad([theirs.weight], lr=0.1)]
    assert not list(bags.parameters()) and "mode='" + how in repr(bags)
    for _ in range(3):
        ids, offsets = some(numbers, bags.device, 90), torch.tensor([0, 10, 10, 77], device=bags.device)
        weights = torch.rand(90, device=bags.device) if mode == "weights" else None
        found = []
        for module, optimizer in zip((bags, theirs), optimizers):
            optimizer.zero_grad()
            result = module(ids, offsets, per_sample_weights=weights)
            (result**2).sum().backward()
            optimizer.step()
            found.append(result)
        # PyTorch's own bags are summed in another order.
        torch.testing.assert_close(found[0], found[1])
    torch.testing.assert_close(contents(bags.table, own.weight), theirs.weight.detach().cpu())
    assert bags(ids.reshape(9, 10)).shape == (9, COLUMNS)


def test_a_step_between_forward_and_backward_is_an_error(vm, numbers):
    """Where the backward pass needs the table as it was."""
    embedding, _ = tables(vm, numbers)
    bags = paged.EmbeddingBag(embedding.table, mode="sum")
    optimizer = gpuvm.optim.SGD([bags.weight], lr=0.1)
    ids, weights = some(numbers, bags.device, 12).reshape(3, 4), torch.ones((3, 4), device=bags.device, requires_grad=True)
    bags(ids, per_sample_weights=weights).sum().backward()
    late = bags(ids, per_sample_weights=weights).sum()
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        late.backward()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", PAIRS)
def test_a_table_of_two_bytes_rounds_once_a_step(vm, numbers, name, dtype):
    embedding, own = tables(vm, numbers, dtype)
    optimizer = PAIRS[name][0]([embedding.weight])
    # The same in float32, each step from the table as it is rounded.
    wide = torch.nn.Parameter(own.weight.detach().float())
    reference = PAIRS[name][1]([wide])
    for _ in range(3):
        ids = some(numbers, embedding.device)
        optimizer.zero_grad()
        embedding(ids).float().square().sum().backward()
        gradient = embedding.weight.grad
        wide.grad = torch.sparse_coo_tensor(gradient._indices(), gradient._values().float(), wide.shape).coalesce()
        optimizer.step()
        reference.step()
        with torch.no_grad():
            wide.copy_(wide.to(own.weight.dtype))
        assert same(contents(embedding.table, own.weight), wide.to(own.weight.dtype))
    for value in optimizer.state_dict()["state"][0].values():
        assert not isinstance(value, torch.Tensor) or value.dtype is torch.float32


def test_autocast_and_gradients_that_are_scaled(vm, numbers):
    """Of a float32 table: what is computed with its rows is bfloat16."""
    embedding, own = tables(vm, numbers)
    layer = torch.nn.Linear(COLUMNS, 4).to(embedding.device)
    optimizers = [gpuvm.optim.SparseAdam([embedding.weight]), torch.optim.SparseAdam([own.weight])]
    scalers = [torch.amp.GradScaler(embedding.device.type, init_scale=1024.0) for _ in optimizers]
    for _ in range(3):
        ids = some(numbers, embedding.device)
        for module, optimizer, scaler in zip((embedding, own), optimizers, scalers):
            optimizer.zero_grad()
            with torch.autocast(embedding.device.type, torch.bfloat16):
                result = layer(module(ids))
            assert result.dtype is torch.bfloat16
            scaler.scale(result.float().square().sum()).backward()
            scaler.step(optimizer)
            scaler.update()
    assert same(contents(embedding.table, own.weight), own.weight)


def train(embedding, optimizer, numbers, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        embedding(some(numbers, embedding.weight.device)).square().sum().backward()
        optimizer.step()


@pytest.mark.parametrize("make", [*(pair[0] for pair in PAIRS.values()), gpuvm.optim.RowwiseAdagrad], ids=[*PAIRS, "RowwiseAdagrad"])
def test_a_restart_goes_on_as_if_there_was_none(vm, numbers, tmp_path, make):
    embedding, own = tables(vm, numbers)
    model = torch.nn.ModuleDict({"words": embedding, "out": torch.nn.Linear(2, 2)})
    assert set(model.state_dict()) == {"words.weight", "out.weight", "out.bias"}
    optimizer = make([embedding.weight])
    train(embedding, optimizer, np.random.default_rng(1), 3)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "state")
    train(embedding, optimizer, np.random.default_rng(2), 3)
    expected = contents(embedding.table, own.weight)
    with gpuvm.Vm(FEW, gpu=GPU, transport="direct") as other:
        again, _ = tables(other, numbers)
        model = torch.nn.ModuleDict({"words": again, "out": torch.nn.Linear(2, 2)})
        optimizer = make([again.weight])
        # One that has been trained before, too.
        train(again, optimizer, np.random.default_rng(3), 1)
        state = torch.load(tmp_path / "state", map_location="cpu", mmap=True, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        train(again, optimizer, np.random.default_rng(2), 3)
        assert same(contents(again.table, own.weight), expected)


@pytest.mark.parametrize("name", ["Adagrad", "SparseAdam"])
def test_states_are_torchs(vm, numbers, name):
    embedding, own = tables(vm, numbers)
    ours, theirs = PAIRS[name][0]([embedding.weight]), PAIRS[name][1]([own.weight])
    train(own, theirs, np.random.default_rng(1), 2)
    embedding.load_state_dict(own.state_dict())
    ours.load_state_dict(theirs.state_dict())
    train(own, theirs, np.random.default_rng(2), 2)
    train(embedding, ours, np.random.default_rng(2), 2)
    assert same(contents(embedding.table, own.weight), own.weight)
    own.load_state_dict(embedding.state_dict())
    # PyTorch's keeps the tensors that it is given.
    theirs.load_state_dict(copy.deepcopy(ours.state_dict()))
    train(own, theirs, np.random.default_rng(3), 1)
    train(embedding, ours, np.random.default_rng(3), 1)
    assert same(contents(embedding.table, own.weight), own.weight)


@pytest.mark.parametrize("name", PAIRS)
def test_what_torch_loads_of_ours_it_can_train_with(vm, numbers, name):
    embedding, own = tables(vm, numbers)
    ours, theirs = PAIRS[name][0]([embedding.weight]), PAIRS[name][1]([own.weight])
    train(embedding, ours, np.random.default_rng(1), 2)
    own.load_state_dict(copy.deepcopy(embedding.state_dict()))
    theirs.load_state_dict(copy.deepcopy(ours.state_dict()))
    train(own, theirs, np.random.default_rng(2), 1)
    train(embedding, ours, np.random.default_rng(2), 1)
    # Gradients of repeated numbers are summed first here: last bits of SGD differ.
    assert name == "SGD" or same(contents(embedding.table, own.weight), own.weight)


def test_states_that_mean_something_else_are_refused(vm, numbers):
    embedding, own = tables(vm, numbers)
    theirs = torch.optim.SGD([own.weight], lr=0.1, momentum=0.9)
    with pytest.raises(gpuvm.errors.ArgumentError, match="`momentum` of 0.9"):
        gpuvm.optim.SGD([embedding.weight]).load_state_dict(theirs.state_dict())


def test_a_state_that_cannot_be_stored_loses_no_other(vm, numbers, monkeypatch):
    pairs = [tables(vm, numbers)[0] for _ in range(3)]
    optimizer = gpuvm.optim.Adagrad([one.weight for one in pairs])
    for one in pairs:
        one(torch.tensor([1, 2], device=one.device)).sum().backward()
    optimizer.step()
    state = copy.deepcopy(optimizer.state_dict())
    restore, calls = gpuvm.optim._restore, iter(range(3))

    def fails_once(array, values):
        if next(calls) == 1:
            raise gpuvm.errors.RegionError("no")
        restore(array, values)

    monkeypatch.setattr(gpuvm.optim, "_restore", fails_once)
    with pytest.raises(gpuvm.errors.RegionError):
        optimizer.load_state_dict(state)
    kept = optimizer.state_dict()["state"]
    assert all(torch.equal(kept[n]["sum"].cpu(), state["state"][n]["sum"].cpu()) for n in range(3))


def test_two_weights_of_one_table_are_refused(vm, numbers):
    embedding, _ = tables(vm, numbers)
    bags = paged.EmbeddingBag(embedding.table)
    with pytest.raises(gpuvm.errors.ArgumentError, match="two weights"):
        gpuvm.optim.SparseAdam([embedding.weight, bags.weight])
    # A group that is refused is none of the optimizer's.
    optimizer = gpuvm.optim.SparseAdam([embedding.weight])
    with pytest.raises(gpuvm.errors.ArgumentError, match="two weights"):
        optimizer.add_param_group({"params": [bags.weight]})
    train(embedding, optimizer, np.random.default_rng(1), 1)


def test_a_state_that_is_the_modules_own_changes_nothing(vm, numbers):
    embedding, _ = tables(vm, numbers)
    state = embedding.state_dict()
    train(embedding, gpuvm.optim.SGD([embedding.weight], lr=0.1), np.random.default_rng(1), 2)
    trained = embedding.table.numpy().copy()
    embedding.load_state_dict(state)
    assert (embedding.table.numpy() == trained).all()


def test_states_without_a_tensor_are_copies(vm, numbers):
    """Where the home is out of PyTorch's reach, such as at memory nodes."""
    embedding, own = tables(vm, numbers, "bfloat16")

    class Far:
        _core = types.SimpleNamespace(home=lambda: None)

        def __getattr__(self, name):
            return getattr(embedding.table, name)

    found = paged._whole(Far())
    assert found.dtype is torch.bfloat16 and same(found, own.weight) and paged.array_of(found) is None
    assert paged.array_of(paged._whole(embedding.table)) is embedding.table


def test_states_are_stored_by_parts(vm, numbers, monkeypatch):
    monkeypatch.setattr(paged, "_PART", 1000)
    embedding, own = tables(vm, numbers)
    assert same(contents(embedding.table, own.weight), own.weight)


def test_schedulers_closures_and_several_tables(vm, numbers):
    first, own = tables(vm, numbers)
    second, other = tables(vm, numbers)
    ours = gpuvm.optim.Adagrad([{"params": [first.weight], "lr": 0.5}, {"params": [second.weight]}], lr=0.1)
    theirs = torch.optim.Adagrad([{"params": [own.weight], "lr": 0.5}, {"params": [other.weight]}], lr=0.1)
    ids = some(numbers, first.device)
    for modules, optimizer in (((first, second), ours), ((own, other), theirs)):
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

        def closure(modules=modules, optimizer=optimizer):
            optimizer.zero_grad()
            loss = sum(module(ids).square().sum() for module in modules)
            loss.backward()
            return loss

        for _ in range(3):
            assert optimizer.step(closure).requires_grad
            schedule.step()
    assert same(contents(first.table, own.weight), own.weight) and same(contents(second.table, other.weight), other.weight)


def test_what_is_wrong(vm, numbers):
    embedding, own = tables(vm, numbers)
    read_only = paged.Embedding(vm.array(np.zeros((4, 2), np.float32), read_only=True))
    errors = gpuvm.errors
    part = paged.take(embedding.table, torch.arange(4, device=embedding.device)).requires_grad_()
    for kind, text, use in [
        (errors.ArgumentError, "not the whole table", lambda: gpuvm.optim.SGD([own.weight], lr=1)),
        (errors.ArgumentError, "not the whole table", lambda: gpuvm.optim.SGD([part], lr=1)),
        (errors.RegionError, "read-only", lambda: gpuvm.optim.SGD([read_only.weight], lr=1)),
        (errors.RegionError, "read-only", lambda: read_only.load_state_dict({"weight": torch.ones(4, 2)})),
        (errors.ArgumentError, "lr is -1", lambda: gpuvm.optim.SGD([embedding.weight], lr=-1)),
        (errors.ArgumentError, "eps is nan", lambda: gpuvm.optim.Adagrad([embedding.weight], eps=float("nan"))),
        (errors.ArgumentError, "betas", lambda: gpuvm.optim.SparseAdam([embedding.weight], betas=(0.9, 1))),
        (errors.ArgumentError, "mode is 'max'", lambda: paged.EmbeddingBag(embedding.table, mode="max")),
        (RuntimeError, "has shape", lambda: embedding.load_state_dict({"weight": torch.zeros(ROWS, 3)})),
        (RuntimeError, "Missing key", lambda: embedding.load_state_dict({})),
        (RuntimeError, "Unexpected key", lambda: embedding.load_state_dict({"weight": own.weight, "bias": own.weight})),
    ]:
        with pytest.raises(kind, match=text):
            use()
    optimizer = gpuvm.optim.Adagrad([embedding.weight])
    train(embedding, optimizer, numbers, 1)
    before = contents(embedding.table, own.weight)
    state = optimizer.state_dict()
    for broken, text in (({}, "no `sum`"), ({"sum": torch.zeros(3)}, "shape \\(3,\\)")):
        with pytest.raises(errors.ArgumentError, match=text):
            optimizer.load_state_dict({**state, "state": {0: broken}})
    embedding.weight.grad = torch.zeros(ROWS, COLUMNS, device=embedding.device)
    with pytest.raises(errors.LayoutError, match="dense gradient"):
        optimizer.step()
    optimizer.zero_grad()
    optimizer.step()
    embedding(torch.zeros((0,), dtype=torch.int64, device=embedding.device)).sum().backward()
    optimizer.step()
    assert same(contents(embedding.table, own.weight), before)


def test_no_number_is_no_row(vm, numbers):
    """Lists of rows that optimizers make have it behind the last."""
    embedding, own = tables(vm, numbers)
    none = gpuvm._rows.NONE
    ids = torch.tensor([5, none, 3, none], device=embedding.device)
    found = paged._take(embedding.weight.detach(), ids, is_list=True)
    assert same(found[[0, 2]], own.weight[[5, 3]]) and not found[[1, 3]].any()
    paged._put(embedding.weight.detach(), ids, torch.ones((4, COLUMNS), device=embedding.device))
    with torch.no_grad():
        own.weight[[5, 3]] = 1
    assert same(contents(embedding.table, own.weight), own.weight)
    # Elsewhere it is out of range as any other.
    with pytest.raises(IndexError, match=f"ids have {none}"):
        paged.take(embedding.table, ids, check=True)


@pytest.mark.skipif(GPU == "sim", reason="the simulated GPU has no streams of CUDA: GPUVM_TEST_GPU=cuda:0 names one")
@pytest.mark.parametrize("name", PAIRS)
def test_a_step_waits_for_nothing(vm, numbers, name):
    embedding, _ = tables(vm, numbers)
    bags = paged.EmbeddingBag(tables(vm, numbers)[0].table)
    optimizer = PAIRS[name][0]([embedding.weight, bags.weight])
    ids = some(numbers, embedding.device)

    def step():
        optimizer.zero_grad()
        (embedding(ids).square().sum() + bags(ids.reshape(20, 10)).sum()).backward()
        optimizer.step()

    step()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
