"""Learners' code that needs PyTorch: what the checks of chapters 05 and 09 run in a worker, through runner.call.

    answer = runner.call("samebits.experiments.learner_code:seeding", {"source": …, "name": …}, framework="torch")

The code comes as text. The answer of `seeding`, `resuming` and `mending` is {"attempted": …, "verdicts": [[points,
sentence], …]}; `diagnosis`, `loaded` and `digested` say what they saw, and the check words it.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import math
import os
import pickle
import random
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from samebits.bits import fingerprint

FILE = "<learner>"  # how the learner's lines are told from ours in a traceback
THREADS = 8
# A thread that waits sleeps: on a busy machine, those that wait in a loop take the time of those they wait for.
ENVIRONMENT = {"OMP_NUM_THREADS": str(THREADS), "OMP_WAIT_POLICY": "PASSIVE"}


class _Stub(Exception):
    """The learner's function is still `...`."""


class _Failed(Exception):
    """The learner's function raised; the message is the sentence to print."""


def _functions(source: str, *names: str) -> list[Callable]:
    """The functions called `names` that `source` defines, with the usual modules at hand."""
    import torch

    at_hand = (copy, hashlib, io, math, os, pickle, random, torch)
    namespace: dict[str, Any] = {module.__name__: module for module in at_hand}
    namespace |= {"np": np, "numpy": np, "__name__": "learner"}
    exec(compile(source, FILE, "exec"), namespace)
    return [namespace[name] for name in names]


def _call(function: Callable, *arguments: Any) -> Any:
    try:
        result = function(*arguments)
    except Exception as error:
        raise _Failed(told(function.__name__, error)) from error
    if result is ...:
        raise _Stub
    return result


