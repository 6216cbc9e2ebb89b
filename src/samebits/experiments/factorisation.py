"""factorisation: ratings become products of two tables, trained through x[idx], whose backward races on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from samebits.bits import fingerprint
from samebits.experiment import Experiment, Knob, Observation, Prepared
from samebits.experiments import torch_worker

USERS, ITEMS, RANK = 400, 300, 8
LOOKUPS = ("x[idx]", "embedding")


@dataclass(frozen=True)
class _State:
    user: Any  # (ratings,) int64
    item: Any  # (ratings,) int64
    rating: Any  # (ratings,) float32
    tables: tuple  # first weights: (USERS, RANK) and (ITEMS, RANK), float32
    lookup: str
    steps: int
    device: Any


def prepare(settings: dict) -> Prepared:
    import torch

    torch_worker.set_flags(threads=settings["threads"], deterministic=settings["deterministic"])
    device = torch_worker.choose_device(settings["device"])
    rng = np.random.default_rng(7)
    n = settings["ratings"]
    user, item = rng.integers(0, USERS, n), rng.integers(0, ITEMS, n)
    tastes, styles = rng.normal(size=(USERS, 3)), rng.normal(size=(ITEMS, 3))
    rating = (tastes[user] * styles[item]).sum(1) + rng.normal(size=n)
    tables = [(rng.normal(size=(rows, RANK)) / RANK**0.5).astype(np.float32) for rows in (USERS, ITEMS)]
    state = _State(
        torch.from_numpy(user).to(device),
        torch.from_numpy(item).to(device),
        torch.from_numpy(rating.astype(np.float32)).to(device),
        tuple(torch.from_numpy(table).to(device) for table in tables),
        settings["lookup"],
        settings["steps"],
        device,
    )
    return torch_worker.prepared(state, device, **{"values gathered": n * RANK})


def _train(state: _State) -> tuple[list, float]:
    """The two tables after all steps, and the last loss."""
    import torch

    users, items = (table.clone().requires_grad_() for table in state.tables)
    look_up = torch.nn.functional.embedding if state.lookup == "embedding" else lambda idx, table: table[idx]
    adam = torch.optim.Adam([users, items], lr=0.02)
    for _ in range(state.steps):
        adam.zero_grad()
        guess = (look_up(state.user, users) * look_up(state.item, items)).sum(1)
        loss = torch.nn.functional.mse_loss(guess, state.rating)
        loss.backward()
        adam.step()
    return [users.detach(), items.detach()], loss.item()


def observe(state: _State, n: int) -> Iterator[Observation]:
    given = fingerprint([state.user, state.item, state.rating, *state.tables], "sha256")
    for _ in range(n):
        (tables, loss), seconds = torch_worker.timed(lambda: _train(state), state.device)
        yield Observation(
            fingerprint(tables, "sha256"),
            given,
            seconds,
            scalars={"loss": loss},
            reported={"printed loss": f"{loss:.4f}"},
            sample=tuple(tables[0].reshape(-1)[:64].tolist()),
        )


def code(settings: dict) -> str:
    look_up = {"x[idx]": "{0}[{1}]", "embedding": "torch.nn.functional.embedding({1}, {0})"}[
        settings["lookup"]
    ]
    return f"""\
torch.set_num_threads({settings["threads"]})
torch.use_deterministic_algorithms({settings["deterministic"]})
# users, items: two tables; user, item, rating: {settings["ratings"]:,} ratings; the same in every run
adam = torch.optim.Adam([users, items], lr=0.02)
for _ in range({settings["steps"]}):
    adam.zero_grad()
    guess = ({look_up.format("users", "user")} * {look_up.format("items", "item")}).sum(1)
    loss = torch.nn.functional.mse_loss(guess, rating)
    loss.backward()
    adam.step()
print(f"{{loss:.4f}}")"""


FACTORISATION = Experiment(
    name="factorisation",
    title="A training that races on the CPU",
    question="The printed loss agrees. Do the weights?",
    knobs=(
        Knob(
            "lookup",
            "Look-up",
            "How rows are taken from a table; the backward adds into the table's rows.",
            "choice",
            LOOKUPS[0],
            choices=LOOKUPS,
        ),
        Knob(
            "ratings", "Ratings", "Each takes two rows of 8 values.", "number", 8_000, low=100, high=200_000
        ),
        Knob("steps", "Steps", "Steps of Adam.", "number", 30, low=1, high=1000),
        torch_worker.DETERMINISTIC,
        torch_worker.THREADS,
        torch_worker.DEVICE,
    ),
    prepare=prepare,
    observe=observe,
    code=code,
    # 4,096 ratings take 32,768 values from each table: where the CPU's index_put_ begins to share the work.
    race_size={"ratings": 4_096, "threads": 2},
    framework="torch",
    card=torch_worker.card,
    recordings=({"deterministic": False}, {"deterministic": True}),
)
