"""The pictures of chapter 08, the published prices, and the table of timings that its lab reads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from samebits import claims
from samebits.experiment import Runs, Source
from samebits.experiments.price import Spread, in_words, spread
from samebits.lab import theme
from samebits.lab.errors import LabError
from samebits.lab.figure import figure

# Case → (seconds of each round without the flag, seconds of the same rounds with it).
Table = Mapping[str, tuple[Sequence[float], Sequence[float]]]

BLUE, VERMILLION, GREEN = "#0072B2", "#D55E00", "#009E73"
POPULAR = (1.1, 1.2)


@dataclass(frozen=True)
class Published:
    """A published price: what was timed, the claim whose value it is, and what to know before quoting it."""

    what: str
    value: str
    caveat: str

    @property
    def ratio(self) -> float:
        return float(claims.value(self.value).rstrip("×"))


PUBLISHED = (
    Published("sum of 4 million, V100", "08-sums.v100", "another algorithm, not a flag; 100 sums"),
    Published("sum of 4 million, GH200", "08-sums.gh200", "another algorithm, not a flag; 100 sums"),
    Published(
        "training, large language models", "08-megatron.before", "“roughly”; most of it was filling memory"
    ),
    Published("large language models, not filled", "08-megatron.after", "“roughly”, by the same author"),
    Published("training step, object detector, B200", "08-detector.filling", "filling memory alone"),
    Published(
        "language model, serving (SGLang)", "08-serving.sglang", "batch-invariant kernels, not the flag"
    ),
    Published("training step, GPT, eight H100", "08-gate.step", "one step of one failed speed test"),
    Published("language model, serving (vLLM)", "08-serving.vllm", "batch-invariant kernels; one load"),
    Published("graph network, inference, H100", "08-sage.inference", "no waiting for the GPU in the timing"),
    Published(
        "graph network, training, H100", "08-sage.training", "its one run was the first in the process"
    ),
    Published("ConvTranspose2d, H100", "08-ops.transposed", "one operation on small images, mean of 1,000"),
    Published("index_add, H100", "08-ops.index_add", "one operation; 1.01× to 11.1× by size"),
    Published("ConvTranspose1d, one shape", "08-speech.slower", "PyTorch 1.7.1; not seen with 1.5.0"),
)


def recorded_prices() -> tuple[Table, Source]:
    """25 rounds of each of ten cases, timed once on the machine that the source names.

    They are those of the experiment "price", turn by turn, on a machine that was busy with other work, rounded to
    a hundredth of a microsecond.
    """
    data = json.loads((theme.STATIC / "prices08.json").read_text(encoding="utf-8"))
    seconds = {
        case: tuple([round(t * 1e-6, 8) for t in arms[arm]] for arm in ("without", "with"))
        for case, arms in data["microseconds"].items()
    }
    return seconds, Source(**data["source"])


def prices(cases: Mapping[str, Runs] | Table, source: Source | None = None, popular: bool = True) -> None:
    """Show every round's ratio as a dot, and for each case the median and the middle half.

    cases    label → Runs of the experiment "price", or the two lists of seconds of a Table, which needs `source`
    popular  also shade 1.1 to 1.2

    Raises LabError where nothing was measured.
    """
    if not cases:
        raise LabError("There is nothing to show yet. Run the cells above first.")
    ratios = {label: _ratios(case) for label, case in cases.items()}
    source = source or Source.joined(case.source for case in cases.values() if isinstance(case, Runs))
    spreads = {label: spread(values) for label, values in ratios.items()}

    fig, axes = _axes(list(ratios), popular)
    jitter = np.random.default_rng(0)
    for row, (label, values) in enumerate(ratios.items()):
        heights = row + jitter.uniform(-0.22, 0.22, len(values))
        dots = {"marker": ".", "markersize": 5, "alpha": 0.35, "linestyle": "none"}
        axes.plot(values, heights, color=BLUE, zorder=2, **dots)
        middle = spreads[label]
        axes.plot(
            [middle.low, middle.high], [row, row], color=VERMILLION, linewidth=4, marker="", linestyle="-"
        )
        axes.plot([middle.median], [row], color=VERMILLION, marker="D", markersize=7, linestyle="none")
        axes.annotate(
            in_words(middle.median), (1.01, row), xycoords=("axes fraction", "data"), va="center", fontsize=10
        )
    _finish(axes, _title(spreads), [value for values in ratios.values() for value in values])
    settled = [f"{label}: {_verdict(middle)}" for label, middle in spreads.items()]
    figure(
        fig,
        alt="Time with the switch as a multiple of the time without, on a logarithmic axis: a dot for each round, a "
        "diamond for the median, a bar for the middle half. "
        + " ".join(f"{label}: {middle}." for label, middle in spreads.items()),
        source=source,
        summary="; ".join(settled) + ".",
    )


def published() -> None:
    """Show the published prices on the same kind of axis, each with its caveat."""
    rows = sorted(PUBLISHED, key=lambda entry: entry.ratio)
    fig, axes = _axes([entry.what for entry in rows], popular=True, width=8.6)
    for row, entry in enumerate(rows):
        axes.plot(
            [entry.ratio], [row], color=GREEN, marker="D", markersize=7, fillstyle="none", linestyle="none"
        )
        axes.annotate(
            f"{entry.ratio:g}  {entry.caveat}",
            (1.02, row),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=9,
        )
    inside = sum(POPULAR[0] <= entry.ratio <= POPULAR[1] for entry in rows)
    title = f"Published: {inside} of {len(rows)} between 1.1 and 1.2"
    _finish(axes, title, [entry.ratio for entry in rows])
    figure(
        fig,
        alt="Published prices on a logarithmic axis. "
        + " ".join(f"{entry.what}: {entry.ratio:g} ({entry.caveat})." for entry in rows),
        source=Source(
            "PUBLISHED", why="each with its source under “Where this comes from”; none was repeated here"
        ),
        summary=f"From {rows[0].ratio:g} to {rows[-1].ratio:g}.",
    )


def contention(runs: Mapping[tuple[int, int], Runs]) -> None:
    """Show the time of adding into slots, without the flag for each number of threads, and with it.

    runs  (threads, slots) → Runs of the experiment "price"
    """
    threads = sorted({key[0] for key in runs})
    slots = sorted({key[1] for key in runs})
    fig, axes = theme.axes(width=8.4, height=3.8)
    medians = {}
    for number in threads:
        line = [1e3 * spread(runs[number, size].scalars("without")).median for size in slots]
        medians[number] = line
        axes.plot(slots, line, label=f"without, {number} thread{'s' * (number > 1)}", markersize=6)
    most = threads[-1]
    flagged = [1e3 * spread(runs[most, size].scalars("with")).median for size in slots]
    axes.plot(slots, flagged, label=f"with, {most} thread{'s' * (most > 1)}", markersize=6)
    axes.set(xscale="log", yscale="log", xlabel="slots", ylabel="milliseconds (median)")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xticks(slots, [f"{size:,}" for size in slots])
    axes.minorticks_off()
    axes.legend(fontsize=9, loc="upper left", bbox_to_anchor=(1.01, 1))
    quickest = min(threads, key=lambda number: medians[number][0])
    axes.set_title(f"Fewest slots: fastest without the flag on {quickest} thread{'s' * (quickest > 1)}")
    words = [
        f"Without, {number} thread{'s' * (number > 1)}: " + ", ".join(f"{m:.3g}" for m in medians[number])
        for number in threads
    ]
    figure(
        fig,
        alt=f"Median milliseconds against the number of slots ({', '.join(f'{size:,}' for size in slots)}), both axes "
        f"logarithmic. {'. '.join(words)}. With the flag, {most} threads: {', '.join(f'{m:.3g}' for m in flagged)}.",
        source=Source.joined(measured.source for measured in runs.values()),
    )


def _ratios(case: Runs | tuple[Sequence[float], Sequence[float]]) -> list[float]:
    if isinstance(case, Runs):
        return case.scalars("ratio")
    without, with_flag = case
    return [b / a for a, b in zip(without, with_flag, strict=True)]


def _axes(labels: list[str], popular: bool, width: float = 7.6):
    """A logarithmic axis of ratios with a row for each label, a line at 1 and the popular band."""
    fig, axes = theme.axes(width=width, height=1.3 + 0.36 * len(labels))
    axes.set_xscale("log")
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.axvline(1, color="#444444", linewidth=1.2, linestyle="-", marker="")
    if popular:
        axes.axvspan(*POPULAR, color="#E69F00", alpha=0.35, linewidth=0)
        axes.annotate(
            "“10 to 20 %”", (1.15, 1), xycoords=("data", "axes fraction"), xytext=(0, 2), textcoords="offset points",
            ha="center", fontsize=8.5, color="#7A5200",
        )  # fmt: skip
    axes.set_xlabel("time with, as a multiple of without (no unit)")
    return fig, axes


def _finish(axes, title: str, values: Sequence[float]) -> None:
    """The title, above the words of the band, and ticks that name ratios as people do."""
    axes.set_title(title, pad=24)
    low, high = min(*values, 0.9) / 1.15, max(*values, 1.3) * 1.15
    axes.set_xlim(low, high)
    steps = (1, 2, 5) if high / low < 300 else (1,)
    ticks = [step * 10.0**power for power in range(-6, 7) for step in steps]
    axes.set_xticks([tick for tick in ticks if low <= tick <= high])
    axes.minorticks_off()
    axes.xaxis.set_major_formatter("{x:g}")


def _title(spreads: Mapping[str, Spread]) -> str:
    settled = {label: s.median for label, s in spreads.items() if not s.low <= 1 <= s.high}
    if not settled:
        return "No case settled: 1 lies in every middle half"
    if len(settled) == 1:
        return f"Settled: {next(iter(settled))}"
    return f"From {in_words(min(settled.values()))} to {in_words(max(settled.values()))}, where settled"


def _verdict(middle: Spread) -> str:
    if middle.low <= 1 <= middle.high:
        return "not settled"
    return f"{'faster' if middle.median < 1 else 'slower'} ({in_words(middle.median)})"
