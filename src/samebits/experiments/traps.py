"""Traps of chapter 05: programs in which everything is seeded and something still varies, or is wrong.

Plain functions, JSON in and out. Each needs PyTorch, and runs in a notebook or in a worker:

    runner.call("samebits.experiments.traps:checkpointed", {"preserve_rng_state": False}, framework="torch")

Those with loader workers are here, and not in a cell, because a process that is started anew (macOS, Windows)
cannot import a class that a notebook defined.
"""

from __future__ import annotations

import contextlib
import functools
import random
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from samebits import digits
from samebits.bits import fingerprint
from samebits.experiment import BadSetting

# --- Random numbers in loader workers ---------------------------------------------------------------------

DRAWS = ("np.random", "random", "torch", "stored generator", "worker's generator", "per image")


class Draws:
    """A dataset that gives what its augmentation drew for each image: one number from 0 to 1."""

    def __init__(self, draws: str, images: int, seed: int):
        self.draws, self.images, self.seed = draws, images, seed
        self.epoch = 0
        self.generator = np.random.default_rng(seed) if draws == "stored generator" else None

    def __len__(self) -> int:
        return self.images

    def __getitem__(self, number: int) -> float:
        import torch

        if self.draws == "np.random":
            return float(np.random.random())
        if self.draws == "random":
            return random.random()
        if self.draws == "torch":
            return torch.rand((), dtype=torch.float64).item()
        if self.draws == "per image":
            return float(np.random.default_rng([self.seed, self.epoch, number]).random())
        if self.generator is None:  # the first image of this process: a worker's seed is its own
            self.generator = np.random.default_rng(torch.initial_seed())
        return float(self.generator.random())


def augmentation_draws(
    draws: str = "stored generator", workers: int = 2, epochs: int = 2, images: int = 8, seed: int = 0
) -> list[list[float]]:
    """[epoch][image] → the number that the augmentation drew, with everything seeded.

    draws    where the numbers come from, one of DRAWS: a global generator; "stored generator", made by
             np.random.default_rng(seed) in the dataset's __init__; "worker's generator", made at the first image in
             each process from the seed that the loader gave it; "per image", from [seed, epoch, image]
    workers  processes of the loader, from 0. It does not shuffle, and its batches hold two images.

    Raises BadSetting for other draws.
    """
    import torch

    if draws not in DRAWS:
        raise BadSetting(f"There are no draws {draws!r}. Possible: {', '.join(DRAWS)}.")
    seed_everything(seed)
    dataset = Draws(draws, images, seed)
    table = []
    with warnings.catch_warnings():
        # There may be more workers than cores, on purpose.
        warnings.filterwarnings("ignore", "This DataLoader will create")
        loader = torch.utils.data.DataLoader(
            dataset, batch_size=2, num_workers=workers, multiprocessing_context=start_method(workers)
        )
        for epoch in range(epochs):
            dataset.epoch = epoch  # workers are started anew for each epoch, and take this with them
            table.append([number for batch in loader for number in batch.tolist()])
    return table


def start_method(workers: int) -> str | None:
    """How loader workers start: on Linux as copies of this process, which Python 3.14 no longer does by itself."""
    return "fork" if workers and sys.platform == "linux" else None


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """For traps that have nothing to do with threads: no race can be their cause, and they are quick on a busy
    machine too."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def seed_everything(seed: int) -> None:
    """Python, NumPy's global generator and PyTorch."""
    import torch

    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


# --- A validation that changes the training -----------------------------------------------------------------


