"""price: one piece of work with a switch off and on, timed turn by turn.

Each observation is a round, in which both arms run once; the arm that goes first changes from round to round.
What a machine does meanwhile (another program, a clock that slows down) meets both arms alike, and the ratio of
a round stays. Timings on CUDA are taken between events. The CUDA paths are not verified on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from samebits.bits import fingerprint
from samebits.experiment import Experiment, Knob, Observation, Prepared, Runs
from samebits.experiments import torch_worker

FLAG, FILL, TF32, NOTHING = "deterministic flag", "filling memory", "TF32", "nothing"
# How each switch reads in code, with {} for off and on; two empty lines for the control.
SWITCHES = {
    FLAG: "torch.use_deterministic_algorithms({})",
    FILL: "torch.utils.deterministic.fill_uninitialized_memory = {}  # under the flag",
    TF32: "torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = {}",
    NOTHING: "pass  # {}: the same thing twice",
}
# How each piece of work reads in code.
CONVOLUTIONS, GRAPH, ATTENTION = "training: convolutions", "training: graph", "training: attention"
WORK = {
    "index_put_": "torch.zeros(slots).index_put_((index,), values, accumulate=True)",
    "x[idx] backward": "(table[index] * values).sum().backward()  # adds into table.grad",
    "index_add_": "torch.zeros(slots).index_add_(0, index, values)",
    "scatter_add_": "torch.zeros(slots).scatter_add_(0, index, values)",
    "overwriting": "torch.zeros(n).index_put_((places,), values)  # each place once",
    "matmul": "matrix @ matrix  # 512 × 512",
    "sum": "values.sum()",
    "new memory": "torch.empty(n)",
    CONVOLUTIONS: "train_convolutions(steps=2)  # 16 images of 3 × 24 × 24, two layers",
    GRAPH: "train_graph(steps=2)  # 2,000 nodes, 12,000 neighbours, two layers that add by index_add_",
    ATTENTION: "train_attention(steps=2)  # 8 sequences of 32 tokens, one layer",
}
SIDE = 512  # of the matrix


@dataclass(frozen=True)
class Spread:
    """The middle of some measurements: first quartile, median, third quartile, and how many there are."""

    low: float
    median: float
    high: float
    count: int

    def __str__(self) -> str:
        low, median, high = map(in_words, (self.low, self.median, self.high))
        rounds = "1 round" if self.count == 1 else f"{self.count} rounds"
        return f"{median} (middle half {low} to {high}, {rounds})"


def in_words(ratio: float) -> str:
    """Three digits, and no powers of ten."""
    return f"{ratio:.0f}" if ratio >= 1000 else f"{ratio:.3g}"


def spread(values: Sequence[float]) -> Spread:
    low, median, high = np.quantile(np.asarray(values, float), (0.25, 0.5, 0.75))
    return Spread(float(low), float(median), float(high), len(values))


@dataclass(frozen=True)
class _State:
    run: Callable[[], Any]
    inputs: list
    switch: str
    device: Any


def turn(switch: str, on: bool) -> None:
    """Turn one switch, and touch no other."""
    import torch

    if switch == FLAG:
        torch.use_deterministic_algorithms(on)
    elif switch == FILL:
        torch.utils.deterministic.fill_uninitialized_memory = on
    elif switch == TF32:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = on


def prepare(settings: dict) -> Prepared:
    import torch

    switch = settings["switch"]
    torch_worker.set_flags(
        threads=settings["threads"], deterministic=switch == FILL, cudnn_benchmark=settings["benchmark"]
    )
    device = torch_worker.choose_device(settings["device"])
    run, inputs = _work(settings, device)
    seen = {}
    for arm in (False, True):
        turn(switch, arm)  # the flag's first call in a process imports for seconds
        for _ in range(2):  # the first calls start threads, compile, allocate, load kernels and tune
            run()
        seen["with:" if arm else "without:"] = _flags(device)
    turn(switch, False)
    state = _State(run, inputs, switch, device)
    cudnn = torch.backends.cudnn.benchmark if device.type == "cuda" else "not used on a CPU"
    return torch_worker.prepared(
        state, device, **{"deterministic": "turn by turn", "cuDNN benchmark": cudnn}, **seen
    )


def _flags(device: Any) -> str:
    """What the library says of the switches, such as "flag on + filling on"."""
    import torch

    words = {
        "flag": torch.are_deterministic_algorithms_enabled(),
        "filling": torch.utils.deterministic.fill_uninitialized_memory,
    }
    if device.type == "cuda":
        words["TF32"] = torch.backends.cuda.matmul.allow_tf32 and torch.backends.cudnn.allow_tf32
    return " + ".join(f"{name} {'on' if value else 'off'}" for name, value in words.items())


def observe(state: _State, n: int) -> Iterator[Observation]:
    given = fingerprint(state.inputs, "mix64" if state.device.type == "cuda" else "xxh3")
    for number in range(n):
        results, seconds = {}, {}
        for on in (False, True) if number % 2 == 0 else (True, False):
            turn(state.switch, on)
            results[on], seconds[on] = torch_worker.timed(state.run, state.device)
        turn(state.switch, False)
        yield Observation(
            fingerprint(results[True], "sha256"),
            given,
            seconds[True],
            scalars={
                "ratio": seconds[True] / seconds[False],
                "without": seconds[False],
                "with": seconds[True],
            },
            reported={"bits without": fingerprint(results[False], "sha256")},
        )


def summary(runs: Runs) -> str:
    """Such as "with ÷ without: 0.19 (middle half 0.17 to 0.22, 40 rounds); median 2.5 ms without"."""
    ratios = runs.scalars("ratio")
    if not ratios:
        return ""
    return f"with ÷ without: {spread(ratios)}; median {_time(spread(runs.scalars('without')).median)} without"


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"


# --- The work ---------------------------------------------------------------------------------------------


def _work(settings: dict, device: Any) -> tuple[Callable[[], Any], list]:
    """(a function without arguments that returns float32 tensors, the tensors that go into it)"""
    import torch

    name, n, slots = settings["work"], settings["n"], settings["slots"]
    if name == CONVOLUTIONS:
        return _convolutions(device)
    if name == ATTENTION:
        return _attention(device)
    if name == GRAPH:
        return _graph(device)

    rng = np.random.default_rng(8)
    values = torch.from_numpy(rng.standard_normal(n, dtype=np.float32)).to(device)
    index = torch.from_numpy(rng.integers(0, slots, n)).to(device)
    places = torch.from_numpy(rng.permutation(n)).to(device)
    matrix = torch.from_numpy(rng.standard_normal((SIDE, SIDE), dtype=np.float32)).to(device)

    def zeros(size: int = slots):
        return torch.zeros(size, device=device)

    def backward():
        table = zeros().requires_grad_()
        (table[index] * values).sum().backward()
        return table.grad

    work = {
        "index_put_": lambda: zeros().index_put_((index,), values, accumulate=True),
        "x[idx] backward": backward,
        "index_add_": lambda: zeros().index_add_(0, index, values),
        "scatter_add_": lambda: zeros().scatter_add_(0, index, values),
        "overwriting": lambda: zeros(n).index_put_((places,), values),
        "matmul": lambda: matrix @ matrix,
        "sum": lambda: values.sum(),
        # What memory holds before anybody wrote to it is no result: its shape is.
        "new memory": lambda: torch.empty(n, device=device)[:0],
    }
    return work[name], [values, index, places, matrix]


def _tensors(rng: np.random.Generator, device: Any, *shapes: tuple[int, ...]) -> list:
    """Weights of these shapes, scaled by the number of inputs of a unit."""
    import torch

    def weights(shape):
        return rng.standard_normal(shape, dtype=np.float32) / np.float32(max(1, np.prod(shape[1:])) ** 0.5)

    return [torch.from_numpy(weights(shape)).to(device) for shape in shapes]


def _train(first: list, loss: Callable[[list], Any], steps: int = 2) -> list:
    """Plain gradient descent from `first`; the weights after `steps` steps."""
    import torch

    weights = [weight.clone().requires_grad_() for weight in first]
    for _ in range(steps):
        gradients = torch.autograd.grad(loss(weights), weights)
        weights = [(w - 0.1 * g).detach().requires_grad_() for w, g in zip(weights, gradients, strict=True)]
    return [weight.detach() for weight in weights]


def _convolutions(device: Any) -> tuple[Callable[[], Any], list]:
    import torch
    from torch.nn import functional

    rng = np.random.default_rng(81)
    images = torch.from_numpy(rng.standard_normal((16, 3, 24, 24), dtype=np.float32)).to(device)
    labels = torch.from_numpy(rng.integers(0, 10, 16)).to(device)
    first = _tensors(rng, device, (16, 3, 3, 3), (32, 16, 3, 3), (10, 32))

    def loss(weights: list):
        one, two, last = weights
        hidden = functional.max_pool2d(functional.conv2d(images, one, padding=1).relu(), 2)
        hidden = functional.conv2d(hidden, two, padding=1).relu().mean((2, 3))
        return functional.cross_entropy(hidden @ last.T, labels)

    return lambda: _train(first, loss), [images, labels, *first]


def _graph(device: Any) -> tuple[Callable[[], Any], list]:
    import torch
    from torch.nn import functional

    rng = np.random.default_rng(83)
    nodes, pairs, width = 2_000, 12_000, 64
    features = torch.from_numpy(rng.standard_normal((nodes, width), dtype=np.float32)).to(device)
    receiver, sender = torch.from_numpy(rng.integers(0, nodes, (2, pairs))).to(device)
    labels = torch.from_numpy(rng.integers(0, 7, nodes)).to(device)
    first = _tensors(rng, device, (width, width), (width, width), (7, width), (7, width))

    def loss(weights: list):
        own1, others1, own2, others2 = weights

        def layer(x, own, others):
            rows = (x @ others.T).index_select(0, sender)
            return torch.zeros(nodes, rows.shape[1], device=device).index_add_(0, receiver, rows) + x @ own.T

        return functional.cross_entropy(layer(layer(features, own1, others1).relu(), own2, others2), labels)

    return lambda: _train(first, loss), [features, receiver, sender, labels, *first]


def _attention(device: Any) -> tuple[Callable[[], Any], list]:
    import torch
    from torch.nn import functional

    rng = np.random.default_rng(82)
    words, width, heads = 100, 64, 4
    tokens = torch.from_numpy(rng.integers(0, words, (8, 33))).to(device)
    first = _tensors(rng, device, (words, width), (3 * width, width), (width, width), (4 * width, width))

    def loss(weights: list):
        table, qkv, out, hidden = weights
        x = functional.embedding(tokens[:, :-1], table)
        split = (x @ qkv.T).unflatten(2, (3, heads, width // heads)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*split, is_causal=True)
        x = x + mixed.transpose(1, 2).flatten(2) @ out.T
        x = x + functional.gelu(x @ hidden.T) @ hidden
        return functional.cross_entropy((x @ table.T).flatten(0, 1), tokens[:, 1:].flatten())

    return lambda: _train(first, loss), [tokens, *first]


def code(settings: dict) -> str:
    off, on = (SWITCHES[settings["switch"]].format(value) for value in ("False", "True"))
    lines = [f"torch.set_num_threads({settings['threads']})"]
    if settings["benchmark"]:
        lines.append("torch.backends.cudnn.benchmark = True")
    if settings["switch"] == FILL:
        lines.append("torch.use_deterministic_algorithms(True)")
    return "\n".join(
        [
            *lines,
            *_inputs(settings),
            "def work():",
            f"    {WORK[settings['work']]}",
            "# both arms twice, untimed; then in each round, the first arm changing:",
            off,
            "without = seconds_of(work)",
            on,
            "ratio = seconds_of(work) / without",
        ]
    )


def _inputs(settings: dict) -> list[str]:
    """What the line of work takes, in a comment; nothing for work that has numbers of its own."""
    work, n, slots = WORK[settings["work"]], f"{settings['n']:,}", f"{settings['slots']:,}"
    if "index" in work and "train" not in work and "places" not in work:
        return [f"# values: {n} normal float32 numbers; index: each one's slot, of {slots}"]
    if "places" in work:
        return [f"# values: {n} normal float32 numbers; places: 0 to n - 1, shuffled"]
    if "values" in work:
        return [f"# values: {n} normal float32 numbers"]
    return [f"# n: {n}"] if "(n)" in work else []


PRICE = Experiment(
    name="price",
    title="The price of a switch",
    question="How long does the same work take with the switch on, as a multiple of without?",
    knobs=(
        Knob(
            "work",
            "Work",
            "What is timed: single operations, and three small trainings.",
            "choice",
            "index_put_",
            choices=tuple(WORK),
        ),
        Knob(
            "switch",
            "Switch",
            "What is off in one arm and on in the other. TF32 acts on a GPU only; nothing is the control.",
            "choice",
            FLAG,
            choices=tuple(SWITCHES),
        ),
        Knob(
            "n",
            "Values",
            "How many float32 values, for single operations.",
            "number",
            200_000,
            low=1,
            high=4_000_000,
        ),
        Knob("slots", "Slots", "How many slots they are added into.", "number", 16, low=1, high=4_000_000),
        Knob(
            "threads",
            "CPU threads",
            "Threads of PyTorch's CPU code.",
            "number",
            2,  # Timings want no more threads than cores, and nearly every machine has two.
            low=1,
            high=64,
        ),
        Knob(
            "benchmark",
            "cuDNN benchmark",
            "On a GPU: both arms let cuDNN time its algorithms first. Compare this row's times with the other's.",
            "toggle",
            False,
            scope="process",  # what has won once stays in the process's cache, also for whoever doesn't ask
        ),
        torch_worker.DEVICE,
    ),
    prepare=prepare,
    observe=observe,
    code=code,
    summary=summary,
    race_size={"n": 32_768, "threads": 2},
    framework="torch",
    card=torch_worker.card,
    recordings=tuple(
        {"work": work, "switch": switch, "benchmark": benchmark}
        for work in WORK
        for switch, benchmark in ((FLAG, False), (FLAG, True), (FILL, False), (TF32, False), (NOTHING, False))
    ),
    repeats=40,
)
