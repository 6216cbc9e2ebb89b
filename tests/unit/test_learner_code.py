"""What the checks of chapter 05 run in workers and in new processes."""

from __future__ import annotations

import canonical
import derive
import pytest
import wrong_chapter05

from samebits import runner
from samebits.experiments import learner_code
from samebits.lab.exercises import chapter05

AUGMENTED = """
def augmented(image, seed, epoch, index):
    rng = {rng}
    return image + rng.normal(0, 0.1, image.shape).astype(np.float32)
"""


def repaired() -> str:
    namespace: dict = {}
    exec(wrong_chapter05.RIGHT["05-repair"], namespace)
    return namespace["answer"]


def loaded(rng: str) -> set[str]:
    arguments = {"source": AUGMENTED.format(rng=rng), "name": "augmented"}
    return set(
        runner.call("samebits.experiments.learner_code:loaded", arguments, framework="torch")["epochs"]
    )


def test_a_loader_in_a_worker_ends_and_tells_noise_by_image_from_noise_by_worker():
    """A forked loader process closes standard input; it once waited for ever for the lock of the worker's listener."""
    assert len(loaded("np.random.default_rng([seed, epoch, index])")) == 1
    assert len(loaded("np.random")) > 1


def test_what_an_attempt_leaves_behind_does_not_judge_the_next():
    """The wrong answers in tests/exercises share a worker; a learner's attempts do not."""
    spoils = "import torch\ntorch.manual_seed = None"
    chapter05._in_worker("diagnosis", script=spoils)
    assert chapter05._in_worker("diagnosis", script=repaired())["depends"] == []


def test_the_lab_shows_the_script_that_its_check_knows():
    solution = canonical.read(derive.ROOT / "solutions" / "05_the_pytorch_recipe.ipynb")
    cells = {cell.id: cell.source for cell in solution.cells}
    namespace = {"in_fresh_processes": lambda script, processes: []}
    exec(cells["05-script"], namespace)
    assert namespace["script"] == chapter05.SCRIPT


def test_the_repaired_script_prints_one_fingerprint_in_ten_new_processes():
    assert len(set(learner_code.in_fresh_processes(chapter05.SCRIPT, 2))) == 2
    [printed] = set(learner_code.in_fresh_processes(repaired(), 10))
    assert len(printed) == 64  # a fingerprint, and no error


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("import nothing_of_the_kind", "No module named"),
        ("print(1); raise SystemExit('SomeError: it ended')", "it ended"),
        ("x = 1", "nothing was printed"),
        ("while True: pass", "TimeoutError"),
    ],
)
def test_a_script_that_fails_says_so_in_the_place_of_its_line(script, says):
    [line] = learner_code.in_fresh_processes(script, 1, seconds=2)
    assert says in line
