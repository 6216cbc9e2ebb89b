"""Checks of chapter 00's claims: one race, and the arithmetic that shows it."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from samebits import variability
from samebits.bits import fingerprint
from samebits.checks import Seen, check

RUNS = 20


def _sums(size: int) -> int:
    """Number of distinct answers of the lesson's line, for the first `size` of its values."""
    import torch

    values = torch.from_numpy(np.random.default_rng(0).standard_normal(size, dtype=np.float32))
    slot = torch.zeros(size, dtype=torch.int64)
    return len(
        {
            fingerprint(torch.zeros(1).index_put_((slot,), values, accumulate=True), "sha256")
            for _ in range(RUNS)
        }
    )


@check("00-index-put-races", control="32,767 values", framework="torch")
def index_put_races(control: bool) -> Seen:
    return Seen.varies(_sums(32_767 if control else 100_000), RUNS, control)


@check("00-flag-ends-it", control="the flag off", framework="torch")
def flag_ends_it(control: bool) -> Seen:
    import torch

    torch.use_deterministic_algorithms(not control)
    return Seen.same(_sums(100_000), RUNS, control)


@check("00-no-random-number", control="dropout, which draws", framework="torch")
def no_random_number(control: bool) -> Seen:
    import torch

    before = torch.get_rng_state()
    if control:
        torch.nn.functional.dropout(torch.ones(100_000))
    else:
        _sums(100_000)
    drawn = not torch.equal(before, torch.get_rng_state())
    return Seen(not drawn, f"the generator's state {'changed' if drawn else 'stayed as it was'}")


@check("00-not-associative", control="fractions, which do not round")
def not_associative(control: bool) -> Seen:
    a, b, c = (Fraction(text) if control else float(text) for text in ("0.1", "0.2", "0.3"))
    left, right = (a + b) + c, a + (b + c)
    return Seen(left != right, f"{left} and {right}")


@check("00-bound", control="the rule of thumb 3/m")
def bound(control: bool) -> Seen:
    chances = {
        repeats: (1 - (3 / repeats if control else variability.bound(repeats))) ** repeats
        for repeats in (4, 19, 49, 999)
    }
    exact = all(math.isclose(chance, 0.05, rel_tol=1e-9) for chance in chances.values())
    told = ", ".join(f"{chance:.4f} for m = {repeats}" for repeats, chance in chances.items())
    return Seen(exact, f"the chance of no difference at the bound is {told}")
