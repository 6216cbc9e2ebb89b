"""Checks of chapter 05: whom a seed reaches, what a loader's workers draw, what the flag does, and traps.

Those whose claims need an NVIDIA GPU have not been run on one.
"""

from __future__ import annotations

import copy
import functools
import json
import os
import random
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np

from samebits.bits import fingerprint
from samebits.checks import THREADS, Seen, chapter04, check, in_new_process
from samebits.experiments import traps

RACING = 50_000  # float32 values that threads share; from 32,768 on they do
WRITTEN = 4 * RACING  # values written to RACING places, where threads seldom meet

# --- Whom a seed reaches ---------------------------------------------------------------------------------


@check("05-seed-every-gpu", control="a generator's own manual_seed", framework="torch")
def seed_every_gpu(control: bool) -> Seen:
    import torch

    with mock.patch("torch.cuda.manual_seed_all") as every_gpu:
        torch.default_generator.manual_seed(5) if control else torch.manual_seed(5)
    return Seen(every_gpu.mock_calls == [mock.call(5)], f"calls for every GPU: {every_gpu.mock_calls}")


@check("05-returns-global", control="the manual_seed of a new generator", framework="torch")
def returns_global(control: bool) -> Seen:
    import torch

    returned = (torch.Generator() if control else torch).manual_seed(5)
    same = returned is torch.default_generator
    return Seen(same, f"it returned {'the global generator' if same else 'another one'}")


@check("05-unseeded-generator", control="a generator seeded from the operating system", framework="torch")
def unseeded_generator(control: bool) -> Seen:
    import torch

    generators = [torch.Generator() for _ in range(2)]
    if control:
        for generator in generators:
            generator.seed()
    seeds = {generator.initial_seed() for generator in generators}
    return Seen(
        seeds == {67280421310721}, f"two generators started from {' and '.join(map(str, sorted(seeds)))}"
    )


@check("05-global-unseeded", control="generators made by torch.Generator()", framework="torch", fresh=True)
def global_unseeded(control: bool) -> Seen:
    import torch

    if control:
        here, there = (torch.Generator().initial_seed() for _ in range(2))
    else:
        here = torch.initial_seed()
        there = int(in_new_process("import torch; print(torch.initial_seed())"))
    return Seen(here != there, f"two processes started from {here} and {there}")


@check("05-numpy-global-only", control="NumPy's global generator itself")
def numpy_global_only(control: bool) -> Seen:
    drawn = []
    for _ in range(2):
        np.random.seed(0)
        drawn.append(np.random.random() if control else np.random.default_rng().random())
    return Seen(drawn[0] != drawn[1], f"drawn after the same seed: {drawn[0]:.4f} and {drawn[1]:.4f}")


@check("05-torch-seeds-torch", control="np.random.seed and random.seed", framework="torch")
def torch_seeds_torch(control: bool) -> Seen:
    import torch

    random.seed(1)  # elsewhere than the control will put them
    np.random.seed(1)
    before = random.getstate(), np.random.get_state()[1].tobytes()
    if control:
        random.seed(0)
        np.random.seed(0)
    else:
        torch.manual_seed(0)
    moved = (random.getstate(), np.random.get_state()[1].tobytes()) != before
    return Seen(not moved, f"Python's and NumPy's generators were {'moved' if moved else 'left alone'}")


# --- The loader ------------------------------------------------------------------------------------------


class Items:
    """A dataset of eight items: what `what` says of item `index` in the process that reads it."""

    def __init__(self, what: str):
        self.what = what

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> float:
        import torch

        if self.what == "slow first" and index == 0:
            time.sleep(0.5)
        return {
            "process": os.getpid,
            "torch": lambda: float(torch.rand(())),
            "numpy": np.random.random,
            "python": random.random,
            "seed": torch.initial_seed,
        }.get(self.what, lambda: index)()


def _loader(what: str, workers: int, **options: Any) -> Any:
    import torch

    # From Python 3.14 on, Linux would start workers anew, and each would import PyTorch.
    context = "fork" if workers and sys.platform == "linux" else None
    return torch.utils.data.DataLoader(
        Items(what), num_workers=workers, multiprocessing_context=context, **options
    )


def _epochs(loader: Any, epochs: int = 1) -> list[list[Any]]:
    return [[batch.item() for batch in loader] for _ in range(epochs)]