def told(name: str, error: BaseException) -> str:
    """An exception of a learner's code as a sentence, with its line."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == FILE]
    where = f" in line {lines[-1]}" if lines else ""
    message = str(error).strip().split("\n")[0][:200].rstrip(".")
    more = ""
    if isinstance(error, NameError):
        more = " Import what you need inside the function: the check runs it by itself, in another process."
    return f"{name} raised {type(error).__name__}{where}: {message}.{more}"


def _judged(verdicts: Iterator[tuple[float, str]]) -> dict[str, Any]:
    found: list[tuple[float, str]] = []
    try:
        found.extend(verdicts)
    except _Stub:
        return {"attempted": False, "verdicts": []}
    except _Failed as failure:
        found = [(0, str(failure))]
    return {"attempted": True, "verdicts": found}


# --- 05-seed --------------------------------------------------------------------------------------------


def seeding(source: str, name: str) -> dict[str, Any]:
    """Whether the function `name` seeds Python, NumPy and PyTorch, and returns a generator for a loader."""
    [seed_everything] = _functions(source, name)
    return _judged(_seeding(seed_everything))


_SEED_HINTS = {
    "Python's random": "random.seed(seed) is missing.",
    "NumPy's global generator": (
        "np.random.seed(seed) seeds the global one; np.random.default_rng(seed) makes another and leaves it as it was."
    ),
    "PyTorch": "torch.manual_seed(seed) is missing.",
}


def _seeding(seed_everything: Callable) -> Iterator[tuple[float, str]]:
    for seed in (5, 0, 2**32 - 1):
        (_, one), (_, other) = (_drawn(seed_everything, seed, before) for before in (1, 2))
        for library, hint in _SEED_HINTS.items():
            if one[library] != other[library]:
                yield 0, f"After seed_everything({seed}), {library} draws other numbers each time. {hint}"
                return
    different = _drawn(seed_everything, 6, 1)[1]
    for library, numbers in _drawn(seed_everything, 5, 1)[1].items():
        if numbers == different[library]:
            yield 0, f"Seeds 5 and 6 give the same numbers of {library}: pass on the seed that is given."
            return
    yield 1, "Python, NumPy and PyTorch: the same numbers after the same seed, others after another."
    if wrong := _wrong_generator(seed_everything):
        yield 0, wrong
        return
    yield 1, "The generator: one of its own, started from the seed."
    if _order(seed_everything, draws=0) != _order(seed_everything, draws=3):
        yield (
            0,
            "A loader with this generator changes its order when the model draws random numbers in between.",
        )
        return
    yield 1, "A loader with it keeps its order over two epochs, whatever the model draws in between."


def _drawn(seed_everything: Callable, seed: int, before: int) -> tuple[Any, dict[str, list[float]]]:
    """What is returned, and four numbers of each library, whose generators stood at `before`."""
    import torch

    random.seed(before)
    np.random.seed(before)
    torch.manual_seed(before)
    returned = _call(seed_everything, seed)
    return returned, {
        "Python's random": [random.random() for _ in range(4)],
        "NumPy's global generator": np.random.random(4).tolist(),
        "PyTorch": torch.rand(4).tolist(),
    }


def _wrong_generator(seed_everything: Callable) -> str:
    import torch

    streams = []
    for seed, before in ((5, 1), (5, 2), (6, 1)):
        generator, _ = _drawn(seed_everything, seed, before)
        if not isinstance(generator, torch.Generator):
            kind = type(generator).__name__
            if isinstance(generator, type):
                kind = f"the class {generator.__name__}, not an object of it"
            return (
                f"It returns {'nothing' if generator is None else kind}; return a torch.Generator, which the "
                "loader will be given."
            )
        if generator is torch.default_generator:
            return (
                "That is PyTorch's global generator (torch.manual_seed returns it): whatever the model draws would "
                "move the loader's order. Make one of its own with torch.Generator()."
            )
        streams.append(torch.randperm(50, generator=generator).tolist())
    if streams[0] != streams[1]:
        return "The generator draws other numbers each time, though the seed is the same: seed it from `seed` alone."
    if streams[0] == streams[2]:
        return (
            "Seeds 5 and 6 give the generator the same numbers: call its manual_seed(seed). A torch.Generator() that "
            "nobody seeds starts from a built-in number."
        )
    return ""


def _order(seed_everything: Callable, draws: int) -> list[int]:
    """The order in which a loader hands out 64 items in two epochs, while a model draws random numbers."""
    import torch

    generator = _call(seed_everything, 5)
    loader = torch.utils.data.DataLoader(range(64), batch_size=16, shuffle=True, generator=generator)
    order = []
    for _ in range(2):
        for batch in loader:
            torch.rand(draws)
            order += batch.tolist()
    return order


# --- 05-repair ------------------------------------------------------------------------------------------


def in_fresh_processes(script: str, processes: int = 3, seconds: float = 50) -> list[str]:
    """The last line that `script` prints in each of so many new processes, two at a time, with eight threads and
    texts hashed otherwise in each. Where a process failed, its error stands for the line."""

    def run(number: int) -> str:
        environment = os.environ | ENVIRONMENT | {"PYTHONHASHSEED": str(number + 1)}
        try:
            done = subprocess.run(
                [sys.executable, "-c", script],
                env=environment,
                capture_output=True,
                text=True,
                timeout=seconds,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            return f"TimeoutError: the script had not ended after {seconds:g} seconds"
        words = (done.stderr if done.returncode else done.stdout).strip().splitlines()
        return words[-1] if words else "nothing was printed"

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(run, range(processes)))


class _Forwards(set):
    """A set in alphabetical order: sets of texts have any, and a script must not depend on it."""

    def __iter__(self):
        return iter(sorted(super().__iter__(), key=repr))


class _Backwards(set):
    def __iter__(self):
        return iter(sorted(super().__iter__(), key=repr, reverse=True))


def diagnosis(script: str) -> dict[str, Any]:
    """What the outcome of `script` still depends on, and what it would race on.

    Returns {"error": sentence} if it cannot be run, or

    depends   those of "numpy", "torch", "python", "set" and "empty" that change what it prints
    races     whether a gradient is added up in any order, at a size where threads share the work, without the flag
    drawn     whether PyTorch drew any random numbers
    flag      whether deterministic algorithms were asked for at its end
    printed   its last line
    nan       whether `table` or `average` holds a NaN
    loss      of the table that it trained, or None if it has none
    """
    import torch

    try:
        usual, namespace, watch, flag = _executed(script)
        depends = [
            what
            for what, change in {
                "torch": {"torch_seed": 2},
                "numpy": {"numpy_seed": 2},
                "python": {"python_seed": 2},
                "set": {"kind_of_set": _Backwards},
                "empty": {"empty": 2.0},
            }.items()
            if _executed(script, **change)[0] != usual
        ]
    except (Exception, SystemExit) as error:
        return {"error": told("The script", error)}
    trained = [namespace.get(name) for name in ("table", "average")]
    if not all(isinstance(tensor, torch.Tensor) for tensor in trained):
        return {"error": "The script should still train `table` and keep its `average`."}
    nan = any(bool(tensor.isnan().any()) for tensor in trained)
    loss = namespace.get("loss")
    return {
        "depends": depends,
        "races": watch.raced,
        "drawn": watch.drawn,
        "flag": flag,
        "printed": usual,
        "nan": nan,
        "loss": float(loss) if isinstance(loss, torch.Tensor) else None,
    }


def _executed(
    script: str,
    *,
    numpy_seed: int = 1,
    torch_seed: int = 1,
    python_seed: int = 1,
    kind_of_set: type = _Forwards,
    empty: float = 1.0,
) -> tuple[str, dict[str, Any], Any, bool]:
    """(last line printed, its names, what was watched, whether it ended with the flag on), from generators, sets and
    memory that are as given."""
    import torch

    random.seed(python_seed)
    np.random.seed(numpy_seed)
    torch.manual_seed(torch_seed)
    torch.set_num_threads(THREADS)  # another learner's code may have left one
    torch.utils.deterministic.fill_uninitialized_memory = False
    printed = io.StringIO()
    namespace = {"__name__": "__main__", "set": kind_of_set, "frozenset": kind_of_set}
    really_flag, watch = torch.use_deterministic_algorithms, _watch(empty)
    _flag(False)
    try:
        torch.use_deterministic_algorithms = _flag
        with contextlib.redirect_stdout(printed), watch:
            exec(compile(script, FILE, "exec"), namespace)
        flag = torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms = really_flag
        torch.utils.deterministic.fill_uninitialized_memory = True
        _flag(False)
    lines = printed.getvalue().strip().splitlines()
    return lines[-1] if lines else "", namespace, watch, flag


def _flag(mode: bool, *, warn_only: bool = False) -> None:
    """The flag without the import of torch._inductor, which takes seconds."""
    import torch

    torch._C._set_deterministic_algorithms(mode, warn_only=warn_only)


def _watch(empty: float) -> Any:
    """A dispatch mode that fills new memory with `empty`, and notes whether additions into indexed places `raced` and
    whether random numbers were `drawn`. Such additions are made in order meanwhile, so that two runs can be compared
    by what they depend on."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    scatters = ("index_put", "index_put_", "_index_put_impl_", "put_", "put")
    draws = ("rand", "randn", "normal", "normal_", "uniform_", "rand_like", "randn_like")
    unwritten = ("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided")

    class Watch(TorchDispatchMode):
        raced = drawn = False

        def __torch_dispatch__(self, operation, types, arguments=(), keywords=None):
            name = operation._schema.name.removeprefix("aten::")
            self.drawn |= name in draws
            if name not in scatters:
                result = operation(*arguments, **(keywords or {}))
                if name in unwritten and result.is_floating_point():
                    result.fill_(empty)
                return result
            values, accumulate = arguments[2], arguments[3] if len(arguments) > 3 else False
            free = torch.get_num_threads() > 1 and not torch.are_deterministic_algorithms_enabled()
            self.raced |= bool(free and accumulate and values.numel() >= 32_768)
            threads = torch.get_num_threads()
            torch.set_num_threads(1)
            try:
                return operation(*arguments, **(keywords or {}))
            finally:
                torch.set_num_threads(threads)

    return Watch()


