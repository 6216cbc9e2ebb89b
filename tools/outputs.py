"""The outputs that lessons are stored with, so that a reader on the web sees results.

    python tools/outputs.py                          every lesson
    python tools/outputs.py notebooks/02_….ipynb     this one

Each lesson runs in a fresh kernel, with a learner's state of its own. Text and figures are kept; widget
views, which are dead without their kernel, and stderr are not. Nothing is stored if a cell fails or an
output names a place on this machine.
"""

from __future__ import annotations

import argparse
import copy
import os
import re
import sys
import tempfile
from pathlib import Path

import available
import canonical
from canonical import Refused
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parent.parent

KEPT_TYPES = ("text/plain", "text/html", "image/png")
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
SECONDS_PER_CELL = 60

MACHINE_PATH = re.compile(
    r"(?<![\w.:/])/(home|root|Users|tmp|var|usr|opt|work|mnt|private)/\w|\b[A-Za-z]:\\\w|ipykernel_\d+|/site-packages/"
)
DATA_URI = re.compile(r"data:[\w/+.-]+;base64,[\w+/=\s]+")


def executed(notebook: NotebookNode, folder: Path) -> NotebookNode:
    """A copy of `notebook`, run from top to bottom in `folder`, with the outputs worth keeping.

    Cells tagged gpu keep no output on a machine without one. Raises Refused, naming the cell, if one fails,
    takes more than 60 s, kills its kernel, or puts out a machine path.
    """
    notebook = canonical.without_outputs(notebook)
    started: list[str] = []
    client = NotebookClient(
        notebook,
        timeout=SECONDS_PER_CELL,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        record_timing=False,
        coalesce_streams=True,
        skip_cells_with_tag="" if available.gpu() else "gpu",
        on_cell_start=lambda cell, cell_index: started.append(cell.id),
    )
    with tempfile.TemporaryDirectory() as state:
        try:
            client.execute(env=os.environ | {"SAMEBITS_DATA": state})
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            reason = f"{error.ename}: {error.evalue}" if isinstance(error, CellExecutionError) else str(error)
            raise Refused(
                f"Cell {started[-1]} did not end well, so nothing is stored: {reason.splitlines()[0]}"
            ) from error
    notebook = kept(notebook)
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if path := machine_path(output):
                raise Refused(
                    f"Cell {cell.id} puts out a path of this machine ({path}…), so nothing is stored."
                )
    return canonical.canonical(notebook)


def kept(notebook: NotebookNode) -> NotebookNode:
    """A copy with only the outputs to store, and cells counted from 1 in the order in which they stand."""
    notebook = copy.deepcopy(notebook)
    count = 0
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        cell.outputs = [_kept(output) for output in cell.outputs if _is_kept(output)]
        if cell.execution_count is not None:
            count += 1
            cell.execution_count = count
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = count
    return notebook


def texts(output: NotebookNode) -> list[str]:
    """What a person can read in a stored output: its text and its HTML, without encoded pictures."""
    found = [output.get("text", "")]
    found += [value for kind, value in output.get("data", {}).items() if kind.startswith("text/")]
    return [DATA_URI.sub("", text) for text in found]


def machine_path(output: NotebookNode) -> str:
    """The beginning of a path of this machine in `output`, or ''."""
    found = [MACHINE_PATH.search(text) for text in texts(output)]
    return next((match[0] for match in found if match), "")


def _is_kept(output: NotebookNode) -> bool:
    if output.output_type == "stream":
        return output.name == "stdout"
    data = output.get("data", {})
    return WIDGET_VIEW not in data and any(kind in data for kind in KEPT_TYPES)


def _kept(output: NotebookNode) -> NotebookNode:
    if "data" in output:
        output.metadata = NotebookNode()
        output.data = NotebookNode({kind: value for kind, value in output.data.items() if kind in KEPT_TYPES})
    return output


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Run lessons and store their outputs.")
    parser.add_argument("lessons", type=Path, nargs="*", help="files in notebooks/ (default: all of them)")
    asked = parser.parse_args(arguments)
    try:
        for path in asked.lessons or sorted((ROOT / "notebooks").glob("*.ipynb")):
            if path.resolve().parent != ROOT / "notebooks":
                raise Refused(f"{path} is no lesson; labs and solutions are stored without outputs.")
            canonical.write(executed(canonical.read(path), path.parent), path)
            print(f"notebooks/{path.name}: outputs stored")
    except Refused as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
