"""The one way in which a notebook of the course is written to a file.

Every tool here and every test of them writes notebooks through `to_bytes`, so two files differ only where
their content does. JupyterLab saves in the same layout.
"""

from __future__ import annotations

import copy
import warnings
from pathlib import Path

import nbformat
from nbformat import NotebookNode

METADATA = {"kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}}

# What front ends write about a session: of no use to a reader, and different after every save.
SESSION_METADATA = ("execution", "collapsed", "scrolled", "trusted")


class Refused(Exception):
    """A notebook that a tool will not write; the message is one sentence for its author."""


def canonical(notebook: NotebookNode) -> NotebookNode:
    """A copy with the course's notebook metadata, sources without blank lines around them, and no session
    metadata. Cell ids, tags, other cell metadata and outputs stay as they are."""
    notebook = copy.deepcopy(notebook)
    notebook.metadata = nbformat.from_dict(METADATA)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    for cell in notebook.cells:
        cell.source = cell.source.strip("\n")
        for key in SESSION_METADATA:
            cell.metadata.pop(key, None)
    return notebook


def without_outputs(notebook: NotebookNode) -> NotebookNode:
    """A copy whose code cells have neither outputs nor execution counts."""
    notebook = copy.deepcopy(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return notebook


def validate(notebook: NotebookNode) -> None:
    """Raises Refused if this is no valid notebook; what nbformat would silently repair (a missing or a
    duplicate id) is not valid either."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            # A copy, because nbformat repairs in place.
            nbformat.validate(copy.deepcopy(notebook))
        except (nbformat.ValidationError, Warning) as error:
            raise Refused(f"This is no valid notebook: {str(error).splitlines()[0]}") from error


def to_bytes(notebook: NotebookNode) -> bytes:
    """The bytes of the file for `notebook`. Raises Refused if it is not valid."""
    notebook = canonical(notebook)
    validate(notebook)
    return (nbformat.writes(notebook) + "\n").encode()


def read(path: Path) -> NotebookNode:
    """The notebook in `path`, as it is: nothing is repaired or converted. Raises Refused."""
    path = Path(path)
    try:
        # Not nbformat.read, which repairs duplicate ids on the way.
        notebook = nbformat.reader.reads(path.read_text(encoding="utf-8"))
        version = (notebook.nbformat, notebook.nbformat_minor)
    except (ValueError, TypeError, AttributeError, KeyError, nbformat.ValidationError) as error:
        raise Refused(f"{path.name} is no notebook: {str(error).splitlines()[0][:120]}") from error
    if version < (4, 5):
        raise Refused(f"{path.name} is older than nbformat 4.5, the first with cell ids; save it anew.")
    return notebook


def write(notebook: NotebookNode, path: Path) -> None:
    """Write `notebook` to `path`. Raises Refused, leaving the file alone, if it is not valid."""
    Path(path).write_bytes(to_bytes(notebook))