# --- 05-augment -----------------------------------------------------------------------------------------


def image() -> np.ndarray:
    """The image that the check of 05-augment hands out, here and in another process."""
    return np.random.default_rng(6).random((8, 8), dtype=np.float32)


def loaded(source: str, name: str, images: int = 12) -> dict[str, Any]:
    """What the function `name`, called as augmented(image, seed, epoch, index), gives in this process.

    epochs  fingerprints of two epochs of a DataLoader with 0, 1 and 2 workers whose dataset calls it
    here    fingerprint of its answer for image(), seed 1, epoch 0, index 0
    """
    import torch

    [augmented] = _functions(source, name)
    here = fingerprint(augmented(image(), 1, 0, 0))
    dataset = _Augmented(source, name, images)
    found = []
    for workers in (0, 1, 2):
        torch.manual_seed(workers)
        batches = []
        for dataset.epoch in (0, 1):
            order = torch.Generator().manual_seed(9)
            # From Python 3.14 on, Linux would start workers anew, and each would import PyTorch.
            context = "fork" if workers and sys.platform == "linux" else None
            loader = torch.utils.data.DataLoader(
                dataset,
                batch_size=3,
                shuffle=True,
                generator=order,
                num_workers=workers,
                multiprocessing_context=context,
            )
            batches += [batch.numpy() for batch in loader]
        found.append(fingerprint(batches))
    return {"epochs": found, "here": here}


