"""Draws a cloud of points as an image; where several fall on one pixel, the last one stays. Then trains on it."""

import torch

torch.manual_seed(0)
PIXELS, POINTS = 200_000, 400_000

pixel = torch.randint(PIXELS, (POINTS,))
brightness = torch.rand(POINTS)

image = torch.zeros(PIXELS)
image[pixel] = brightness

model = torch.nn.Linear(PIXELS, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for _ in range(10):
    loss = (model(image) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

print(f"loss {loss.item():.9f}")
