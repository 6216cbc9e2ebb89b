"""thousand-models: one graph network, trained many times, with one thing different from run to run."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from samebits import machine, thousand
from samebits.bits import fingerprint
from samebits.experiment import BadSetting, Experiment, Knob, Observation, Prepared

GRAPHS = ("synthetic", "harder", "Cora")
VARIES = ("order of the sums", "first weights", "nothing")
RATES = ("0.01", "0.1", "1.0")


@dataclass(frozen=True)
class _State:
    graph: thousand.Graph
    settings: dict
    member: Iterator[int]  # goes on where the last observation ended


def prepare(settings: dict) -> Prepared:
    import numba

    graph = _graph(settings["graph"])
    # Compiled here, and not within the first observation's time.
    next(thousand.train(graph, epochs=0))
    return Prepared(
        _State(graph, settings, itertools.count()),
        seen={"nodes": graph.nodes, "edges": graph.edges, "threads": settings["threads"]},
        device=machine.device_words(threads=settings["threads"]),
        libraries={"numba": numba.__version__, "numpy": np.__version__},
        model=thousand.MODEL,
    )


def waiting() -> str:
    """The trainer is compiled, or read from numba's cache, once in a process."""
    return "" if "samebits.graphsage" in sys.modules else thousand.GETTING_READY


def _graph(name: str) -> thousand.Graph:
    if name != "Cora":
        return thousand.synthetic_graph(topical=0.5 if name == "synthetic" else 0.3)
    folder = os.environ.get("SAMEBITS_CORA", "")
    if not folder:
        raise BadSetting(
            "Cora does not come with the course; set SAMEBITS_CORA to the folder with cora.content and cora.cites."
        )
    try:
        return thousand.cora(folder)
    except ValueError as error:
        raise BadSetting(str(error)) from error


def observe(state: _State, n: int) -> Iterator[Observation]:
    settings, graph = state.settings, state.graph
    members = list(itertools.islice(state.member, n))
    fixed = [settings["seed"]] * n
    own = [1_000_000 * settings["seed"] + member for member in members]
    models = thousand.train(
        graph,
        orders=own if settings["varies"] == "order of the sums" else fixed,
        starts=own if settings["varies"] == "first weights" else fixed,
        epochs=settings["epochs"],
        learning_rate=float(settings["rate"]),
        threads=settings["threads"],
    )
    given = fingerprint(graph.arrays, "xxh3")
    for model in models:
        first = fingerprint(thousand.first_weights(graph, model.start), "xxh3")
        yield Observation(
            fingerprint(model.weights),
            fingerprint(np.array([given, first]).view(np.uint8), "xxh3"),
            model.seconds,
            scalars={"loss": float(model.losses[-1]), "accuracy": model.accuracy(graph)},
            reported={"predictions": fingerprint(model.predictions, "xxh3")},
            sample=tuple(model.weights[:64].tolist()),
        )


def code(settings: dict) -> str:
    seed = settings["seed"]
    orders = "run" if settings["varies"] == "order of the sums" else seed
    starts = "run" if settings["varies"] == "first weights" else seed
    return f"""\
# graph: {settings["graph"]}
for run in range(1000):
    weights = uniform(seed={starts})
    orders = permutations(seed={orders})
    for step in range({settings["epochs"]}):
        z = features @ layer1
        h = relu(sum_in_order(z, next(orders)) / degree + z_self + bias1)
        y = h @ layer2
        logits = sum_in_order(y, next(orders)) / degree + y_self + bias2
        gradient = backward(cross_entropy(logits[training], labels))  # sums in orders of their own, too
        weights = adam(weights, gradient, rate={settings["rate"]}, weight_decay=5e-4)"""


THOUSAND_MODELS = Experiment(
    name="thousand-models",
    title="One thousand models",
    question="Everything is seeded, and one thing is left to vary. How many models?",
    knobs=(
        Knob(
            "varies",
            "What varies",
            "The one thing that differs from run to run.",
            "choice",
            VARIES[0],
            choices=VARIES,
        ),
        Knob(
            "epochs", "Epochs", "Steps of Adam, each on all training nodes.", "number", 10, low=1, high=1000
        ),
        Knob("rate", "Learning rate", "Size of a step.", "choice", RATES[0], choices=RATES),
        Knob(
            "graph",
            "Graph",
            "Synthetic with Cora's numbers, the same with features that say less, or Cora from $SAMEBITS_CORA.",
            "choice",
            GRAPHS[0],
            choices=GRAPHS,
        ),
        Knob("seed", "Seed", "Of everything that is seeded.", "number", 0, low=0, high=1_000_000),
        Knob("threads", "Threads", "Over which the trainings are spread.", "number", 2, low=1, high=64),
    ),
    prepare=prepare,
    observe=observe,
    code=code,
    waiting=waiting,
    repeats=1000,
)
