"""gemm-environment in real processes: what is set too late does nothing, and on MKL a variable changes the bits."""

from __future__ import annotations

import platform

import pytest

from samebits import runner
from samebits.experiments.gemm_environment import AFTER_IMPORT, AFTER_USE, compared

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True, scope="module")
def end_workers():
    yield
    runner.close()


def run(repeats=1, **settings):
    return runner.run("gemm-environment", settings, repeats=repeats)


EVERYTHING = {"cbwr": "COMPATIBLE", "onednn": "AVX2", "aten": "default", "threads": "1"}


@pytest.fixture(scope="module")
def plain():
    """Op → runs with no variable set: once for the tests below, since each process takes seconds to start."""
    return {op: run(op=op, repeats=20) for op in ("matmul", "sigmoid", "randn")}


def test_after_the_first_use_nothing_changes_and_the_note_says_so(plain):
    """Not a hope: a library that looked again would show here, and the lesson would be wrong."""
    for op, runs in plain.items():
        late = run(op=op, when=AFTER_USE, **EVERYTHING)
        assert set(late.fingerprints) == set(runs.fingerprints), op
        assert {**late.seen} == {**runs.seen}


def test_each_environment_repeats_and_the_branches_differ(plain, not_exercised):
    """The words of the issue: two fingerprints across the settings on x86-64 with MKL, one within each."""
    rows = {"unset": plain["matmul"], "COMPATIBLE": run(op="matmul", cbwr="COMPATIBLE", repeats=20)}
    assert {runs.verdict.kind for runs in rows.values()} == {"same"}
    assert len({o.input for runs in rows.values() for o in runs.observations}) == 1
    if platform.machine() != "x86_64" or not torch.backends.mkl.is_available():
        not_exercised("; ".join(compared(rows["unset"], rows)))
    else:
        assert len({runs.fingerprints[0] for runs in rows.values()}) == 2
        assert rows["COMPATIBLE"].seen["MKL"] != rows["unset"].seen["MKL"]


def test_the_build_of_pytorchs_kernels_is_seen_and_can_be_chosen_after_the_import(plain, not_exercised):
    early = run(op="sigmoid", aten="default")
    assert early.seen["ATen"] == "DEFAULT" or early.seen["ATen"] == plain["sigmoid"].seen["ATen"]
    if early.seen["ATen"] == plain["sigmoid"].seen["ATen"]:
        not_exercised("; ".join(compared(plain["sigmoid"], {"aten=default": early})))
    late = run(op="sigmoid", aten="default", when=AFTER_IMPORT)
    if late.seen["ATen"] != early.seen["ATen"]:
        not_exercised("this PyTorch looks at ATEN_CPU_CAPABILITY while it is imported")
    else:
        assert set(late.fingerprints) == set(early.fingerprints)