class _Augmented:
    """A dataset whose item `index` is image `index`, augmented for `epoch`. Workers get copies of it."""

    def __init__(self, source: str, name: str, images: int):
        self.source, self.name, self.epoch = source, name, 0
        self.images = np.random.default_rng(8).random((images, 8, 8), dtype=np.float32)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> np.ndarray:
        [augmented] = _functions(self.source, self.name)
        return augmented(self.images[index], 1, self.epoch, index)


# --- 05-resume ------------------------------------------------------------------------------------------


class Training:
    """A small training that draws from every generator there is.

    model      with dropout and batch normalisation
    optimizer  SGD with momentum
    scheduler  halves the learning rate after every second epoch
    generator  the loader's own torch.Generator, for the order of the batches
    epoch      how many epochs are done; the noise shrinks with it

    It also draws from Python's, NumPy's and PyTorch's global generators.
    """

    def __init__(self, seed: int):
        import torch

        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        rng = np.random.default_rng(3)  # the data: the same in every training
        self.x = torch.from_numpy(rng.standard_normal((64, 4), dtype=np.float32))
        self.y = self.x.prod(1, keepdim=True)
        layers = torch.nn
        self.model = layers.Sequential(
            layers.Linear(4, 16),
            layers.BatchNorm1d(16),
            layers.ReLU(),
            layers.Dropout(0.2),
            layers.Linear(16, 1),
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=2, gamma=0.5)
        self.generator = torch.Generator().manual_seed(seed)
        self.epoch = 0

    def run(self, epochs: int) -> None:
        import torch

        for _ in range(epochs):
            for batch in torch.randperm(64, generator=self.generator).split(16):
                noise = np.random.standard_normal((16, 4)) * random.random() / (1 + self.epoch)
                x = self.x[batch] + torch.from_numpy(noise).float()
                loss = torch.nn.functional.mse_loss(self.model(x), self.y[batch])
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            self.scheduler.step()
            self.epoch += 1

    def bits(self) -> str:
        """A fingerprint of the model."""
        return fingerprint([tensor.numpy() for tensor in self.model.state_dict().values()])


def resuming(source: str, save_name: str, restore_name: str) -> dict[str, Any]:
    """Whether what `save` kept after three epochs lets `restore` go on as if nothing had happened."""
    import torch

    save, restore = _functions(source, save_name, restore_name)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tiny tensors; and nothing may differ for another reason
    try:
        return _judged(_resuming(save, restore))
    finally:
        torch.set_num_threads(threads)


