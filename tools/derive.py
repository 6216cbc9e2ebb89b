"""Labs from solutions: `labs/NN_topic.ipynb` is `solutions/NN_topic.ipynb` with its solutions taken out.

    python tools/derive.py           write labs/
    python tools/derive.py --check   say which labs differ from what would be written

nbgrader's own preprocessors do the work, so a solution is also the source of an nbgrader assignment. The
same solution always gives the same bytes. An exercise that a learner could not work with is refused.
"""

from __future__ import annotations

import argparse
import ast
import logging
import re
import sys
from pathlib import Path

import canonical
from canonical import Refused
from IPython.core.inputtransformer2 import TransformerManager
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parent.parent

DIFFICULTY = re.compile(r"^Difficulty [●○]{5} · about \d+ min$", re.MULTILINE)
HINTS = ("nudge", "pointer", "code")
SUMMARY = re.compile(r"<details>\s*<summary>(.*?)</summary>", re.DOTALL)


def derive(solution: NotebookNode) -> NotebookNode:
    """The lab for a solution. Raises Refused, with one sentence, for an exercise without its header line or
    its hints, without a check, with a duplicate grade_id, or with a stub that does not parse."""
    for number, cell in enumerate(solution.cells):
        if _nbgrader(cell, "solution"):
            _require_task(cell, solution.cells[:number])
            _require_check(cell, solution.cells[number + 1 :])
    lab = canonical.canonical(_preprocessed(solution))
    for cell in lab.cells:
        if cell.cell_type == "code" and not parses(cell.source):
            raise Refused(f"Cell {cell.id} does not parse once its solution is taken out.")
    return lab


def exercises(solution: NotebookNode) -> dict[str, int]:
    """Exercise id → points, as the graded cells of a solution or of a lab promise them."""
    graded = [cell for cell in solution.cells if _nbgrader(cell, "grade")]
    return {cell.id.removesuffix("-check"): cell.metadata.nbgrader.points for cell in graded}


def parses(source: str) -> bool:
    """Whether a code cell is Python that compiles, or becomes it once IPython has translated its magics."""
    try:
        # Not ast.parse alone, which takes a return outside a function. A cell may await.
        code = TransformerManager().transform_cell(source)
        compile(code, "<cell>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    except (SyntaxError, ValueError):  # ValueError: a null byte
        return False
    return True


def _preprocessed(solution: NotebookNode) -> NotebookNode:
    # Here, because only the test environment has nbgrader.
    from nbconvert.preprocessors import TagRemovePreprocessor
    from nbgrader import preprocessors
    from nbgrader.nbgraderformat import SchemaTooNewError, SchemaTooOldError, ValidationError

    silent = logging.Logger("nbgrader")  # what nbgrader has to say is in the exception
    silent.addHandler(logging.NullHandler())
    steps = [
        preprocessors.CheckCellMetadata(log=silent),
        TagRemovePreprocessor(remove_cell_tags={"remove-in-lab"}),
        preprocessors.LockCells(),
        # A stub that runs: an untouched lab goes from top to bottom without an error.
        preprocessors.ClearSolutions(code_stub={"python": "..."}, log=silent),
        preprocessors.ClearHiddenTests(),
        preprocessors.ClearMarkScheme(),
        preprocessors.ClearOutput(),
    ]
    lab, resources = canonical.canonical(solution), {}
    try:
        for step in steps:
            lab, resources = step.preprocess(lab, resources)
    except (ValidationError, SchemaTooNewError, SchemaTooOldError) as error:
        # CheckCellMetadata logs what is wrong and raises anew; the reason is the exception under it.
        raise Refused(f"nbgrader refuses the metadata of a cell: {error.__context__ or error}.") from error
    except RuntimeError as error:
        raise Refused(f"nbgrader cannot take a solution out: {error}.") from error
    return lab


def _require_task(cell: NotebookNode, before: list[NotebookNode]) -> None:
    task = ""
    for earlier in reversed(before):
        if earlier.cell_type != "markdown":
            break
        task = f"{earlier.source}\n{task}"
    if not DIFFICULTY.search(task):
        raise Refused(
            f"Exercise {cell.id} has no line 'Difficulty ●●○○○ · about 10 min' in the text directly above it."
        )
    summaries = [summary.lower() for summary in SUMMARY.findall(task)]
    if len(summaries) != len(HINTS) or not all(map(str.__contains__, summaries, HINTS)):
        raise Refused(
            f"Exercise {cell.id} needs three hints in <details> directly above it, whose summaries say "
            "nudge, pointer and code, in this order."
        )
    if "### BEGIN SOLUTION" not in cell.source:
        raise Refused(
            f"Exercise {cell.id} does not mark its solution with ### BEGIN SOLUTION and ### END SOLUTION."
        )
    if cell.metadata.nbgrader.grade_id != cell.id:
        raise Refused(
            f"Exercise {cell.id} has the grade_id {cell.metadata.nbgrader.grade_id}; make them the same."
        )


def _require_check(cell: NotebookNode, after: list[NotebookNode]) -> None:
    for later in after:
        if _nbgrader(later, "solution"):
            break
        if _nbgrader(later, "grade"):
            if later.id == later.metadata.nbgrader.grade_id == f"{cell.id}-check" and _checks(
                later.source, cell.id
            ):
                return
            break
    raise Refused(
        f"Exercise {cell.id} is not followed by a graded cell {cell.id}-check that ends in "
        f'lab.check("{cell.id}", …).'
    )


def _checks(source: str, exercise: str) -> bool:
    """Whether a cell ends in the check of `exercise`, whose value nbgrader reads as points."""
    statements = ast.parse(source).body if parses(source) else []
    if not statements or not isinstance(statements[-1], ast.Expr):
        return False
    call = statements[-1].value
    return (
        isinstance(call, ast.Call)
        and ast.unparse(call.func) == "lab.check"
        and len(call.args) >= 2
        and isinstance(call.args[0], ast.Constant)
        and call.args[0].value == exercise
    )


def _nbgrader(cell: NotebookNode, role: str) -> bool:
    return bool(cell.metadata.get("nbgrader", {}).get(role))


def labs(root: Path) -> dict[Path, bytes]:
    """Path of each lab → the bytes it should have. Raises Refused, naming the solution at fault."""
    files = {}
    for path in sorted((root / "solutions").glob("*.ipynb")):
        try:
            files[root / "labs" / path.name] = canonical.to_bytes(derive(canonical.read(path)))
        except Refused as error:
            raise Refused(f"solutions/{path.name}: {error}") from error
    return files


def differing(root: Path) -> list[str]:
    """One sentence for each lab that is not what its solution gives."""
    wanted = labs(root)
    there = set((root / "labs").glob("*.ipynb"))
    sentences = [
        f"labs/{path.name} is not what solutions/{path.name} gives; run ./course labs."
        for path, content in wanted.items()
        if path not in there or path.read_bytes() != content
    ]
    return sentences + [
        f"labs/{path.name} has no solution; delete it." for path in sorted(there - set(wanted))
    ]


def write(root: Path) -> list[Path]:
    """Write the labs that differ; returns their paths."""
    changed = []
    for path, content in labs(root).items():
        if not path.exists() or path.read_bytes() != content:
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
            changed.append(path)
    return changed


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Generate labs/ from solutions/.")
    parser.add_argument("--check", action="store_true", help="write nothing; say which labs differ")
    asked = parser.parse_args(arguments)
    try:
        if asked.check:
            if sentences := differing(ROOT):
                sys.exit("\n".join(sentences))
            return
        for path in write(ROOT):
            print(f"labs/{path.name} written")
    except Refused as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
