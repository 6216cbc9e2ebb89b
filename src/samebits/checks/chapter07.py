"""What verifies the claims of chapter 07: the thousand models, PyTorch's arithmetic and races, and statistics.

Sizes are the lesson's own or smaller; a race that should show is repeated until it does or its budget is over.
"""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Callable, Iterator

import numpy as np

from samebits import orders, thousand
from samebits.bits import fingerprint
from samebits.checks import Seen, check

GPU = "cuda"
BUDGET = 5.0  # seconds for a race to show
RUNS = 200  # of what should give one answer; a race that is there shows in the first few


@functools.cache
def _graph() -> thousand.Graph:
    return thousand.synthetic_graph()


def _models(**how) -> list[thousand.Model]:
    return list(thousand.train(_graph(), **how))


def _weights(**how) -> list[str]:
    return [fingerprint(model.weights) for model in _models(**how)]


# --- The model ---------------------------------------------------------------------------------------------


@check("07-orders-alone", control="one fixed order in all of them")
def orders_alone(control: bool) -> Seen:
    distinct = len(set(_weights(orders=[None] * 60 if control else range(60))))
    return Seen(distinct >= 59, f"{distinct} distinct weights in 60 trainings")


@check("07-threads", control="on four threads, the orders of other seeds")
def threads(control: bool) -> Seen:
    one = _weights(orders=range(12), threads=1)
    four = _weights(orders=range(12, 24) if control else range(12), threads=4)
    equal = sum(a == b for a, b in zip(one, four, strict=True))
    return Seen(equal == 12, f"{equal} of 12 trainings have the same bits on 1 and on 4 threads")


@check("07-is-pytorch", control="PyTorch's operations in the orders of another seed", framework="torch")
def is_pytorch(control: bool) -> Seen:
    (model,) = _models(orders=[2], epochs=0)
    logits = _in_torch(_graph(), order=3 if control else 2)
    same = int((model.logits.view(np.uint32) == logits.view(np.uint32)).sum())
    return Seen(same == logits.size, f"{same:,} of {logits.size:,} outputs have the same bits")


def _in_torch(graph: thousand.Graph, order: int) -> np.ndarray:
    """The untrained network's logits, (nodes, classes) float32, from PyTorch's operations, each rounded once.

    Products of matrices are sums by index_add, or one by one, too: a library would fuse and reorder them.
    """
    import torch

    from samebits import graphsage

    state, neighbours = np.array([thousand._state(order)], np.uint64), graph.neighbours
    receiver = torch.from_numpy(graph.pairs[:, 0].astype(np.int64))
    divisor = torch.from_numpy(np.maximum(np.diff(graph.starts), 1).astype(np.float32))[:, None]
    of_node = torch.from_numpy(np.repeat(np.arange(graph.nodes), np.diff(graph.rows)))
    layers = thousand.tensors(graph, thousand.first_weights(graph)).items()
    w = {name: torch.from_numpy(np.ascontiguousarray(part)) for name, part in layers}

    def added(index, rows):
        return torch.zeros(graph.nodes, rows.shape[1]).index_add(0, index, rows)

    def mean(rows):
        graphsage.shuffle(np.arange(graph.nodes, dtype=np.int32), graph.starts, neighbours, state, True)
        return added(receiver, rows[torch.from_numpy(neighbours.astype(np.int64))]) / divisor

    def of_features(part):
        return added(
            of_node, torch.from_numpy(graph.values)[:, None] * part[torch.from_numpy(graph.columns).long()]
        )

    def of_hidden(part):
        return functools.reduce(
            lambda total, k: total + h[:, k : k + 1] * part[k],
            range(len(part)),
            torch.zeros(len(h), part.shape[1]),
        )

    h = mean(of_features(w["layer 1, neighbours"])) + of_features(w["layer 1, self"]) + w["layer 1, bias"]
    h = h.relu()
    y = mean(of_hidden(w["layer 2, neighbours"])) + of_hidden(w["layer 2, self"])
    return (y + w["layer 2, bias"]).numpy()


