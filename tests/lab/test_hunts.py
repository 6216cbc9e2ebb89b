"""Hunts as chapter 09 makes them: what they print, show and compare."""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
import types
from pathlib import Path

import canonical
import numpy as np
import pytest
import torch

from samebits import cases
from samebits.diverge import Arm, Hunt
from samebits.experiments import learner_code
from samebits.lab import figures09, hunts
from samebits.lab.errors import LabError
from samebits.lab.exercises import chapter09
from samebits.trace import KINDS, Trace, compare, recording
from samebits.variability import verdict

ROOT = Path(__file__).resolve().parents[2]


def found_in(divergence) -> Hunt:
    return Hunt(divergence, Arm(False, verdict(["sha256:a", "sha256:b"]), (1.0, 1.0)))


def noise():
    return torch.ones(3) + torch.from_numpy(np.random.default_rng().random(3))


def equal():
    return torch.ones(3) * 2


def test_two_calls_are_told_by_kind_and_line(capsys):
    hunts.tell(noise, equal)
    one, other = capsys.readouterr().out.splitlines()
    assert one.split()[:2] == ["noise", "input"] and one.endswith("np.random.default_rng().random(3))")
    assert other.split() == ["equal", "none"]


def test_two_calls_are_made_again_until_they_differ():
    calls = itertools.count()

    def third_time():
        return torch.ones(2) * (1 if next(calls) < 5 else 2)

    assert hunts.twice(third_time).kind == "python"
    assert next(calls) == 6
    calls = itertools.count()
    assert hunts.twice(third_time, tries=2).kind == "none"


def shared():
    x = torch.zeros(3)
    x.numpy()[0] = np.random.default_rng().random()
    return x.mul(2)


def sliced(starts=itertools.count()):  # noqa: B008
    x = torch.arange(90.0).reshape(3, 30)
    start = next(starts) % 50
    return x[:, start % 20 : start % 20 + 2].exp()


def test_records_show_what_both_traces_have_and_conclude_nothing():
    told = hunts.records(found_in(hunts.twice(shared)))
    assert "reads       DIFFERS  self float32[3]; written last by op 0" in told
    assert "is given    agrees   other=2" in told
    assert "gives       DIFFERS  float32[3]" in told
    assert "x.mul(2)" in told
    assert not any(meaning in told for meaning in (*KINDS.values(), "unseen"))


def test_records_show_both_slices_of_one_memory():
    told = hunts.records(found_in(hunts.twice(sliced)))
    assert "from 0 by [30, 1] | float32[3, 2] from 1 by [30, 1]" in told


def test_records_show_both_numbers_that_an_op_was_given():
    numbers = itertools.count(1)
    told = hunts.records(found_in(hunts.twice(lambda: torch.ones(3) * next(numbers))))
    assert "is given    DIFFERS  other=1 | other=2" in told


def test_records_show_the_generator():
    told = hunts.records(found_in(hunts.twice(lambda: torch.rand(3))))
    assert "draws from  DIFFERS  the generator" in told


def test_records_of_other_ops_show_both():
    told = hunts.records(found_in(hunts.twice(lambda: torch.ones(3).exp(), lambda: torch.ones(3).sin())))
    assert "aten.exp.default" in told and "aten.sin.default" in told
    shorter = hunts.records(found_in(hunts.twice(lambda: torch.ones(3).exp(), lambda: torch.ones(3))))
    assert "second run  ended before this op" in shorter


def test_records_of_runs_that_agree_say_so():
    assert hunts.records(found_in(hunts.twice(equal, tries=1))).startswith("No op differs in 2 runs.")


def test_an_unknown_case_is_one_sentence_with_the_nearest():
    with pytest.raises(LabError, match="recommender"):
        hunts.hunt("recomender")


def test_a_hunt_tells_its_progress_and_gives_the_case_a_folder(monkeypatch, capsys):
    asked = {}

    def diverge(program, arguments, **options):
        asked.update(options, program=program, arguments=arguments)
        assert Path(arguments[0]).is_dir() and not list(Path(arguments[0]).iterdir())
        for run in range(2):
            options["on_run"](run, False)
        return "found"

    monkeypatch.setattr(hunts, "diverge", diverge)
    assert hunts.hunt("cache") == "found"
    assert asked["program"] == cases.find("cache").program and not asked["try_flag"]
    assert asked["runs"] == hunts.RUNS and asked["budget"] == hunts.BUDGET < 60
    assert capsys.readouterr().out == "run 1 …\nrun 2 …\n"


def test_a_race_gets_more_runs_since_it_seldom_shows_on_a_busy_machine(monkeypatch):
    monkeypatch.setattr(hunts, "diverge", lambda program, arguments, runs, **options: runs)
    assert hunts.hunt("last_writer") == hunts.RUNS_OF_A_RACE > hunts.RUNS
    assert hunts.hunt("last_writer", 3) == 3