@check("05-workers-are-processes", control="num_workers=0", framework="torch")
def workers_are_processes(control: bool) -> Seen:
    [readers] = _epochs(_loader("process", 0 if control else 2))
    others = set(readers) - {os.getpid()}
    return Seen(len(others) == 2, f"items were read in {len(others)} other processes")


@check("05-workers-seeded", control="another seed of PyTorch in the main process", framework="torch")
def workers_seeded(control: bool) -> Seen:
    import torch

    drawn = []
    for seed, elsewhere in ((1, 10), (2 if control else 1, 20)):
        torch.manual_seed(seed)
        random.seed(elsewhere)  # where the main process's own generators stand must not matter
        np.random.seed(elsewhere)
        drawn.append([_epochs(_loader(what, 2)) for what in ("python", "numpy", "torch")])
    same = [one == other for one, other in zip(*drawn, strict=True)]
    return Seen(
        all(same), f"{sum(same)} of Python's, NumPy's and PyTorch's draws repeated, without worker_init_fn"
    )


@check("05-base-seed-moves", control="a loader with a generator of its own", framework="torch")
def base_seed_moves(control: bool) -> Seen:
    import torch

    before = torch.get_rng_state()
    _epochs(_loader("index", 0, generator=torch.Generator() if control else None))
    moved = not torch.equal(before, torch.get_rng_state())
    return Seen(
        moved, f"PyTorch's global generator {'moved' if moved else 'stayed'} under one pass without shuffling"
    )


@check("05-generator-independent", control="no generator", framework="torch")
def generator_independent(control: bool) -> Seen:
    import torch

    orders = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        generator = None if control else torch.Generator().manual_seed(0)
        orders.append(_epochs(_loader("index", 0, shuffle=True, generator=generator), 2))
    return Seen(
        orders[0] == orders[1], f"under two global seeds: {'one order' if orders[0] == orders[1] else 'two'}"
    )


@check(
    "05-workers-count", control="the order of the images instead of what is drawn for them", framework="torch"
)
def workers_count(control: bool) -> Seen:
    import torch

    drawn = []
    for workers in (1, 2):
        torch.manual_seed(1)
        drawn.append(_epochs(_loader("index" if control else "numpy", workers, shuffle=True)))
    return Seen(
        drawn[0] != drawn[1], f"with one and two workers: {'other' if drawn[0] != drawn[1] else 'the same'}"
    )


@check("05-per-image", control="NumPy's global generator", framework="torch")
def per_image(control: bool) -> Seen:
    drawn = [
        traps.augmentation_draws(draws="np.random" if control else "per image", workers=workers, epochs=1)
        for workers in (1, 2)
    ]
    return Seen(
        drawn[0] == drawn[1], f"one and two workers drew {'the same' if drawn[0] == drawn[1] else 'others'}"
    )


@check("05-stored-generator", control="a generator that each worker makes for itself", framework="torch")
def stored_generator(control: bool) -> Seen:
    table = traps.augmentation_draws(
        draws="worker's generator" if control else "stored generator", workers=2, epochs=2
    )
    doubles = len(table[0]) - len(set(table[0]))
    repeated = table[0] == table[1]
    second = "the same" if repeated else "others"
    told = f"{doubles} of {len(table[0])} draws were repetitions, and the second epoch drew {second}"
    return Seen(doubles > 0 and repeated, told)


@check("05-init-without-workers", control="one worker", framework="torch")
def init_without_workers(control: bool) -> Seen:
    import torch.multiprocessing as processes

    called = processes.get_context("fork" if sys.platform == "linux" else None).Value("i", 0)
    _epochs(_loader("index", 1 if control else 0, worker_init_fn=functools.partial(_note, called)))
    return Seen(called.value == 0, f"worker_init_fn was called {called.value} times")


def _note(called: Any, number: int) -> None:
    called.value += 1


@check("05-persistent", control="the same setting twice", framework="torch")
def persistent(control: bool) -> Seen:
    import torch

    drawn = []
    for stay in (False, not control):
        torch.manual_seed(1)
        drawn.append(_epochs(_loader("torch", 2, persistent_workers=stay), 2))
    first, second = (drawn[0][epoch] == drawn[1][epoch] for epoch in (0, 1))
    told = f"epoch 1: {'the same' if first else 'other'} draws; epoch 2: {'the same' if second else 'other'} draws"
    return Seen(first and not second, told)