@check("07-textbook-near", control="the trainer started from other weights", framework="torch")
def textbook_near(control: bool) -> Seen:
    import torch

    from samebits.experiments import sage_training

    tensors, _ = sage_training.train(sage_training.state_on(torch.device("cpu"), _graph(), epochs=10))
    (model,) = _models(starts=[1 if control else 0])
    parts = thousand.tensors(_graph(), model.weights).values()
    apart = max(float(np.abs(a - b.numpy()).max()) for a, b in zip(parts, tensors, strict=True))
    return Seen(apart < 1e-4, f"the weights are at most {apart:.1e} apart")


@check("07-shuffle", control="each place exchanged with any, not with one of those that are left")
def shuffle(control: bool) -> Seen:
    counts = dict.fromkeys(itertools.permutations(range(3)), 0)
    for drawn in _shuffled_by_any(24_000) if control else _shuffled(24_000):
        counts[tuple(drawn)] += 1
    expected = 24_000 / len(counts)
    # Of chi-squared with 5 degrees of freedom, 30 is exceeded once in 65,000 times; the seed is fixed, too.
    chi = sum((count - expected) ** 2 / expected for count in counts.values())
    return Seen(
        chi < 30, f"the six orders of three came {min(counts.values())} to {max(counts.values())} times"
    )


def _shuffled(times: int) -> Iterator[np.ndarray]:
    from samebits import graphsage

    starts, state = np.array([0, 3], np.int32), np.array([7], np.uint64)
    for _ in range(times):
        drawn = np.arange(3, dtype=np.int32)
        graphsage.shuffle(np.array([0], np.int32), starts, drawn, state, True)
        yield drawn


def _shuffled_by_any(times: int) -> Iterator[np.ndarray]:
    for places in np.random.default_rng(7).integers(0, 3, (times, 3)):
        drawn = np.arange(3)
        for i, j in enumerate(places):
            drawn[[i, j]] = drawn[[j, i]]
        yield drawn


@check("07-whole-numbers", control="each 1 divided by how many features its node has")
def whole_numbers(control: bool) -> Seen:
    graph = _graph()
    hub = int(np.argmax(np.diff(graph.starts)))
    neighbours = graph.neighbours[graph.starts[hub] : graph.starts[hub + 1]]
    terms = graph.values[graph.rows[neighbours]]
    sums = orders.permuted_serial_sums(terms if control else np.ones_like(terms), runs=200, seed=1)
    distinct = len(set(sums.tolist()))
    return Seen(distinct == 1, f"{distinct} distinct sums of {len(terms)} terms in 200 orders")


# --- What becomes of a difference ----------------------------------------------------------------------------


@check("07-no-flips", control="a hundred epochs at a rate of 1.0")
def no_flips(control: bool) -> Seen:
    settings = (
        [{"epochs": 100, "learning_rate": 1.0}]
        if control
        else [{"epochs": 10}, {"epochs": 100}, {"epochs": 100, "learning_rate": 0.1}]
    )
    flips = [
        int((model.predictions != six[0].predictions).sum())
        for six in (_models(orders=range(6), **how) for how in settings)
        for model in six[1:]
    ]
    return Seen(max(flips) == 0, f"at most {max(flips)} of 2,708 predictions flipped")


@check("07-amplifies", control="the usual rate of 0.01")
def amplifies(control: bool) -> Seen:
    apart = _apart(epochs=100, learning_rate=0.01 if control else 1.0)
    return Seen(apart[-1] > 1e6 * apart[0], f"from {apart[0]:.1e} after a step to {apart[-1]:.1e} at the end")


