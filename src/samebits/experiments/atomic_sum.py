"""atomic-sum: one sum by five CUDA kernels, on a GPU or, as a model, in the simulator."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from samebits import kernels, machine
from samebits.bits import fingerprint
from samebits.experiment import Experiment, Knob, Observation, Prepared

# "integer atomics" adds multiples of 2**-20, as integers. Normal numbers stay below 2**3, so ten million of
# them fit in 64 bits many times over.
FIXED_POINT = 2.0**20


@dataclass(frozen=True)
class _State:
    sum: kernels.Sum
    unit: float  # what 1 in the kernel's arrays stands for
    exact: float  # of the numbers that the kernel gets, rounded once to float64
    reported: dict


def prepare(settings: dict) -> Prepared:
    device = kernels.open_device()
    n, block = kernels.within_reach(settings["n"], int(settings["block"]), device)
    x = np.random.default_rng(2).standard_normal(n).astype(settings["dtype"])
    unit = 1.0
    if settings["kernel"] == "integer atomics":
        unit = 1 / FIXED_POINT
        x = np.rint(x * FIXED_POINT).astype(np.int64)
    sum_on_device = kernels.Sum(settings["kernel"], x, block, device)
    launched = " then ".join(kernel.__name__ for kernel in sum_on_device.kernels)
    return Prepared(
        _State(
            sum_on_device,
            unit,
            math.fsum(x.tolist()) * unit,
            {"blocks": sum_on_device.blocks},
        ),
        seen={
            "kernel": launched,
            "n": n,
            "block": block,
            "dtype": str(x.dtype),
            "device": "simulator" if device.model else "cuda",
        },
        device=device.name,
        libraries=device.libraries,
        model=device.model,
    )


def observe(state: _State, n: int) -> Iterator[Observation]:
    for _ in range(n):
        seconds = state.sum.run()
        total = state.sum.value()
        value = float(total[0]) * state.unit
        yield Observation(
            fingerprint(total),
            fingerprint(state.sum.x_read_back(), "xxh3"),
            seconds,
            scalars={"sum": value, "exact": state.exact},
            reported=state.reported | state.sum.counted(),
            sample=(value,),
            dtype="float64" if total.dtype.kind == "i" else str(total.dtype),
        )


def code(settings: dict) -> str:
    number = "int64, multiples of 2**-20" if settings["kernel"] == "integer atomics" else settings["dtype"]
    sources = [inspect.getsource(kernel) for kernel in kernels.WAYS[settings["kernel"]]]
    n, block = settings["n"], int(settings["block"])
    if simulated(settings):
        n, block = kernels.within_reach_of_simulator(n, block)
    return "\n\n".join([f"# x: {n:,} numbers, {number}; blocks of {block} threads", *sources])


def simulated(settings: dict) -> bool:
    """Whether the simulator will run it: decided without importing numba and without a CUDA context."""
    if settings["device"] == "auto":
        return machine.cuda_device_count() == 0
    return settings["device"] == "simulator"


ATOMIC_SUM = Experiment(
    name="atomic-sum",
    title="Atomic sum: five kernels, one sum",
    question="Which of these kernels gives the same bits in every run?",
    knobs=(
        Knob(
            "kernel",
            "Kernel",
            "How the sum is made: which additions are atomics, and who fixes their order.",
            "choice",
            "atomic per element",
            choices=tuple(kernels.WAYS),
        ),
        Knob(
            "n",
            "Numbers",
            "How many numbers are added; the simulator takes at most 256 of them.",
            "number",
            1_000_000,
            low=1,
            high=10_000_000,
        ),
        Knob(
            "block",
            "Block size",
            "Threads in a block; the simulator has 32.",
            "choice",
            "256",
            choices=("32", "64", "128", "256", "512"),
        ),
        Knob(
            "dtype",
            "Number format",
            "Format of the numbers and of each partial sum; integer atomics take int64 instead.",
            "choice",
            "float32",
            choices=("float32", "float64"),
        ),
        Knob(
            "device",
            "Device",
            "Where it runs; auto takes an NVIDIA GPU if one is visible, else the simulator, which is a model.",
            "choice",
            "auto",
            choices=("auto", "cuda", "simulator"),
        ),
    ),
    prepare=prepare,
    observe=observe,
    code=code,
    # Blocks race with one another, so there must be many; that this is enough was not verified on a GPU.
    race_size={"n": 100_000},
    environment=lambda settings: kernels.environment(simulated(settings)),
    card=lambda settings: None if simulated(settings) else "cuda-0",
    recordings=tuple({"kernel": kernel, "dtype": "float32"} for kernel in kernels.WAYS),
)