@check("05-in-order", control="in_order=False", framework="torch")
def in_order(control: bool) -> Seen:
    [order] = _epochs(_loader("slow first", 2, in_order=not control))
    return Seen(order == sorted(order), f"a slow first item came as number {order.index(0) + 1}")


@check("05-global-order", control="another seed", framework="torch")
def global_order(control: bool) -> Seen:
    import torch

    orders = []
    for workers in (0, 2):
        torch.manual_seed(workers if control else 1)
        orders.append(_epochs(_loader("index", workers, shuffle=True)))
    return Seen(
        orders[0] == orders[1],
        f"without and with workers: {'one order' if orders[0] == orders[1] else 'two orders'}",
    )


# --- Sets and hashes -------------------------------------------------------------------------------------

_HASHED = "print(hash('a'))"


@check("05-hash-inside", control="the variable set before the start")
def hash_inside(control: bool) -> Seen:
    program = f"import os; os.environ['PYTHONHASHSEED'] = '0'; {_HASHED}"
    hashes = {in_new_process(program, PYTHONHASHSEED="0" if control else None) for _ in range(3)}
    return Seen(
        len(hashes) > 1, f"three processes hashed a text to {len(hashes)} number{'s' * (len(hashes) > 1)}"
    )


@check("05-hash-child", control="the variable not set inside")
def hash_child(control: bool) -> Seen:
    setting = "" if control else "os.environ['PYTHONHASHSEED'] = '0'; "
    program = (
        f"import os, subprocess, sys; {setting}"
        f'print(subprocess.run([sys.executable, "-c", {_HASHED!r}], capture_output=True, text=True).stdout)'
    )
    hashes = {in_new_process(program, PYTHONHASHSEED=None) for _ in range(3)}
    return Seen(
        len(hashes) == 1,
        f"three processes started by such scripts hashed a text to {len(hashes)} number{'s' * (len(hashes) > 1)}",
    )


@check("05-set-order", control="a set of whole numbers")
def set_order(control: bool) -> Seen:
    members = "range(10)" if control else "'ABCDEFGHIJ'"
    orders = {in_new_process(f"print(list(set({members})))", PYTHONHASHSEED=str(seed)) for seed in (1, 2, 3)}
    return Seen(len(orders) > 1, f"three hash seeds gave {len(orders)} order{'s' * (len(orders) > 1)}")


@check("05-sorted-set", control="the set in its own order")
def sorted_set(control: bool) -> Seen:
    how = "list" if control else "sorted"
    orders = {
        in_new_process(f"print({how}(set('ABCDEFGHIJ')))", PYTHONHASHSEED=str(seed)) for seed in (1, 2, 3)
    }
    return Seen(len(orders) == 1, f"three hash seeds gave {len(orders)} order{'s' * (len(orders) > 1)}")


# --- The flag --------------------------------------------------------------------------------------------


def _put() -> Any:
    import torch

    return torch.zeros(4).put_(torch.tensor([1]), torch.ones(1))


def _unpool() -> Any:
    import torch

    return torch.nn.MaxUnpool1d(2)(torch.ones(1, 1, 2), torch.tensor([[[0, 3]]]))


def _refusal(function: Callable[[], Any]) -> str:
    """The beginning of the error that it raises, or ""."""
    try:
        function()
    except RuntimeError as error:
        return str(error).partition(",")[0]
    return ""


@check("05-flag-raises", control="the flag off", framework="torch")
def flag_raises(control: bool) -> Seen:
    import torch

    torch.use_deterministic_algorithms(not control)
    found = _refusal(_put)
    return Seen("does not have a deterministic implementation" in found, found or "no error")


@check("05-kernel-name", control="the name of the operation that was called", framework="torch")
def kernel_name(control: bool) -> Seen:
    import torch

    torch.use_deterministic_algorithms(True)
    found = _refusal(_unpool)
    wanted = "MaxUnpool1d" if control else "max_unpooling2d_forward_out"
    return Seen(found.startswith(wanted), found or "no error")


def _warnings_of(function: Callable[[], Any]) -> int:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function()
    return sum("does not have a deterministic implementation" in str(warning.message) for warning in caught)


@check("05-backward-time", control="the flag off in the backward, too", framework="torch")
def backward_time(control: bool) -> Seen:
    import torch

    changed = torch.ones(4, requires_grad=True).mul(2).put(torch.tensor([1]), torch.ones(1))
    torch.use_deterministic_algorithms(not control)
    found = _refusal(changed.sum().backward)
    return Seen(
        "does not have a deterministic implementation" in found, f"in the backward: {found or 'no error'}"
    )