@check("07-spreads", control="a rate of 1.0 for a hundred epochs")
def spreads(control: bool) -> Seen:
    how = {"epochs": 100, "learning_rate": 1.0} if control else {}
    w = np.stack([model.history for model in _models(orders=range(4), keep_history=True, **how)])
    differ = (w[1:] != w[0]).mean(axis=(0, 2))[1:]
    relative = (np.abs(w[1:] - w[0]).max(axis=(0, 2)) / np.abs(w[0]).max(axis=1))[1:]
    holds = bool((np.diff(differ) > 0).all()) and relative[-1] < 2 * relative[0]
    return Seen(
        holds,
        f"{differ[0]:.0%} to {differ[-1]:.0%} differ, relatively {relative[0]:.1e} to {relative[-1]:.1e}",
    )


def _apart(**how) -> np.ndarray:
    """Relative distance of the farthest of four trainings from the first, after each step."""
    histories = np.stack([model.history for model in _models(orders=range(4), keep_history=True, **how)])
    apart = np.linalg.norm(histories[1:] - histories[0], axis=2).max(axis=0)
    return (apart / np.linalg.norm(histories[0], axis=1))[1:]


@check("07-seeds-wider", control="twenty other orders in place of the seeds")
def seeds_wider(control: bool) -> Seen:
    def spread(**how) -> float:
        return float(np.ptp([model.accuracy(_graph()) for model in _models(epochs=30, **how)]))

    by_order = spread(orders=range(20))
    other = spread(orders=range(20, 40)) if control else spread(orders=[None] * 20, starts=range(20))
    return Seen(
        other > 10 * by_order and other > 0.01, f"accuracy spreads by {by_order:.3f} and by {other:.3f}"
    )


# --- PyTorch's Adam ------------------------------------------------------------------------------------------


@check("07-adam-first", control="plain gradient descent", framework="torch")
def adam_first(control: bool) -> Seen:
    moved = _moves([(1e-5, 0.1, -3.0)], "SGD" if control else "Adam")[0]
    return Seen(
        bool((np.abs(np.abs(moved) - 1) < 0.01).all()), f"moved by {_times_rate(moved)} learning rates"
    )


@check("07-adam-later", control="its first step", framework="torch")
def adam_later(control: bool) -> Seen:
    moved = _moves([(1.0, 1.0, 1.0), (1.0, 0.5, 0.1)], "Adam")[0 if control else 1]
    return Seen(bool(np.ptp(moved) > 0.05), f"moved by {_times_rate(moved)} learning rates")


def _moves(gradients: list[tuple[float, ...]], optimizer: str) -> list[np.ndarray]:
    """How far each step moves three weights, in learning rates."""
    import torch

    w = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    step = getattr(torch.optim, optimizer)([w], lr=0.01)
    moves = []
    for gradient in gradients:
        before = w.detach().clone()
        w.grad = torch.tensor(gradient, dtype=torch.float64)
        step.step()
        moves.append(((before - w.detach()) / 0.01).numpy())
    return moves


def _times_rate(moved: np.ndarray) -> str:
    return ", ".join(f"{value:.3g}" for value in moved)


# --- Races in PyTorch ------------------------------------------------------------------------------------------


@check("07-lookup-races", control="one thread", framework="torch")
def lookup_races(control: bool) -> Seen:
    import torch

    if control:
        torch.set_num_threads(1)
    return Seen.varies(*_repeated(_gradients(8_000), hoped=not control), control)


@check("07-lookup-is-index-put", control="embedding", framework="torch")
def lookup_is_index_put(control: bool) -> Seen:
    import torch

    gradient = _gradients(5_000, embedding=control)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        gradient()
    ran = sorted(
        {
            event.key
            for event in profile.key_averages()
            if "index_put" in event.key or "embedding" in event.key
        }
    )
    return Seen(
        any("index_put" in name for name in ran), f"look-up and backward ran {', '.join(ran) or 'neither'}"
    )


@check("07-threshold", control="65,536 in its place", framework="torch")
def threshold(control: bool) -> Seen:
    rows = 8_192 if control else 4_096  # of 8 values
    below, _ = _repeated(_gradients(rows - 1), hoped=control)
    at, _ = _repeated(_gradients(rows), hoped=True)
    what = f"{below} distinct with {8 * rows - 8:,} values, {at} with {8 * rows:,}"
    return Seen(None if below == at == 1 else below == 1, what)


