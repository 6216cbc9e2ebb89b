"""A thousand trainings of one graph network: everything seeded, and one source of variation left in.

    graph = synthetic_graph()
    models = list(train(graph, orders=range(1000)))      # one start, a thousand orders of the neighbour sums
    len({fingerprint(model.weights) for model in models})

The network is GraphSAGE with two layers and the mean of the neighbours (Hamilton, Ying & Leskovec, NeurIPS
2017), 16 hidden units, trained by Adam on all training nodes at once, without dropout. A layer multiplies
before it takes the mean: the mean of products is the product of the mean, and shorter rows are added.

MODEL: on a GPU, atomics add the terms of a neighbour sum in the order in which threads arrive. Here each sum
takes a random order instead, as arXiv:2408.05148 models it, and is rounded after each addition. Each such sum
is one that the hardware could give, as far as no order is excluded by how threads are scheduled. What this
leaves out: real orders are not uniformly random, and may vary less, or not at all.
"""

from __future__ import annotations

import collections
import functools
import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from samebits import machine

HIDDEN = 16  # the same as graphsage.HIDDEN, which cannot be read without importing numba
MODEL = (
    "each neighbour sum in a random order, as arXiv:2408.05148 models atomics; "
    "hardware's orders are not uniformly random"
)

GETTING_READY = (
    "Getting the compiled trainer ready: some seconds if it is in numba's cache, up to a minute if not …"
)

# --- Graphs ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Graph:
    """A graph whose nodes have sparse features and a class.

    pairs             (2 · edges, 2) int32: each edge in both directions, sorted by its first node
    rows, columns, values   features as compressed sparse rows: (nodes + 1,), (nonzeros,), (nonzeros,);
                      each row adds up to 1
    labels            (nodes,) int32
    training, test    indices of nodes, int32, sorted; the rest is not used
    features, classes how many there are
    """

    name: str
    pairs: np.ndarray
    rows: np.ndarray
    columns: np.ndarray
    values: np.ndarray
    labels: np.ndarray
    training: np.ndarray
    test: np.ndarray
    features: int
    classes: int
    starts: np.ndarray = field(init=False)  # neighbours of v: pairs[starts[v] : starts[v + 1], 1]
    needed: tuple[np.ndarray, np.ndarray, np.ndarray] = field(init=False)

    def __post_init__(self):
        counts = np.bincount(self.pairs[:, 0], minlength=self.nodes)
        object.__setattr__(self, "starts", np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))
        # A weight depends on the training nodes, their neighbours, and the neighbours of those.
        hidden = self._with_neighbours(self.training)
        object.__setattr__(self, "needed", (self._with_neighbours(hidden), hidden, self.training))

    def _with_neighbours(self, nodes: np.ndarray) -> np.ndarray:
        reached = self.pairs[np.isin(self.pairs[:, 0], nodes), 1]
        return np.union1d(nodes, reached).astype(np.int32)

    @property
    def nodes(self) -> int:
        return len(self.labels)

    @property
    def edges(self) -> int:
        return len(self.pairs) // 2

    @property
    def neighbours(self) -> np.ndarray:
        return np.ascontiguousarray(self.pairs[:, 1])

    @property
    def arrays(self) -> list[np.ndarray]:
        """Everything that a training reads, for a fingerprint of its input."""
        return [self.pairs, self.rows, self.columns, self.values, self.labels, self.training]


def synthetic_graph(seed: int = 0, topical: float = 0.5) -> Graph:
    """A degree-corrected graph with Cora's numbers: 2,708 nodes, 5,429 edges, 1,433 features, 7 classes.

    seed     of everything in it
    topical  share of a node's features that come from the 200 of its class; the rest is any. Less is harder.

    Ends of an edge are drawn with weights 1 / rank^0.55, so that a few nodes have many neighbours; a pair of
    two classes is kept with probability 0.08. A node has 10 to 26 features. 20 nodes of each class are for
    training, 1,000 of the others for the test.
    """
    nodes, edges, features, classes = 2708, 5429, 1433, 7
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, nodes)
    weight = rng.permutation(np.arange(1, nodes + 1) ** -0.55)
    found = np.empty((0, 2), np.int64)
    while len(found) < edges:
        a, b = rng.choice(nodes, (2, 20_000), p=weight / weight.sum())
        kept = (a != b) & ((labels[a] == labels[b]) | (rng.random(20_000) < 0.08))
        drawn = np.sort(np.stack([a, b], axis=1)[kept], axis=1)
        found = np.concatenate([found, drawn])
        found = found[np.sort(np.unique(found, axis=0, return_index=True)[1])]
    topics = [rng.choice(features, 200, replace=False) for _ in range(classes)]
    chosen = []
    for label in labels:
        count = int(rng.integers(10, 27))
        own = rng.choice(topics[label], int(count * topical), replace=False)
        chosen.append(np.union1d(own, rng.choice(features, count - len(own), replace=False)))
    return _graph("synthetic", found[:edges], chosen, labels, features, classes, rng)


