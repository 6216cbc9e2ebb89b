"""The picture that runs through the course: a tile for each run, lettered and coloured by its bits.

`tiles` displays a wall that needs no running kernel, for lessons; `wall` describes the same wall for the
panel, which draws it itself.
"""

from __future__ import annotations

import html
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from samebits import variability
from samebits.bits import NAN_DISTANCE
from samebits.experiment import Runs, Source
from samebits.lab import card, theme
from samebits.lab.errors import LabError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PER_ROW = 20
# Above this many runs single tiles say no more than counts do.
MOST_TILES = 60
MOST_LETTERS = 20


def tiles(
    runs: Runs | Sequence[str] | Mapping[str, Runs | Sequence[str]],
    title: str | None = None,
    source: Source | None = None,
) -> None:
    """Display a wall of tiles, the verdict in one sentence, and the source line.

    runs    Runs, or a list of fingerprints, or several of them by label, shown one under the other
    title   a line above the wall
    source  where plain fingerprints come from; Runs bring their own

    Raises LabError for plain fingerprints without a source.
    """
    rows = runs if isinstance(runs, Mapping) else {"": runs}
    blocks = [_block(label, row, source) for label, row in rows.items()]
    heading = f'<p class="sb-title">{html.escape(title)}</p>' if title else ""
    text = "\n\n".join(text for _, text in blocks)
    card.show(heading + "".join(block for block, _ in blocks), f"{title}\n{text}" if title else text)


def wall(runs: Runs | Sequence[str], source: Source | None = None) -> dict[str, Any]:
    """The wall as plain data for JSON.

    tiles  {"letter", "colour", "ink"} for each run; above sixty runs, one for each of the most frequent
           letters, with its "count"
    alt    the wall in words
    say    the verdict, and how far apart the farthest two runs are if that is known
    kind   LIVE, RECORDED, MODEL or PUBLISHED
    where  for all but LIVE why it is valid or what it cites; device and libraries
    date   day of the measurement, ISO 8601; empty where nothing was measured
    """
    source = _source(runs, source)
    letters = variability.letters(_fingerprints(runs))
    why = "" if source.kind == "LIVE" else source.why
    return {
        "tiles": _tiles(letters),
        "alt": _alt(letters),
        "say": _say(runs) + _left_out(letters),
        "kind": source.kind,
        "where": " · ".join(part for part in (why, source.where) if part),
        "date": source.date[:10],
    }


def _source(runs: Runs | Sequence[str], source: Source | None) -> Source:
    if isinstance(runs, Runs):
        return runs.source
    if source is None:
        raise LabError("These fingerprints have no source; say where they come from with source=….")
    return source


def _fingerprints(runs: Runs | Sequence[str]) -> list[str]:
    return runs.fingerprints if isinstance(runs, Runs) else list(runs)


def _tiles(letters: list[str]) -> list[dict[str, Any]]:
    if len(letters) <= MOST_TILES:
        return [_tile(letter) for letter in letters]
    return [_tile(letter) | {"count": count} for letter, count in Counter(letters).most_common(MOST_LETTERS)]


def _tile(letter: str) -> dict[str, Any]:
    colour = theme.tile_colour(letter)
    return {"letter": letter, "colour": colour, "ink": theme.ink(colour)}


def _alt(letters: list[str]) -> str:
    """The wall in words: every letter, or above sixty runs the most frequent ones."""
    runs, answers = len(letters), len(set(letters))
    if not letters:
        return "No runs yet."
    if answers == 1:
        return f"{_count(runs, 'run')}, all the same: {letters[0]}."
    opening = f"{runs} runs, {answers} different answers"
    if runs <= MOST_TILES:
        return f"{opening}: {' '.join(letters)}."
    common = Counter(letters).most_common(MOST_LETTERS)
    rest = answers - len(common)
    counts = ", ".join(
        f"{letter} {count} times" if count > 1 else f"{letter} once" for letter, count in common
    )
    return f"{opening}: {counts}" + (f", and {rest} more letters." if rest else ".")


def _say(runs: Runs | Sequence[str]) -> str:
    if not isinstance(runs, Runs):
        return variability.verdict(list(runs)).sentence
    verdict, farthest = runs.verdict, runs.farthest
    # None: no sample was kept. 0: the bits that differ are not in the sample.
    if verdict.kind != "different" or not farthest:
        return verdict.sentence
    if farthest == NAN_DISTANCE:
        return f"{verdict.sentence} In one place some runs gave NaN and others a number."
    return f"{verdict.sentence} The farthest two are {_count(farthest, 'ULP')} apart."


def _left_out(letters: list[str]) -> str:
    """What to add where the wall cannot show every letter."""
    answers = len(set(letters))
    if len(letters) <= MOST_TILES or answers <= MOST_LETTERS:
        return ""
    return f" The wall shows the {MOST_LETTERS} most frequent of {answers} letters."


def _block(label: str, runs: Runs | Sequence[str], source: Source | None) -> tuple[str, str]:
    """One wall as HTML and as plain text."""
    data, source = wall(runs, source), _source(runs, source)
    opening, colon, rest = data["say"].partition(":")
    block = "".join(
        [
            f'<p class="sb-label">{html.escape(label)}</p>' if label else "",
            card.image(_draw(data["tiles"]), data["alt"]) if data["tiles"] else "",
            f'<p class="sb-say"><strong>{html.escape(opening)}{colon}</strong>{html.escape(rest)}</p>',
            card.source_line(source),
        ]
    )
    shown = " ".join(
        f"{tile['letter']}×{tile['count']}" if "count" in tile else tile["letter"] for tile in data["tiles"]
    )
    text = "\n".join(line for line in (label, shown, data["say"], source.stored) if line)
    return f'<div class="sb-block">{block}</div>', text


def _draw(tiles: list[dict[str, Any]]) -> Figure:
    """Rows of twenty squares, with counts under the letters where there are counts; without pyplot, whose
    list of open figures would show the wall a second time."""
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyBboxPatch

    side, gap = 36 / 96, 4 / 96  # inches
    columns, rows = min(len(tiles), PER_ROW), math.ceil(len(tiles) / PER_ROW)
    figure = Figure(figsize=(columns * (side + gap) - gap, rows * (side + gap) - gap), facecolor="none")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, figure.get_figwidth()), ylim=(figure.get_figheight(), 0))
    axes.axis("off")
    corner = 4 / 96
    for n, tile in enumerate(tiles):
        x, y = (n % PER_ROW) * (side + gap), (n // PER_ROW) * (side + gap)
        axes.add_patch(
            FancyBboxPatch(
                (x + corner, y + corner),
                side - 2 * corner,
                side - 2 * corner,
                boxstyle=f"round,pad={corner}",
                facecolor=tile["colour"],
                linewidth=0,
            )
        )
        centre = {"ha": "center", "va": "center", "color": tile["ink"], "family": "DejaVu Sans"}
        middle = side * (0.36 if "count" in tile else 0.52)
        size = 10 if len(tile["letter"]) < 3 else 7.5
        axes.text(x + side / 2, y + middle, tile["letter"], fontsize=size, weight="bold", **centre)
        if "count" in tile:
            axes.text(x + side / 2, y + side * 0.75, f"×{tile['count']}", fontsize=7, **centre)
    return figure


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