@check("07-flag-ends-it", control="the flag off", framework="torch")
def flag_ends_it(control: bool) -> Seen:
    import torch

    if not control:
        torch.use_deterministic_algorithms(True)
    return Seen.same(*_repeated(_gradients(8_000), hoped=control), control)


@check("07-embedding", control="the look-up x[idx]", framework="torch")
def embedding(control: bool) -> Seen:
    return Seen.same(*_repeated(_gradients(8_000, embedding=not control), hoped=control), control)


@check("07-loss-hides", control="the flag on", framework="torch")
def loss_hides(control: bool) -> Seen:
    runs = list(itertools.islice(_factorisations(deterministic=control), 8))
    distinct = len({fingerprint for fingerprint, _ in runs})
    losses = [loss for _, loss in runs]
    what = f"{distinct} distinct weights in {len(runs)} trainings, losses within {np.ptp(losses):.1e}"
    if distinct == 1:
        return Seen(False if control else None, what)
    return Seen(float(np.ptp(losses)) < 1e-4, what)


def _factorisations(deterministic: bool) -> Iterator[tuple[str, float]]:
    from samebits.experiments import factorisation

    asked = factorisation.FACTORISATION.settings(device="cpu", steps=10, deterministic=deterministic)
    state = factorisation.prepare(asked).state
    while True:
        for seen in factorisation.observe(state, 1):
            yield seen.fingerprint, seen.scalars["loss"]


@check("07-index-add-cpu", control="index_put_ with accumulate=True", framework="torch")
def index_add_cpu(control: bool) -> Seen:
    return Seen.same(*_repeated(_added("cpu", 8_000, put=control), hoped=control), control)


@check("07-index-add-gpu", control="the flag on", framework="torch")
def index_add_gpu(control: bool) -> Seen:
    import torch

    torch.use_deterministic_algorithms(control)
    return Seen.varies(*_repeated(_added(GPU, 100_000), hoped=not control), control)


@check("07-index-add-listed", control="the list of those that raise", framework="torch")
def index_add_listed(control: bool) -> Seen:
    import torch

    text = torch.use_deterministic_algorithms.__doc__
    act, raising = text.split("will act", 1)[-1].split("will throw", 1)
    listed = "torch.index_add`" in (raising if control else act)
    return Seen(listed, f"the list {'names' if listed else 'does not name'} torch.index_add")


@check("07-sage-flag", control="the flag off", framework="torch")
def sage_flag(control: bool) -> Seen:
    import torch

    from samebits.experiments import sage_training

    torch.use_deterministic_algorithms(not control)
    state = sage_training.state_on(torch.device(GPU), _graph(), epochs=10)

    def weights() -> str:
        return fingerprint([part.cpu() for part in sage_training.train(state)[0]])

    return Seen.same(*_repeated(weights, hoped=control), control)


def _gradients(rows: int, embedding: bool = False) -> Callable[[], str]:
    """A function that looks `rows` rows of 8 up in a table, and returns the gradient's bits."""
    import torch

    rng = np.random.default_rng(0)
    index = torch.from_numpy(rng.integers(0, 400, rows))
    given = torch.from_numpy(rng.normal(size=(rows, 8)).astype(np.float32))

    def gradient() -> str:
        table = torch.zeros(400, 8, requires_grad=True)
        found = torch.nn.functional.embedding(index, table) if embedding else table[index]
        found.backward(given)
        return fingerprint(table.grad, "xxh3")

    return gradient


