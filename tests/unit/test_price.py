"""Chapter 08: how a price is measured, the table and figures of its lab, and the rules behind its exercises."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from samebits import claims, experiments
from samebits.experiment import Observation, Runs, Source
from samebits.experiments import price, torch_worker
from samebits.lab import figures08
from samebits.lab.exercises import chapter08
from samebits.lab.exercises.chapter08 import ToyGpu


@pytest.fixture
def flags():
    """PyTorch's flags, as a test may leave them."""
    import torch

    yield torch
    torch_worker.set_flags()


def watched(switch: str, look) -> tuple[list, list[Observation]]:
    """(what `look` sees in each call of the work, the observations) of four rounds, after prepare."""
    prepared = price.prepare(price.PRICE.settings(switch=switch, device="cpu", n=10, work="sum"))
    seen: list = []
    run = prepared.state.run

    def watching():
        seen.append(look())
        return run()

    state = dataclasses.replace(prepared.state, run=watching)
    return seen, list(price.observe(state, 4))


def test_the_arms_take_turns_and_the_flag_is_off_afterwards(flags):
    seen, observations = watched(price.FLAG, flags.are_deterministic_algorithms_enabled)
    assert seen == [False, True, True, False, False, True, True, False]
    assert not flags.are_deterministic_algorithms_enabled()
    for observation in observations:
        scalars = observation.scalars
        assert scalars["ratio"] == scalars["with"] / scalars["without"]
        assert observation.seconds == scalars["with"]


def test_filling_is_switched_under_the_flag(flags):
    seen, _ = watched(
        price.FILL,
        lambda: (
            flags.are_deterministic_algorithms_enabled(),
            flags.utils.deterministic.fill_uninitialized_memory,
        ),
    )
    assert set(seen) == {(True, False), (True, True)}


def test_tf32_is_switched_for_products_and_convolutions(flags):
    seen, _ = watched(
        price.TF32, lambda: (flags.backends.cuda.matmul.allow_tf32, flags.backends.cudnn.allow_tf32)
    )
    assert seen[:2] == [(False, False), (True, True)]


def test_the_control_switches_nothing(flags):
    seen, _ = watched(price.NOTHING, lambda: price._flags(flags.device("cpu")))
    assert set(seen) == {"flag off + filling on"}


def test_both_arms_are_warm_before_the_first_round(flags, monkeypatch):
    calls = []
    monkeypatch.setattr(
        price,
        "_work",
        lambda settings, device: (lambda: calls.append(flags.are_deterministic_algorithms_enabled()), []),
    )
    price.prepare(price.PRICE.settings(device="cpu"))
    assert calls.count(False) >= 2 and calls.count(True) >= 2


@pytest.mark.parametrize("work", price.WORK)
def test_every_work_gives_the_same_bits_with_and_without_on_one_thread(work, flags):
    prepared = price.prepare(price.PRICE.settings(work=work, threads=1, n=500, device="cpu"))
    (observation,) = price.observe(prepared.state, 1)
    assert observation.fingerprint == observation.reported["bits without"]


def runs(*ratios: float) -> Runs:
    observations = tuple(
        Observation("sha256:" + "a" * 64, "i", ratio, {"ratio": ratio, "without": 2e-3, "with": 2e-3 * ratio})
        for ratio in ratios
    )
    return Runs("price", {}, {}, Source("LIVE", "a machine", {}, "2026-01-01"), observations)


def test_the_summary_tells_the_median_with_its_spread():
    said = price.summary(runs(0.1, 0.2, 0.3, 0.4, 9.0))
    assert said == "with ÷ without: 0.3 (middle half 0.2 to 0.4, 5 rounds); median 2 ms without"
    assert "(middle half 1 to 1, 1 round)" in experiments.find("price").summary(runs(1.0))