@check("05-warn-only-warns", control="warn_only=False", framework="torch")
def warn_only_warns(control: bool) -> Seen:
    import torch

    torch.use_deterministic_algorithms(True, warn_only=not control)
    try:
        return Seen(_warnings_of(_put) == 1, "put_ warned and went on")
    except RuntimeError:
        return Seen(False, "put_ raised")


def _racing_gradient() -> str:
    """Of table[index], in which threads add many rows into few."""
    import torch

    torch.set_num_threads(THREADS)
    rng = np.random.default_rng(5)
    table = torch.zeros(16, requires_grad=True)
    index = torch.from_numpy(rng.integers(0, 16, RACING))
    given = torch.from_numpy(rng.standard_normal(RACING, dtype=np.float32))
    return fingerprint(torch.autograd.grad(table[index], table, given)[0])


@check("05-warn-only-switches", control="the flag off", framework="torch")
def warn_only_switches(control: bool) -> Seen:
    import torch

    torch.use_deterministic_algorithms(not control, warn_only=True)
    return Seen.same(len({_racing_gradient() for _ in range(30)}), 30, control)


@check("05-palette-races", control="the flag on", framework="torch")
def palette_races(control: bool) -> Seen:
    import torch

    torch.use_deterministic_algorithms(control)
    return Seen.varies(len({_racing_gradient() for _ in range(30)}), 30, control)


def _last_writer(op: str, repeated: bool = True) -> str:
    """The operation writes 200,000 values at 50,000 indices, about four for each, or, if not `repeated`, at 200,000."""
    import torch

    torch.set_num_threads(THREADS)
    rng = np.random.default_rng(5)
    index = torch.from_numpy(rng.integers(0, RACING, WRITTEN) if repeated else rng.permutation(WRITTEN))
    values = torch.from_numpy(rng.standard_normal(WRITTEN, dtype=np.float32))
    written = {
        "index_put_": lambda: torch.zeros(WRITTEN).index_put_((index,), values),
        "index_copy": lambda: torch.zeros(WRITTEN).index_copy(0, index, values),
        "put_": lambda: torch.zeros(WRITTEN).put_(index, values),
        "max_unpool": lambda: torch.nn.functional.max_unpool1d(
            values[None, None], index[None, None], 1, output_size=(WRITTEN,)
        ),
    }[op]()
    return fingerprint(written)


def _all_vary(operations: tuple[str, ...], control: bool, repeated: bool = True) -> Seen:
    """Whether each of them gives more than one answer."""
    counts = {op: len({_last_writer(op, repeated) for _ in range(30)}) for op in operations}
    told = ", ".join(f"{op} {count}" for op, count in counts.items())
    held = all(count > 1 for count in counts.values())
    return Seen(True if held else False if control else None, f"distinct in 30 runs: {told}")


@check("05-last-writer", control="the flag on", framework="torch")
def last_writer(control: bool) -> Seen:
    import torch

    torch.use_deterministic_algorithms(control)
    return _all_vary(("index_put_", "index_copy"), control)


@check("05-last-writer-refused", control="no index twice", framework="torch")
def last_writer_refused(control: bool) -> Seen:
    import torch

    operations = ("put_", "max_unpool")
    torch.use_deterministic_algorithms(True)
    refused = [op for op in operations if _refusal(functools.partial(_last_writer, op))]
    torch.use_deterministic_algorithms(False)
    found = _all_vary(operations, control, repeated=not control)
    holds = found.holds if refused == list(operations) else False
    return Seen(holds, f"{found.what}; under the flag {' and '.join(refused) or 'neither'} raised")


@check("05-take", control="table[index], whose gradient the documentation lists", framework="torch")
def take(control: bool) -> Seen:
    import torch

    torch.set_num_threads(THREADS)
    rng = np.random.default_rng(5)
    table = torch.zeros(16, requires_grad=True)
    index = torch.from_numpy(rng.integers(0, 16, RACING))
    given = torch.from_numpy(rng.standard_normal(RACING, dtype=np.float32))

    def gradient() -> str:
        looked_up = table[index] if control else table.take(index)
        return fingerprint(torch.autograd.grad(looked_up, table, given)[0])

    without = len({gradient() for _ in range(30)})
    torch.use_deterministic_algorithms(True)
    under = len({gradient() for _ in range(30)})
    name = "Tensor.__getitem__" if control else "torch.take`"
    page = torch.use_deterministic_algorithms.__doc__.replace("torch.Tensor.take`", "torch.take`")
    listed = name in page
    told = f"{without} distinct in 30 runs, {under} under the flag; the documentation lists it: {listed}"
    if listed or under > 1:
        return Seen(False, told)
    return Seen(True if without > 1 else None, told)


