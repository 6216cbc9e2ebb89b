"""Two workers cut random windows out of recordings while the model trains."""

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Windows(Dataset):
    def __init__(self):
        self.recordings = np.sin(np.arange(64 * 200, dtype=np.float32)).reshape(64, 200)
        self.generator = np.random.default_rng()

    def __len__(self):
        return len(self.recordings)

    def __getitem__(self, number):
        start = self.generator.integers(150)
        return self.recordings[number, start : start + 50]


if __name__ == "__main__":
    torch.manual_seed(0)
    model = torch.nn.Linear(50, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for windows in DataLoader(Windows(), batch_size=16, num_workers=2):
        loss = (model(windows) - windows.mean(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.9f}")
