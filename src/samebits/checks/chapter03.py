"""Checks of chapter 03: who computes a convolution on the CPU, and what cuDNN's switches are and do.

Those whose claims need an NVIDIA GPU have not been run on one.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from samebits.bits import fingerprint
from samebits.checks import THREADS, Seen, check, in_new_process
from samebits.experiments import conv_algorithm, conv_ways, convolution

NO_ONEDNN = Seen(None, "this PyTorch was built without oneDNN")
NO_KERNELS = Seen(None, "the profiler saw no kernels")


def _inputs(batch: int = 8, size: int = 16) -> tuple[Any, Any, Any]:
    return convolution.inputs({"batch": batch, "channels": 16, "size": size})


# --- Who convolves on the CPU ----------------------------------------------------------------------------


@check("03-shape-picks", control="the native code, asked for by name whatever the shape", framework="torch")
def shape_picks(control: bool) -> Seen:
    import torch

    torch.set_num_threads(1)
    x, w, _ = _inputs()
    way = convolution.native if control else convolution.pytorch_chooses
    alone, among_eight = ({fingerprint(way(images, w)[0]) for _ in range(10)} for images in (x[:1], x))
    if len(alone) > 1 or len(among_eight) > 1:
        return Seen(False, "one shape had several answers in ten runs")
    if alone == among_eight:
        return Seen(False if control else None, "the first image had the same bits alone and among eight")
    return Seen(
        True, "the first image had bits of its own alone, and others among eight, ten times out of ten"
    )


@check(
    "03-flag-and-batch", control="the native code, asked for by name whatever the shape", framework="torch"
)
def flag_and_batch(control: bool) -> Seen:
    import torch

    torch.use_deterministic_algorithms(True)
    return shape_picks(control)


@check(
    "03-two-backends", control="oneDNN switched off, for the images of which it was said", framework="torch"
)
def two_backends(control: bool) -> Seen:
    import torch

    x, w, _ = _inputs()
    names = [convolution.backend(images, w) for images in (x[:1], x)]
    if names != ["Slow2d", "Mkldnn"]:
        return Seen(None, f"PyTorch took {' and '.join(names)} here")
    torch.backends.mkldnn.enabled = not control
    ran = [conv_ways.operations(convolution.pytorch_chooses, images, w) for images in (x[:1], x)]
    told = "; ".join(f"{name} ran {operations}" for name, operations in zip(names, ran, strict=True))
    return Seen("_slow_conv2d_forward" in ran[0] and "mkldnn_convolution" in ran[1], told)


@check("03-one-image-native", control="the same number of pixels in two images", framework="torch")
def one_image_native(control: bool) -> Seen:
    import torch

    if not torch.backends.mkldnn.is_available():
        return NO_ONEDNN
    images = 2 if control else 1
    widths = (20_480 // images, 20_480 // images + 1)
    took = [
        convolution.backend(torch.zeros(images, 1, 1, width), torch.zeros(1, 1, 3, 3)) for width in widths
    ]
    return Seen(
        took == ["Slow2d", "Mkldnn"], f"{images} × {widths[0]:,} pixels: {took[0]}; one more: {took[1]}"
    )


@check("03-nnpack", control="NNPACK switched off, too", framework="torch")
def nnpack(control: bool) -> Seen:
    import torch

    switch = getattr(torch.backends, "nnpack", None)
    if switch is None or not switch.is_available():
        return Seen(None, "this PyTorch has no NNPACK, or none for this processor")
    x, w, _ = _inputs(batch=16)
    torch.backends.mkldnn.enabled = False
    with switch.flags(enabled=not control):
        took = [convolution.backend(x[:images], w) for images in (15, 16)]
    return Seen(took == ["Slow2d", "NnpackSpatial"], f"15 images: {took[0]}; 16: {took[1]}")


@check("03-native-is-im2col", control="shift-and-add, another order of the same additions", framework="torch")
def native_is_im2col(control: bool) -> Seen:
    import torch

    torch.set_num_threads(1)
    x, w, _ = _inputs()
    other = convolution.shift_and_add if control else convolution.im2col
    if fingerprint(convolution.native(x, w)) == fingerprint(other(x, w)):
        return Seen(True, f"native and {other.__name__} share every bit")
    # Another product of matrices could run inside: other bits would not refute what the source says.
    return Seen(False if control else None, f"native and {other.__name__} have other bits")


@check("03-within-bound", control="inputs cut to the ten fraction bits of TF32", framework="torch")
def within_bound(control: bool) -> Seen:
    import torch

    x, w, g = _inputs()
    allowed = convolution.allowed_error(x, w, g)["forward"]
    exact = convolution.exact(x, w, g)["forward"]
    if control:
        x, w = ((tensor.view(torch.int32) & ~0x1FFF).view(torch.float32) for tensor in (x, w))
    errors = [float((way(x, w) - exact).abs().max()) for way in convolution.ways().values()]
    return Seen(max(errors) <= allowed, f"largest error {max(errors):.1e}, allowed {allowed:.1e}")


@check("03-each-repeats", control=f"index_put_ with atomics on {THREADS} threads", framework="torch")
def each_repeats(control: bool) -> Seen:
    import torch

    torch.set_num_threads(THREADS if control else 1)
    x, w, _ = _inputs()
    rng = np.random.default_rng(3)
    values = torch.from_numpy(rng.standard_normal(500_000, dtype=np.float32))
    index = torch.from_numpy(rng.integers(0, 16, len(values)))
    ways: list[Callable[[], Any]] = [functools.partial(way, x, w) for way in convolution.ways().values()]
    if control:
        ways = [lambda: torch.zeros(16).index_put_((index,), values, accumulate=True)]
    return Seen.same(max(len({fingerprint(way()) for _ in range(20)}) for way in ways), 20, control)


@check("03-threads-cut-sums", control="one number of threads, six times", framework="torch")
def threads_cut_sums(control: bool) -> Seen:
    import torch

    x, w, g = _inputs()
    gradients: dict[int, set[str]] = {}
    counts = (2,) * 6 if control else (1, 2, 4) * 2
    for threads in counts:
        torch.set_num_threads(threads)
        gradient = convolution.results(convolution.pytorch_chooses, x, w, g)["weight gradient"]
        gradients.setdefault(threads, set()).add(fingerprint(gradient))
    if any(len(found) > 1 for found in gradients.values()):
        return Seen(False, "one number of threads had two answers")
    distinct = len(set.union(*gradients.values()))
    return Seen.varies(distinct, len(counts), control)


@check("03-winograd", control="the same formulas in float32")
def winograd(control: bool) -> Seen:
    rng = np.random.default_rng(3)
    equal = sum(_winograd_is_exact(*rng.random((2, 4)), control) for _ in range(100))
    return Seen(equal == 100, f"four products gave what six give in {equal} of 100 cases")


def _winograd_is_exact(pixels: np.ndarray, weights: np.ndarray, rounded: bool) -> bool:
    d, g = (
        list(map(np.float32 if rounded else Fraction, map(float, numbers))) for numbers in (pixels, weights)
    )
    m1, m4 = (d[0] - d[2]) * g[0], (d[1] - d[3]) * g[2]
    m2 = (d[1] + d[2]) * ((g[0] + g[1] + g[2]) / 2)
    m3 = (d[2] - d[1]) * ((g[0] - g[1] + g[2]) / 2)
    six = [d[0] * g[0] + d[1] * g[1] + d[2] * g[2], d[1] * g[0] + d[2] * g[1] + d[3] * g[2]]
    return [m1 + m2 + m3, m2 - m3 - m4] == six


@check("03-drop-last", control="drop_last=False", framework="torch")
def drop_last(control: bool) -> Seen:
    import torch
    from torch.utils.data import DataLoader

    sizes = [len(batch) for batch in DataLoader(torch.zeros(17, 1), batch_size=8, drop_last=not control)]
    return Seen(sizes == [8, 8], f"17 images in batches of {sizes}")


# --- Switches --------------------------------------------------------------------------------------------


@functools.cache
def _defaults() -> dict[str, dict[str, Any]]:
    """The switches in a process that has set none, and after it has set them otherwise."""
    program = """