def cora(folder: str | Path) -> Graph:
    """The citation graph Cora from `folder`, which must hold cora.content and cora.cites as distributed.

    cora.content has a line for each paper: its name, 0 or 1 for each word, its class. cora.cites has a line
    for each citation: the cited paper and the citing one. Directions, repeated pairs and self-citations are
    dropped. Raises ValueError, in one sentence, for files that are missing or something else.
    """
    content = [line.split() for line in _lines(Path(folder) / "cora.content")]
    if not content or len({len(words) for words in content}) != 1 or len(content[0]) < 3:
        raise ValueError(
            "cora.content is not as distributed: each line holds a name, 0s and 1s, and a class."
        )
    flags = np.array([words[1:-1] for words in content])
    if not np.isin(flags, ["0", "1"]).all():
        raise ValueError("cora.content is not as distributed: its words must be 0 or 1.")
    number = {words[0]: node for node, words in enumerate(content)}
    classes, labels = np.unique([words[-1] for words in content], return_inverse=True)
    cites = [line.split() for line in _lines(Path(folder) / "cora.cites")]
    if not cites or any(len(words) != 2 for words in cites):
        raise ValueError("cora.cites is not as distributed: each line holds two names of papers.")
    pairs = [sorted((number[a], number[b])) for a, b in cites if a in number and b in number and a != b]
    if not pairs or min(np.bincount(labels)) < 20:
        raise ValueError(
            "These files hold too little to train on: citations of listed papers, 20 papers a class."
        )
    chosen = [np.flatnonzero(row == "1") for row in flags]
    edges = np.unique(np.array(pairs), axis=0)
    return _graph("Cora", edges, chosen, labels, flags.shape[1], len(classes), np.random.default_rng(0))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ValueError(
            f"{path.name} cannot be read ({error.strerror}); name the folder with cora.content and cora.cites."
        ) from None
    except UnicodeDecodeError:
        raise ValueError(f"{path.name} is no text file; take it from the archive as distributed.") from None


def _graph(
    name: str,
    edges: np.ndarray,
    chosen: list[np.ndarray],
    labels: np.ndarray,
    features: int,
    classes: int,
    rng: np.random.Generator,
) -> Graph:
    """From undirected edges and each node's features. A row is divided by its sum: sums of 0s and 1s are
    exact in float32, and no order would show in them."""
    pairs = np.concatenate([edges, edges[:, ::-1]])
    pairs = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))].astype(np.int32)
    counts = np.array([len(columns) for columns in chosen])
    training = np.concatenate([rng.permutation(np.flatnonzero(labels == c))[:20] for c in range(classes)])
    others = np.setdiff1d(np.arange(len(labels)), training)
    return Graph(
        name,
        pairs,
        rows=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        columns=np.concatenate(chosen).astype(np.int32),
        values=np.repeat(1 / np.maximum(counts, 1), counts).astype(np.float32),
        labels=labels.astype(np.int32),
        training=np.sort(training).astype(np.int32),
        test=np.sort(rng.permutation(others)[:1000]).astype(np.int32),
        features=features,
        classes=classes,
    )


# --- Trainings ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Model:
    """One trained model.

    start, order  the seeds that it was trained with; order None: each node's neighbours in their given order
    weights       (P,) float32; `tensors` names its parts
    losses        (epochs,) float64: the training loss before each step
    logits        (nodes, classes) float32, of all nodes after the last step
    history       (epochs + 1, P) float32: the weights before the first step and after each, if they were kept
    seconds       of this training alone
    """

    start: int
    order: int | None
    weights: np.ndarray
    losses: np.ndarray
    logits: np.ndarray
    history: np.ndarray
    seconds: float

    @property
    def predictions(self) -> np.ndarray:
        """(nodes,) int64: the class of each node."""
        return self.logits.argmax(axis=1)

    def accuracy(self, graph: Graph) -> float:
        """Share of the test nodes whose class is predicted."""
        return float((self.predictions == graph.labels)[graph.test].mean())