@check("05-debug-mode", control="use_deterministic_algorithms(True)", framework="torch")
def debug_mode(control: bool) -> Seen:
    import torch
    import torch._inductor.config as inductor

    torch.use_deterministic_algorithms(False)
    torch.use_deterministic_algorithms(True) if control else torch.set_deterministic_debug_mode("error")
    flag, compiled = torch.are_deterministic_algorithms_enabled(), inductor.deterministic
    torch.use_deterministic_algorithms(False)
    return Seen(flag and not compiled, f"the flag reads {flag}, Inductor's own {compiled}")


@check("05-unfold", control="put_", framework="torch")
def unfold(control: bool) -> Seen:
    import torch

    torch.use_deterministic_algorithms(True)
    images = torch.ones(1, 1, 4, 4, requires_grad=True)
    found = _refusal(_put if control else lambda: torch.nn.functional.unfold(images, 2).sum().backward())
    listed = ("put_" if control else "unfold") in torch.use_deterministic_algorithms.__doc__.replace(
        "MaxUnpool", ""
    )
    return Seen(not found and not listed, f"{found or 'no error'}; the documentation lists it: {listed}")


@check("05-extension", control="index_put_ in place of the extension's operation", framework="torch")
def extension(control: bool) -> Seen:
    import torch

    if control:
        torch.use_deterministic_algorithms(True)
        return Seen.varies(len({_racing_gradient() for _ in range(30)}), 30, control)
    found = traps.raced_by_extension(deterministic=True, runs=30)
    if found["error"]:
        return Seen(None, found["error"])
    return Seen.varies(found["distinct"], found["runs"], control)


@check("05-scope-documented", control="the page of torch.manual_seed", framework="torch")
def scope_documented(control: bool) -> Seen:
    return _page_says("run on the same software and hardware", control)


@check("05-cost-documented", control="the page of torch.manual_seed", framework="torch")
def cost_documented(control: bool) -> Seen:
    return _page_says("tend to have worse performance", control)


def _page_says(words: str, control: bool) -> Seen:
    """Whether the flag's page (or that of torch.manual_seed) has these words, and no percentage."""
    import torch

    page = " ".join((torch.manual_seed if control else torch.use_deterministic_algorithms).__doc__.split())
    found = words in page
    return Seen(
        found and "%" not in page,
        f"the page {'has' if found else 'lacks'} “{words}”, and {page.count('%')} “%”",
    )


@check("05-attention-hole", control="the flag without warn_only", framework="torch")
def attention_hole(control: bool) -> Seen:
    found = traps.attention_backward(mode="on" if control else "warn")
    if found["error"]:
        return Seen(None, found["error"])
    return Seen.varies(found["distinct"], found["runs"], control)


# --- Memory that nobody wrote ----------------------------------------------------------------------------


def _left_over(flag: bool, fill: bool = True) -> Any:
    """10,000 float32 of torch.empty, where ones lay before."""
    import torch

    torch.use_deterministic_algorithms(flag)
    torch.utils.deterministic.fill_uninitialized_memory = fill
    try:
        for _ in range(4):
            torch.ones(10_000)  # freed at once; the allocator hands the same memory out again
        return torch.empty(10_000)
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = True


@check("05-fill-nan", control="fill_uninitialized_memory = False", framework="torch")
def fill_nan(control: bool) -> Seen:
    found = int(_left_over(True, fill=not control).isnan().sum())
    return Seen(found == 10_000, f"{found:,} of 10,000 values are NaN")


@check("05-fill-needs-flag", control="the flag on", framework="torch")
def fill_needs_flag(control: bool) -> Seen:
    found = int(_left_over(control).isnan().sum())
    return Seen(found < 10_000, f"{found:,} of 10,000 values are NaN")


