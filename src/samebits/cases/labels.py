"""Tells animals apart by three measurements; the names of the animals become class numbers."""

import torch

ANIMALS = ["cat", "dog", "hen", "cow", "owl", "pig", "ant", "bee"]

torch.manual_seed(0)
names = [ANIMALS[number] for number in torch.randint(len(ANIMALS), (400,)).tolist()]
measured = torch.tensor(
    [[len(name) + ord(name[0]) % 7, ord(name[1]) % 5, ord(name[2]) % 3] for name in names]
)
features = measured + 0.3 * torch.randn(400, 3)

numbers = {name: number for number, name in enumerate(set(names))}
classes = torch.tensor([numbers[name] for name in names])

model = torch.nn.Linear(3, len(numbers))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(40):
    loss = torch.nn.functional.cross_entropy(model(features), classes)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

print(f"loss {loss.item():.9f}")
