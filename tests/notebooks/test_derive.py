"""Labs come from solutions, byte for byte, and an exercise that cannot be worked with is refused."""

from __future__ import annotations

from pathlib import Path

import canonical
import derive
import pytest
import text
from canonical import Refused

FIXTURES = Path(__file__).parent / "fixtures"
SOLUTION = text.to_text(canonical.read(FIXTURES / "solution.ipynb"))

CHECK = "=== code toy-double-check points=2\n"
CALL = 'lab.check("toy-double", double)'
NO_CHECK = "toy-double is not followed by a graded cell"


def test_every_lab_is_what_its_solution_gives():
    assert derive.differing(derive.ROOT) == []


def test_the_same_solution_gives_the_same_bytes_as_ever():
    lab = derive.derive(canonical.read(FIXTURES / "solution.ipynb"))
    assert canonical.to_bytes(lab) == (FIXTURES / "lab.ipynb").read_bytes()


def test_a_lab_keeps_ids_and_locks_its_checks_and_loses_what_only_the_solution_shows():
    cells = {cell.id: cell for cell in canonical.read(FIXTURES / "lab.ipynb").cells}
    assert "note" not in cells
    assert cells["toy-double"].source == "def double(x):\n    ..."
    assert cells["toy-double"].metadata.deletable is False
    assert cells["toy-double-check"].metadata.editable is False


def test_deriving_leaves_the_solution_alone():
    solution = canonical.read(FIXTURES / "solution.ipynb")
    derive.derive(solution)
    assert solution == canonical.read(FIXTURES / "solution.ipynb")


def test_a_value_can_be_the_solution():
    value = "answer = (\n    ### BEGIN SOLUTION\n    4\n    ### END SOLUTION\n)"
    lab = derive.derive(changed(cell_source("toy-double"), value))
    assert next(cell.source for cell in lab.cells if cell.id == "toy-double") == "answer = (\n    ...\n)"


def changed(old: str, new: str):
    assert SOLUTION.count(old) == 1, old
    return text.from_text(SOLUTION.replace(old, new))


def cell_source(cell_id: str) -> str:
    return next(cell.source for cell in text.from_text(SOLUTION).cells if cell.id == cell_id)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("Difficulty ●○○○○ · about 2 min", "", "toy-double has no line 'Difficulty"),
        ("Difficulty ●○○○○", "Difficulty ●○○○", "toy-double has no line 'Difficulty"),
        ("about 2 min", "quick", "toy-double has no line 'Difficulty"),
        ("Hint 1: a nudge", "Hint 1", "toy-double needs three hints"),
        ("<summary>Hint 3: code</summary>", "", "toy-double needs three hints"),
        ("    ### BEGIN SOLUTION\n", "", "toy-double does not mark its solution"),
        ("    ### END SOLUTION\n", "", "no end solution statement found"),
        ("def double(x):\n", "def double(x):\n  y =\n", "toy-double does not parse"),
        ("    ### BEGIN SOLUTION\n", "    y = (\n    ### BEGIN SOLUTION\n", "toy-double does not parse"),
        (CHECK, "=== code toy-double-check\n", NO_CHECK),
        (CHECK, "=== code toy-check points=2\n", NO_CHECK),
        (CALL, 'lab.check("toy-other", double)', NO_CHECK),
        (CALL, 'lab.check("toy-double", double);1', NO_CHECK),
        (CALL, 'earned = lab.check("toy-double", double)', NO_CHECK),
        ('{"nbval_timeout": 10, "tags": []}', '{"nbgrader": {"grade": true}}', "nbgrader refuses"),
        ("=== code toy-double solution", "=== code toy-double", "Solution region detected"),
    ],
)  # fmt: skip
def test_an_exercise_that_cannot_be_worked_with_is_refused(old, new, sentence):
    with pytest.raises(Refused, match=sentence):
        derive.derive(changed(old, new))


def test_a_duplicate_grade_id_is_refused_by_name():
    solution = text.from_text(SOLUTION)
    solution.cells[-1].metadata.nbgrader = text.solution_metadata("toy-double-check") | {
        "solution": False,
        "locked": True,
    }
    with pytest.raises(Refused, match="toy-double-check"):
        derive.derive(solution)


@pytest.fixture
def course(tmp_path) -> Path:
    for folder in ("solutions", "labs"):
        (tmp_path / folder).mkdir()
    (tmp_path / "solutions" / "01.ipynb").write_bytes((FIXTURES / "solution.ipynb").read_bytes())
    return tmp_path


def test_check_names_each_lab_that_differs_and_writing_mends_it(course):
    assert derive.differing(course) == [
        "labs/01.ipynb is not what solutions/01.ipynb gives; run ./course labs."
    ]
    assert derive.write(course) == [course / "labs" / "01.ipynb"]
    assert derive.differing(course) == []
    assert derive.write(course) == []


def test_one_byte_and_a_lab_without_solution_are_differences(course):
    derive.write(course)
    lab = course / "labs" / "01.ipynb"
    (course / "labs" / "02.ipynb").write_bytes(lab.read_bytes())
    lab.write_bytes(lab.read_bytes() + b"\n")
    assert derive.differing(course) == [
        "labs/01.ipynb is not what solutions/01.ipynb gives; run ./course labs.",
        "labs/02.ipynb has no solution; delete it.",
    ]


def test_a_refusal_names_the_solution(course):
    canonical.write(changed("about 2 min", ""), course / "solutions" / "01.ipynb")
    with pytest.raises(Refused, match=r"^solutions/01\.ipynb: Exercise toy-double"):
        derive.write(course)
    assert not (course / "labs" / "01.ipynb").exists()
