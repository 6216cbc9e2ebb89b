"""conv-ways: the same convolution in six ways on the CPU, and the one that PyTorch picks by itself."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from samebits.bits import fingerprint
from samebits.experiment import BadSetting, Experiment, Knob, Observation, Prepared
from samebits.experiments import convolution, torch_worker

CHOOSES, WITHOUT_ONEDNN = "PyTorch chooses", "PyTorch chooses, without oneDNN"
# The operations by which one way is told from another: the first three are whole convolutions (oneDNN's, native,
# NNPACK's), the others are parts of a way that is composed of several.
TELLING = (
    "mkldnn_convolution",
    "_slow_conv2d_forward",
    "_nnpack_spatial_convolution",
    "im2col",
    "_fft_r2c",
    "_fft_c2r",
    "unfold",
    "bmm",
    "mm",
)


@dataclass(frozen=True)
class _State:
    way: Any
    part: str
    inputs: tuple[Any, Any, Any]
    exact: Mapping[str, Any]
    allowed: Mapping[str, float]


def prepare(settings: dict) -> Prepared:
    import torch

    name = settings["way"]
    if name == "oneDNN" and not torch.backends.mkldnn.is_available():
        raise BadSetting("This PyTorch was built without oneDNN. Choose another way.")
    # Gradients of oneDNN and native come from whatever PyTorch picks, so the flag must name the same library.
    torch_worker.set_flags(threads=settings["threads"], mkldnn=name not in ("native", WITHOUT_ONEDNN))
    x, w, g = convolution.inputs(settings)
    way = convolution.WAYS.get(name, convolution.pytorch_chooses)
    return Prepared(
        _State(
            way, settings["part"], (x, w, g), convolution.exact(x, w, g), convolution.allowed_error(x, w, g)
        ),
        seen={
            "threads": torch.get_num_threads(),
            "oneDNN": torch.backends.mkldnn.enabled,
            "images": convolution.shape_words(x),
            "ran": operations(way, x, w),
        },
        device=torch_worker.device_words(x.device),
        libraries={"torch": torch.__version__},
    )


def observe(state: _State, n: int) -> Iterator[Observation]:
    x, w, g = state.inputs
    given = fingerprint([x, w, g], "xxh3")
    convolution.results(state.way, x, w, g)  # the first call compiles code for this shape
    for _ in range(n):
        results, seconds = torch_worker.timed(lambda: convolution.results(state.way, x, w, g), x.device)
        shown = results[state.part]
        error = float((shown - state.exact[state.part]).abs().max())
        yield Observation(
            fingerprint(shown),
            given,
            seconds,
            scalars={"largest error": error, "allowed": state.allowed[state.part]},
            reported={part: fingerprint(result) for part, result in results.items()}
            | {"shown": convolution.shape_words(shown)},
            sample=tuple(shown.flatten()[:64].tolist()),
        )


def operations(way: Any, x, w) -> str:
    """The telling operations in way(x, w), as PyTorch's profiler saw them, such as "im2col, bmm"; "unavailable"
    if it saw none of them."""
    import torch

    with torch.autograd.profiler.profile(use_kineto=False) as watched:  # kineto takes a second to start
        way(x, w)
    names = [event.name.removeprefix("aten::") for event in watched.function_events]
    return ", ".join(name for name in dict.fromkeys(names) if name in TELLING) or "unavailable"


def code(settings: dict) -> str:
    name = settings["way"]
    lines = [f"torch.set_num_threads({settings['threads']})", convolution.code(settings)]
    if name in (CHOOSES, WITHOUT_ONEDNN):
        lines += [
            f"torch.backends.mkldnn.enabled = {name == CHOOSES}",
            "y = functional.conv2d(x, w, padding=1)",
        ]
    else:
        lines.append(_body(convolution.WAYS[name]))
    return "\n".join(lines)


def _body(way: Any) -> str:
    """The source of a way without its docstring, imports and empty lines."""
    source = inspect.getsource(way)
    head, _, rest = source.partition('"""')
    body = rest.partition('"""')[2]
    lines = [
        line
        for line in textwrap.dedent(body).splitlines()
        if line.strip() and not line.startswith(("import", "from"))
    ]
    return head.strip() + "\n" + textwrap.indent("\n".join(lines), "    ")


CONV_WAYS = Experiment(
    name="conv-ways",
    title="One convolution, six ways",
    question="Do algorithms for the same convolution give the same bits?",
    knobs=(
        Knob(
            "way",
            "Algorithm",
            "Six ways to compute it, and PyTorch's own choice among its libraries.",
            "choice",
            CHOOSES,
            choices=(CHOOSES, WITHOUT_ONEDNN, *convolution.WAYS),
        ),
        convolution.PART,
        *convolution.SHAPE,
        convolution.THREADS,
    ),
    prepare=prepare,
    observe=observe,
    code=code,
    framework="torch",
)
