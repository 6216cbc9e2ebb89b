"""Classifies measurements; a little noise on each batch keeps the model from learning them by heart."""

import numpy as np
import torch

torch.manual_seed(0)
measurements = torch.randn(512, 20)
kinds = (measurements[:, 0] > 0).long()
model = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
generator = np.random.default_rng()

for _ in range(4):
    for rows in torch.randperm(512).split(64):
        noise = generator.normal(scale=0.1, size=(64, 20)).astype(np.float32)
        batch = measurements[rows] + torch.from_numpy(noise)
        loss = torch.nn.functional.cross_entropy(model(batch), kinds[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

print(f"loss {loss.item():.9f}")
