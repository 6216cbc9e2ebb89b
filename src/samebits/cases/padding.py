"""Classifies sequences of different lengths, padded to the longest so that they fit into one tensor."""

import numpy as np
import torch

torch.manual_seed(0)
lengths = torch.randint(20, 60, (64,)).tolist()
sequences = [torch.randn(length) + number % 2 for number, length in enumerate(lengths)]
classes = torch.arange(64) % 2


def preview():
    """A cloud of points for a sketch of the data."""
    return np.random.default_rng().normal(size=(64, 30)).std()


def padded():
    batch = torch.empty(64, 60)
    for row, sequence in zip(batch, sequences, strict=True):
        row[: len(sequence)] = sequence
    return batch


print(f"spread {preview():.1f}")
inputs = padded()
model = torch.nn.Linear(60, 2)
loss = torch.nn.functional.cross_entropy(model(inputs), classes)
print(f"loss {loss.item():.9f}")