def train(
    graph: Graph,
    *,
    orders: Iterable[int | None] = (None,),
    starts: Iterable[int] | None = None,
    epochs: int = 10,
    learning_rate: float = 0.01,
    weight_decay: float = 5e-4,
    keep_history: bool = False,
    threads: int | None = None,
    on_wait: Callable[[str], None] = lambda sentence: None,
) -> Iterator[Model]:
    """One model for each of `orders` and `starts`, in this order, as they get ready.

    orders   seed of each model's orders of summation; None: the given order
    starts   seed of each model's first weights; by default 0 for all
    threads  over which the models are spread, by default one for each core; a model's bits don't depend on it
    on_wait  told, in a sentence, before the trainer is compiled or loaded

    Learning rate and weight decay are the paper's. Nothing but a few models is held at a time.
    """
    starts = itertools.repeat(0) if starts is None else starts
    trainer = _trainer(on_wait)
    everything = np.arange(graph.nodes, dtype=np.int32)
    neighbours = graph.neighbours
    first = functools.lru_cache(maxsize=8)(lambda start: first_weights(graph, start))

    def one(start: int, order: int | None) -> Model:
        weights = first(start).copy()
        losses = np.zeros(epochs)
        history = np.empty((epochs + 1 if keep_history else 0, weights.size), np.float32)
        logits = np.empty((graph.nodes, graph.classes), np.float32)
        began = time.perf_counter()
        trainer(
            weights, epochs, learning_rate, weight_decay, _state(order), order is not None, graph.needed, graph.starts,
            neighbours, graph.rows, graph.columns, graph.values, graph.labels, everything, losses, history, logits,
        )  # fmt: skip
        return Model(start, order, weights, losses, logits, history, time.perf_counter() - began)

    # The trainer holds no lock of the interpreter, so plain threads run it side by side. Each model is computed
    # by one of them from start to end: how many there are cannot reach its bits.
    threads = threads or machine.usable_cores()
    waiting: collections.deque = collections.deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for start, order in zip(starts, orders, strict=False):
                waiting.append(pool.submit(one, start, order))
                if len(waiting) > 2 * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def first_weights(graph: Graph, seed: int = 0) -> np.ndarray:
    """(P,) float32 from −1/√n to 1/√n, uniformly, where n is how many inputs a layer has; biases are 0."""
    rng = np.random.default_rng(seed)
    shapes = {"layer 1": (graph.features, 2 * HIDDEN), "layer 2": (HIDDEN, 2 * graph.classes)}
    drawn = [
        rng.uniform(-1, 1, shape).astype(np.float32) / np.float32(shape[0] ** 0.5)
        for shape in shapes.values()
    ]
    biases = np.zeros(HIDDEN, np.float32), np.zeros(graph.classes, np.float32)
    return np.concatenate([drawn[0].ravel(), biases[0], drawn[1].ravel(), biases[1]])


def tensors(graph: Graph, weights: np.ndarray) -> dict[str, np.ndarray]:
    """The parts of `weights` by name, as views of shape (inputs, outputs) or (outputs,)."""
    layer1, bias1, layer2, bias2 = np.split(weights, np.cumsum(_sizes(graph))[:-1])
    layer1 = layer1.reshape(graph.features, 2 * HIDDEN)
    layer2 = layer2.reshape(HIDDEN, 2 * graph.classes)
    return {
        "layer 1, neighbours": layer1[:, :HIDDEN],
        "layer 1, self": layer1[:, HIDDEN:],
        "layer 1, bias": bias1,
        "layer 2, neighbours": layer2[:, : graph.classes],
        "layer 2, self": layer2[:, graph.classes :],
        "layer 2, bias": bias2,
    }


def _sizes(graph: Graph) -> list[int]:
    return [graph.features * 2 * HIDDEN, HIDDEN, HIDDEN * 2 * graph.classes, graph.classes]


def _state(order: int | None) -> np.uint64:
    """Where the random numbers of an order start: seeds next to each other give unrelated streams."""
    return np.random.SeedSequence(0 if order is None else order).generate_state(1, np.uint64)[0]


def _trainer(on_wait: Callable[[str], None]) -> Callable:
    on_wait(GETTING_READY)
    from samebits import graphsage

    return graphsage.train
