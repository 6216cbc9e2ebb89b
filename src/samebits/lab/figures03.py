"""The pictures of chapter 03, and the table of timings that its lab reads."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from samebits import runner
from samebits.bits import ulp_distance
from samebits.experiment import Source
from samebits.lab import theme
from samebits.lab.figure import figure, here

# Shape "images×channels×height×width" → way → seconds of each timing.
Timings = Mapping[str, Mapping[str, Sequence[float]]]

SIZES = (8, 12, 16, 20, 24)


def recorded_timings() -> tuple[Timings, Source]:
    """25 timings of each of six ways on nine shapes, taken once on the machine that the source names.

    They are those of `measured_timings(sizes=(8, 10, 12, 14, 16, 18, 20, 24, 32), rounds=25)`, on one thread of a
    machine that was busy with other work, rounded to a tenth of a microsecond.
    """
    data = json.loads((theme.STATIC / "timings03.json").read_text(encoding="utf-8"))
    seconds = {
        shape: {way: [round(t * 1e-6, 7) for t in timings] for way, timings in ways.items()}
        for shape, ways in data["microseconds"].items()
    }
    return seconds, Source(**data["source"])


def measured_timings(sizes: Sequence[int] = SIZES, rounds: int = 15) -> tuple[Timings, Source]:
    """The same table for eight images of 16 channels, measured on this machine now, on one thread."""
    answer = runner.call(
        "samebits.experiments.conv_autotune:timings",
        {"shapes": [[8, 16, size] for size in sizes], "rounds": rounds},
        seconds=120,
        framework="torch",
    )
    return answer["seconds"], Source(**answer["source"])


def agreement(outputs: Mapping[str, Any]) -> None:
    """Show for each pair of outputs, (n, k, h, w) float32 by name, the share of elements with equal bits."""
    names = list(outputs)
    arrays = [np.asarray(output) for output in outputs.values()]
    bits = [array.view(np.uint32) for array in arrays]
    share = np.array([[float((one == other).mean()) for other in bits] for one in bits])
    farthest = max(int(ulp_distance(one, other).max()) for one in arrays for other in arrays)

    fig, axes = theme.axes(width=6.2, height=4.4)
    axes.grid(False)
    axes.imshow(share, cmap="cividis", vmin=0, vmax=1)
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
    axes.set_yticks(range(len(names)), names)
    for row, column in np.ndindex(share.shape):
        ink = "white" if share[row, column] < 0.5 else theme.DARK_INK
        axes.text(
            column, row, _percent(share[row, column]), ha="center", va="center", color=ink, fontsize=9.5
        )
    axes.set_title("Share of outputs with equal bits")
    pairs = [(i, j) for i in range(len(names)) for j in range(i)]
    same = [f"{names[j]} and {names[i]}" for i, j in pairs if share[i, j] == 1]
    words = "; ".join(f"{names[j]} and {names[i]} {_percent(share[i, j])}" for i, j in pairs)
    figure(
        fig,
        alt=f"A table of the share of outputs in which two ways have equal bits: {words}.",
        source=here(),
        summary=f"All bits equal: {', '.join(same) if same else 'no pair'}. "
        f"The farthest two outputs are {farthest:,} ULPs apart, where the sums nearly cancel.",
    )


def _percent(share: float) -> str:
    """Rounded down, so that 100 % means all."""
    return f"{math.floor(100 * share)} %"


def race(table: Timings, source: Source) -> None:
    """Show every timing by size as a dot, and a line through the medians."""
    shapes = list(table)
    sizes = [int(shape.rsplit("×", 1)[1]) for shape in shapes]
    names = list(table[shapes[0]])
    medians = {name: [1e3 * float(np.median(table[shape][name])) for shape in shapes] for name in names}
    top = 2 * max(map(max, medians.values()))  # a busy machine has timings far above this, which say no more
    above = sum(1e3 * t > top for ways in table.values() for timings in ways.values() for t in timings)

    fig, axes = theme.axes(width=7.0, height=4.0)
    for name in names:
        (line,) = axes.plot(sizes, medians[name], label=name)
        for size, shape in zip(sizes, shapes, strict=True):
            timings = 1e3 * np.array(table[shape][name])
            dots = {"color": line.get_color(), "marker": ".", "linestyle": "none", "alpha": 0.35, "zorder": 1}
            axes.plot(np.full(len(timings), size), timings, **dots)
    axes.set(yscale="log", xlabel="height and width of the images (pixels)", ylabel="milliseconds")
    axes.set_ylim(top=top)
    axes.set_xticks(sizes, map(str, sizes))
    axes.minorticks_off()
    axes.yaxis.set_major_formatter("{x:g}")
    axes.legend(ncols=2, fontsize=9)
    fastest = [min(names, key=lambda name: medians[name][place]) for place in range(len(sizes))]
    changes = len(set(fastest)) > 1
    axes.set_title(
        "The fastest way changes with the size" if changes else f"{fastest[0]} is always the fastest"
    )
    winners = ", ".join(f"{size}: {name}" for size, name in zip(sizes, fastest, strict=True))
    lie = "timing lies" if above == 1 else "timings lie"
    unseen = f" {above} slow {lie} above the frame." if above else ""
    figure(
        fig,
        alt=f"Milliseconds against image size for {', '.join(names)}: a line through the medians and a dot for each "
        f"timing. Lowest median at each size: {winners}.",
        source=source,
        summary=f"Lowest median at each size: {winners}. Where dots of two ways overlap, a race can end either way."
        f"{unseen}",
    )
