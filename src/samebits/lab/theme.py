"""How the course looks: tile colours and letters, figures, and the CSS that every card shares.

Colours are Okabe and Ito's, which stay apart for colour-blind readers (jfly.uni-koeln.de/color); letters,
markers and line styles say the same again, so nothing depends on colour.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STATIC = Path(__file__).parent / "static"

# For the <style> element of a card without a widget, and for a widget's `_css`.
CARD_CSS = (STATIC / "card.css").read_text(encoding="utf-8")
CSS = CARD_CSS + (STATIC / "widgets.css").read_text(encoding="utf-8")
# For a widget's `_esm`: what goes in front of its own script.
JS = (STATIC / "widgets.js").read_text(encoding="utf-8")

# Okabe–Ito, with grey for its black, which would vanish in a dark theme.
TILE_COLOURS = ("#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7", "#BBBBBB")
DARK_INK, LIGHT_INK = "#111111", "#FFFFFF"


def tile_colour(letter: str) -> str:
    """The colour of a tile by its letter (A … Z, AA …); colours repeat, letters identify."""
    index = 0
    for character in letter:
        index = index * 26 + ord(character) - ord("A") + 1
    return TILE_COLOURS[(index - 1) % len(TILE_COLOURS)]


def ink(colour: str) -> str:
    """The letter's colour on a tile of `colour`: whichever of dark and white contrasts more (WCAG 2)."""
    return max((DARK_INK, LIGHT_INK), key=lambda candidate: contrast(candidate, colour))


def contrast(one: str, other: str) -> float:
    """WCAG 2's contrast ratio of two "#rrggbb" colours, from 1 to 21."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def axes(rows: int = 1, columns: int = 1, width: float = 7.0, height: float = 3.4) -> tuple[Figure, object]:
    """A figure in the course's style and its axes, as matplotlib's `subplots` gives them; inches.

    No pyplot, so nothing is shown until lab.figure shows it. The style stays set in this kernel, because
    matplotlib reads some of it only when a legend or a label is added.
    """
    import matplotlib
    from cycler import cycler
    from matplotlib.figure import Figure

    # White paper in both themes: a figure must read the same in a dark notebook and in print.
    lines = cycler(color=["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"])
    second_cue = cycler(linestyle=["-", "--", "-.", ":", "-", "--"], marker=["o", "s", "^", "D", "v", "P"])
    matplotlib.rcParams.update(
        {
            "axes.prop_cycle": lines + second_cue,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.titlelocation": "left",
            "axes.titleweight": "bold",
            "axes.titlesize": 12,
            "axes.titlepad": 10,
            "axes.labelcolor": "#222222",
            "axes.edgecolor": "#767676",
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.color": "#E3E6EA",
            "figure.facecolor": "white",
            "font.size": 10.5,
            "legend.frameon": False,
            "lines.linewidth": 1.8,
            "lines.markersize": 4.5,
        }
    )
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns)
