"""The pictures of chapter 01."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from samebits.bits import anatomy, ulp
from samebits.lab import theme
from samebits.lab.figure import figure, here

BLUE, VERMILLION, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#767676"


def number_line(exact: int, dtype: str = "float32") -> None:
    """Show the floats around the whole number `exact`, and which of them it is rounded to."""
    rounded = anatomy(exact, dtype)
    floats = [rounded.value]
    for _ in range(3):
        floats = [anatomy(floats[0], dtype).below, *floats, anatomy(floats[-1], dtype).above]

    fig, axes = theme.axes(width=7.4, height=2.1)
    axes.set(ylim=(-0.4, 1.2), xlim=(floats[0] - 0.8, floats[-1] + 0.8))
    axes.set_xlabel(f"value (each bar is one {dtype} number)")
    axes.set_yticks([])
    axes.grid(False)
    axes.spines["left"].set_visible(False)
    axes.vlines(floats, 0, 0.45, color=BLUE, linewidth=3)
    axes.set_xticks(floats, [_offset(value, rounded.value) for value in floats])
    axes.plot([exact], [0.75], marker="v", color=VERMILLION, markersize=10, linestyle="none")
    axes.text(exact, 0.92, f"{exact:,}", ha="center")
    axes.annotate(
        "",
        (rounded.value, 0.5),
        (exact, 0.72),
        arrowprops={"arrowstyle": "->", "color": VERMILLION, "linewidth": 1.8},
    )
    axes.set_title(f"{dtype} has no {exact:,}: it is rounded to {rounded.value:,.0f}")
    below, above = rounded.value - rounded.below, rounded.above - rounded.value
    figure(
        fig,
        alt=f"A number line with the {dtype} numbers {', '.join(f'{value:,.0f}' for value in floats)} as bars. "
        f"{exact:,} is marked between two of them, with an arrow to {rounded.value:,.0f}.",
        source=here(),
        summary=f"Below {rounded.value:,.0f} the next number is {below:g} away, above it {above:g}.",
    )


def spread(sums: Mapping[str, Sequence[float]], exact: float) -> None:
    """Show how far many sums of the same numbers are from the exact one, algorithm by algorithm.

    sums   name of the algorithm → one sum for each order
    exact  the exact sum
    """
    unit = ulp(exact, "float32")
    scatter = np.random.default_rng(0)
    fig, axes = theme.axes(width=7.4, height=3.6)
    counts = {name: len({float(value) for value in values}) for name, values in sums.items()}
    for row, values in enumerate(sums.values()):
        errors = (np.array(values, dtype=np.float64) - exact) / unit
        heights = row + scatter.uniform(-0.22, 0.22, len(errors))
        axes.plot(errors, heights, marker="o", markersize=3.5, alpha=0.45, color=BLUE, linestyle="none")
    axes.axvline(0, color=GREY, linewidth=1, linestyle="--")
    answers = [f"{name}: {count} answer{'s' if count > 1 else ''}" for name, count in counts.items()]
    axes.set_yticks(range(len(sums)), answers)
    axes.set_ylim(len(sums) - 0.5, -0.5)
    axes.set_xscale("symlog", linthresh=1)
    axes.set_xlabel("error of each sum, in ULPs of float32 (linear between −1 and 1)")
    axes.set_title("The way of adding decides how far the sums scatter")
    figure(
        fig,
        alt="One row of dots for each way of adding, one dot for each order, placed by its error. "
        + ", ".join(answers)
        + ".",
        source=here(),
    )


def growth(
    sizes: Sequence[int], errors: Mapping[str, Sequence[float]], bounds: Mapping[str, Sequence[float]]
) -> None:
    """Show measured errors against their bounds, over the number of summands.

    sizes   how many numbers were added
    errors  name of the algorithm → largest relative error seen at each size; "serial" is among them
    bounds  the same names → the bound that theory gives, to first order
    """
    beyond = [name for name, seen in errors.items() if (np.array(seen) > np.array(bounds[name])).any()]
    if beyond:
        message = f"Beyond the bound: {', '.join(beyond)}"
    else:
        message = "No error exceeds its bound; the serial bound is proportional to n"
    fig, axes = theme.axes(width=7.4, height=4.0)
    for (name, seen), colour, marker in zip(errors.items(), (BLUE, VERMILLION, GREEN), "os^", strict=False):
        look = {"color": colour, "marker": marker}
        axes.plot(sizes, seen, **look, linestyle="-", label=f"{name}: seen")
        axes.plot(sizes, bounds[name], **look, markersize=3, linestyle="--", label=f"{name}: bound")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("n, numbers added")
    axes.set_ylabel("error / Σ|x| (no unit)")
    axes.set_title(message)
    axes.legend(ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.2), fontsize=9)
    largest = {name: f"{seen[-1]:.1e} seen, {bounds[name][-1]:.1e} allowed" for name, seen in errors.items()}
    figure(
        fig,
        alt=f"Error over n from {sizes[0]:,} to {sizes[-1]:,} on two logarithmic axes; solid lines are what was "
        f"seen, dashed lines the bounds. {message}. At the largest n: "
        + "; ".join(f"{name} {words}" for name, words in largest.items())
        + ".",
        source=here(),
    )


def _offset(value: float, middle: float) -> str:
    return f"{value:,.0f}" if value == middle else f"{value - middle:+.0f}".replace("-", "−")
