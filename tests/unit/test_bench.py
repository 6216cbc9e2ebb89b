"""The benchmark: arms take turns, a sample is extrapolated and says so, and the README gets what was measured."""

from __future__ import annotations

import bench
import pytest


@pytest.fixture
def clock(monkeypatch):
    """A clock that only work moves."""
    now = [0.0]
    monkeypatch.setattr(bench.time, "perf_counter", lambda: now[0])
    return now


def work(clock, seconds, log=None, name=""):
    def run():
        clock[0] += seconds
        if log is not None:
            log.append(name)

    return run


def test_arms_take_turns_after_a_warm_up(clock):
    log: list[str] = []
    arms = [bench.Arm(name, work(clock, 1, log, name)) for name in "ab"]
    bench.compare("job", arms, rounds=3)
    assert log == ["a", "b"] * 4


def test_a_sample_is_extrapolated_and_says_so(clock):
    arms = [bench.Arm("whole", work(clock, 2)), bench.Arm("sample", work(clock, 1), 100, "one of 100")]
    found = bench.compare("job", arms)["arms"]
    assert found["whole"]["ratio"] == 1 and not found["whole"]["extrapolated from"]
    assert found["sample"]["seconds"] == pytest.approx(100) and found["sample"]["ratio"] == pytest.approx(50)
    assert "extrapolated from one of 100" in bench.in_words(found["sample"])


def test_a_round_in_which_the_machine_was_slow_leaves_the_ratio(clock, monkeypatch):
    speed = iter([1, 1, 1, 1, 9, 9, 1, 1])

    def run():
        clock[0] += next(speed)

    found = bench.compare("job", [bench.Arm("a", run), bench.Arm("b", run)], rounds=3)["arms"]
    assert found["b"]["ratio"] == 1 and found["b"]["ratios"] == [1, 1]


def test_a_part_that_was_measured_on_another_day_says_so(clock):
    arms = [bench.Arm("a", work(clock, 1)), bench.Arm("b", work(clock, 2))]
    old, new = bench.compare("old", arms) | {"date": "2026-01-01"}, bench.compare("new", arms)
    results = {
        "machine": "",
        "libraries": "",
        "date": new["date"],
        "comparisons": [old, new],
        "exponents": [],
    }
    panel = {"panel": {"cold": [1], "flag": [1], "warm": [1]}}
    lines = bench.table(results | panel).splitlines()
    assert any(line.startswith("| old, on 2026-01-01 |") for line in lines)
    assert any(line.startswith("| new |") for line in lines)


def test_the_batched_and_the_textbook_training_are_the_trainers_training():
    """Both arms learn: their loss falls as the trainer's does; otherwise the comparison would be of two jobs."""
    torch = pytest.importorskip("torch")
    graph = bench.thousand.synthetic_graph()
    losses = []
    real = torch.nn.functional.cross_entropy

    def spy(*arguments):
        loss = real(*arguments)
        losses.append(loss.item())
        return loss

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "BATCH", 2)
        patch.setattr(torch.nn.functional, "cross_entropy", spy)
        bench.batched(graph)()
        bench.textbook(graph)()
    model = next(bench.thousand.train(graph))
    assert losses[:10] == pytest.approx(list(model.losses), abs=1e-4)
    assert losses[10:] == pytest.approx(list(model.losses), abs=1e-4)


def test_the_table_goes_between_its_marks_and_nowhere_else():
    text = f"before\n{bench.MARKS[0]}\nold\n{bench.MARKS[1]}\nafter\n"
    assert bench.into_readme(text, "new") == f"before\n{bench.MARKS[0]}\n\nnew\n\n{bench.MARKS[1]}\nafter\n"
    with pytest.raises(ValueError, match="no place for the table"):
        bench.into_readme("nothing here", "new")