@one_thread()
def validated(validate: bool = True, own_generator: bool = False, seed: int = 0) -> dict[str, Any]:
    """Three epochs on 256 digits, with or without a look at a validation loader after each.

    own_generator  each of the two loaders has a generator of its own

    {"order": the first five images of each epoch, "weights": fingerprint}. The validation loader does not shuffle,
    trains nothing and has no workers; iterating it draws a number from PyTorch's global generator all the same.
    """
    import torch

    seed_everything(seed)
    levels, labels = digits.load()
    inputs, wanted = torch.from_numpy(levels).float().div(16).flatten(1), torch.from_numpy(labels)
    data = torch.utils.data.TensorDataset(inputs, wanted, torch.arange(len(labels)))
    parts = [torch.utils.data.Subset(data, range(first, first + 256)) for first in (0, 256)]

    def generator() -> Any:
        return torch.Generator().manual_seed(seed) if own_generator else None

    training = torch.utils.data.DataLoader(parts[0], batch_size=32, shuffle=True, generator=generator())
    validation = torch.utils.data.DataLoader(parts[1], batch_size=128, generator=generator())
    model = torch.nn.Linear(64, 10)
    descent = torch.optim.SGD(model.parameters(), lr=0.1)
    order = []
    for _ in range(3):
        numbers = []
        for images, classes, number in training:
            descent.zero_grad()
            torch.nn.functional.cross_entropy(model(images), classes).backward()
            descent.step()
            numbers += number.tolist()
        order.append(numbers[:5])
        if validate:
            with torch.no_grad():
                for images, _, _ in validation:
                    model(images)
    return {"order": order, "weights": fingerprint([p.detach() for p in model.parameters()], "sha256")}


# --- Resuming -----------------------------------------------------------------------------------------------

RESUME_STATE = ("model", "optimizer", "schedule", "torch", "numpy", "python", "loader")


class _Training:
    """A training whose whole state can be saved: what RESUME_STATE names, each as get and set."""

    def __init__(self, seed: int):
        import torch

        seed_everything(seed)
        levels, self.labels = digits.load()
        self.images = (levels[:256] / 16).astype(np.float32)
        self.model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(0.2), torch.nn.Linear(64, 10))
        self.adam = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.adam, lambda epoch: 0.8**epoch)
        self.shuffle = torch.Generator().manual_seed(seed)
        self.loader = torch.utils.data.DataLoader(
            range(256), batch_size=32, shuffle=True, generator=self.shuffle
        )

    def epoch(self) -> None:
        import torch

        for numbers in self.loader:
            images = self.images[numbers]
            if random.random() < 0.5:  # Python's: half of the batches move one pixel to the right
                images = np.roll(images, 1, axis=2)
            images = images + 0.1 * np.random.standard_normal(images.shape).astype(np.float32)
            self.adam.zero_grad()
            guess = self.model(torch.from_numpy(images))
            torch.nn.functional.cross_entropy(guess, torch.from_numpy(self.labels[numbers])).backward()
            self.adam.step()
        self.schedule.step()

    @property
    def parts(self) -> dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]]:
        import torch

        return {
            "model": (self.model.state_dict, self.model.load_state_dict),
            "optimizer": (self.adam.state_dict, self.adam.load_state_dict),
            "schedule": (self.schedule.state_dict, self.schedule.load_state_dict),
            "torch": (torch.get_rng_state, torch.set_rng_state),
            "numpy": (np.random.get_state, np.random.set_state),
            "python": (random.getstate, random.setstate),
            "loader": (self.shuffle.get_state, self.shuffle.set_state),
        }

    @property
    def weights(self) -> str:
        return fingerprint([p.detach() for p in self.model.parameters()], "sha256")


