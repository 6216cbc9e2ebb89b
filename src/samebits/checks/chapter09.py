"""Checks of chapter 09: what passes the dispatcher, what hashes see, what DebugMode finds, what nobody sees."""

from __future__ import annotations

import pickle
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from samebits import debug_mode
from samebits.bits import fingerprint
from samebits.checks import Seen, check, in_new_process
from samebits.trace import Trace, compare, recording

RACING = 50_000  # float32 values that threads share; from 32,768 on they do
RUNS = 20


def _ops(work: Callable[[], Any]) -> list[str]:
    """Names of the ops that a mode sees while `work` runs."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "seen.trace"
        with recording(path, "a check"):
            work()
        return [op.name for op in Trace(path)]


def _kind(work: Callable[[int], Any]) -> str:
    """What the traces of work(0) and work(1) say of the first difference."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{run}.trace" for run in range(2)]
        for run, path in enumerate(files):
            with recording(path, "a check"):
                work(run)
        return compare(*files).kind


def _raced(control: bool) -> tuple[Any, Any]:
    """Values and places for additions from several threads; in the control, too few values for that."""
    import torch

    rng = np.random.default_rng(9)
    count = 1000 if control else RACING
    values = torch.from_numpy(rng.standard_normal(count, dtype=np.float32))
    return values, torch.from_numpy(rng.integers(0, 16, count))


# --- The one door ----------------------------------------------------------------------------------------


@check("09-dispatcher", control="NumPy, which computes the same by itself", framework="torch")
def dispatcher(control: bool) -> Seen:
    import torch

    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.5, foreach=False)

    def work() -> None:
        if control:
            weight.detach().numpy()[:] -= 0.5 * 2
        else:
            (weight * 2).sum().backward()
            optimizer.step()

    seen = _ops(work)
    wanted = ("aten.mul.Tensor", "aten.sum.default", "aten.ones_like.default", "aten.add_.Tensor")
    return Seen(all(name in seen for name in wanted), f"{len(seen)} ops were seen")


@check("09-seeded-tag", control="ops that draw nothing", framework="torch")
def seeded_tag(control: bool) -> Seen:
    import torch

    aten = torch.ops.aten
    drawing = (aten.bernoulli_.float, aten.normal_.default, aten.uniform_.default, aten.randperm.default)
    ops = (aten.add.Tensor, aten.mm.default) if control else drawing
    tagged = [op for op in ops if torch.Tag.nondeterministic_seeded in op.tags]
    return Seen(len(tagged) == len(ops), f"{len(tagged)} of {len(ops)} ops have the tag")


@check("09-lift-fresh", control="a tensor made by torch.ones", framework="torch")
def lift_fresh(control: bool) -> Seen:
    import torch

    makers = [lambda: torch.tensor([1.0, 2.0]), lambda: torch.from_numpy(np.ones(2))]
    if control:
        makers = [lambda: torch.ones(2)]
    seen = [_ops(maker) for maker in makers]
    return Seen(all("aten.lift_fresh.default" in ops for ops in seen), f"the ops were {seen}")


@check("09-loss-hides", control="the weights themselves in the place of the loss", framework="torch")
def loss_hides(control: bool) -> Seen:
    import torch

    torch.manual_seed(0)
    film, stars = torch.randint(400, (200_000,)), torch.randint(1, 6, (200_000,)).float()
    start = torch.zeros(400, requires_grad=True)
    losses, weights = set(), set()
    for _ in range(RUNS):
        loss = torch.nn.functional.mse_loss(3 + start[film], stars)
        stepped = start.detach() - 20 * torch.autograd.grad(loss, start)[0]
        weights.add(fingerprint(stepped))
        losses.add(fingerprint(torch.nn.functional.mse_loss(3 + stepped[film], stars)))
    told = f"after {RUNS} steps from one start there were {len(weights)} sets of weights, with {len(losses)} losses"
    if len(weights) == 1:
        return Seen(None, told)
    return Seen(len(weights if control else losses) < len(weights), told)


# --- Hashes ----------------------------------------------------------------------------------------------


def _numbers() -> Any:
    import torch

    return torch.arange(1.0, 9.0).reshape(4, 2) + 0.5


def _norm(tensor: Any) -> float:
    return tensor.double().norm(1).item()


def _xor(tensor: Any) -> str:
    import torch

    return str(torch.hash_tensor(tensor))


@check("09-norm-sign", control="a hash of the bytes", framework="torch")
def norm_sign(control: bool) -> Seen:
    flipped = _numbers()
    flipped[0, 0] *= -1
    return _blind(fingerprint if control else _norm, _numbers(), flipped)


@check("09-norm-order", control="a hash of the bytes", framework="torch")
def norm_order(control: bool) -> Seen:
    return _blind(fingerprint if control else _norm, _numbers(), _numbers().flip(0))


