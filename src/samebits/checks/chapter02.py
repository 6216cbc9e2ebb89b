"""Checks of chapter 02's claims: what races on the CPU, what the flag does, and the course's own kernels.

Those of a GPU use the kernels of samebits.kernels, or PyTorch's ops. Not verified on a GPU: without one, their
code was run in numba-cuda's simulator, which cannot show a race.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from samebits import kernels, orders, variability
from samebits.bits import fingerprint
from samebits.checks import Seen, check
from samebits.experiment import BadSetting
from samebits.experiments.scatter import CPU_RACE_SIZE

RUNS = 20
VALUES = 100_000
SLOTS = 16

# What numba reads when it is imported, so that one worker has a GPU and another the simulator.
ON_GPU, IN_SIMULATOR = kernels.environment(simulate=False), kernels.environment(simulate=True)


# --- PyTorch's ops ---------------------------------------------------------------------------------------


def _op(name: str, values: Any, slots: int = SLOTS, device: str = "cpu") -> Callable[[], Any]:
    """A function that adds `values`, (n,) of NumPy or PyTorch, into slots with one of five ops; it returns them."""
    import torch

    index = torch.from_numpy(np.random.default_rng(5).integers(0, slots, len(values))).to(device)
    given = torch.as_tensor(values, device=device)

    def empty():
        return torch.zeros(slots, dtype=given.dtype, device=device)

    def backward():
        table = empty().requires_grad_()
        (table[index] * given).sum().backward()
        return table.grad

    return {
        "index_put_": lambda: empty().index_put_((index,), given, accumulate=True),
        "put_": lambda: empty().put_(index, given, accumulate=True),
        "x[idx] backward": backward,
        "index_add_": lambda: empty().index_add_(0, index, given),
        "scatter_add_": lambda: empty().scatter_add_(0, index, given),
    }[name]


def _normal(n: int = VALUES) -> np.ndarray:
    return np.random.default_rng(2).standard_normal(n, dtype=np.float32)


def _distinct(once: Callable[[], Any]) -> int:
    return len({fingerprint(once(), "sha256") for _ in range(RUNS)})


@check("02-index-put-races", control="one thread", framework="torch")
def index_put_races(control: bool) -> Seen:
    import torch

    if control:
        torch.set_num_threads(1)
    return Seen.varies(_distinct(_op("index_put_", _normal(), slots=1)), RUNS, control)


@check("02-others-race", control="one thread", framework="torch")
def others_race(control: bool) -> Seen:
    import torch

    if control:
        torch.set_num_threads(1)
    counts = [_distinct(_op(name, _normal())) for name in ("put_", "x[idx] backward")]
    return Seen.varies(max(counts) if control else min(counts), RUNS, control)


@check("02-threshold", control="one value less", framework="torch")
def threshold(control: bool) -> Seen:
    values = _normal(CPU_RACE_SIZE - control)
    return Seen.varies(_distinct(_op("index_put_", values)), RUNS, control)


@check("02-float32-alone", control="float32", framework="torch")
def float32_alone(control: bool) -> Seen:
    import torch

    # No integers: they would show one answer from a race, too.
    dtypes = [torch.float32] if control else [torch.float64, torch.bfloat16, torch.float16]
    counts = [_distinct(_op("index_put_", torch.from_numpy(_normal()).to(dtype))) for dtype in dtypes]
    return Seen.same(max(counts), RUNS, control)


@check("02-two-quiet-ops", control="`index_put_`", framework="torch")
def two_quiet_ops(control: bool) -> Seen:
    names = ["index_put_"] if control else ["index_add_", "scatter_add_"]
    return Seen.same(max(_distinct(_op(name, _normal())) for name in names), RUNS, control)


@check("02-no-random-number", control="random indices", framework="torch")
def no_random_number(control: bool) -> Seen:
    import torch

    before = torch.get_rng_state()
    if control:
        torch.randint(0, SLOTS, (VALUES,))
    for name in ("index_put_", "index_add_"):
        _op(name, _normal())()
    drawn = not torch.equal(before, torch.get_rng_state())
    return Seen(not drawn, f"the generator's state {'changed' if drawn else 'stayed as it was'}")


@check(
    "02-nothing-lost",
    control="`slots[index] += ones`, which reads all first and then writes",
    framework="torch",
)
def nothing_lost(control: bool) -> Seen:
    import torch

    index, ones = torch.zeros(VALUES, dtype=torch.int64), torch.ones(VALUES)

    def total() -> float:
        slots = torch.zeros(1)
        if control:
            slots[index] += ones
        else:
            slots.index_put_((index,), ones, accumulate=True)
        return float(slots)

    totals = {total() for _ in range(RUNS)}
    return Seen(totals == {float(VALUES)}, f"{VALUES:,} ones added up to {totals}")


@check("02-whole-numbers", control="numbers that round", framework="torch")
def whole_numbers(control: bool) -> Seen:
    whole = np.random.default_rng(3).integers(-100, 101, VALUES).astype(np.float32)
    return Seen.same(_distinct(_op("index_put_", _normal() if control else whole)), RUNS, control)


@check("02-float64-rarer", control="fixed point, which adds integers")
def float64_rarer(control: bool) -> Seen:
    wide = np.random.default_rng(2).standard_normal(VALUES)
    add = orders.fixed_point if control else orders.serial
    of_wide, of_narrow = (
        [float(add(x[orders.permutation(x.size, seed=1, run=run)])) for run in range(RUNS)]
        for x in (wide, wide.astype(np.float32))
    )
    answers, spread, narrow_spread = len(set(of_wide)), np.ptp(of_wide), np.ptp(of_narrow)
    return Seen(
        answers > 1 and spread < narrow_spread,
        f"{answers} answers in {RUNS} orders, {spread:.1e} apart, and {narrow_spread:.1e} in float32",
    )


@check("02-products-repeat", control="a look-up `w[index]` in place of one product", framework="torch")
def products_repeat(control: bool) -> Seen:
    import torch

    x, w, v = (torch.from_numpy(_normal(a * b).reshape(a, b)) for a, b in ((4_096, 64), (64, 64), (64, 8)))
    rows = torch.from_numpy(np.random.default_rng(7).integers(0, 64, 4_096))

    def training() -> Any:
        first, second = (part.clone().mul_(0.1).requires_grad_() for part in (w, v))
        for _ in range(5):
            hidden = torch.tanh(x * first[rows] if control else x @ first)
            grads = torch.autograd.grad((hidden @ second).square().mean(), (first, second))
            with torch.no_grad():
                first -= 0.1 * grads[0]
                second -= 0.1 * grads[1]
        return first.detach()

    return Seen.same(_distinct(training), RUNS, control)


# --- The flag --------------------------------------------------------------------------------------------


@check("02-flag-fixes", control="the flag off", framework="torch")
def flag_fixes(control: bool) -> Seen:
    import torch

    torch.use_deterministic_algorithms(not control)
    counts = [_distinct(_op(name, _normal())) for name in ("index_put_", "put_", "x[idx] backward")]
    return Seen.same(
        min(counts) if control else max(counts), RUNS, control
    )  # without it, all three must race


@check("02-flag-raises", control="the flag off", framework="torch")
def flag_raises(control: bool) -> Seen:
    import torch

    torch.use_deterministic_algorithms(not control)
    try:
        torch.zeros(SLOTS).put_(torch.zeros(2, dtype=torch.int64), torch.ones(2))
    except RuntimeError as error:
        return Seen("deterministic" in str(error), f"RuntimeError: {str(error)[:60]}…")
    return Seen(False, "no error")


@check("02-flag-blind", control="adding the parts in their order", framework="torch")
def flag_blind(control: bool) -> Seen:
    import torch

    torch.use_deterministic_algorithms(True)
    parts = torch.from_numpy(_normal()).chunk(256)

    def own_race():
        done = []
        with ThreadPoolExecutor(8) as pool:
            futures = [pool.submit(lambda part=part: done.append(part.sum())) for part in parts]
        for future in futures:
            future.result()
        return sum(part.sum() for part in parts) if control else sum(done)

    return Seen.varies(_distinct(own_race), RUNS, control)


@check(
    "02-flag-can-be-faster", control="one thread, which pays for no atomics in either row", framework="torch"
)
def flag_can_be_faster(control: bool) -> Seen:
    import torch

    if control:
        torch.set_num_threads(1)
    add = _op("index_put_", _normal(), slots=1)
    seconds = {False: [], True: []}
    for _ in range(3 * RUNS):
        for flag in seconds:
            torch.use_deterministic_algorithms(flag)
            start = time.perf_counter()
            add()
            seconds[flag].append(time.perf_counter() - start)
    ratio = min(seconds[True]) / min(seconds[False])  # the least of many, since other programs run, too
    return Seen(
        True if ratio < 0.8 else False if control else None, f"{ratio:.2g} times the time with the flag"
    )


@check("02-cuda-documented", control="what it says of `index_put_`", framework="torch")
def cuda_documented(control: bool) -> Seen:
    import torch

    names = ["index_put_"] if control else ["index_add_", "scatter_add_"]
    noted = [
        "may behave nondeterministically when given tensors on a CUDA device"
        in _words(getattr(torch.Tensor, name))
        for name in names
    ]
    switched = _words(torch.use_deterministic_algorithms).partition("act deterministically when")[2]
    entries = switched.partition("will throw a")[0].split(" * ")
    listed = [any(name.rstrip("_") in entry and "CUDA" in entry for entry in entries) for name in names]
    return Seen(all(noted + listed), f"the note: {noted}; in the flag's list for CUDA: {listed}")


def _words(documented: Any) -> str:
    return " ".join(documented.__doc__.split())


# --- The bound, and NumPy --------------------------------------------------------------------------------


@check("02-bound", control="one in as many runs as there were")
def bound(control: bool) -> Seen:
    bounds = [1 / runs if control else variability.bound(runs - 1) for runs in (40, 1_000)]
    chance = (1 - 0.05) ** 39
    told = [f"{bounds[0]:.1%}", f"{bounds[0]:.4f}", f"{bounds[1]:.1%}", f"{chance:.0%}"]
    return Seen(told == ["7.4%", "0.0739", "0.3%", "14%"], ", ".join(told))


@check("02-add-at", control="`np.sum` for each slot")
def add_at(control: bool) -> Seen:
    values, index = _normal(10_000), np.random.default_rng(5).integers(0, SLOTS, 10_000)
    one_by_one = np.zeros(SLOTS, np.float32)
    for slot, value in zip(index.tolist(), values, strict=True):
        one_by_one[slot] += value
    sums = np.zeros(SLOTS, np.float32)
    if control:
        sums += np.array([values[index == slot].sum() for slot in range(SLOTS)])
    else:
        np.add.at(sums, index, values)
    same = fingerprint(sums) == fingerprint(one_by_one)
    return Seen(same, f"{'the same bits as' if same else 'other bits than'} a loop of Python's")


@check("02-sort-and-segment", control="the keys the other way round")
def sort_and_segment(control: bool) -> Seen:
    rng = np.random.default_rng(6)
    index = rng.integers(0, 8, 200) * 2  # every second slot stays empty
    values = rng.integers(-50, 50, 200)  # whole numbers, so that only the segments count
    order = np.lexsort((index, values) if control else (values, index))
    by_slot_and_value = sorted(range(200), key=lambda i: (index[i], values[i]))
    present, starts = np.unique(index[order], return_index=True)
    sums = dict(zip(present.tolist(), np.add.reduceat(values[order], starts).tolist(), strict=True))
    right = {slot: int(values[index == slot].sum()) for slot in sorted(set(index.tolist()))}
    sorted_right = bool(
        (values[order] == values[by_slot_and_value]).all()
        and (index[order] == index[by_slot_and_value]).all()
    )
    right_sums = sum(sums[slot] == right[slot] for slot in right)
    return Seen(sorted_right and sums == right, f"{right_sums} of 8 sums are right")


@check("02-bits-as-integers", control="comparing the floats")
def bits_as_integers(control: bool) -> Seen:
    a, b = np.float32([0.0, np.nan, 1.5]), np.float32([-0.0, np.nan, 1.5])
    equal = (a == b if control else a.view(np.int32) == b.view(np.int32)).tolist()
    same = [x.tobytes() == y.tobytes() for x, y in zip(a, b, strict=True)]
    return Seen(equal == same, f"zeros, NaNs, numbers: {equal}; their bytes: {same}")


# --- numba-cuda's simulator ------------------------------------------------------------------------------

SIMULATED, BLOCK = 256, 32


def _summed(way: str, device: Any, n: int, block: int) -> kernels.Sum:
    return kernels.Sum(way, _normal(n), block, device)


@check("02-fewer-atomics", control="an atomic for each element", environment=IN_SIMULATOR)
def fewer_atomics(control: bool) -> Seen:
    way = "atomic per element" if control else "block tree"
    counted = _summed(way, kernels.Simulator(), SIMULATED, BLOCK).counted()["atomics"]
    return Seen(
        counted == SIMULATED // BLOCK, f"{counted} atomics for {SIMULATED} numbers in blocks of {BLOCK}"
    )


@check("02-simulator-order", control="a tree in each block", environment=IN_SIMULATOR)
def simulator_order(control: bool) -> Seen:
    total = _summed("block tree" if control else "atomic per element", kernels.Simulator(), SIMULATED, BLOCK)
    answers = {float(total.value()[0])}
    for _ in range(2):
        total.run()
        answers.add(float(total.value()[0]))
    serial = float(orders.serial(_normal(SIMULATED)))
    return Seen(answers == {serial}, f"{answers}, and {serial} from the first number to the last")


# Placeholders, as in kernels.py: filled in when the kernel is compiled.
cuda = None


def _write_places(grid, thread):
    grid[cuda.grid(1)] = cuda.grid(1)
    thread[cuda.grid(1)] = cuda.threadIdx.x


@check("02-thread-numbers", control="`cuda.threadIdx.x`", environment=IN_SIMULATOR)
def thread_numbers(control: bool) -> Seen:
    grid, thread = np.zeros(128, np.int64), np.zeros(128, np.int64)
    kernels.Simulator().launch(_write_places, 4, BLOCK, grid, thread)
    found = thread if control else grid
    return Seen(
        bool((found == np.arange(128)).all()), f"in 4 blocks of {BLOCK}, from {found.min()} to {found.max()}"
    )


# --- A GPU -----------------------------------------------------------------------------------------------


def _on_device(see: Callable[[Any, int, int, int], Seen]) -> Seen:
    """What `see(device, n, block, runs)` sees on the GPU; None, with the reason, where its kernels cannot run."""
    try:
        device = kernels.open_device()
    except BadSetting as error:
        return Seen(None, str(error))
    return see(device, *((SIMULATED, BLOCK, 2) if device.model else (1_000_000, 256, RUNS)))


def _distinct_sums(total: kernels.Sum, runs: int) -> int:
    answers = set()
    for _ in range(runs):
        total.run()
        answers.add(fingerprint(total.value()))
    return len(answers)


def _plain_per_element(x, total):
    """Reads, adds and writes in three steps, between which others come."""
    i = cuda.grid(1)
    if i < x.size:
        total[0] += x[i]


@check("02-atomic-loses-nothing", control="`+=` instead of the atomic", environment=ON_GPU)
def atomic_loses_nothing(control: bool) -> Seen:
    def see(device, n, block, runs):
        ones = device.put(np.ones(n, np.float32))
        totals = set()
        for _ in range(runs):
            total = device.put(np.zeros(1, np.float32))
            kernel = _plain_per_element if control else kernels.atomic_per_element
            device.launch(kernel, kernels.blocks_for(n, block), block, ones, total)
            totals.add(float(device.take(total)[0]))
        return Seen(totals == {float(n)}, f"{n:,} ones added up to {min(totals):,.0f} at least")

    return _on_device(see)


@check("02-atomic-no-order", control="integer atomics", environment=ON_GPU)
def atomic_no_order(control: bool) -> Seen:
    def see(device, n, block, runs):
        whole = np.rint(_normal(n).astype(np.float64) * 2**40).astype(np.int64)
        total = kernels.Sum("atomic per element", whole if control else _normal(n), block, device)
        return Seen.varies(_distinct_sums(total, runs), runs, control)

    return _on_device(see)


@check("02-atomic-flushes", control="a plain addition by one thread", environment=ON_GPU)
def atomic_flushes(control: bool) -> Seen:
    def see(device, n, block, runs):
        tiny = np.full(n, 1e-42, np.float32)  # subnormal, and so is their sum over one block
        total = kernels.Sum("two passes" if control else "atomic per element", tiny[:block], block, device)
        total.run()
        return Seen(float(total.value()[0]) == 0, f"{block} times 1e-42 is {float(total.value()[0])!r}")

    return _on_device(see)


@check("02-kernels-repeat", control="an atomic for each element", environment=ON_GPU)
def kernels_repeat(control: bool) -> Seen:
    def see(device, n, block, runs):
        whole = np.rint(_normal(n).astype(np.float64) * 2**40).astype(np.int64)
        given = {"integer atomics": whole, "single pass": _normal(n), "two passes": _normal(n)}
        if control:
            given = {"atomic per element": _normal(n)}
        counts = [_distinct_sums(kernels.Sum(way, x, block, device), runs) for way, x in given.items()]
        return Seen.same(max(counts), runs, control)

    return _on_device(see)


@check("02-cuda-two-race", control="the flag on", framework="torch")
def cuda_two_race(control: bool) -> Seen:
    import torch

    torch.use_deterministic_algorithms(control)
    counts = [_distinct(_op(name, _normal(), device="cuda")) for name in ("index_add_", "scatter_add_")]
    return Seen.varies(max(counts) if control else min(counts), RUNS, control)


@check("02-cuda-index-put-sorts", control="`index_add_`, which adds as its threads come", framework="torch")
def cuda_index_put_sorts(control: bool) -> Seen:
    name = "index_add_" if control else "index_put_"
    return Seen.same(_distinct(_op(name, _normal(), device="cuda")), RUNS, control)
