"""Figures with everything that a reader needs who cannot see them, or who asks where the numbers come from."""

from __future__ import annotations

import html
import sys
from typing import TYPE_CHECKING

from samebits import machine
from samebits.experiment import Runs, Source, now
from samebits.lab import card
from samebits.lab.errors import LabError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def figure(fig: Figure, alt: str, source: Source | Runs, summary: str = "") -> None:
    """Display a matplotlib figure as an <img> with its alt text, a one-line summary and the source line.

    alt      what the figure shows, for whoever cannot see it
    source   where its numbers come from: a Source, Runs, or `lab.here()` for what this kernel computed
    summary  the message in one line, shown under the figure

    Raises LabError for a figure without a source or without alt text.
    """
    source = source.source if isinstance(source, Runs) else source
    if not isinstance(source, Source):
        raise LabError(
            "A figure needs a source: a Source, Runs, or lab.here() for what this kernel computed."
        )
    if not alt or not alt.strip():
        raise LabError("A figure needs alt text: one or two sentences that say what it shows.")
    message = f'<p class="sb-say">{html.escape(summary)}</p>' if summary else ""
    picture = card.image(fig, alt).replace("<img ", '<img class="sb-figure" ', 1)
    text = "\n".join(line for line in (alt, summary, source.stored) if line)
    card.show(picture + message + card.source_line(source), text)
    # Closed, because the notebook would show a figure of pyplot's a second time, without any of this.
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close(fig)


def here() -> Source:
    """The source of what this very kernel has computed: LIVE, with this machine and the libraries loaded."""
    return Source("LIVE", machine.device_words(), machine.loaded_libraries(), now())