import json, torch
cudnn, cuda = torch.backends.cudnn, torch.backends.cuda
def switches():
    return {"benchmark": cudnn.benchmark, "deterministic": cudnn.deterministic, "limit": cudnn.benchmark_limit,
            "TF32 in convolutions": cudnn.allow_tf32, "TF32 in products": cuda.matmul.allow_tf32}
found = {"at the start": switches()}
cudnn.benchmark = cudnn.deterministic = cuda.matmul.allow_tf32 = True
cudnn.allow_tf32 = False
if cudnn.is_available():
    cudnn.benchmark_limit = 0
print(json.dumps(found | {"set otherwise": switches()}))
"""
    return json.loads(in_new_process(program).splitlines()[-1])


def _read(expected: dict[str, Any], control: bool) -> Seen:
    switches = _defaults()["set otherwise" if control else "at the start"]
    told = ", ".join(f"{name}: {switches[name]}" for name in expected)
    return Seen(all(switches[name] == value for name, value in expected.items()), told)


@check("03-switches-off", control="the same process after a script has turned them on")
def switches_off(control: bool) -> Seen:
    return _read({"benchmark": False, "deterministic": False}, control)


@check("03-tf32-default", control="the same process after both were set the other way")
def tf32_default(control: bool) -> Seen:
    return _read({"TF32 in convolutions": True, "TF32 in products": False}, control)


@check("03-limit-ten", control="the same process after the limit was set to 0")
def limit_ten(control: bool) -> Seen:
    return _read({"limit": 10}, control)


@check("03-limit-flags", control="cudnn.flags' default for benchmark", framework="torch")
def limit_flags(control: bool) -> Seen:
    import torch

    name = "benchmark" if control else "benchmark_limit"
    default = inspect.signature(torch.backends.cudnn.flags).parameters[name].default
    return Seen(default == 10, f"cudnn.flags has {name}={default}")


@check("03-flag-unseen", control="cudnn.deterministic = True", framework="torch")
def flag_unseen(control: bool) -> Seen:
    import torch

    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.deterministic = control
    seen = torch.backends.cudnn.deterministic
    return Seen(
        torch.are_deterministic_algorithms_enabled() and not seen,
        f"with the flag on, cudnn.deterministic reads {seen}",
    )


@check("03-flag-listed", control="MaxPool2d, which that list lacks", framework="torch")
def flag_listed(control: bool) -> Seen:
    import torch

    words = " ".join(torch.use_deterministic_algorithms.__doc__.split())
    switched = words.partition("will act deterministically")[2].partition("will throw")[0]
    names = ["MaxPool2d"] if control else [f"Conv{n}d" for n in (1, 2, 3)]
    missing = [
        name for name in names if f":class:`torch.nn.{name}` when called on CUDA tensor" not in switched
    ]
    return Seen(
        not missing, f"not listed: {', '.join(missing)}" if missing else f"listed: {', '.join(names)}"
    )


# --- On a GPU --------------------------------------------------------------------------------------------


def _kernels(size: int) -> list[str] | None:
    """The kernels of one convolution on the GPU, of a shape that `size` decides; None if none was seen."""
    x, w, _ = (tensor.cuda() for tensor in _inputs(size=size))
    seen = conv_algorithm.kernels_of(lambda: convolution.pytorch_chooses(x, w))
    return None if seen == conv_algorithm.UNAVAILABLE else seen


# A plan is kept for as long as the process lives, so these two begin in new ones.
@check("03-benchmark-races", control="benchmark off", framework="torch", fresh=True)
def benchmark_races(control: bool) -> Seen:
    import torch

    _kernels(32)  # whatever the first convolution of a process does
    torch.backends.cudnn.benchmark = not control
    first, later = _kernels(36), _kernels(36)
    if first is None or later is None:
        return NO_KERNELS
    return Seen(len(first) > len(later), f"{len(first)} kernels in the first call, {len(later)} in the next")


@check("03-benchmark-not-in-key", control="a shape that has no plan yet", framework="torch", fresh=True)
def benchmark_not_in_key(control: bool) -> Seen:
    import torch

    _kernels(38)
    torch.backends.cudnn.benchmark = True
    size = 40 if control else 38
    first, later = _kernels(size), _kernels(size)
    if first is None or later is None:
        return NO_KERNELS
    return Seen(
        len(first) == len(later), f"{len(first)} kernels in the first call with benchmark, {len(later)} later"
    )


@check("03-own-max-pool", control="a convolution", framework="torch")
def own_max_pool(control: bool) -> Seen:
    import torch
    from torch.nn import functional

    x, w, _ = (tensor.cuda() for tensor in _inputs())

    def step() -> Any:
        images = x.clone().requires_grad_()
        y = functional.conv2d(images, w) if control else functional.max_pool2d(images, 2)
        return torch.autograd.grad(y, images, torch.ones_like(y))

    step()
    seen = conv_algorithm.kernels_of(step)
    if seen == conv_algorithm.UNAVAILABLE:
        return NO_KERNELS
    strangers = [name for name in seen if "at::native" not in name and not name.startswith("at_")]
    return Seen(not strangers, f"{len(seen)} kernels, {len(strangers)} of them not PyTorch's")


@check("03-tf32-bits", control="TF32 not allowed", framework="torch")
def tf32_bits(control: bool) -> Seen:
    import torch

    if torch.cuda.get_device_capability() < (8, 0):
        return Seen(None, "this GPU has no TF32")
    torch.backends.cuda.matmul.allow_tf32 = not control
    one = torch.eye(1024, device="cuda")
    ten_bits, eleven_bits = (
        float((torch.full_like(one, 1 + 2.0**-bits) @ one)[5, 5]) - 1 for bits in (10, 11)
    )
    return Seen(
        ten_bits == 2.0**-10 and eleven_bits != 2.0**-11,
        f"1 + 2⁻¹⁰ came back as 1 + {ten_bits:g}, and 1 + 2⁻¹¹ as 1 + {eleven_bits:g}",
    )


@check("03-tf32-values", control="TF32 not allowed in either", framework="torch")
def tf32_values(control: bool) -> Seen:
    import torch

    if torch.cuda.get_device_capability() < (8, 0):
        return Seen(None, "this GPU has no TF32")
    a = torch.from_numpy(np.random.default_rng(3).standard_normal((1024, 1024), dtype=np.float32)).cuda()
    without = fingerprint(a @ a)
    torch.backends.cuda.matmul.allow_tf32 = not control
    products = {fingerprint(a @ a) for _ in range(20)}
    return Seen(
        len(products) == 1 and without not in products,
        f"{len(products)} distinct in 20 runs, {'the same bits as' if without in products else 'other bits than'} "
        "without TF32",
    )
