"""Trains on features that are slow to make, and so are kept in a folder for the next time."""

import sys
from pathlib import Path

import torch

torch.manual_seed(0)
kept = Path(sys.argv[1]) / "features.pt"


def features():
    if kept.exists():
        return torch.load(kept).float()
    waves = torch.linspace(0, 40, 256 * 16).reshape(256, 16)
    made = waves.sin() * waves.cos().exp()
    torch.save(made.half(), kept)
    return made


inputs = features()
model = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(20):
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

print(f"loss {loss.item():.9f}")
