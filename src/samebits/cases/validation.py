"""Trains with dropout; VALIDATE=1 has a look at the validation data after each epoch."""

import os

import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = torch.randn(256, 10)
training = TensorDataset(data[:192], data[:192].sum(1, keepdim=True))
validation = TensorDataset(data[192:], data[192:].sum(1, keepdim=True))
model = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.Dropout(0.2), torch.nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

for _ in range(3):
    model.train()
    for x, y in DataLoader(training, batch_size=64):
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if os.environ.get("VALIDATE"):
        model.eval()
        with torch.no_grad():
            seen = [(model(x) - y).square().mean() for x, y in DataLoader(validation, batch_size=32)]

print(f"loss {loss.item():.9f}")
