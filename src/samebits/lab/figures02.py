"""The pictures of chapter 02."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from samebits import kernels
from samebits.bits import anatomy, ulp_distance
from samebits.experiment import Source
from samebits.lab import theme
from samebits.lab.figure import figure

RUNS = ("one run", "another run")


def slow_motion(motion: kernels.SlowMotion) -> None:
    """Show the blocks of two runs commit one after the other, with the total after each commit."""
    commits = len(motion.orders[0])
    notes = [_comparison(motion, commit) for commit in range(commits)]
    figure_, axes = theme.axes(width=7.6, height=3.1)
    axes.axis("off")
    axes.set(xlim=(-1.05, commits), ylim=(3.4, -0.25))
    for row, (label, order, sums) in enumerate(zip(RUNS, motion.orders, motion.sums, strict=True)):
        _run(axes, label, order, sums, top=2.1 * row)
    for commit, note in enumerate(notes):
        axes.text(commit + 0.5, 1.58, note, ha="center", va="center", fontsize=9, weight="bold")
    parts = f"after commit {motion.part} the last bits part" if motion.part else "the bits stay the same"
    axes.set_title(f"Same blocks, two orders: {parts}")
    orders = "; ".join(
        f"{label}: blocks {', '.join(map(str, order))}"
        for label, order in zip(RUNS, motion.orders, strict=True)
    )
    figure(
        figure_,
        alt=f"Two rows of {commits} blocks in the order in which they commit, each with the running total and its "
        f"last eight bits. {orders}. The totals after each commit, compared: {', '.join(notes)}.",
        source=Source("MODEL", why=kernels.SLOW_MOTION_MODEL),
        summary=f"The final totals are {motion.sums[0][-1]!s} and {motion.sums[1][-1]!s}: {notes[-1]}.",
    )


def _run(axes, label: str, order: Sequence[int], sums: np.ndarray, top: float) -> None:
    """One row: a box for each block as it commits, and under it the total and the total's last eight bits."""
    from matplotlib.patches import FancyBboxPatch

    for y, words, weight in ((0.25, label, "bold"), (0.73, "total", "normal"), (1.07, "last bits", "normal")):
        axes.text(-0.08, top + y, words, ha="right", va="center", fontsize=9.5, weight=weight)
    for commit, (block, total) in enumerate(zip(order, sums, strict=True)):
        colour = theme.TILE_COLOURS[block % len(theme.TILE_COLOURS)]
        box = FancyBboxPatch((commit + 0.1, top), 0.8, 0.5, boxstyle="round,pad=0,rounding_size=0.06")
        box.set(facecolor=colour, linewidth=0)
        axes.add_patch(box)
        middle = {"x": commit + 0.5, "ha": "center", "va": "center"}
        axes.text(
            y=top + 0.25, s=f"block {block}", color=theme.ink(colour), fontsize=9, weight="bold", **middle
        )
        axes.text(y=top + 0.73, s=f"{total!s}", fontsize=9, **middle)
        axes.text(y=top + 1.07, s=f"…{anatomy(total).bits[-8:]}", fontsize=8.5, family="monospace", **middle)


def _comparison(motion: kernels.SlowMotion, commit: int) -> str:
    """How far the two totals are apart; of different blocks no equal bits are to be expected."""
    if len({frozenset(order[: commit + 1]) for order in motion.orders}) > 1:
        return "other blocks"
    gap = ulp_distance(*(sums[commit] for sums in motion.sums))
    return "same bits" if gap == 0 else f"{gap} ULP{'s' * (gap > 1)} apart"
