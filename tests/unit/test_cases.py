"""The fifteen cases: each program runs by itself, and each parts its runs as its answer says."""

from __future__ import annotations

import ast
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from samebits import cases
from samebits.diverge import diverge
from samebits.trace import KINDS, Op, compare, recording

# What is left to chance and may come out alike: threads, memory that was given back, steps that fit into a time.
CHANCE = {case.name for case in cases.CASES if case.races or case.kind == "memory"} | {"schedule"}


def judged(case, found, runs, not_exercised):
    if found.kind == "none" and case.name in CHANCE:
        not_exercised(f"{case.name} didn't vary in {runs} runs")
        return
    assert case.answered_by(found), str(found)
    assert not case.forward or found.first.forward == f"{case.name}.py:{case.forward}"


# What is decided once per process: an environment variable, the order of a set, the first run; and a loader's workers.
FRESH = ("labels", "cache", "validation", "workers")


@pytest.mark.parametrize("name", FRESH)
def test_a_case_parts_where_its_answer_says_in_fresh_processes(tmp_path, not_exercised, name):
    case = cases.find(name)
    hunt = diverge(case.program, case.words(tmp_path), second=case.second, try_flag=False, runs=3)
    judged(case, hunt.divergence, len(hunt.plain.seconds), not_exercised)


@pytest.fixture
def threads():
    import torch

    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", [case.name for case in cases.CASES if case.name not in FRESH])
def test_a_case_parts_where_its_answer_says_in_one_process(
    tmp_path, monkeypatch, capsys, threads, not_exercised, name
):
    case = cases.find(name)
    monkeypatch.setattr(sys, "argv", [str(case.program)])
    found = None
    for run in range(20 if case.races else 4 if name in CHANCE else 2):
        threads(1 if case.second and run else 2)
        with recording(tmp_path / f"{run}.trace"):
            runpy.run_path(str(case.program), run_name="__main__")
        found = compare(tmp_path / "0.trace", tmp_path / f"{run}.trace")
        if found.kind != "none":
            break
    judged(case, found, run + 1, not_exercised)
    assert capsys.readouterr().out.count("loss ") == run + 1
    assert bool(found.settings) == bool(case.second)


def test_names_are_those_of_the_programs():
    programs = {path.stem for path in Path(cases.__file__).parent.glob("*.py")} - {"__init__"}
    assert programs == {case.name for case in cases.CASES} and len(cases.CASES) == 15


def test_kinds_that_a_run_of_a_program_can_show_all_have_a_case():
    # "state" needs a second recording in one process.
    assert {case.kind for case in cases.CASES} == set(KINDS) - {"none", "state"}


@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: case.name)
def test_a_case_is_well_made(case):
    lines = case.source.splitlines()
    assert len(lines) <= 32 and "#" not in case.source, "a program is short, and no comment gives it away"
    assert ast.get_docstring(ast.parse(case.source))
    assert case.text(case.line) and (not case.forward or case.text(case.forward))
    assert case.story and case.cause.endswith(".") and case.remedy.endswith(".")
    assert case.kind in KINDS
    # The story is the owner's, who doesn't know.
    assert not any(
        word in case.story for word in (case.kind + " ", "PYTHONHASHSEED", "torch.empty", "default_rng")
    )


def test_line_and_forward_are_those_of_what_the_answer_speaks_of():
    expected = {
        "recommender": ("loss.backward()", "mood[user]"),
        "augment": ("from_numpy(noise)", ""),
        "late_seed": ("nn.Linear(1, 32)", ""),
        "labels": ("torch.tensor([numbers", ""),
        "padding": ("model(inputs)", ""),
        "schedule": ("model(features)", ""),
        "cache": ("torch.linspace", ""),
        "validation": ("DataLoader(training", ""),
        "shared_buffer": ("0.1 * noise", ""),
        "threads": ("loss.backward()", "model(rows)"),
        "shuffle": ("stretch[:, :16]", ""),
        "workers": ("model(windows)", ""),
        "last_writer": ("image[pixel]", ""),
        "fused": ("optimizer.step()", ""),
        "signs": ("waves * polarity", ""),
    }
    assert {
        case.name
        for case in cases.CASES
        if expected[case.name][0] not in case.text(case.line)
        or (expected[case.name][1] not in case.text(case.forward) if case.forward else expected[case.name][1])
    } == set()


def test_a_case_runs_by_itself_and_prints_its_loss(tmp_path):
    case = cases.find("cache")
    done = subprocess.run(
        [sys.executable, case.program, *case.words(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("loss ") and not done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["features.pt"]


def test_an_answer_needs_kind_op_and_line():
    case = cases.find("schedule")
    op = Op(3, case.op, f"schedule.py:{case.line}", "", "", "forward", 0, (), "", "", ())
    other = Op(3, "aten.x", "schedule.py:1", "", "", "forward", 0, (), "", "", ())

    class Found:
        kind, first, second = "flow", other, op

    assert case.answered_by(Found)
    for change in ({"kind": "python"}, {"second": other}, {"second": None}, {"first": None, "second": None}):
        assert not case.answered_by(type("Changed", (Found,), change))


def test_an_unknown_name_is_told_with_the_nearest():
    assert cases.find("signs").program.name == "signs.py" and "polarity" in cases.source("signs")
    with pytest.raises(cases.UnknownCase) as raised:
        cases.find("sings")
    assert str(raised.value) == "There is no case 'sings'. Did you mean signs?"
    with pytest.raises(cases.UnknownCase, match=r"Possible: recommender, augment.*signs\.$"):
        cases.source("zzzz")


def test_the_folder_of_a_run_takes_its_place_among_the_arguments(tmp_path):
    assert cases.find("cache").words(tmp_path) == [str(tmp_path)]
    assert cases.find("fused").words(tmp_path) == []
