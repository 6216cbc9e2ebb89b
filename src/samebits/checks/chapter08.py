"""What verifies the claims of chapter 08. Those about time compare medians of rounds, and say None where close."""

from __future__ import annotations

import re
import sys
import time

import numpy as np

from samebits.bits import fingerprint
from samebits.checks import Seen, check, in_new_process
from samebits.experiments import price, torch_worker


@check("08-first-call", control="the second call", framework="torch", fresh=True)
def first_call(control: bool) -> Seen:
    import torch

    if control:
        torch.use_deterministic_algorithms(False)
    before = set(sys.modules)
    torch.use_deterministic_algorithms(True)
    new = {name for name in sys.modules if name.startswith("torch._inductor")} - before
    return Seen(bool(new), f"{len(new)} modules of torch._inductor were imported")


@check("08-first-conv", control="the last ten calls instead of the first", framework="torch", fresh=True)
def first_conv(control: bool) -> Seen:
    import torch

    torch.set_num_threads(1)  # two wait for each other, on a busy machine for longer than this takes
    x, w = torch.ones(4, 16, 37, 37), torch.ones(16, 16, 3, 3)
    seconds = []
    for _ in range(31):
        start = time.perf_counter()
        torch.nn.functional.conv2d(x, w, padding=1)
        seconds.append(time.perf_counter() - start)
    # One late call may be slow by chance, on a busy machine; half of ten are not.
    times = (
        np.median(seconds[-10:]) / np.median(seconds[1:-10])
        if control
        else seconds[0] / np.median(seconds[1:])
    )
    return Seen(_clearly(times > 1.5, control), f"{times:.2g} times the median of the others")


@check("08-one-thread", control="eight threads without the flag", framework="torch")
def one_thread(control: bool) -> Seen:
    import torch

    rng = np.random.default_rng(8)
    values = torch.from_numpy(rng.standard_normal(400_000, dtype=np.float32))
    index = torch.from_numpy(rng.integers(0, 16, 400_000))

    def add(threads: int, flag: bool) -> str:
        torch_worker.set_flags(threads=threads, deterministic=flag)
        return fingerprint(torch.zeros(16).index_put_((index,), values, accumulate=True))

    alone = add(1, False)
    return Seen.same(len({alone, *(add(8, not control) for _ in range(20))}), 21, control)


@check("08-faster", control="one thread", framework="torch")
def faster(control: bool) -> Seen:
    settings = price.PRICE.settings(device="cpu", threads=1 if control else 2)
    ratios = [o.scalars["ratio"] for o in price.PRICE.observe(price.PRICE.prepare(settings).state, 25)]
    middle = price.spread(ratios)
    if control:
        return Seen(middle.high < 0.8, f"with ÷ without: {middle}")
    return Seen(True if middle.high < 1 else False if middle.low > 1 else None, f"with ÷ without: {middle}")


@check("08-queue", control="waiting for the work", framework="torch")
def queue(control: bool) -> Seen:
    import torch

    x = torch.ones(8192, 8192, device="cuda")

    def seconds(wait: bool) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        x @ x
        if wait:
            torch.cuda.synchronize()
        return time.perf_counter() - start

    seconds(True)
    share = seconds(control) / seconds(True)
    torch.cuda.synchronize()
    return Seen(share < 0.5, f"the call took {share:.0%} of the time until the work was done")


@check("08-filled", control="fill_uninitialized_memory = False", framework="torch")
def filled(control: bool) -> Seen:
    import torch

    torch_worker.set_flags(deterministic=True)
    torch.utils.deterministic.fill_uninitialized_memory = not control
    largest = torch.iinfo(torch.int64).max
    shares = []
    for _ in range(20):
        # A block that somebody has used before, so that it would not hold these values by itself.
        for dtype in (torch.float32, torch.int64):
            torch.ones(5_000, dtype=dtype).mul_(3)
        numbers, integers = torch.empty(5_000), torch.empty(5_000, dtype=torch.int64)
        shares.append(bool(numbers.isnan().all()) and bool((integers == largest).all()))
    return Seen(all(shares), f"filled in {sum(shares)} of {len(shares)} pairs of tensors")


@check("08-tf32-default", control='torch.set_float32_matmul_precision("high")', framework="torch")
def tf32_default(control: bool) -> Seen:
    program = "import torch; torch.set_float32_matmul_precision('high')" if control else "import torch"
    program += "; print(torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32)"
    convolutions, products = in_new_process(program).split()
    return Seen(
        (convolutions, products) == ("True", "False"), f"convolutions: {convolutions}, products: {products}"
    )


@check("08-cpu-ops", control="counting the entries about CUDA", framework="torch")
def cpu_ops(control: bool) -> Seen:
    import torch

    switching = torch.use_deterministic_algorithms.__doc__.partition("will act")[2].partition("will throw")[0]
    entries = re.split(r"\n\s+\* ", switching)[1:]
    counted = [entry for entry in entries if ("CUDA" if control else "CPU") in entry]
    return Seen(0 < len(counted) < len(entries) / 2, f"{len(counted)} of {len(entries)} entries")


@check("08-wilks", control="the largest of 58")
def wilks(control: bool) -> Seen:
    sure = 1 - 0.95 ** (58 if control else 59)
    return Seen(sure > 0.95, f"1 − 0.95ⁿ = {sure:.4f}")


def _clearly(held: bool, control: bool) -> bool | None:
    """A claim about time that fails on a busy machine was not seen; in the control arm it did not hold."""
    return True if held else False if control else None
