"""The picture of chapter 09: a tile for each op of a run, and what of it another run shares."""

from __future__ import annotations

from collections.abc import Mapping

from samebits.experiment import Source
from samebits.lab import theme
from samebits.lab.errors import LabError
from samebits.lab.figure import figure, here
from samebits.trace import Divergence

PER_ROW = 40
MOST_TILES = 400
# Mark of Divergence.pattern → (colour, hatch, words); the hatch says it again for whoever sees no colours.
LOOKS = {
    ".": ("#DDE1E6", "", "agrees"),
    "r": ("#0072B2", "", "same inputs, another result"),
    "x": ("#E69F00", "////", "other inputs"),
}


def ribbon(found: Divergence, marks: Mapping[int, str] | None = None, source: Source | None = None) -> None:
    """Show the ops of two runs in the order in which they ran, a tile each, up to MOST_TILES.

    found   the comparison of two traces
    marks   number of an op → one letter to write on its tile
    source  where the traces were made; by default here

    Raises LabError if there are no ops to show.
    """
    from matplotlib.patches import Patch, Rectangle

    shown = found.pattern[:MOST_TILES]
    if not shown:
        raise LabError("There are no ops to show: the two runs call different ops from the first one on.")
    marks = {number: letter for number, letter in (marks or {}).items() if number < len(shown)}
    rows = -(-len(shown) // PER_ROW)
    fig, axes = theme.axes(width=8.2, height=1.35 + 0.34 * rows)
    axes.set(xlim=(-0.3, min(PER_ROW, len(shown)) + 0.3), ylim=(rows + 0.15, -0.35))
    axes.grid(False)
    axes.set_xticks([])
    axes.set_yticks(
        [row + 0.5 for row in range(rows)], [f"op {row * PER_ROW}" for row in range(rows)], fontsize=9
    )
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    for number, mark in enumerate(shown):
        row, column = divmod(number, PER_ROW)
        colour, hatch, _ = LOOKS[mark]
        tile = Rectangle((column + 0.08, row + 0.1), 0.84, 0.8)
        tile.set(facecolor=colour, hatch=hatch, edgecolor="#FFFFFF" if hatch else colour, linewidth=0)
        axes.add_patch(tile)
        if number in marks:
            axes.text(
                column + 0.5, row + 0.52, marks[number], ha="center", va="center", fontsize=9, weight="bold",
                color=theme.ink(colour), bbox={"facecolor": colour, "linewidth": 0, "pad": 1.0},
            )  # fmt: skip
    first = found.same if found.same < len(shown) else None
    if first is not None:
        row, column = divmod(first, PER_ROW)
        frame = Rectangle((column + 0.02, row + 0.03), 0.96, 0.94)
        frame.set(fill=False, edgecolor="#111111", linewidth=2.2, zorder=3)
        axes.add_patch(frame)
    present = [mark for mark in LOOKS if mark in shown]
    handles = []
    for mark in present:
        colour, hatch, words = LOOKS[mark]
        handles.append(Patch(facecolor=colour, hatch=hatch, edgecolor="#FFFFFF", linewidth=0, label=words))
    if first is not None:
        handles.append(Patch(fill=False, edgecolor="#111111", linewidth=2, label="the first"))
    axes.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(0, -0.02), ncols=len(handles), fontsize=9,
        handlelength=1.2, columnspacing=1.4,
    )  # fmt: skip
    title = "No op differs" if first is None else f"One op differs first: number {first} of {found.ops[0]}"
    axes.set_title(title)
    counts = {mark: shown.count(mark) for mark in present}
    summary = "; ".join(f"{counts[mark]} ops: {LOOKS[mark][2]}" for mark in present) + "."
    if len(found.pattern) > len(shown):
        summary += f" The first {MOST_TILES} of {len(found.pattern)} ops are shown."
    lettered = "".join(
        f" Marked {letter}: {', '.join(str(number) for number in sorted(marks) if marks[number] == letter)}."
        for letter in sorted(set(marks.values()))
    )
    figure(
        fig,
        alt=f"A ribbon of {len(shown)} tiles, one for each op in the order in which they ran. "
        + ("None differs. " if first is None else f"The first that differs is op {first}. ")
        + f"{summary}{lettered}",
        source=source or here(),
        summary=summary,
    )
