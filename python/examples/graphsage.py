"""GraphSAGE by PyTorch Geometric over features that are larger than the GPU memory for their pages, with neighbours sampled on the GPU."""

import torch
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import GraphSAGE

import gpuvm
import gpuvm.pyg

NODES, DEGREE, COLUMNS, CLASSES = 8_000, 8, 64, 4


def main():
    # Nodes have neighbours of their own class, of which features tell with noise.
    y = torch.arange(NODES) % CLASSES
    x = torch.nn.functional.one_hot(y, COLUMNS) + torch.randn(NODES, COLUMNS)
    row = torch.randint(NODES // CLASSES, (NODES, DEGREE)) * CLASSES + y.unsqueeze(1)
    colptr = torch.arange(0, NODES * DEGREE + 1, DEGREE)
    with gpuvm.Vm(x.nbytes // 4, gpu="cuda:0" if torch.cuda.is_available() else "sim", transport="direct") as vm:
        features, graph = gpuvm.pyg.FeatureStore(vm), gpuvm.pyg.GraphStore(vm)
        features["node", "x", None], features["node", "y", None] = x, y
        graph[None, "csc", True, (NODES, NODES)] = row.flatten(), colptr
        sampler = gpuvm.pyg.NeighborSampler(graph, [5, 5])
        loader = NeighborLoader((features, graph), [5, 5], torch.arange(NODES), batch_size=512, shuffle=True, neighbor_sampler=sampler)
        model = GraphSAGE(COLUMNS, 32, num_layers=2, out_channels=CLASSES).to(features["node", "x", None].device)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        for epoch in range(2):
            right = 0
            for batch in loader:
                optimizer.zero_grad()
                found, expected = model(batch.x, batch.edge_index)[: batch.batch_size], batch.y[: batch.batch_size]
                torch.nn.functional.cross_entropy(found, expected).backward()
                optimizer.step()
                right += int((found.argmax(1) == expected).sum())
            print(f"epoch {epoch + 1}: {right / NODES:.0%} of nodes right, {x.nbytes >> 10} KiB of features on {vm.gpu}")
        assert right > 0.8 * NODES


if __name__ == "__main__":
    main()
