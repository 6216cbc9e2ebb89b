"""The pictures of chapter 07."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from samebits.experiment import Source, now
from samebits.lab import theme
from samebits.lab.figure import figure, here
from samebits.thousand import MODEL

BLUE, VERMILLION, GREEN = "#0072B2", "#D55E00", "#009E73"


def model() -> Source:
    """The source of what samebits.thousand has computed in this kernel: a MODEL."""
    live = here()
    return Source("MODEL", live.device, live.libraries, now(), MODEL)


def apart(distances: Mapping[str, Sequence[float]]) -> None:
    """Show how far trainings drift apart, step by step.

    distances  label → relative distance of the weights after step 0, 1, 2, …; zeros are left out
    """
    fig, axes = theme.axes(width=7.4, height=3.6)
    for label, distance in distances.items():
        steps = np.arange(len(distance))
        shown = np.array(distance) > 0
        axes.plot(steps[shown], np.array(distance)[shown], markevery=10, markersize=5, label=label)
    axes.set_yscale("log")
    axes.set_xlabel("step")
    axes.set_ylabel("relative distance (no unit)")
    last = {label: distance[-1] for label, distance in distances.items()}
    largest = max(last, key=last.get)
    axes.set_title(f"Farthest apart at the end: {largest}")
    axes.legend()
    figure(
        fig,
        alt="Largest relative distance between the weights of two trainings over the steps, on a logarithmic axis. "
        + " ".join(
            f"{label}: {_first(distance):.1e} after the first step that differs, {distance[-1]:.1e} at the end."
            for label, distance in distances.items()
        ),
        source=model(),
    )


def spreads(accuracies: Mapping[str, Sequence[float]]) -> None:
    """Show one row of dots for each kind of run.

    accuracies  label → test accuracy of each run, 0 to 1
    """
    scatter = np.random.default_rng(0)
    fig, axes = theme.axes(width=7.4, height=2.4)
    for row, (values, colour, marker) in enumerate(
        zip(accuracies.values(), (BLUE, VERMILLION, GREEN), "os^", strict=False)
    ):
        heights = row + scatter.uniform(-0.2, 0.2, len(values))
        axes.plot(values, heights, marker=marker, markersize=6, alpha=0.6, color=colour, linestyle="none")
    axes.set_yticks(range(len(accuracies)), list(accuracies))
    axes.set_ylim(len(accuracies) - 0.5, -0.5)
    axes.set_xlabel("test accuracy (share of 1,000 nodes)")
    widths = {label: float(np.ptp(values)) for label, values in accuracies.items()}
    axes.set_title(f"Widest spread: {max(widths, key=widths.get)}")
    figure(
        fig,
        alt="One row of dots for each kind of run, one dot for each run, placed by its test accuracy. "
        + " ".join(
            f"{label}: {min(values):.3f} to {max(values):.3f}." for label, values in accuracies.items()
        ),
        source=model(),
    )


def _first(distance: Sequence[float]) -> float:
    return next((value for value in distance if value > 0), 0.0)