def _resuming(save: Callable, restore: Callable) -> Iterator[tuple[float, str]]:
    training = Training(0)
    training.run(3)
    before = _parts(training)
    saved = _call(save, training)
    if _parts(training) != before:
        yield 0, "save changes the training that it should only look at."
        return
    training.run(2)
    uninterrupted = training.bits()
    later = _parts(training)

    try:
        saved = pickle.loads(pickle.dumps(saved))  # as a file would keep it
    except Exception as error:
        yield (
            0,
            f"What save returns cannot be written to a file ({type(error).__name__}); return states, not objects.",
        )
        return
    resumed = Training(1)  # a new process, with another seed so that nothing agrees by chance
    _call(restore, resumed, saved)
    after = _parts(resumed)
    for points, names, right in (
        (1, ("weights", "batch statistics", "momentum"), "Model and optimizer: restored."),
        (1, ("learning rate", "scheduler", "epoch"), "Scheduler and epoch: restored."),
        (1, ("PyTorch", "NumPy", "Python", "loader"), "All four generators: restored."),
    ):
        for name in names:
            if after[name] != before[name]:
                yield 0, _what_is_missing(name, after[name], later[name])
                return
        yield points, right
    resumed.run(2)
    if resumed.bits() != uninterrupted:
        yield (
            0,
            "Every part is restored, and the resumed run still has other bits: does restore leave something behind?",
        )
        return
    yield 1, "The resumed run has the bits of the uninterrupted one."


_MISSING = {
    "weights": "the model's weights are not those of the saved model. model.load_state_dict brings them back.",
    "batch statistics": (
        "the running mean and variance of the batch normalisation are not the saved ones. They are buffers, no "
        "parameters: state_dict() has them, parameters() doesn't."
    ),
    "momentum": "the optimizer's momentum is not the saved one. The optimizer has a state_dict of its own.",
    "learning rate": "the learning rate is not the saved one; it is part of the optimizer's state_dict.",
    "scheduler": "the scheduler starts to count anew. It has a state_dict of its own.",
    "epoch": "training.epoch is not what it was.",
    "PyTorch": (
        "PyTorch's global generator is elsewhere, so dropout will differ. torch.get_rng_state and torch.set_rng_state; "
        "seeding it anew would replay the numbers of the first epoch."
    ),
    "NumPy": "NumPy's global generator is elsewhere: np.random.get_state and np.random.set_state.",
    "Python": "Python's generator is elsewhere: random.getstate and random.setstate.",
    "loader": "the loader's generator is elsewhere, so the order of the batches will differ: get_state and set_state.",
}


def _what_is_missing(name: str, found: Any, later: Any) -> str:
    if found == later and name in ("weights", "batch statistics", "momentum"):
        return (
            f"After restore, the {name.replace('weights', 'weights of the model')} are those of two epochs later: "
            "state_dict() hands out the living tensors, which training went on to change. Save copies, such as "
            "copy.deepcopy makes."
        )
    return f"After restore, {_MISSING[name]}"


def _parts(training: Training) -> dict[str, Any]:
    """Everything that decides how the training goes on, part by part."""
    import torch

    parameters = {name for name, _ in training.model.named_parameters()}
    state = training.model.state_dict()
    buffers = [
        slot.get("momentum_buffer") for slot in training.optimizer.state_dict()["state"].values() if slot
    ]
    return {
        "weights": _bits([tensor for name, tensor in state.items() if name in parameters]),
        "batch statistics": _bits([tensor for name, tensor in state.items() if name not in parameters]),
        "momentum": _bits([tensor for tensor in buffers if tensor is not None]),
        "learning rate": [group["lr"] for group in training.optimizer.param_groups],
        "scheduler": training.scheduler.last_epoch,
        "epoch": training.epoch,
        "PyTorch": _bits([torch.get_rng_state()]),
        "NumPy": repr(np.random.get_state(legacy=False)["state"]["pos"]) + _bits([np.random.get_state()[1]]),
        "Python": hashlib.sha256(repr(random.getstate()).encode()).hexdigest(),
        "loader": _bits([training.generator.get_state()]),
    }


def _bits(tensors: list[Any]) -> str:
    """fingerprint of some tensors, or of none."""
    return fingerprint([np.asarray(tensor) for tensor in tensors]) if tensors else "none"


