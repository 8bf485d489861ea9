"""The embedding does what PyTorch's own does."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import gpuvm

torch = pytest.importorskip("torch", reason="PyTorch is not installed: its wheels bring gigabytes of CUDA")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(0,), (1,), (50,), (4, 6)], ids=str)
def test_an_embedding_is_torchs(vm, numbers, dtype, shape):
    import gpuvm.torch

    data = numbers.integers(-9, 9, (3000, 20)).astype(dtype)
    paged = gpuvm.torch.Embedding(vm.array(data.copy()), vm)
    own = torch.nn.Embedding.from_pretrained(torch.from_numpy(data.copy()), freeze=False, sparse=True).to(paged.device)
    ids = torch.from_numpy(numbers.integers(0, 30, shape)).to(paged.device)
    assert paged.grad is None
    for _ in range(2):
        # Two uses in one step, of the same rows.
        found = [module(ids).square().sum() + 2 * module(ids).sum() for module in (paged, own)]
        assert found[0].item() == found[1].item()
        for result in found:
            result.backward()
        assert torch.equal(paged.grad.to_dense(), own.weight.grad.to_dense())
        optimizer = torch.optim.SGD(own.parameters(), lr=0.25)
        optimizer.step()
        optimizer.zero_grad()
        paged.sgd_step(lr=0.25)
        assert paged.grad is None
        assert np.array_equal(paged.table.numpy(), own.weight.detach().cpu().numpy())
    assert not list(paged.parameters())


def test_wrong_use(vm):
    import gpuvm.torch

    embedding = gpuvm.torch.Embedding(vm.array(np.zeros((4, 2), np.float32), read_only=True))
    with pytest.raises(IndexError, match="out of range"):
        embedding(torch.tensor([4]))
        # On a GPU the thread that waits next is told.
        embedding.table.numpy()
    assert not embedding(torch.tensor([1])).requires_grad
    with pytest.raises(gpuvm.errors.RegionError, match="read-only"):
        embedding.sgd_step(0.1)
    embedding.zero_grad()
    assert embedding.grad is None
    for table, kind in [(np.zeros((2, 2)), TypeError), (vm.zeros(3), ValueError), (vm.zeros((2, 2), np.int32), TypeError)]:
        with pytest.raises(kind):
            gpuvm.torch.Embedding(table)


def test_buffers_are_tensors(vm):
    buffer = vm.buffer(np.arange(6, dtype=np.float32))
    tensor = torch.from_dlpack(buffer)
    tensor += 1
    assert (buffer.numpy() == np.arange(1, 7)).all()


def test_tensors_end_wherever_the_collector_runs():
    """PyTorch detaches the thread while it frees a tensor: also inside of calls of the package, in which CPython before 3.12 collects."""
    program = """
import gc, gpuvm, gpuvm.torch
with gpuvm.Vm("64KiB", gpu="sim", transport="direct") as vm:
    for n in range(10):
        gc.collect(), gc.disable()
        ring = [gpuvm.torch.Embedding(gpuvm.torch.zeros((100, 4), vm))]
        ring.append(ring)
        del ring
        gc.enable(), gc.set_threshold(1, 1, 1)
        vm._core.stats()
        gc.set_threshold(700, 10, 10)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
