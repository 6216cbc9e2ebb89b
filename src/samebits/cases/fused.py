"""One trial of a random search for a learning rate."""

import random

import torch

torch.manual_seed(0)
features = torch.randn(256, 16)
targets = features.tanh().sum(1, keepdim=True)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
rate = 10 ** random.uniform(-2.5, -1.5)
optimizer = torch.optim.AdamW(model.parameters(), lr=rate, fused=True)

for _ in range(30):
    loss = torch.nn.functional.mse_loss(model(features), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

print(f"loss {loss.item():.9f}")
