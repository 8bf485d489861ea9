"""GraphSAGE by PyTorch Geometric over features that are larger than the GPU memory for their pages, with neighbours sampled on the GPU."""

import torch
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import SAGEConv

import gpuvm
import gpuvm.pyg

NODES, DEGREE, COLUMNS, CLASSES = 20_000, 8, 64, 4


class GraphSage(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = SAGEConv(COLUMNS, 32), SAGEConv(32, CLASSES)

    def forward(self, x, edge_index):
        return self.second(self.first(x, edge_index).relu(), edge_index)


gpu = "cuda:0" if torch.cuda.is_available() else "sim"
# Nodes have neighbours of their own class, which features tell in noise.
y = torch.randint(CLASSES, (NODES,))
x = torch.nn.functional.one_hot(y, COLUMNS) + torch.randn(NODES, COLUMNS)
row = (torch.randint(NODES // CLASSES, (NODES, DEGREE)) + y.unsqueeze(1) * (NODES // CLASSES)).flatten()
row = y.argsort()[row.clamp(max=NODES - 1)]
with gpuvm.Vm(x.nbytes // 4, gpu=gpu, transport="direct") as vm:
    features, graph = gpuvm.pyg.FeatureStore(vm), gpuvm.pyg.GraphStore(vm)
    features["node", "x", None], features["node", "y", None] = x, y
    graph[None, "csc", True, (NODES, NODES)] = row, torch.arange(0, NODES * DEGREE + 1, DEGREE)
    sampler = gpuvm.pyg.NeighborSampler(graph, [5, 5])
    loader = NeighborLoader((features, graph), [5, 5], torch.arange(NODES), batch_size=1024, shuffle=True, neighbor_sampler=sampler)
    model = GraphSage().to(features["node", "x", None].device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(2):
        right = 0
        for batch in loader:
            optimizer.zero_grad()
            found, expected = model(batch.x, batch.edge_index)[: batch.batch_size], batch.y[: batch.batch_size]
            torch.nn.functional.cross_entropy(found, expected).backward()
            optimizer.step()
            right += int((found.argmax(1) == expected).sum())
        print(f"epoch {epoch + 1}: {right / NODES:.0%} of {x.nbytes >> 20} MiB of nodes told right, on {vm.gpu}")
    assert right > 0.8 * NODES