def test_a_panel_shows_the_summary_in_place_of_the_range_and_the_row_above(monkeypatch):
    from samebits import runner
    from samebits.lab.panel import Panel

    monkeypatch.setattr(
        runner, "run", lambda *a, **k: dataclasses.replace(runs(0.1, 0.2, 0.3), asked=price.PRICE.settings())
    )
    shown = Panel(price.PRICE)
    shown.run()
    shown.run(slots=17)
    row = shown.rows[-1]
    assert row["summary"].startswith("with ÷ without: 0.2")
    assert "times the row above" not in row["note"] and "ratio" not in row["note"]


# --- The recorded table and the figures -------------------------------------------------------------------


def test_the_recorded_table_has_a_source_and_equal_rounds():
    table, source = figures08.recorded_prices()
    assert source.kind == "LIVE" and source.stored.startswith("measured on ")
    assert len(table) == 10
    assert {len(arm) for arms in table.values() for arm in arms} == {25}
    assert all(seconds > 0 for arms in table.values() for arm in arms for seconds in arm)


def test_the_answers_of_the_lab_are_those_of_the_recorded_table():
    """The letters b and d are about these two cases; another recording must not change them unseen."""
    least, most = chapter08.right_extremes(figures08.recorded_prices()[0])
    assert least.startswith("index_put_") and least.endswith("2 threads")
    assert most.startswith("new memory")


def test_every_published_price_has_its_source_and_its_caveat():
    for entry in figures08.PUBLISHED:
        claim = next(c for c in claims.of_chapter("08") if c.id == entry.value.partition(".")[0])
        assert claim.source and entry.caveat
        assert claims.value(entry.value).endswith("×") and entry.ratio > 0
        assert "lesson published" in claim.places


def test_figures_name_what_is_not_settled(capsys):
    figures08.prices({"clear": runs(0.5, 0.5, 0.6, 0.6, 0.6), "noise": runs(0.5, 0.6, 1.0, 1.5, 2.0)})
    said = capsys.readouterr().out
    assert figures08._verdict(price.spread([0.5, 0.5, 0.6])) == "faster (0.5)"
    assert figures08._verdict(price.spread([0.5, 1.0, 1.5])) == "not settled"
    assert "Error" not in said


# --- What the exercises rest on ---------------------------------------------------------------------------


def test_the_toy_device_works_by_itself():
    gpu = ToyGpu(2.0, first=False, noise=False, drift=False)
    gpu.run("with")
    assert gpu.clock() == pytest.approx(ToyGpu.LAUNCH)
    gpu.synchronize()
    assert gpu.clock() == pytest.approx(ToyGpu.LAUNCH + 10e-3)


@pytest.mark.parametrize("n", range(1, 45))
@pytest.mark.parametrize("rate", [0.01, 0.05, 0.1, 0.3])
def test_the_tolerance_is_the_least_that_holds_the_rate(n, rate):
    """Whichever of n + 1 different deviations comes last is equally likely: count those that fail."""
    values = list(range(1, n + 2))

    def failing(rank: int) -> int:
        others = ([v for v in values if v != last] for last in values)
        return sum(last > sorted(rest)[rank - 1] for last, rest in zip(values, others, strict=True))

    holding = [rank for rank in range(1, n + 1) if failing(rank) <= rate * (n + 1) + 1e-9]
    expected = min(holding) if holding else None
    assert chapter08.least_tolerance(values[:n], rate) == expected
    assert (n >= chapter08.least_runs(rate)) == (expected is not None)


def test_the_simulation_of_the_check_is_near_its_rate():
    alarms, missed = chapter08._simulated(lambda d, rate: chapter08.least_tolerance(d, rate))
    assert 0.04 < alarms < 0.06
    assert missed == 0
    too_wide = chapter08._simulated(lambda d, rate: 100 * max(d))
    assert too_wide[1] > 300  # the planted regression can be missed


def test_rounding_decides_no_case_of_the_check():
    for (n, rate), _ in itertools.product(chapter08._CASES, range(1)):
        exact = (n + 1) * (1 - rate)
        assert abs(exact - round(exact)) < 1e-9 or 1e-3 < exact % 1 < 1 - 1e-3
        assert int(np.ceil(exact)) == n + 1 - int(np.floor((n + 1) * rate + 1e-9))
