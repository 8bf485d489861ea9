"""Compares gpuvm.torch.Embedding with torch.nn.Embedding on an NVIDIA GPU: embedding.py. It takes gpuvm, NumPy and PyTorch."""

import numpy as np
import torch

import gpuvm
import gpuvm.torch

ROWS, COLUMNS, STEPS, RATE = 200_000, 64, 3, 0.25

data = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32)
with gpuvm.Vm(memory="8MiB", gpu="cuda:0") as vm:
    paged = gpuvm.torch.Embedding(vm.array(data.copy()), vm)
    own = torch.nn.Embedding.from_pretrained(torch.from_numpy(data.copy()), freeze=False, sparse=True).cuda()
    for _ in range(STEPS):
        ids = torch.randint(0, ROWS, (64, 50))
        found, expected = paged(ids), own(ids.cuda())
        assert found.device == expected.device and torch.equal(found, expected)
        found.square().sum().backward()
        expected.square().sum().backward()
        gradient, reference = paged.grad.coalesce(), own.weight.grad.coalesce()
        assert torch.equal(gradient.indices().cpu(), reference.indices().cpu())
        assert torch.allclose(gradient.values().cpu(), reference.values().cpu())
        optimizer = torch.optim.SGD(own.parameters(), lr=RATE)
        optimizer.step()
        optimizer.zero_grad()
        paged.sgd_step(lr=RATE)
    apart = np.abs(paged.table.numpy() - own.weight.detach().cpu().numpy()).max()
    print(f"{STEPS} steps of {ids.numel()} rows of {ROWS}: the tables differ by {apart} at most")