@check("05-fill-integers", control="the flag off", framework="torch")
def fill_integers(control: bool) -> Seen:
    import torch

    torch.use_deterministic_algorithms(not control)
    found = []
    for dtype in (torch.int32, torch.int64, torch.uint8):
        for _ in range(4):
            torch.ones(10_000, dtype=dtype)
        found.append(bool((torch.empty(10_000, dtype=dtype) == torch.iinfo(dtype).max).all()))
    return Seen(all(found), f"{sum(found)} of 3 integer formats hold their largest value")


@check("05-fill-in-backward", control="fill_uninitialized_memory = False", framework="torch")
def fill_in_backward(control: bool) -> Seen:
    import torch

    images = torch.ones(2, 3, 4, 4, requires_grad=True)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = not control
    try:
        normal = torch.nn.functional.batch_norm(images, None, None, training=True)
        given = torch.ones_like(normal)
        with torch.autograd.profiler.profile() as found:
            torch.autograd.grad(normal, images, given)
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = True
    fills = [event.name for event in found.function_events].count("aten::fill_")
    return Seen(fills > 0, f"it filled {fills} new tensors")


@check("05-fill-hides", control="without the flag, memory in which something lay", framework="torch")
def fill_hides(control: bool) -> Seen:
    found = traps.uninitialised(deterministic=not control, runs=10)
    return Seen.same(found["distinct"], found["runs"], control)


# --- Lines for a GPU -------------------------------------------------------------------------------------


@functools.cache
def _defaults() -> dict[str, Any]:
    program = """
import json, torch
b = torch.backends
print(json.dumps({"benchmark": b.cudnn.benchmark, "deterministic": b.cudnn.deterministic,
    "conv tf32": b.cudnn.allow_tf32, "matmul tf32": b.cuda.matmul.allow_tf32,
    "fill": torch.utils.deterministic.fill_uninitialized_memory, "flag": torch.are_deterministic_algorithms_enabled()}))
"""
    return json.loads(in_new_process(program))


@check("05-defaults", control="the switches that are on by default")
def defaults(control: bool) -> Seen:
    names = ("conv tf32", "fill") if control else ("benchmark", "deterministic", "flag", "matmul tf32")
    on = [name for name in names if _defaults()[name]]
    return Seen(not on, f"in a new process, on by default: {', '.join(on) or 'none'} of {', '.join(names)}")


@check("05-tf32-convolutions", control="the same switch for matmuls")
def tf32_convolutions(control: bool) -> Seen:
    on = _defaults()["matmul tf32" if control else "conv tf32"]
    return Seen(on, f"allow_tf32 is {on} in a new process")


@check("05-gpu-lines-inert", control="oneDNN off, which acts on a CPU", framework="torch")
def gpu_lines_inert(control: bool) -> Seen:
    import torch

    backends = torch.backends
    if not backends.mkldnn.is_available():
        return Seen(None, "this PyTorch has no oneDNN to switch off")
    switches = (
        (backends.cudnn, "benchmark"),
        (backends.cudnn, "deterministic"),
        (backends.cudnn, "allow_tf32"),
    )
    switches = (*switches, (backends.cuda.matmul, "allow_tf32"))
    before = [getattr(*switch) for switch in switches]
    found = [_trained_step()]
    try:
        if control:
            with backends.mkldnn.flags(enabled=False, allow_tf32=False):
                found.append(_trained_step())
        else:
            for (module, name), value in zip(switches, before, strict=True):
                setattr(module, name, not value)
            found.append(_trained_step(torch.cuda.manual_seed_all))
    finally:
        for (module, name), value in zip(switches, before, strict=True):
            setattr(module, name, value)
    same = found[0] == found[1]
    return Seen(same, f"a step of training on the CPU gave {'the same' if same else 'other'} bits")


def _trained_step(seed_too: Callable[[int], None] = lambda seed: None) -> str:
    """The gradients of a small convolutional network with dropout."""
    import torch

    torch.manual_seed(0)
    seed_too(0)
    layers = torch.nn
    network = layers.Sequential(
        layers.Conv2d(3, 8, 3), layers.Flatten(), layers.Dropout(), layers.Linear(1568, 10)
    )
    images = np.random.default_rng(5).standard_normal((16, 3, 16, 16), dtype=np.float32)
    loss = network(torch.from_numpy(images)).square().sum()
    return fingerprint(list(torch.autograd.grad(loss, list(network.parameters()))))


@check("05-no-cublas-line", control="the words of an error that PyTorch still has")
def no_cublas_line(control: bool) -> Seen:
    return chapter04.no_cublas_check(control)