@check("09-xor-order", control="a hash of the bytes", framework="torch")
def xor_order(control: bool) -> Seen:
    return _blind(fingerprint if control else _xor, _numbers(), _numbers().flip(0))


@check("09-xor-constant", control="a tensor of odd length", framework="torch")
def xor_constant(control: bool) -> Seen:
    import torch

    hashes = {_xor(torch.full((7 if control else 8,), value)) for value in (1.0, 7.0)}
    return Seen(
        len(hashes) == 1 and "(0," in min(hashes), f"ones and sevens have {len(hashes)} hashes: {min(hashes)}"
    )


def _blind(hashed: Callable[[Any], Any], one: Any, other: Any) -> Seen:
    same = hashed(one) == hashed(other)
    return Seen(same, f"the two have {'one hash' if same else 'two hashes'}")


def _hashes_by_threads(hashed: Callable[[Any], Any]) -> int:
    import torch

    million = torch.randn(1_000_000, generator=torch.Generator().manual_seed(0))
    found = set()
    for threads in (1, 2, 3, 4, 8):
        torch.set_num_threads(threads)
        found.add(hashed(million))
    return len(found)


@check("09-norm-threads", control="torch.hash_tensor, which adds nothing", framework="torch")
def norm_threads(control: bool) -> Seen:
    found = _hashes_by_threads(_xor if control else _norm)
    return Seen(found > 1, f"with 1, 2, 3, 4 and 8 threads the same numbers had {found} hashes")


@check("09-bytes-threads", control="a norm", framework="torch")
def bytes_threads(control: bool) -> Seen:
    found = _hashes_by_threads(_norm if control else fingerprint)
    return Seen(found == 1, f"with 1, 2, 3, 4 and 8 threads the same numbers had {found} hashes")


@check("09-python-hash", control="the hash of a number")
def python_hash(control: bool) -> Seen:
    program = "print(hash(12345))" if control else "print(hash(b'12345'), hash('12345'))"
    hashes = {in_new_process(program, PYTHONHASHSEED=None) for _ in range(3)}
    return Seen(len(hashes) == 3, f"three processes gave {len(hashes)} hashes")


# --- DebugMode -------------------------------------------------------------------------------------------


def _mismatches(first: Callable[[], Any], second: Callable[[], Any], hash_fn: str = "norm") -> list[str]:
    return debug_mode.mismatches(debug_mode.log(first, hash_fn), debug_mode.log(second, hash_fn))


@check("09-debug-private", control="a public part of PyTorch: torch.utils.checkpoint", framework="torch")
def debug_private(control: bool) -> Seen:
    import torch.utils.checkpoint
    from torch.utils._debug_mode import DebugMode

    module = torch.utils.checkpoint.checkpoint.__module__ if control else DebugMode.__module__
    return Seen("._" in module, f"its module is {module}")


@check("09-debug-race", control="too few values for threads to share", framework="torch")
def debug_race(control: bool) -> Seen:
    import torch

    values, index = _raced(control)

    def add() -> Any:
        return torch.zeros(16).index_put((index,), values, accumulate=True)

    for _ in range(RUNS):
        if found := _mismatches(add, add, "hash_tensor"):
            return Seen("index_put" in found[0], f"it named {found[0]}")
    return Seen(False if control else None, f"no mismatch in {RUNS} pairs")


@check("09-debug-sign", control="XOR as the hash", framework="torch")
def debug_sign(control: bool) -> Seen:
    one, other = _numbers(), _numbers()
    other[0, 0] *= -1
    found = _mismatches(lambda: one * 1, lambda: other * 1, "hash_tensor" if control else "norm")
    return Seen(not found, f"it named {found or 'nothing'}")


@check("09-debug-order", control="another number in place of another order", framework="torch")
def debug_order(control: bool) -> Seen:
    one, other = _numbers(), _numbers() + 1 if control else _numbers().flip(0)
    found = [_mismatches(lambda: one * 1, lambda: other * 1, name) for name in ("norm", "hash_tensor")]
    return Seen(not any(found), f"norm and XOR named {found}")


@check("09-debug-lengths", control="the same number of ops", framework="torch")
def debug_lengths(control: bool) -> Seen:
    one = _numbers()
    try:
        found = _mismatches(lambda: one * 1, lambda: one * 1 if control else (one * 1) * 1)
    except ValueError as error:
        return Seen(True, f"it raised: {str(error).splitlines()[0]}")
    return Seen(False, f"it named {found or 'nothing'}")


