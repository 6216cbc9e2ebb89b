"""One convolution, computed in six ways: what the experiments of chapter 03 share.

The convolution is the commonest one: kernels of 3 × 3, stride 1, one row of zeros around the image, so that
the output has the size of the input. Everywhere here

    x  float32 (n, c, h, w)  n images of c channels
    w  float32 (k, c, 3, 3)  k filters
    y  float32 (n, k, h, w)  y[n, k, i, j] = Σ x[n, c, i + a − 1, j + b − 1] · w[k, c, a, b] over c, a, b
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from samebits.experiment import BadSetting, Knob

PARTS = ("forward", "data gradient", "weight gradient")
PART = Knob(
    "part",
    "Part",
    "What the tiles show: the output, or the gradient of the images or of the filters.",
    "choice",
    "forward",
    choices=PARTS,
)
SHAPE = (
    Knob("batch", "Images", "How many images are convolved at once.", "number", 8, low=1, high=256),
    Knob("channels", "Channels", "Channels of an image, and filters.", "number", 16, low=1, high=512),
    Knob("size", "Size", "Height and width of an image.", "number", 16, low=2, high=256),
)
THREADS = Knob(
    "threads",
    "CPU threads",
    "Threads of PyTorch's CPU code. No race is known in these convolutions; the number can change the order of a sum.",
    "number",
    1,
    low=1,
    high=64,
    scope="process",
    variable="OMP_NUM_THREADS",
)


# --- Six ways ---------------------------------------------------------------------------------------------


def onednn(x, w):
    """A library that Intel began, asked for by name: code that it compiles for this processor and this shape."""
    import torch

    return torch.mkldnn_convolution(x, w, None, (1, 1), (1, 1), (1, 1), 1)


def native(x, w):
    """PyTorch's own convolution on the CPU, asked for by name."""
    import torch

    return torch._C._nn.thnn_conv2d(x, w, (3, 3), None, (1, 1), (1, 1))


def im2col(x, w):
    """Every patch becomes a column, and the convolution one matrix product."""
    from torch.nn import functional

    columns = functional.unfold(x, 3, padding=1)  # (n, 9c, h · w)
    return (w.flatten(1) @ columns).unflatten(2, x.shape[2:])


def fft(x, w):
    """A convolution is a product of spectra: every output goes through sums over the whole image."""
    import torch

    height, width = x.shape[2:]
    frame = (height + 2, width + 2)  # room for the border, which would wrap around otherwise
    spectra = torch.fft.rfft2(x, s=frame)[:, None] * torch.fft.rfft2(w.flip(2, 3), s=frame)
    y = torch.fft.irfft2(spectra.sum(2), s=frame)
    return y[:, :, 1 : height + 1, 1 : width + 1].contiguous()


def shift_and_add(x, w):
    """The image, moved to each of nine places, times that place's weights; nine sums one after the other."""
    from torch.nn import functional

    height, width = x.shape[2:]
    padded = functional.pad(x, (1, 1, 1, 1))
    y = 0
    for a in range(3):
        for b in range(3):
            moved = padded[:, :, a : a + height, b : b + width].flatten(2)
            y = y + w[:, :, a, b] @ moved
    return y.unflatten(2, (height, width))


