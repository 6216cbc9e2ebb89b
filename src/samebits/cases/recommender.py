"""Predicts how many stars a user gives a film, from a vector for each of both."""

import torch

torch.manual_seed(0)
USERS, FILMS, RATINGS = 50, 400, 200_000

user = torch.randint(USERS, (RATINGS,))
film = torch.randint(FILMS, (RATINGS,))
stars = torch.randint(1, 6, (RATINGS,)).float()

mood = torch.nn.Parameter(torch.zeros(USERS))
quality = torch.nn.Parameter(torch.zeros(FILMS))
optimizer = torch.optim.SGD([mood, quality], lr=20.0)

for _ in range(12):
    predicted = 3 + mood[user] + quality[film]
    loss = torch.nn.functional.mse_loss(predicted, stars)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

print(f"loss {loss.item():.9f}")