@check("09-debug-fused", control="fused=False, foreach=False", framework="torch")
def debug_fused(control: bool) -> Seen:
    import torch

    def trained(rate: float, **how: bool) -> Callable[[], None]:
        weight = torch.nn.Parameter(torch.ones(3))
        optimizer = torch.optim.AdamW([weight], lr=rate, **how)
        weight.grad = torch.ones(3)

        def work() -> None:
            optimizer.step()
            weight * 3

        return work

    ways = [{"fused": False, "foreach": False}] if control else [{"fused": True}, {"foreach": True}]
    found = [_mismatches(trained(0.1, **how), trained(0.2, **how), "hash_tensor") for how in ways]
    first = [names[0] if names else "nothing" for names in found]
    return Seen(
        all(name.startswith("aten::mul.Tensor") for name in first), f"it named first {' and '.join(first)}"
    )


@check("09-debug-pickle", control="the trace of the course, which is a file of text", framework="torch")
def debug_pickle(control: bool) -> Seen:
    one = _numbers()
    logs = _ops(lambda: one * 1) if control else debug_mode.log(lambda: one * 1)
    try:
        pickle.dumps(logs)
    except Exception as error:
        return Seen(True, f"pickling raised {type(error).__name__}")
    return Seen(False, "they were pickled")


@check("09-debug-views", control="the course's recorder", framework="torch")
def debug_views(control: bool) -> Seen:
    one = _numbers()
    seen = _ops(lambda: one.t()) if control else [str(entry) for entry in debug_mode.log(lambda: one.t())]
    return Seen(any("aten::t" in name or "aten.t" in name for name in seen), f"it logged {seen or 'nothing'}")


# --- What is not seen ------------------------------------------------------------------------------------


@check("09-numpy-unseen", control="an op of PyTorch that writes", framework="torch")
def numpy_unseen(control: bool) -> Seen:
    import torch

    def work(run: int) -> Any:
        x = torch.zeros(3)
        if control:
            x.fill_(run)
        else:
            x.numpy()[:] = run
        return x * 2

    kind = _kind(work)
    return Seen(kind == "unseen", f"the difference was found as {kind!r}")


@check("09-threads-unseen", control="the same op in this thread", framework="torch")
def threads_unseen(control: bool) -> Seen:
    x = _numbers()

    def work() -> None:
        if control:
            x.mul_(2)
            return
        thread = threading.Thread(target=x.mul_, args=(2,))
        thread.start()
        thread.join()

    seen = _ops(work)
    return Seen("aten.mul_.Tensor" not in seen, f"ops that were seen: {seen or 'none'}")


class _Doubling:
    """A dataset whose items an op of PyTorch makes, in the process that reads them."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        import torch

        return torch.ones(2).arctan()


@check("09-workers-unseen", control="num_workers=0", framework="torch")
def workers_unseen(control: bool) -> Seen:
    import torch

    context = None if control or sys.platform != "linux" else "fork"
    loader = torch.utils.data.DataLoader(
        _Doubling(), num_workers=0 if control else 1, multiprocessing_context=context
    )
    seen = _ops(lambda: list(loader))
    times = sum(name.startswith("aten.arctan") or name.startswith("aten.atan") for name in seen)
    return Seen(times == 0, f"the op that made the items was seen {times} times")


@check("09-compiled", control="no mode", framework="torch", fresh=True)
def compiled(control: bool) -> Seen:
    import torch

    calls = []

    def backend(module: Any, inputs: Any) -> Callable:
        def run(*given: Any) -> Any:
            calls.append(len(given))
            return module(*given)

        return run

    function = torch.compile(lambda x: (x.sin() + 1).sum(), backend=backend)
    x = torch.ones(3)
    function(x)
    before = len(calls)
    seen: list[str] = []
    if control:
        function(x)
    else:
        seen = _ops(lambda: function(x))
    ran = len(calls) > before
    told = f"the compiled code was {'run' if ran else 'not run'}, and {len(seen)} ops were seen"
    return Seen(before == 1 and not ran and len(seen) == 3, told)


# --- Mending ---------------------------------------------------------------------------------------------


@check("09-index-select", control="table[index]", framework="torch")
def index_select(control: bool) -> Seen:
    import torch

    _, index = _raced(False)
    table = torch.zeros(16, requires_grad=True)
    weights = torch.from_numpy(np.random.default_rng(1).standard_normal(RACING, dtype=np.float32))
    bits = set()
    for _ in range(RUNS):
        picked = table[index] if control else table.index_select(0, index)
        bits.add(fingerprint(torch.autograd.grad((picked * weights).sum(), table)[0]))
    return Seen.same(len(bits), RUNS, control)


@check("09-one-thread", control="eight threads", framework="torch")
def one_thread(control: bool) -> Seen:
    import torch

    values, index = _raced(False)
    torch.set_num_threads(8 if control else 1)
    bits = {fingerprint(torch.zeros(16).index_put_((index,), values, accumulate=True)) for _ in range(RUNS)}
    return Seen.same(len(bits), RUNS, control)