def test_turns_give_a_ratio_for_each_round_and_way(monkeypatch):
    class Clock:
        now, slow = 0.0, False

        def perf_counter(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(hunts, "time", clock)

    class Watching:
        def __enter__(self):
            clock.slow = True

        def __exit__(self, *_):
            clock.slow = False

    def work():
        clock.now += 3.0 if clock.slow else 1.0

    assert hunts.turns(work, {"watched": Watching}, rounds=4) == {"watched": [3.0] * 4}


# --- The picture ------------------------------------------------------------------------------------------


@pytest.fixture
def shown(monkeypatch):
    kept = types.SimpleNamespace()
    monkeypatch.setattr(figures09, "figure", lambda fig, **options: vars(kept).update(options, figure=fig))
    return kept


def test_the_ribbon_says_in_words_which_op_is_first_and_what_follows(shown):
    divergence = hunts.twice(noise)
    figures09.ribbon(divergence, marks={0: "L", 2: "L"})
    assert "The first that differs is op 1." in shown.alt
    assert "1 ops: agrees; 2 ops: other inputs." in shown.summary
    assert "Marked L: 0, 2." in shown.alt


def test_a_long_ribbon_is_cut_and_says_so(shown):
    divergence = dataclasses.replace(hunts.twice(equal, tries=1), pattern="." * 1000, same=1000)
    figures09.ribbon(divergence)
    assert f"The first {figures09.MOST_TILES} of 1000 ops are shown." in shown.summary
    assert "None differs." in shown.alt


def test_a_ribbon_without_ops_is_one_sentence():
    divergence = dataclasses.replace(hunts.twice(equal, tries=1), pattern="", same=0)
    with pytest.raises(LabError, match="no ops to show"):
        figures09.ribbon(divergence)


# --- What the exercises take for granted ------------------------------------------------------------------


def test_the_lines_to_mend_are_those_that_the_lab_shows():
    lines = {
        ("shared_buffer", 10): "generator = np.random.default_rng()",
        ("shared_buffer", 15): "generator.standard_normal(out=buffer, dtype=np.float32)",
        ("shuffle", 13): "start = random.randrange(9_000)",
        ("last_writer", 12): "image[pixel] = brightness",
    }
    assert {(name, line) for name, (right, _) in chapter09.GUILTY.items() for line in right} == set(lines)
    for (name, line), text in lines.items():
        assert cases.find(name).text(line) == text


def test_the_lab_shows_the_unmended_functions_that_the_check_runs():
    solution = canonical.read(ROOT / "solutions" / "09_find_the_first_divergence.ipynb")
    shown = "\n".join(cell.source for cell in solution.cells)
    assert f"```python\n{learner_code.UNMENDED}```" in shown


def test_a_repair_beside_functions_that_did_not_vary_shows_nothing(monkeypatch):
    monkeypatch.setattr(learner_code, "SECONDS_TO_VARY", 0.0)

    def added(values, place, places):
        return torch.zeros(places).index_add_(0, place, values)

    threads = torch.get_num_threads()
    try:
        [(points, sentence)] = learner_code._mended_sums(added, added)
    finally:
        torch.set_num_threads(threads)
    assert points == 0 and "yours shows nothing" in sentence


def test_a_diagnosis_is_held_against_the_learners_own_hunt():
    """A hunt may find a difference sooner than the case's own."""
    hunted = {"last_writer": found_in(hunts.twice(noise))}
    given = {"last_writer": ("result", 12), "shuffle": ("python", 13)}
    told = dict(enumerate(sentence for _, sentence in chapter09.judge_diagnose(given, hunted)))
    assert "it is not 'result'" in told[2]
    assert "shuffle: right" in told[1] and "no diagnosis yet" in told[0]


# --- Cells of a notebook in a trace -----------------------------------------------------------------------


def test_a_line_of_a_notebook_is_called_by_its_cell(tmp_path, monkeypatch):
    """IPython keeps cells in files whose names are numbers."""
    file = str(tmp_path / "ipykernel_1" / "123456.py")
    compiler = types.SimpleNamespace(
        format_code_name=lambda name: ("Cell", "In[7]") if name == file else None
    )
    shell = types.SimpleNamespace(compile=compiler)
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    namespace = {"torch": torch}
    exec(compile("def cell():\n    return torch.ones(2)\n", file, "exec"), namespace)
    with recording(tmp_path / "a.trace", "a cell"):
        namespace["cell"]()
        noise()
    [first, *_, last] = Trace(tmp_path / "a.trace")
    assert first.line == "In[7]:2"
    assert last.line.startswith("test_hunts.py:")
    assert compare(tmp_path / "a.trace", tmp_path / "a.trace").kind == "none"
    assert all(json.loads(line) for line in (tmp_path / "a.trace").read_text().splitlines())
