"""sum-order: the same numbers, added in another order each time, by seven algorithms."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from samebits import machine, orders
from samebits.bits import fingerprint
from samebits.experiment import Experiment, Knob, Observation, Prepared

ALGORITHMS = {
    "serial": orders.serial,
    "pairwise": orders.pairwise,
    "block tree": orders.block_tree,
    "kahan": orders.kahan,
    "neumaier": orders.neumaier,
    "exact": lambda numbers: numbers.dtype.type(orders.exact(numbers)),
    "fixed point": orders.fixed_point,
}
ORDERS = ("as given", "shuffled each run", "small to large", "large to small")
DISTRIBUTIONS = ("normal", "uniform", "cancelling")


@dataclass(frozen=True)
class _State:
    numbers: np.ndarray  # (n,) in the chosen dtype
    order: str
    algorithm: str


def prepare(settings: dict) -> Prepared:
    numbers = _numbers(settings["distribution"], settings["n"]).astype(settings["dtype"])
    if settings["order"] == "small to large":
        numbers = numbers[np.argsort(np.abs(numbers), kind="stable")]
    elif settings["order"] == "large to small":
        numbers = numbers[np.argsort(np.abs(numbers), kind="stable")[::-1]]
    state = _State(np.ascontiguousarray(numbers), settings["order"], settings["algorithm"])
    return Prepared(
        state,
        seen={"dtype": str(numbers.dtype), "n": len(numbers)},
        device=machine.device_words(threads=1),
        libraries={"numpy": np.__version__},
    )


def _numbers(distribution: str, n: int) -> np.ndarray:
    """(n,) float64. "cancelling" hides a sum of 1 or 2 among pairs that cancel, so every rounding shows."""
    rng = np.random.default_rng(1)
    if distribution == "normal":
        return rng.standard_normal(n)
    if distribution == "uniform":
        return rng.random(n)
    half = rng.standard_normal((n - 1) // 2) * 1000
    return rng.permutation(np.concatenate([half, -half, np.ones(n - 2 * len(half))]))


def observe(state: _State, n: int) -> Iterator[Observation]:
    given = fingerprint(state.numbers, "xxh3")
    rng = np.random.default_rng()  # another order each time is what is studied here: deliberately unseeded
    add = ALGORITHMS[state.algorithm]
    add(state.numbers)  # the first call compiles, or loads what was compiled before
    for _ in range(n):
        shuffled = state.order == "shuffled each run"
        numbers = rng.permutation(state.numbers) if shuffled else state.numbers
        start = time.perf_counter()
        total = add(numbers)
        seconds = time.perf_counter() - start
        yield Observation(
            fingerprint(total),
            given,
            seconds,
            scalars={"sum": float(total)},
            sample=(float(total),),
            dtype=str(numbers.dtype),
        )


def code(settings: dict) -> str:
    numbers = f"# numbers: {settings['n']:,} values, {settings['dtype']}, {settings['order']}"
    return f"{numbers}\n{_LINES[settings['algorithm']].format(dtype=settings['dtype'])}"


_LINES = {
    "serial": """\
total = np.{dtype}(0)
for value in numbers:
    total = total + value""",
    "pairwise": """\
# Neighbours are added in pairs, then the neighbouring sums, until one is left; an odd one waits.
while len(numbers) > 1:
    even = len(numbers) // 2 * 2
    numbers = np.concatenate([numbers[0:even:2] + numbers[1:even:2], numbers[even:]])
total = numbers[0]""",
    "block tree": """\
# Each block of 256 values halves itself until one is left; then the blocks' sums are added in order.
while len(block) > 1:
    half = len(block) // 2
    block = block[:half] + block[half:]""",
    "kahan": """\
total = excess = np.{dtype}(0)
for value in numbers:
    wanted = value - excess
    new_total = total + wanted
    excess = (new_total - total) - wanted
    total = new_total""",
    "neumaier": """\
total = lost = np.{dtype}(0)
for value in numbers:
    new_total = total + value
    if abs(total) >= abs(value):
        lost = lost + ((total - new_total) + value)
    else:
        lost = lost + ((value - new_total) + total)
    total = new_total
total = total + lost""",
    "exact": """\
total = np.{dtype}(math.fsum(numbers))  # exact, then rounded""",
    "fixed point": """\
integers = [round(float(value) * 2**40) for value in numbers]
total = np.{dtype}(sum(integers) / 2**40)  # integers can be added in any order""",
}


SUM_ORDER = Experiment(
    name="sum-order",
    title="One sum, many orders",
    question="Do the same numbers have one sum?",
    knobs=(
        Knob(
            "algorithm",
            "Algorithm",
            "How the numbers are added.",
            "choice",
            "serial",
            choices=tuple(ALGORITHMS),
        ),
        Knob(
            "order", "Order", "The order in which they come.", "choice", "shuffled each run", choices=ORDERS
        ),
        Knob(
            "dtype",
            "Number format",
            "The format of the numbers and of each partial sum.",
            "choice",
            "float32",
            choices=("float16", "float32", "float64"),
        ),
        Knob("n", "Numbers", "How many numbers are added.", "number", 100_000, low=1, high=1_000_000),
        Knob(
            "distribution",
            "Distribution",
            "What the numbers look like; cancelling pairs make every rounding visible.",
            "choice",
            "normal",
            choices=DISTRIBUTIONS,
        ),
    ),
    prepare=prepare,
    observe=observe,
    code=code,
)
