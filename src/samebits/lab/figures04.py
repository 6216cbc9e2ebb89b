"""The pictures of chapter 04."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from samebits.bits import ulp
from samebits.experiment import Runs, Source
from samebits.lab import theme
from samebits.lab.figure import figure, here
from samebits.variability import letters

MARKERS = "sDo^v"


def environments(seen: Mapping[str, Mapping[str, str]]) -> None:
    """Show which setting changed the bits of which operation; each column is lettered on its own.

    seen  words for the setting → "input" or operation → fingerprint; the first setting is the one to compare with
    """
    settings, ops = list(seen), list(next(iter(seen.values())))
    columns = {op: letters([seen[setting][op] for setting in settings]) for op in ops}
    fig, axes = theme.axes(width=7.4, height=0.6 + 0.42 * len(settings))
    axes.set(xlim=(-0.5, len(ops) - 0.5), ylim=(len(settings) - 0.5, -0.5))
    axes.set_xticks(range(len(ops)), ops)
    axes.set_yticks(range(len(settings)), settings)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    for x, op in enumerate(ops):
        for y, letter in enumerate(columns[op]):
            _tile(axes, x, y, letter)
    changed = {
        setting: [op for op in ops if columns[op][row] != columns[op][0]]
        for row, setting in enumerate(settings[1:], start=1)
    }
    words = [
        f"{setting} changed {', '.join(reached)}" if reached else f"{setting} changed nothing"
        for setting, reached in changed.items()
    ]
    axes.set_title("Which variable changed which operation here")
    figure(
        fig,
        alt="A table of letters: one row for each setting, one column for each operation. "
        + "; ".join(f"{op}: {' '.join(column)}" for op, column in columns.items())
        + ".",
        source=here(),
        summary="; ".join(words) + ".",
    )


def _tile(axes, x: float, y: float, letter: str) -> None:
    from matplotlib.patches import FancyBboxPatch

    colour = theme.tile_colour(letter)
    box = FancyBboxPatch((x - 0.16, y - 0.32), 0.32, 0.64, boxstyle="round,pad=0,rounding_size=0.05")
    box.set(facecolor=colour, linewidth=0)
    axes.add_patch(box)
    centre = {"ha": "center", "va": "center", "weight": "bold", "family": "DejaVu Sans"}
    axes.text(x, y + 0.03, letter, color=theme.ink(colour), fontsize=10, **centre)


def one_element(runs: Mapping[str, Runs], exact: np.ndarray) -> None:
    """Show where the runs of each way put one element of the product, beside its value in float64.

    runs   way → its runs; each holds a sample of the same elements
    exact  those elements, in float64, whose own error is far below a ULP of float32; the one drawn is where the
           runs lie farthest apart
    """
    samples = {way: np.array([o.sample for o in found.observations]) for way, found in runs.items()}
    element = int(np.argmax(np.ptp(np.concatenate(list(samples.values())), axis=0)))
    unit = ulp(float(np.float32(exact[element])), "float32")
    fig, axes = theme.axes(width=7.4, height=2.6)
    scatter = np.random.default_rng(0)
    labels = []
    for row, (way, sample) in enumerate(samples.items()):
        errors = (sample[:, element].astype(np.float64) - exact[element]) / unit
        heights = row + scatter.uniform(-0.2, 0.2, len(errors))
        axes.plot(errors, heights, marker=MARKERS[row], linestyle="none", markersize=6, alpha=0.55)
        count = len(set(errors))
        labels.append(f"{way}: {count} value{'s' * (count > 1)}")
    axes.axvline(0, color="#767676", linewidth=1, linestyle="--")
    axes.set_yticks(range(len(samples)), labels)
    axes.set_ylim(len(samples) - 0.5, -0.5)
    axes.set_xlabel("error of the element, in ULPs of float32 (dashed line: computed in float64)")
    axes.set_title("One element of one product, added three ways")
    figure(
        fig,
        alt=f"One row of marks for each way of adding the parts, placed by the error of element {element}. "
        f"{'; '.join(labels)}.",
        source=Source.joined(measured.source for measured in runs.values()),
        summary="; ".join(labels) + ".",
    )