def _added(device: str, rows: int, put: bool = False) -> Callable[[], str]:
    """A function that adds `rows` rows of 8 into 400 by index_add_, or by index_put_, and returns the sums' bits."""
    import torch

    rng = np.random.default_rng(0)
    index = torch.from_numpy(rng.integers(0, 400, rows)).to(device)
    given = torch.from_numpy(rng.normal(size=(rows, 8)).astype(np.float32)).to(device)

    def sums() -> str:
        total = torch.zeros(400, 8, device=device)
        total = total.index_put_((index,), given, True) if put else total.index_add_(0, index, given)
        return fingerprint(total.cpu(), "xxh3")

    return sums


def _repeated(run: Callable[[], str], hoped: bool) -> tuple[int, int]:
    """(distinct answers, runs): where a difference is hoped for, until there is one or the budget is over."""
    seen, runs = set(), 0
    end = time.monotonic() + BUDGET
    while (time.monotonic() < end and len(seen) < 2) if hoped else runs < RUNS:
        seen.add(run())
        runs += 1
    return len(seen), runs


# --- Statistics ----------------------------------------------------------------------------------------------


@check("07-bootstrap-narrow", control="a thousand numbers in place of twenty")
def bootstrap_narrow(control: bool) -> Seen:
    count, quantile = (1000, 1.962) if control else (20, 2.093)  # Student's 97.5 % quantiles
    ratios = []
    for seed in range(40):
        values = np.random.default_rng(seed).normal(size=count)
        ratios.append(_bootstrap(values) / (2 * quantile * values.std(ddof=1) / math.sqrt(count)))
    ratio = float(np.mean(ratios))
    return Seen(0.85 < ratio < 0.97, f"the bootstrap's interval is {ratio:.2f} times as wide as Student's")


@check("07-root", control="two times as many, not four")
def root(control: bool) -> Seen:
    few, many = (
        np.mean([_bootstrap(np.random.default_rng(seed).normal(size=count)) for seed in range(40)])
        for count in (50, 100 if control else 200)
    )
    return Seen(bool(0.45 < many / few < 0.55), f"the interval becomes {many / few:.2f} times as wide")


@check("07-pairs", control="scores in which no luck is shared")
def pairs(control: bool) -> Seen:
    rng = np.random.default_rng(0)
    luck = np.zeros(20) if control else rng.normal(0, 0.08, 20)
    a, b = (luck + rng.normal(0, 0.02, 20) for _ in range(2))
    apart = math.sqrt(a.var(ddof=1) + b.var(ddof=1))
    ratio = (b - a).std(ddof=1) / apart
    return Seen(ratio < 0.5, f"paired, the interval is {ratio:.2f} times as wide as unpaired")


def _bootstrap(values: np.ndarray, times: int = 1000) -> float:
    """Width of the bootstrap's 95 % interval of the mean."""
    means = np.random.default_rng(0).choice(values, (times, len(values))).mean(axis=1)
    return float(np.ptp(np.quantile(means, [0.025, 0.975])))


@check("07-seed-lists", control="the lists [4, run] from run 1 on")
def seed_lists(control: bool) -> Seen:
    def drawn(seed) -> tuple[int, ...]:
        return tuple(np.random.default_rng(seed).integers(0, 2**62, 4).tolist())

    same = drawn([4, 1 if control else 0]) == drawn(4)
    others = {drawn([4, run]) for run in range(1000)} & {drawn(seed) for seed in (1, 2, 3)}
    return Seen(
        same and not others,
        f"[4, {int(control)}] {'is' if same else 'is not'} the seed 4; others: {len(others)}",
    )


@check("07-bytes", control="the comparison ==")
def bytes_tell(control: bool) -> Seen:
    def equal(a: np.ndarray, b: np.ndarray) -> bool:
        return bool((a == b).all()) if control else a.tobytes() == b.tobytes()

    zeros = equal(np.float32([0.0]), np.float32([-0.0]))
    nans = equal(np.float32([np.nan]), np.float32([np.nan]))
    return Seen(nans and not zeros, f"+0.0 and −0.0: {_word(zeros)}; NaN and itself: {_word(nans)}")


def _word(same: bool) -> str:
    return "the same" if same else "different"