# --- 09-digest ------------------------------------------------------------------------------------------


def digested(source: str, name: str) -> Any:
    """What the function `name` makes of `image()` in this process, as text, or {"error": sentence}."""
    namespace: dict[str, Any] = {"np": np, "numpy": np, "hashlib": hashlib, "__name__": "learner"}
    try:
        exec(compile(source, FILE, "exec"), namespace)
        return str(namespace[name](image()))
    except Exception as error:
        return {"error": told(name, error)}


# --- 09-mend --------------------------------------------------------------------------------------------

RUNS = 20
SECONDS_TO_VARY = 15.0  # after which the unmended function has not varied on this machine

# As the lab shows them; a test compares.
UNMENDED = """\
def sums(values, place, places):
    return torch.zeros(places).index_put_((place,), values, accumulate=True)


def fitted(x, y, seed):
    torch.manual_seed(seed)
    rng = np.random.default_rng()
    weights = torch.zeros(x.shape[1])
    for _ in range(20):
        noise = rng.normal(0, 0.3, x.shape).astype(np.float32)
        noisy = x + torch.from_numpy(noise)
        weights = weights - 0.1 * noisy.T @ (noisy @ weights - y) / len(y)
    return weights
"""


def mending(source: str, sums_name: str, fitted_name: str) -> dict[str, Any]:
    """Whether the learner's two functions repeat their bits beside the unmended ones, and still compute the same."""
    theirs = _functions(source, sums_name, fitted_name)
    unmended = _functions(UNMENDED, "sums", "fitted")
    return _judged(_mending(*theirs, *unmended))


def _mending(sums: Callable, fitted: Callable, old_sums: Callable, old_fitted: Callable) -> Iterator:
    for judge in (_mended_sums(sums, old_sums), _mended_fitted(fitted, old_fitted)):
        yield from judge


def _afresh() -> None:
    """Settings that the learner's function may have left."""
    import torch

    torch.set_num_threads(THREADS)
    _flag(False)


def _tensor(function: Callable, *arguments: Any) -> Any:
    """The float32 tensor that the learner's function gives. Raises _Failed, also if it changed an argument."""
    import torch

    given = [argument.clone() if isinstance(argument, torch.Tensor) else argument for argument in arguments]
    result = _call(function, *given)
    if not isinstance(result, torch.Tensor) or result.dtype != torch.float32:
        what = f"{result.dtype} tensor" if isinstance(result, torch.Tensor) else type(result).__name__
        raise _Failed(f"{function.__name__} should return a float32 tensor, as it did before, not a {what}.")
    for before, after in zip(arguments, given, strict=True):
        if isinstance(before, torch.Tensor) and fingerprint(before) != fingerprint(after):
            raise _Failed(f"{function.__name__} changes what it is given.")
    return result.detach().clone()


def _mended_sums(sums: Callable, unmended: Callable) -> Iterator[tuple[float, str]]:
    import torch

    rng = np.random.default_rng(90)
    values = torch.from_numpy(rng.standard_normal(200_000, dtype=np.float32))
    place = torch.from_numpy(rng.integers(0, 16, len(values)))
    old, new = set(), set()
    ends = time.monotonic() + SECONDS_TO_VARY
    runs = 0
    while runs < RUNS or (len(old) == 1 and time.monotonic() < ends):
        _afresh()
        old.add(fingerprint(unmended(values, place, 16)))
        _afresh()
        new.add(fingerprint(_tensor(sums, values, place, 16)))
        runs += 1
    left = []
    if torch.get_num_threads() != THREADS:
        left.append("PyTorch on another number of threads")
    if torch.are_deterministic_algorithms_enabled():
        left.append("the deterministic flag on")
    _afresh()
    beside = f"beside {len(old)} of the unmended one"
    if len(new) > 1:
        yield (
            0,
            f"sums gave {len(new)} answers in {runs} runs, {beside}. Nothing in it is random, so there is nothing to "
            "seed: threads add in the order in which they come. Take another op, or another order.",
        )
        return
    if wrong := _other_sums(sums, values, place):
        yield 0, wrong
        return
    if len(old) == 1:
        yield (
            0,
            f"In {runs} runs the unmended sums gave one answer, too, so that yours shows nothing. Run the check again.",
        )
        return
    price = f" It leaves {' and '.join(left)}: all that follows pays for it." if left else ""
    yield 2, f"sums: one answer in {runs} runs, {beside}, and still the sums.{price}"


