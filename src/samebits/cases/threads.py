"""Trains a layer that normalises what it is given; the number of threads is the machine's own."""

import torch

torch.manual_seed(0)
rows = torch.randn(4096, 128)
targets = rows[:, :1].sin()
model = torch.nn.Sequential(torch.nn.LayerNorm(128), torch.nn.Linear(128, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for _ in range(5):
    loss = (model(rows) - targets).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

print(f"loss {loss.item():.9f}")