# --- What no line covers ---------------------------------------------------------------------------------


@check("05-checkpoint", control="preserve_rng_state=True", framework="torch")
def checkpoint(control: bool) -> Seen:
    found = traps.checkpointed(preserve_rng_state=control)
    error = found["relative error"]
    return Seen(error > 0.1, f"the gradient is off by {100 * error:.3g} % of its length")


@check("05-checkpoint-default", control="the default of use_reentrant", framework="torch")
def checkpoint_default(control: bool) -> Seen:
    import torch
    from torch.utils.checkpoint import checkpoint as compute_again

    torch.manual_seed(0)
    layer, x = torch.nn.Dropout(0.5), torch.ones(1000, requires_grad=True)
    options = {"preserve_rng_state": False} if control else {}
    y = compute_again(lambda z: layer(z) ** 2, x, use_reentrant=False, **options)
    kept, gradient = y.detach() != 0, torch.autograd.grad(y.sum(), x)[0] != 0
    same = bool((kept == gradient).all())
    return Seen(same, f"dropout was {'the same' if same else 'another one'} in the backward")


@check("05-resume-parts", control="every part saved", framework="torch")
def resume_parts(control: bool) -> Seen:
    found = traps.resumed(saved=traps.RESUME_STATE if control else ("model", "optimizer"))
    return Seen(not found["same"], f"the resumed run has {'the same' if found['same'] else 'other'} bits")


@check("05-state-dict-lives", control="a deep copy of it", framework="torch")
def state_dict_lives(control: bool) -> Seen:
    import torch

    layer = torch.nn.Linear(2, 2)
    state = copy.deepcopy(layer.state_dict()) if control else layer.state_dict()
    before = state["weight"].clone()
    with torch.no_grad():
        layer.weight += 1
    changed = not torch.equal(before, state["weight"])
    return Seen(changed, f"what was saved {'changed' if changed else 'stayed'} when the weights did")


@check("05-buffers", control="parameters()", framework="torch")
def buffers(control: bool) -> Seen:
    import torch

    layer = torch.nn.BatchNorm1d(2)
    names = [name for name, _ in layer.named_parameters()] if control else list(layer.state_dict())
    return Seen("running_mean" in names, f"it has {', '.join(names)}")


@check("05-bilinear", control="linear, which keeps its kernel", framework="torch")
def bilinear(control: bool) -> Seen:
    import torch

    # A meta tensor has no numbers, and is not on the CPU: what PyTorch chooses for a GPU shows without one.
    torch.use_deterministic_algorithms(True)
    kept = []
    for mode, dimensions in {"linear": 1}.items() if control else {"bilinear": 2, "trilinear": 3}.items():
        image = torch.zeros((1, 1) + (4,) * dimensions, device="meta", requires_grad=True)
        larger = torch.nn.functional.interpolate(image, scale_factor=2, mode=mode)
        if "Upsample" in type(larger.grad_fn).__name__:
            kept.append(mode)
    documented = " ".join(torch.use_deterministic_algorithms.__doc__.partition("will throw")[2].split())
    listed = "``bilinear``" in documented and "``trilinear``" in documented
    return Seen(
        not kept and listed, f"the kernel is kept for {', '.join(kept) or 'neither'}; both listed: {listed}"
    )


def _raises(run) -> str:
    import torch

    torch.use_deterministic_algorithms(True)
    try:
        run()
        torch.cuda.synchronize()
    except RuntimeError as error:
        return str(error).partition(" does not")[0]
    return ""


@check("05-nll", control="a class for each pixel", framework="torch")
def nll(control: bool) -> Seen:
    import torch

    shape = (4, 3, 8, 8) if control else (64, 3)
    scores = torch.zeros(shape, device="cuda", requires_grad=True)
    target = torch.zeros(shape[:1] + shape[2:], dtype=torch.int64, device="cuda")
    raised = _raises(lambda: torch.nn.functional.cross_entropy(scores, target).backward())
    return Seen(not raised, f"raised: {raised or 'nothing'}")


@check("05-cumsum", control="a weighted bincount", framework="torch")
def cumsum(control: bool) -> Seen:
    import torch

    values = torch.ones(1000, device="cuda")
    index = torch.zeros(1000, dtype=torch.int64, device="cuda")
    raised = _raises(lambda: torch.bincount(index, values) if control else values.cumsum(0))
    return Seen(not raised, f"raised: {raised or 'nothing'}")