def _other_sums(sums: Callable, values: Any, place: Any) -> str:
    """A sentence if the results are not the sums any more, within what float32 rounds in any order; else ""."""
    half = len(values) // 2
    for scale, places, part in (
        (1.0, 16, slice(None)),
        (2.0**-40, 16, slice(half)),
        (1.0, 19, slice(half, None)),
    ):
        _afresh()
        given = (values[part] * scale, place[part], places)
        result = _tensor(sums, *given)
        if tuple(result.shape) != (places,):
            return f"sums should return {places} numbers for {places} places, not {list(result.shape)}."
        x, at = given[0].numpy().astype(np.float64), given[1].numpy()
        exact, size = (np.bincount(at, w, minlength=places) for w in (x, np.abs(x)))
        counts = np.bincount(at, minlength=places)
        if np.any(np.abs(result.numpy() - exact) > 2.0**-24 * (counts + 1) * size):
            if scale < 1 and not result.any():
                return (
                    "sums of small numbers are 0 now: rounding the result hides differences, where they are small, and "
                    "changes what is computed."
                )
            return "sums gives other sums now, by more than float32 rounds: mend it without changing what it computes."
    return ""


def _mended_fitted(fitted: Callable, unmended: Callable) -> Iterator[tuple[float, str]]:
    import torch

    rng = np.random.default_rng(91)
    x = torch.from_numpy(rng.standard_normal((48, 3), dtype=np.float32))
    y = x @ torch.tensor([1.0, -2.0, 0.5])

    def weights(function: Callable, seed: int) -> np.ndarray:
        _afresh()
        torch.set_num_threads(1)
        result = _tensor(function, x, y, seed).numpy()
        if result.shape != (3,):
            raise _Failed(f"fitted should return 3 weights for 3 columns, not {list(result.shape)}.")
        return result

    new, old = [weights(fitted, 1) for _ in range(RUNS)], [weights(unmended, 1) for _ in range(RUNS)]
    distinct, beside = (len({fingerprint(each) for each in runs}) for runs in (new, old))
    if distinct > 1:
        yield (
            0,
            f"fitted gave {distinct} answers in {RUNS} runs with one seed, beside {beside} of the unmended one. Which "
            "generator draws the noise, and who seeds it? torch.manual_seed and np.random.seed don't reach one made "
            "by default_rng.",
        )
        return
    seeds = range(100, 80_100, 1_000)
    new, old = (np.array([weights(function, seed) for seed in seeds]) for function in (fitted, unmended))
    answers = len({fingerprint(each) for each in new})
    if answers < len(seeds):
        yield (
            0,
            f"fitted repeats, but {len(seeds)} seeds give {answers} answer{'s' * (answers > 1)}: is there still noise "
            "in it, and does the seed that is given count?",
        )
        return
    widths = new.std(axis=0) / old.std(axis=0)
    if widths.max() > 1.6:
        yield (
            0,
            f"fitted repeats, but its weights now spread {widths.max():.2g} times as far from seed to seed. Does each "
            "step still see other noise? A generator that is made or seeded inside the loop gives each step the same.",
        )
        return
    off = np.abs(new.mean(axis=0) - old.mean(axis=0)) / (old.std(axis=0) / np.sqrt(len(seeds) / 2))
    if widths.min() < 0.6 or off.max() > 6:
        yield 0, "fitted repeats, but it fits something else now: mend it without changing what it computes."
        return
    yield (
        2,
        f"fitted: one answer in {RUNS} runs, beside {beside} of the unmended one, another for each seed, and "
        "the same fit.",
    )
