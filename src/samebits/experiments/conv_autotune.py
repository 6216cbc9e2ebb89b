"""conv-autotune: six ways race for a convolution, and the fastest gets the job."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from samebits import machine
from samebits.bits import fingerprint
from samebits.experiment import Experiment, Knob, Observation, Prepared, Source, now
from samebits.experiments import convolution, torch_worker

MARGIN = 1.5
TIMES = 5  # timings of each way from which a rule with a margin takes the least
FASTEST, WITH_MARGIN, FIXED = (
    "the fastest of one timing each",
    "the first that none beats by half",
    "always native",
)
ONCE, EACH = "once per process", "before each run"


@dataclass(frozen=True)
class _State:
    rule: str
    choice: str | None  # made already, or None for a race before each run
    inputs: tuple[Any, Any]


def race(ways: Mapping[str, Callable[[Any, Any], Any]], x, w, times: int = 1) -> dict[str, float]:
    """Way → seconds, the least of `times` timings; each way has been called once before."""
    seconds = {}
    for name, way in ways.items():
        seconds[name] = min(torch_worker.timed(lambda way=way: way(x, w), x.device)[1] for _ in range(times))
    return seconds


def choose(rule: str, ways: Mapping[str, Callable[[Any, Any], Any]], x, w) -> tuple[str, int]:
    """(the way that the rule picks, how many timings it took for that)."""
    if rule == FIXED:
        return "native", 0
    if rule == FASTEST:
        seconds = race(ways, x, w)
        return min(seconds, key=seconds.get), len(seconds)
    seconds = race(ways, x, w, times=TIMES)
    first = next(name for name in seconds if seconds[name] <= MARGIN * min(seconds.values()))
    return first, TIMES * len(seconds)


def prepare(settings: dict) -> Prepared:
    import torch

    torch_worker.set_flags(threads=settings["threads"])
    x, w, _ = convolution.inputs(settings)
    ways = convolution.ways()
    for way in ways.values():
        way(x, w)  # the first call compiles and allocates; racing it would time that
    choice, timed = choose(settings["rule"], ways, x, w) if settings["when"] == ONCE else (None, 0)
    return Prepared(
        _State(settings["rule"], choice, (x, w)),
        seen={
            "threads": torch.get_num_threads(),
            "images": convolution.shape_words(x),
            "timings before the first run": timed,
        },
        device=torch_worker.device_words(x.device),
        libraries={"torch": torch.__version__},
    )


def observe(state: _State, n: int) -> Iterator[Observation]:
    x, w = state.inputs
    given = fingerprint([x, w], "xxh3")
    ways = convolution.ways()
    for _ in range(n):
        choice, timed = (state.choice, 0) if state.choice else choose(state.rule, ways, x, w)
        y, seconds = torch_worker.timed(lambda choice=choice: ways[choice](x, w), x.device)
        yield Observation(
            fingerprint(y),
            given,
            seconds,
            reported={"chosen": choice, "timings in a run": timed},
            sample=tuple(y.flatten()[:64].tolist()),
        )


def timings(shapes: list[list[int]], rounds: int, threads: int = 1) -> dict[str, Any]:
    """For runner.call: times every way on each [batch, channels, size], `rounds` times, taking turns.

    {"seconds": {"8×16×16×16": {way: [seconds, …]}}, "source": the fields of a Source}
    """
    import torch

    torch_worker.set_flags(threads=threads)
    measured: dict[str, dict[str, list[float]]] = {}
    for batch, channels, size in shapes:
        x, w, _ = convolution.inputs({"batch": batch, "channels": channels, "size": size})
        ways = convolution.ways()
        race(ways, x, w)
        table = measured[f"{batch}×{channels}×{size}×{size}"] = {name: [] for name in ways}
        end = time.monotonic() + 10  # a very busy machine gets fewer rounds, never none
        for done in range(rounds):
            if done and time.monotonic() > end:
                break
            for name, seconds in race(ways, x, w).items():
                table[name].append(seconds)
    source = Source("LIVE", machine.device_words(threads=threads), {"torch": torch.__version__}, now())
    return {"seconds": measured, "source": vars(source)}


def code(settings: dict) -> str:
    before = {ONCE: "# once, when the process starts:", EACH: "# before each run:"}[settings["when"]]
    rule = {
        FASTEST: "seconds = {name: time_once(ways[name], x, w) for name in ways}\n"
        "chosen = min(seconds, key=seconds.get)",
        WITH_MARGIN: f"seconds = {{name: min(time_once(ways[name], x, w) for _ in range({TIMES})) for name in ways}}\n"
        f"chosen = next(name for name in ways if seconds[name] <= {MARGIN} * min(seconds.values()))",
        FIXED: 'chosen = "native"',
    }[settings["rule"]]
    return "\n".join(
        [
            f"torch.set_num_threads({settings['threads']})",
            convolution.code(settings),
            before,
            rule,
            "y = ways[chosen](x, w)",
        ]
    )


CONV_AUTOTUNE = Experiment(
    name="conv-autotune",
    title="The fastest gets the job",
    question="Does a race for speed pick the same algorithm every time?",
    knobs=(
        Knob(
            "rule",
            "Who gets the job",
            "How the algorithm is chosen among the six.",
            "choice",
            FASTEST,
            choices=(FASTEST, WITH_MARGIN, FIXED),
        ),
        Knob(
            "when",
            "When",
            "cuDNN's benchmark mode chooses once for each shape and process, and keeps the choice.",
            "choice",
            EACH,
            choices=(EACH, ONCE),
        ),
        *convolution.SHAPE,
        convolution.THREADS,
    ),
    prepare=prepare,
    observe=observe,
    code=code,
    framework="torch",
    fresh=True,
)
