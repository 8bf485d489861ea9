"""Slot caches: rows of arrays that are larger than GPU memory, in slots of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gpuvm
from gpuvm import errors


def the_same(cache, table, ids, slots):
    """Slots hold the rows that were asked for, each in one."""
    frames = cache.frames.numpy() if isinstance(cache.frames, gpuvm.Buffer) else cache.frames.cpu().numpy()
    slots = np.asarray(slots)
    assert slots.shape == np.shape(ids) and (slots >= 0).all()
    assert np.array_equal(frames[slots], table[ids])
    assert len({(int(row), int(slot)) for row, slot in zip(np.ravel(ids), slots.ravel())}) == np.unique(ids).size == np.unique(slots).size


@pytest.mark.parametrize("policy", ["lru", "frequency", "first-come"])
def test_rows_are_in_the_slots_that_a_call_says(vm, numbers, policy):
    table = numbers.integers(0, 1 << 31, (500, 3, 4), np.int32)
    labels = numbers.random((500, 2))
    arrays = [vm.array(table), vm.array(labels, read_only=True)]
    with vm.slot_cache(arrays, 60, policy=policy) as cache:
        for count in (1, 30, 200, 5000):
            ids = numbers.choice(500, 40)[numbers.integers(0, 40, (count // 2, 2) if count > 1 else (1,))]
            given = vm.buffer(ids.astype(numbers.choice(["int32", "int64"])))
            slots = cache.ensure(given).numpy()
            for frames, rows in zip(cache.frames, (table, labels)):
                assert np.array_equal(frames.numpy()[slots], rows[ids])
        hits = cache.stats["hits"]
        again = cache.ensure(given, out=vm.buffer(ids.shape, np.int32))
        assert np.array_equal(again.numpy(), slots) and cache.stats["hits"] == hits + ids.size
        assert cache.stats["bytes"] == cache.stats["misses"] * (48 + 16)
    with pytest.raises(errors.ClosedError):
        cache.ensure([1])


def test_held_rows_stay_and_others_come_ahead(vm):
    table = np.arange(400.0).reshape(200, 2)
    cache = vm.slot_cache(vm.array(table), slots=20)
    with cache.hold(range(10)) as held:
        for first in range(20, 200, 10):
            the_same(cache, table, np.arange(first, first + 10), cache.ensure(range(first, first + 10)))
        the_same(cache, table, np.arange(10), held)
        with pytest.raises(errors.SlotsError, match="1 records got no slot"):
            cache.ensure(range(100, 111)).numpy()
    cache.prefetch([50, 51])
    before = cache.stats
    cache.ensure([50, 51, -1, 50])
    assert cache.stats["hits"] == before["hits"] + 3 and cache.stats["misses"] == before["misses"]


def test_what_is_stored_to_an_array_is_seen(vm):
    array = vm.array(np.arange(400.0).reshape(200, 2))
    cache = vm.slot_cache(array, slots=20)
    ids = np.arange(15)
    cache.ensure(ids)
    array[3:6] = 7.0
    the_same(cache, array.numpy(), ids, cache.ensure(ids))
    array.numpy()[:] = 5.0
    array.wrote()
    the_same(cache, np.full((200, 2), 5.0), ids, cache.ensure(ids))


def test_wrong_use(vm):
    array = vm.array(np.zeros((10, 4)))
    cache = vm.slot_cache(array, slots=4)
    with pytest.raises(IndexError, match="id 10 is out of range: there are 10 records"):
        cache.ensure([1, 10]).numpy()
    with pytest.raises(errors.DtypeError, match="float64"):
        cache.ensure([1.5])
    with pytest.raises(errors.LayoutError, match="out"):
        cache.ensure([1, 2], out=vm.buffer((3,), np.int32))
    with pytest.raises(errors.RegionError, match="multiples of 16"):
        vm.slot_cache(vm.array(np.zeros((10, 3), np.float32)), 4)
    with pytest.raises(errors.RegionError, match="20 records"):
        vm.slot_cache([array, vm.array(np.zeros((20, 4)))], 4)
    with pytest.raises(errors.SettingError, match="`lru`"):
        vm.slot_cache(array, 4, policy="best")
    with pytest.raises(errors.SettingError, match="slots"):
        vm.slot_cache(array, 0)
    assert cache.ensure([]).shape == (0,)
    the_same(cache, array.numpy(), [1, 2], cache.ensure([1, 2]))


def test_the_example_runs(capsys):
    example = Path(__file__).parent.parent / "examples" / "kv_rows.py"
    text = example.read_text()
    assert len(text.splitlines()) <= 30
    exec(compile(text, str(example), "exec"), {"__name__": "__main__"})
    assert "hits" in capsys.readouterr().out


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "int64"])
def test_torchs_tensors(vm, numbers, dtype):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: its wheels bring gigabytes of CUDA")
    import gpuvm.torch

    kind = getattr(torch, dtype)
    table = gpuvm.torch.zeros((300, 32), vm, dtype=kind)
    with torch.no_grad():
        table.copy_(torch.from_numpy(numbers.integers(-9, 9, (300, 32))).to(kind))
    cache = gpuvm.torch.SlotCache(table, 40)
    assert cache.frames.shape == (40, 32) and cache.frames.dtype == kind and cache.frames.device == table.device

    def same(ids):
        slots = cache.ensure(ids)
        assert slots.shape == ids.shape and slots.dtype == torch.int32
        found, wanted = (of.reshape(-1, 32).view(torch.uint8) for of in (cache.frames.view(torch.uint8)[slots.long()], table.view(torch.uint8)[ids.long()]))
        assert torch.equal(found, wanted)

    for count in (1, 20, 5000):
        ids = torch.from_numpy(numbers.choice(300, 35)[numbers.integers(0, 35, count)]).to(table.device)
        same(ids)
        same(ids.int().reshape(-1, 1))
    hits = cache.stats[0].item()
    with cache.hold(ids) as slots:
        assert torch.equal(cache.ensure(ids), slots) and cache.stats[0].item() == hits + 2 * ids.numel()
    # PyTorch writes, and is noticed.
    with torch.no_grad():
        table.copy_(torch.from_numpy(numbers.integers(-9, 9, (300, 32))).to(kind))
    same(ids)
    with pytest.raises(IndexError, match="300 records"):
        cache.ensure(torch.tensor([300], device=table.device))
        cache.wait()
    with pytest.raises(gpuvm.errors.ArgumentError, match="part of array"):
        gpuvm.torch.SlotCache(table[1:], 4)
    cache.close()