@one_thread()
def resumed(saved: Sequence[str] = RESUME_STATE, epochs: int = 4, seed: int = 0) -> dict[str, Any]:
    """A training of `epochs` epochs, and one that is stopped half-way and goes on in a new program.

    saved  what the checkpoint holds, of RESUME_STATE; the rest starts as the script starts it: seeded

    {"uninterrupted": fingerprint of the weights, "resumed": likewise, "same": whether they are equal}.
    Raises BadSetting for a part that there is not.
    """
    import copy

    unknown = [part for part in saved if part not in RESUME_STATE]
    if unknown:
        raise BadSetting(f"There is no state {unknown[0]!r} to save. Possible: {', '.join(RESUME_STATE)}.")
    training = _Training(seed)
    for _ in range(epochs // 2):
        training.epoch()
    checkpoint = {part: copy.deepcopy(training.parts[part][0]()) for part in saved}
    for _ in range(epochs - epochs // 2):
        training.epoch()

    # The same script started again: it seeds, builds everything, and then loads the checkpoint.
    again = _Training(seed)
    for part, state in checkpoint.items():
        again.parts[part][1](state)
    for _ in range(epochs - epochs // 2):
        again.epoch()
    return {
        "uninterrupted": training.weights,
        "resumed": again.weights,
        "same": training.weights == again.weights,
    }


# --- Checkpointing with dropout -----------------------------------------------------------------------------


@one_thread()
def checkpointed(preserve_rng_state: bool = False, seed: int = 0) -> dict[str, Any]:
    """The gradient through torch.utils.checkpoint and dropout against the one without checkpointing.

    Checkpointing computes the forward pass again in the backward one. Without preserve_rng_state the second pass
    draws another dropout mask, and the gradient belongs to neither network.

    {"relative error": |g − g₀| / |g₀|, "cosine": of the angle between them, "same bits", "repeats": whether it
    has the same bits when it is computed again}
    """
    import torch
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(seed)
    inputs = torch.randn(64, 100)
    block = torch.nn.Sequential(
        torch.nn.Linear(100, 200), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(200, 1)
    )

    def gradient(through: Callable) -> Any:
        torch.manual_seed(seed + 1)
        block.zero_grad()
        through(block, inputs).square().mean().backward()
        return torch.cat([p.grad.flatten() for p in block.parameters()])

    def by_checkpoint(block: Any, inputs: Any) -> Any:
        return checkpoint(block, inputs, use_reentrant=False, preserve_rng_state=preserve_rng_state)

    plain = gradient(lambda block, inputs: block(inputs))
    found, again = gradient(by_checkpoint), gradient(by_checkpoint)
    return {
        "relative error": float((found - plain).norm() / plain.norm()),
        "cosine": float(torch.nn.functional.cosine_similarity(found, plain, dim=0)),
        "same bits": fingerprint(found) == fingerprint(plain),
        "repeats": fingerprint(found) == fingerprint(again),
    }


# --- Memory that nobody wrote -------------------------------------------------------------------------------


def uninitialised(deterministic: bool = False, fill: bool = True, runs: int = 20) -> dict[str, Any]:
    """A count over a buffer of which the last part is never written: {"counts": of each run, "distinct", "runs"}.

    The right count is 900. The flag fills new memory with NaN, which is not greater than 0: the count is 900
    then, in each run, and the mistake stays.
    """
    import torch

    def once() -> int:
        before = torch.randn(1000)  # what the program did before, and left in memory
        del before
        buffer = torch.empty(1000)
        buffer[:900] = 1.0
        return int((buffer > 0).sum())

    with deterministic_mode("on" if deterministic else "off"):
        was = torch.utils.deterministic.fill_uninitialized_memory
        torch.utils.deterministic.fill_uninitialized_memory = fill
        try:
            counts = [once() for _ in range(runs)]
        finally:
            torch.utils.deterministic.fill_uninitialized_memory = was
    return {"counts": counts, "distinct": len(set(counts)), "runs": runs}


@contextlib.contextmanager
def deterministic_mode(mode: str) -> Iterator[None]:
    """Set "off", "warn" or "on", and afterwards what was set before.

    The same switch as torch.use_deterministic_algorithms, without torch.compile's own, whose import takes seconds.
    """
    import torch

    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode({"off": "default", "warn": "warn", "on": "error"}[mode])
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)


# --- What the flag refuses, and when ----------------------------------------------------------------------------

# Name → (the forward line, the modes in which forward and backward run).
REFUSED = {
    "put_": ("torch.zeros(4).put_(torch.tensor([1, 1]), torch.tensor([1.0, 2.0]))", ("on", "on")),
    "MaxUnpool1d": ("torch.nn.MaxUnpool1d(2)(torch.ones(1, 1, 2), torch.tensor([[[0, 2]]]))", ("on", "on")),
    "put, flag set between": (
        "x.put(torch.tensor([1, 2]), torch.tensor([1.0, 2.0])).sum()",
        ("off", "on"),
    ),
}


def refused(op: str) -> dict[str, Any]:
    """What PyTorch says when `op`, one of REFUSED, runs under the flag, on the CPU.

    {"line", "error": its first sentence, "raised in": "forward", "backward" or None}. "put, flag set between"
    turns the flag on between the two passes: it is read when a kernel runs, so the error comes at .backward().
    """
    import torch

    if op not in REFUSED:
        raise BadSetting(f"There is no line for {op!r}. Possible: {', '.join(REFUSED)}.")
    line, (forward, backward) = REFUSED[op]
    x = torch.zeros(4, requires_grad=True)
    answer: dict[str, Any] = {"line": line, "error": "", "raised in": None}
    result = None
    for place, mode in (("forward", forward), ("backward", backward)):
        try:
            with deterministic_mode(mode):
                if place == "forward":
                    result = eval(line, {"torch": torch, "x": x})
                elif result.requires_grad:
                    result.backward()
        except RuntimeError as error:
            return answer | {"error": str(error).split(". ")[0] + ".", "raised in": place}
    return answer


# --- A kernel of one's own ---------------------------------------------------------------------------------------


@functools.cache
def column_sums() -> Callable:
    """A custom op, values (rows, columns) → sums (columns,): each of several threads adds up a share of the rows,
    and the shares are added in the order in which they get ready. PyTorch calls it like an op of its own, and
    cannot know what it does."""
    import torch

    schema = "(Tensor values, int threads) -> Tensor"

    @torch.library.custom_op("samebits::column_sums", mutates_args=(), schema=schema)
    def sums(values, threads):
        total = np.zeros(values.shape[1], np.float32)
        turn = threading.Lock()

        def add(share: np.ndarray) -> None:
            own = share.sum(axis=0)
            with turn:  # nothing is lost; only the order is left to chance
                total[:] += own

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(add, np.array_split(values.numpy(), 64)))
        return torch.from_numpy(total)

    return sums


def raced_by_extension(
    deterministic: bool = True, threads: int = 8, runs: int = 20, rows: int = 20_000
) -> dict[str, Any]:
    """The custom op on one (rows, 64) matrix, `runs` times: {"distinct", "runs", "error": what PyTorch said}."""
    import torch

    values = torch.from_numpy(np.random.default_rng(0).standard_normal((rows, 64), dtype=np.float32))
    sums, error = [], ""
    with deterministic_mode("on" if deterministic else "off"):
        try:
            for _ in range(runs):
                sums.append(fingerprint(column_sums()(values, threads)))
        except RuntimeError as refusal:
            error = str(refusal).split("\n")[0]
    return {"distinct": len(set(sums)), "runs": len(sums), "error": error}


# --- Attention under warn_only -------------------------------------------------------------------------------------


def attention_backward(
    mode: str = "warn", backend: str = "flash", runs: int = 20, device: str = "cuda", length: int = 2048
) -> dict[str, Any]:
    """The gradients of scaled_dot_product_attention, `runs` times on one input, under the flag.

    mode     "off", "warn" (warn_only=True) or "on"
    backend  "flash", "efficient", "cudnn" or "math"
    length   of the sequence; the shape is (4, 8, length, 64), bfloat16

    {"distinct", "runs", "warning": the first one, "error"}. Raises BadSetting without a GPU: on the CPU its
    backward has not been seen to vary. Not verified on a GPU.
    """
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    backends = {
        "flash": SDPBackend.FLASH_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
        "cudnn": SDPBackend.CUDNN_ATTENTION,
        "math": SDPBackend.MATH,
    }
    if backend not in backends:
        raise BadSetting(f"There is no backend {backend!r}. Possible: {', '.join(backends)}.")
    if device == "cuda" and not torch.cuda.is_available():
        raise BadSetting("Attention's backward races on an NVIDIA GPU only, and PyTorch sees none here.")
    rng = np.random.default_rng(0)
    shape = (4, 8, length, 64)
    given = [
        torch.from_numpy(rng.standard_normal(shape, dtype=np.float32))
        .to(device, torch.bfloat16)
        .requires_grad_()
        for _ in range(4)
    ]
    gradients, error = [], ""
    with (
        deterministic_mode(mode),
        warnings.catch_warnings(record=True) as heard,
        sdpa_kernel(backends[backend]),
    ):
        warnings.simplefilter("always")
        try:
            for _ in range(runs):
                output = torch.nn.functional.scaled_dot_product_attention(*given[:3])
                gradients.append(fingerprint(list(torch.autograd.grad(output, given[:3], given[3]))))
        except RuntimeError as refusal:
            error = str(refusal).split("\n")[0]
    warning = next((str(w.message).split("\n")[0] for w in heard), "")
    return {"distinct": len(set(gradients)), "runs": len(gradients), "warning": warning, "error": error}