def winograd(x, w):
    """F(2×2, 3×3) of Lavin and Gray, arXiv:1509.09308: 16 products for four outputs, where 36 are usual.

    The products are of sums of pixels with sums of weights, so none of the 36 usual products ever exists.
    """
    import torch
    from torch.nn import functional

    filters = torch.tensor([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
    tiles = torch.tensor([[1.0, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]])
    outputs = torch.tensor([[1.0, 1, 1, 0], [0, 1, -1, -1]])

    (n, _, height, width), k = x.shape, len(w)
    down, right = (height + 1) // 2, (width + 1) // 2  # tiles of 2 × 2 outputs
    padded = functional.pad(x, (1, 1 + 2 * right - width, 1, 1 + 2 * down - height))
    patches = padded.unfold(2, 4, 2).unfold(3, 4, 2)  # (n, c, down, right, 4, 4)
    u = torch.einsum("ia,kcab,jb->ijkc", filters, w, filters)
    v = torch.einsum("ia,ncpqab,jb->ijcnpq", tiles, patches, tiles)
    products = (u @ v.flatten(3)).unflatten(3, (n, down, right))
    y = torch.einsum("ia,abknpq,jb->nkpiqj", outputs, products, outputs)
    return y.reshape(n, k, 2 * down, 2 * right)[:, :, :height, :width].contiguous()


WAYS: Mapping[str, Callable[[Any, Any], Any]] = {
    "oneDNN": onednn,
    "native": native,
    "im2col": im2col,
    "FFT": fft,
    "shift-and-add": shift_and_add,
    "Winograd": winograd,
}


def pytorch_chooses(x, w):
    """What everybody writes. Which code runs is decided by PyTorch, from the shapes and its flags."""
    from torch.nn import functional

    return functional.conv2d(x, w, padding=1)


def ways() -> dict[str, Callable[[Any, Any], Any]]:
    """The ways that this build of PyTorch has: without oneDNN there are five."""
    import torch

    return {
        name: way for name, way in WAYS.items() if name != "oneDNN" or torch.backends.mkldnn.is_available()
    }


# --- Inputs, results, errors ------------------------------------------------------------------------------


def inputs(settings: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """(x, w, g) for the settings of SHAPE, on the CPU: images, as many filters as channels, and the gradient
    that comes back through y. Normal float32 numbers from NumPy, the same in every process."""
    import torch

    n, c, size = settings["batch"], settings["channels"], settings["size"]
    if n * c * size * size > 2**24:
        raise BadSetting(
            f"{n} × {c} × {size} × {size} are more than 16,777,216 numbers. Choose fewer images, channels or pixels."
        )
    rng = np.random.default_rng(20260303)
    shapes = ((n, c, size, size), (c, c, 3, 3), (n, c, size, size))
    return tuple(torch.from_numpy(rng.standard_normal(shape, dtype=np.float32)) for shape in shapes)


def results(way: Callable[[Any, Any], Any], x, w, g) -> dict[str, Any]:
    """The three results of one training step: PART → tensor. Gradients are autograd's, through that way."""
    x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
    y = way(x, w)
    y.backward(g)
    return dict(zip(PARTS, (y.detach(), x.grad, w.grad), strict=True))


def allowed_error(x, w, g) -> dict[str, float]:
    """PART → the error that float32 allows: (number of terms) · 2⁻²⁴ · (largest Σ|factor · factor|).

    For a sum of products in any order that is chapter 01's bound, n · u · Σ|x|, held against the largest output
    (Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, §3.1). FFT and Winograd add other
    numbers, so for them it is a yardstick that the tests hold them to.
    """
    terms = (9 * x.shape[1], 9 * w.shape[0], x.shape[0] * x.shape[2] * x.shape[3])
    sums = exact(x.abs(), w.abs(), g.abs())
    return {
        part: n * 2.0**-24 * float(total.max()) for (part, total), n in zip(sums.items(), terms, strict=True)
    }


def exact(x, w, g) -> dict[str, Any]:
    """PART → float64 result, whose error is too small to matter beside float32's."""
    return results(pytorch_chooses, x.double(), w.double(), g.double())


def backend(x, w) -> str:
    """The backend that PyTorch takes for conv2d(x, w, padding=1) under its present flags, such as "Mkldnn"
    (that is oneDNN), "Slow2d" (native) or "Cudnn"; "unavailable" where this PyTorch cannot be asked."""
    import torch

    try:
        chosen = torch._C._select_conv_backend(x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    except (AttributeError, TypeError):
        return "unavailable"
    return chosen.name


def shape_words(tensor) -> str:
    """Such as "8 × 16 × 16 × 16"."""
    return " × ".join(map(str, tensor.shape))


def code(settings: Mapping[str, Any]) -> str:
    """The inputs, as the code that is shown states them."""
    n, c, size = settings["batch"], settings["channels"], settings["size"]
    return f"# x: {n} images of {c} × {size} × {size}, w: {c} filters of {c} × 3 × 3; normal float32, always the same"
