"""scatter: many values are added into a few slots, and the threads decide the order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from samebits.bits import fingerprint
from samebits.experiment import Experiment, Knob, Observation, Prepared
from samebits.experiments import torch_worker

# Each op as the line that a learner would write; `values` go into the slots that `index` names.
LINES = {
    "index_put_": "slots.index_put_((index,), values, accumulate=True)",
    "put_": "slots.put_(index, values, accumulate=True)",
    "getitem_backward": "(table[index] * values).sum().backward()  # adds into table.grad",
    "index_add_": "slots.index_add_(0, index, values)",
    "scatter_add_": "slots.scatter_add_(0, index, values)",
}

# ATen's GRAIN_SIZE: below it the CPU code of index_put_ stays on one thread
# (aten/src/ATen/native/cpu/IndexKernel.cpp; the lesson finds it by trying).
CPU_RACE_SIZE = 32_768


@dataclass(frozen=True)
class _State:
    op: str
    slots: int
    values: Any
    index: Any
    device: Any


def _once(state: _State) -> Any:
    """The op itself, on fresh slots: a float32 tensor of shape (slots,)."""
    import torch

    if state.op == "getitem_backward":
        table = torch.zeros(state.slots, device=state.device, requires_grad=True)
        (table[state.index] * state.values).sum().backward()
        return table.grad
    slots = torch.zeros(state.slots, device=state.device)
    if state.op == "index_put_":
        return slots.index_put_((state.index,), state.values, accumulate=True)
    if state.op == "put_":
        return slots.put_(state.index, state.values, accumulate=True)
    if state.op == "index_add_":
        return slots.index_add_(0, state.index, state.values)
    return slots.scatter_add_(0, state.index, state.values)


def prepare(settings: dict) -> Prepared:
    import torch

    torch_worker.set_flags(threads=settings["threads"], deterministic=settings["deterministic"])
    device = torch_worker.choose_device(settings["device"])
    rng = np.random.default_rng(20240805)
    values = torch.from_numpy(rng.standard_normal(settings["n"], dtype=np.float32)).to(device)
    index = torch.from_numpy(rng.integers(0, settings["slots"], settings["n"])).to(device)
    state = _State(settings["op"], settings["slots"], values, index, device)
    return torch_worker.prepared(state, device)


def observe(state: _State, n: int) -> Iterator[Observation]:
    algorithm = "mix64" if state.device.type == "cuda" else "xxh3"
    _once(state)  # the first call allocates and, on a GPU, loads the kernel
    for _ in range(n):
        slots, seconds = torch_worker.timed(lambda: _once(state), state.device)
        yield Observation(
            fingerprint(slots, "sha256"),
            fingerprint([state.values, state.index], algorithm),
            seconds,
            scalars={"slot 0": float(slots[0])},
            sample=tuple(slots[:64].tolist()),
        )


def code(settings: dict) -> str:
    device = "" if settings["device"] != "cuda" else ", device='cuda'"
    slots = f"torch.zeros({settings['slots']}{device})"
    start = (
        f"table = {slots}.requires_grad_()" if settings["op"] == "getitem_backward" else f"slots = {slots}"
    )
    return "\n".join(
        [
            f"torch.set_num_threads({settings['threads']})",
            f"torch.use_deterministic_algorithms({settings['deterministic']})",
            f"# values: {settings['n']:,} normal float32 numbers, index: where each one goes; the same in every run",
            start,
            LINES[settings["op"]],
        ]
    )


SCATTER = Experiment(
    name="scatter",
    title="Scatter: many threads, a few slots",
    question="Does the same line give the same bits twice?",
    knobs=(
        Knob(
            "op",
            "Operation",
            "Five ways in which PyTorch adds values into slots.",
            "choice",
            "index_put_",
            choices=tuple(LINES),
        ),
        Knob("n", "Values", "How many float32 values are added.", "number", 100_000, low=1, high=4_000_000),
        Knob("slots", "Slots", "How many slots they are added into.", "number", 16, low=1, high=1_000_000),
        torch_worker.DETERMINISTIC,
        torch_worker.THREADS,
        torch_worker.DEVICE,
    ),
    prepare=prepare,
    observe=observe,
    code=code,
    race_size={"n": CPU_RACE_SIZE, "threads": 2},
    framework="torch",
    card=torch_worker.card,
    recordings=tuple({"op": op, "deterministic": flag} for op in LINES for flag in (False, True)),
)
