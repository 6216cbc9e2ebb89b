"""atlas-op: one op of PyTorch, by name, again and again; the atlas (atlas.py) runs all of them.

The ops are those of the two lists in the documentation of torch.use_deterministic_algorithms, and the ones
that surprised somebody. Each is a line of PyTorch, at a size at which a race can show, and the line that is
shown is the line that runs: it's compiled as it stands.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any

import numpy as np

from samebits.bits import fingerprint
from samebits.experiment import Experiment, Knob, Observation, Prepared
from samebits.experiments import torch_worker

# More threads than cores are interrupted in the middle of their work, so a race shows on a busy machine too.
THREADS = 8


@dataclass(frozen=True)
class Op:
    """One op.

    name         what --ops and the panel call it
    group        the part of the atlas in which it stands, also a name for --ops
    forward      the line, over the tensors that `inputs` gives
    inputs       makes them: name → tensor, from NumPy with a fixed seed
    gradient_of  names of the inputs whose gradient is measured; empty: the line itself is
    before       a line that runs before each run; `run` counts up in it
    documented   how the documentation may name it
    features     what of the documentation's conditions holds for it (see atlas.read_documentation)
    races        devices on which it's known to vary without the flag
    instead      what to write where the flag refuses or misses it, as the rest of a sentence
    """

    name: str
    group: str
    forward: str
    inputs: Callable[[Inputs], Mapping[str, Any]]
    gradient_of: tuple[str, ...] = ()
    before: str = ""
    documented: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    races: tuple[str, ...] = ()
    instead: str = ""

    @property
    def line(self) -> str:
        """What runs; for a gradient, `g` is the gradient that comes from above."""
        if not self.gradient_of:
            return self.forward
        wanted = ", ".join(self.gradient_of)
        return f"torch.autograd.grad({self.forward}, [{wanted}], g)"


class Inputs:
    """Makes the inputs of one op on one device, from NumPy with a fixed seed.

    many  how many values a scattering op gets: above ATen's GRAIN_SIZE of 32,768, below which the CPU code
          of index_put stays on one thread, and enough to fill a GPU
    """

    def __init__(self, device: Any):
        self._device = device
        self._rng = np.random.default_rng(20240805)
        self.many = 2_000_000 if device.type == "cuda" else 200_000

    def normal(self, *shape: int, dtype: str = "float32") -> Any:
        return self._tensor(self._rng.standard_normal(shape).astype(dtype))

    def wide(self, *shape: int, dtype: str = "float32") -> Any:
        """Normal numbers over many magnitudes, of whose sums each order rounds differently."""
        values = self._rng.standard_normal(shape) * np.exp(3 * self._rng.standard_normal(shape))
        return self._tensor(np.asarray(values, dtype))

    def uniform(self, low: float, high: float, *shape: int) -> Any:
        return self._tensor(self._rng.uniform(low, high, shape).astype("float32"))

    def log_probabilities(self, axis: int, *shape: int) -> Any:
        values = self._rng.standard_normal(shape)
        values -= np.log(np.exp(values).sum(axis, keepdims=True))
        return self._tensor(values.astype("float32"))

    def index(self, high: int, *shape: int, low: int = 0) -> Any:
        return self._tensor(self._rng.integers(low, high, shape))

    def zeros(self, *shape: int, dtype: str = "float32") -> Any:
        return self._tensor(np.zeros(shape, dtype))

    def _tensor(self, array: np.ndarray) -> Any:
        import torch

        return torch.from_numpy(np.asarray(array, order="C")).to(self._device)


# --------------------------------------------------------------------------------- inputs of many ops


def _slots(given: Inputs, dtype: str = "float32") -> dict[str, Any]:
    """Many values for a hundred slots."""
    return {
        "slots": given.zeros(100, dtype=dtype),
        "index": given.index(100, given.many),
        "values": given.wide(given.many, dtype=dtype),
    }


def _few_values_each(given: Inputs) -> dict[str, Any]:
    """About four values for each slot: whoever writes last wins, and the last ones must be close in time."""
    slots = given.many // 4
    return {
        "slots": given.zeros(slots),
        "index": given.index(slots, given.many),
        "values": given.wide(given.many),
    }


def _rows(given: Inputs) -> dict[str, Any]:
    rows = given.many // 10
    return {
        "slots": given.zeros(100, 64),
        "index": given.index(100, rows),
        "values": given.wide(rows, 64),
    }


def _factors(given: Inputs) -> dict[str, Any]:
    return _slots(given) | {"values": given.uniform(0.999, 1.001, given.many)}


def _table(given: Inputs) -> dict[str, Any]:
    return {"table": given.normal(100), "index": given.index(100, given.many)}


def _rows_of_a_table(given: Inputs) -> dict[str, Any]:
    return {"table": given.normal(100, 64), "index": given.index(100, given.many // 20)}


def _bags(given: Inputs) -> dict[str, Any]:
    return {"table": given.normal(100, 64), "bags": given.index(100, given.many // 200, 10)}


def _values(given: Inputs) -> dict[str, Any]:
    return {"values": given.wide(given.many)}


def _ties(given: Inputs) -> dict[str, Any]:
    """Values of which many are equal: which of the equal ones is found?"""
    return {"values": given.index(1000, given.many).float()}


def _matrices(given: Inputs) -> dict[str, Any]:
    return {"a": given.normal(256, 512), "b": given.normal(512, 256)}


def _sequences(given: Inputs) -> dict[str, Any]:
    return {"x": given.normal(8, 16, 400)}


def _images(given: Inputs) -> dict[str, Any]:
    return {"x": given.normal(8, 16, 24, 24)}


def _volumes(given: Inputs) -> dict[str, Any]:
    return {"x": given.normal(4, 8, 8, 16, 16)}


def _with_weight(inputs: Callable[[Inputs], dict[str, Any]], *shape: int) -> Callable[[Inputs], dict]:
    return lambda given: inputs(given) | {"w": given.normal(*shape)}


def _with_samples(inputs: Callable[[Inputs], dict[str, Any]], dimensions: int) -> Callable[[Inputs], dict]:
    """Also the random numbers that place the windows of a fractional pooling, for each image and channel."""

    def make(given: Inputs) -> dict[str, Any]:
        made = inputs(given)
        return made | {"samples": given.uniform(0, 1, *made["x"].shape[:2], dimensions)}

    return make


def _unpooled(*sizes: int) -> Callable[[Inputs], dict[str, Any]]:
    """One channel of many values; about four of them go to each place, and whoever writes last wins."""

    def make(given: Inputs) -> dict[str, Any]:
        shape = (1, 1, *sizes, given.many // math.prod(sizes))
        return {"pooled": given.normal(*shape), "where": given.index(given.many // 4, *shape)}

    return make


def _sparse_and_dense(given: Inputs) -> dict[str, Any]:
    import torch

    where = torch.stack([given.index(high, 20_000) for high in (4, 200, 300)])
    sparse = torch.sparse_coo_tensor(where, given.wide(20_000), (4, 200, 300)).coalesce()
    return {"sparse": sparse, "dense": given.normal(4, 300, 64)}


def _quantized(given: Inputs) -> dict[str, Any]:
    import torch

    return {"quantized": torch.quantize_per_tensor(given.normal(1000), 0.1, 0, torch.qint8)}


def _attention(given: Inputs) -> dict[str, Any]:
    return {name: given.normal(2, 4, 128, 32) for name in ("q", "k", "v")}


def _labels(inputs: Mapping[str, Any], given: Inputs, classes: int, *shape: int) -> dict[str, Any]:
    return dict(inputs) | {"labels": given.index(classes, *shape)}


# ------------------------------------------------------------------------------------------- the ops


def _conv(name: str, forward: str, inputs: Callable, weight: tuple[int, ...], documented: str) -> Op:
    return Op(
        name, "convolution", forward, _with_weight(inputs, *weight), ("x", "w"), documented=(documented,)
    )


def _resize(mode: str, inputs: Callable, *, antialias: bool = False, instead: str = "") -> Op:
    extra = ", antialias=True" if antialias else ""
    return Op(
        f"interpolate-{mode}{'-antialias' if antialias else ''}-backward",
        "resizing",
        f"F.interpolate(x, scale_factor=2.5, mode={mode!r}{extra})",
        inputs,
        ("x",),
        documented=("torch.nn.functional.interpolate",),
        features=(f"mode='{mode}'",),
        instead=instead,
    )


def _pad(way: str, dimensions: int, inputs: Callable, instead: str = "") -> Op:
    mode = {"reflection": "reflect", "replication": "replicate"}[way]
    return Op(
        f"{way}_pad{dimensions}d-backward",
        "padding",
        f"F.pad(x, {(3, 3) * dimensions}, mode={mode!r})",
        inputs,
        ("x",),
        documented=(f"torch.nn.{way.title()}Pad{dimensions}d",),
        instead=instead,
    )


def _pool(name: str, forward: str, inputs: Callable, documented: str, instead: str = "") -> Op:
    return Op(
        f"{name}-backward", "pooling", forward, inputs, ("x",), documented=(documented,), instead=instead
    )


OPS: tuple[Op, ...] = (
    Op(
        "index_put-accumulate",
        "scattering",
        "slots.index_put((index,), values, accumulate=True)",
        _slots,
        documented=("torch.Tensor.index_put",),
        features=("accumulate=True", "floating"),
        races=("cpu",),
    ),
    Op(
        "index_put-accumulate-rows",
        "scattering",
        "slots.index_put((index,), values, accumulate=True)",
        _rows,
        documented=("torch.Tensor.index_put",),
        features=("accumulate=True", "floating"),
        races=("cpu",),
    ),
    Op(
        "index_put-accumulate-float64",
        "scattering",
        "slots.index_put((index,), values, accumulate=True)",
        lambda given: _slots(given, "float64"),
        documented=("torch.Tensor.index_put",),
        features=("accumulate=True", "floating"),
    ),
    Op(
        "index_put",
        "scattering",
        "slots.index_put((index,), values)",
        _few_values_each,
        documented=("torch.Tensor.index_put",),
        features=("accumulate=False", "floating"),
        races=("cpu", "cuda"),
    ),
    Op(
        "put-accumulate",
        "scattering",
        "slots.put(index, values, accumulate=True)",
        _slots,
        documented=("torch.Tensor.put_",),
        features=("accumulate=True",),
        races=("cpu", "cuda"),
        instead="index_put with accumulate=True has a way that repeats.",
    ),
    Op(
        "put",
        "scattering",
        "slots.put(index, values)",
        _few_values_each,
        documented=("torch.Tensor.put_",),
        features=("accumulate=False",),
        races=("cpu", "cuda"),
        instead="index_put writes the same, and the flag covers it.",
    ),
    Op(
        "index_copy",
        "scattering",
        "slots.index_copy(0, index, values)",
        _few_values_each,
        documented=("torch.Tensor.index_copy",),
        races=("cpu", "cuda"),
    ),
    Op(
        "index_add",
        "scattering",
        "slots.index_add(0, index, values)",
        _slots,
        documented=("torch.index_add", "torch.Tensor.index_add_"),
    ),
    Op(
        "index_add-rows",
        "scattering",
        "slots.index_add(0, index, values)",
        _rows,
        documented=("torch.index_add", "torch.Tensor.index_add_"),
    ),
    Op(
        "scatter_add",
        "scattering",
        "slots.scatter_add(0, index, values)",
        _slots,
        documented=("torch.Tensor.scatter_add_",),
    ),
    Op(
        "scatter",
        "scattering",
        "slots.scatter(0, index, values)",
        _few_values_each,
        documented=("torch.Tensor.scatter",),
        features=("tensor src",),
    ),
    *(
        Op(
            f"scatter_reduce-{reduce}",
            "scattering",
            f"slots.scatter_reduce(0, index, values, {reduce!r})",
            _factors if reduce == "prod" else _slots,
            documented=("torch.Tensor.scatter_reduce",),
            features=(f"reduce='{reduce}'",),
            instead="multiply on the CPU, where it repeated." if reduce == "prod" else "",
        )
        for reduce in ("sum", "mean", "prod")
    ),
    *(
        Op(
            f"index_reduce-{reduce}",
            "scattering",
            f"slots.index_reduce(0, index, values, {reduce!r})",
            _factors if reduce == "prod" else _slots,
            documented=("torch.Tensor.index_reduce",),
            features=(f"reduce='{reduce}'", "floating"),
            instead="divide an index_add by the counts." if reduce == "mean" else "",
        )
        for reduce in ("mean", "prod")
    ),
    # ---- gradients of looking up: the forward reads, the backward adds into what was read
    Op(
        "getitem-backward",
        "indexing",
        "table[index]",
        _table,
        ("table",),
        documented=("torch.Tensor.__getitem__",),
        features=("tensor index",),
        races=("cpu",),
    ),
    Op("take-backward", "indexing", "table.take(index)", _table, ("table",), races=("cpu",)),
    Op(
        "gather-backward",
        "indexing",
        "table.gather(0, index)",
        _table,
        ("table",),
        documented=("torch.gather",),
    ),
    Op(
        "index_select-backward",
        "indexing",
        "table.index_select(0, index)",
        _table,
        ("table",),
        documented=("torch.index_select",),
    ),
    Op(
        "repeat_interleave-backward",
        "indexing",
        "x.repeat_interleave(times)",
        lambda given: {"x": given.normal(1000), "times": given.index(400, 1000, low=1)},
        ("x",),
        documented=("torch.repeat_interleave",),
    ),
    Op("expand-backward", "indexing", "x.expand(100_000, 16)", lambda given: {"x": given.normal(16)}, ("x",)),
    Op(
        "embedding-backward",
        "indexing",
        "F.embedding(index, table)",
        _rows_of_a_table,
        ("table",),
        documented=("torch.nn.Embedding",),
    ),
    *(
        Op(
            f"embedding_bag-{mode}-backward",
            "indexing",
            f"F.embedding_bag(bags, table, mode={mode!r})",
            _bags,
            ("table",),
            documented=("torch.nn.EmbeddingBag",),
            features=(f"mode='{mode}'",),
            instead="embedding, then the maximum over each bag, has a way that repeats."
            if mode == "max"
            else "",
        )
        for mode in ("sum", "mean", "max")
    ),
    # ---- counting and ordering: which of equal values comes first?
    Op(
        "bincount-weights",
        "ordering",
        "torch.bincount(index, values)",
        lambda given: {"index": given.index(100, given.many), "values": given.wide(given.many)},
        documented=("torch.bincount",),
        features=("weights",),
        instead="index_add of the weights into zeros has a way that repeats.",
    ),
    Op(
        "histc",
        "ordering",
        "torch.histc(values, bins=64, min=-3, max=3)",
        _values,
        documented=("torch.histc",),
        instead="torch.bucketize and a bincount without weights count in integers.",
    ),
    Op(
        "median-indices",
        "ordering",
        "torch.median(values, 0)",
        _ties,
        documented=("torch.median",),
        features=("indices",),
        instead="take the middle of a stable sort.",
    ),
    Op("kthvalue", "ordering", "torch.kthvalue(values, 500)", _ties, documented=("torch.kthvalue",)),
    Op("mode-indices", "ordering", "torch.mode(values, 0)", _ties),
    Op("sort-unstable", "ordering", "torch.sort(values, stable=False)", _ties),
    Op("topk", "ordering", "torch.topk(values, 500)", _ties),
    # ---- sums and products
    Op("sum", "sums", "values.sum()", _values),
    Op("cumsum", "sums", "values.cumsum(0)", _values, documented=("torch.cumsum",), features=("floating",)),
    Op("norm", "sums", "values.norm()", _values),
    Op("softmax", "sums", "x.softmax(1)", lambda given: {"x": given.normal(500, 500)}),
    Op("dot", "sums", "torch.dot(values, values)", _values),
    Op("matmul", "sums", "a @ b", _matrices),
    Op(
        "bmm-sparse",
        "sums",
        "torch.bmm(sparse, dense)",
        _sparse_and_dense,
        documented=("torch.bmm",),
        features=("sparse-dense",),
    ),
    Op(
        "sparse-coalesce",
        "sums",
        "torch.sparse_coo_tensor(index[None], values, (100, 64)).coalesce()",
        lambda given: {"index": given.index(100, 20_000), "values": given.wide(20_000, 64)},
    ),
    # ---- convolutions
    _conv("conv1d-backward", "F.conv1d(x, w)", _sequences, (32, 16, 3), "torch.nn.Conv1d"),
    _conv("conv2d-backward", "F.conv2d(x, w)", _images, (32, 16, 3, 3), "torch.nn.Conv2d"),
    _conv("conv3d-backward", "F.conv3d(x, w)", _volumes, (8, 8, 3, 3, 3), "torch.nn.Conv3d"),
    *(
        _conv(
            f"conv_transpose{d}d-backward",
            f"F.conv_transpose{d}d(x, w)",
            inputs,
            (channels, 8, *(3,) * d),
            f"torch.nn.ConvTranspose{d}d",
        )
        for d, inputs, channels in ((1, _sequences, 16), (2, _images, 16), (3, _volumes, 8))
    ),
    # ---- pooling
    _pool("max_pool2d", "F.max_pool2d(x, 3, 1)", _images, "torch.nn.MaxPool2d"),
    _pool("max_pool3d", "F.max_pool3d(x, 3, 1)", _volumes, "torch.nn.MaxPool3d"),
    _pool(
        "avg_pool3d",
        "F.avg_pool3d(x, 3, 1)",
        _volumes,
        "torch.nn.AvgPool3d",
        "a convolution with equal weights has a way that repeats.",
    ),
    _pool(
        "adaptive_avg_pool2d",
        "F.adaptive_avg_pool2d(x, 7)",
        _images,
        "torch.nn.AdaptiveAvgPool2d",
        "AvgPool2d with a fixed kernel, or a mean over the axes for size 1.",
    ),
    _pool(
        "adaptive_avg_pool3d",
        "F.adaptive_avg_pool3d(x, 5)",
        _volumes,
        "torch.nn.AdaptiveAvgPool3d",
        "a mean over the axes for size 1, else a convolution with equal weights.",
    ),
    _pool(
        "adaptive_max_pool2d",
        "F.adaptive_max_pool2d(x, 7)",
        _images,
        "torch.nn.AdaptiveMaxPool2d",
        "MaxPool2d with a fixed kernel.",
    ),
    *(
        _pool(
            f"fractional_max_pool{d}d",
            f"F.fractional_max_pool{d}d(x, 2, output_size=5, _random_samples=samples)",
            _with_samples(inputs, d),
            f"torch.nn.FractionalMaxPool{d}d",
            f"MaxPool{d}d with a fixed kernel.",
        )
        for d, inputs in ((2, _images), (3, _volumes))
    ),
    *(
        Op(
            f"max_unpool{d}d",
            "pooling",
            f"F.max_unpool{d}d(pooled, where, 2)",
            _unpooled(*sizes),
            documented=(f"torch.nn.MaxUnpool{d}d",),
            races=("cpu", "cuda"),
            instead="write it with index_put, which the flag covers.",
        )
        for d, sizes in ((1, ()), (2, (400,)), (3, (8, 50)))
    ),
    # ---- resizing
    _resize("linear", _sequences, instead="bilinear on a tensor with one dimension more."),
    _resize("bilinear", _images),
    _resize("bilinear", _images, antialias=True, instead="bilinear without antialias."),
    _resize("bicubic", _images, instead="bilinear has a way that repeats."),
    _resize("trilinear", _volumes),
    Op(
        "grid_sample-backward",
        "resizing",
        "F.grid_sample(x, grid, align_corners=False)",
        lambda given: _images(given) | {"grid": given.uniform(-1, 1, 8, 40, 40, 2)},
        ("x", "grid"),
        documented=("torch.nn.functional.grid_sample",),
        instead="look the four neighbours up with gather, whose gradient has a way that repeats.",
    ),
    Op("unfold-backward", "resizing", "F.unfold(x, 3)", _images, ("x",)),
    Op("fold", "resizing", "F.fold(x, (32, 32), 3)", lambda given: {"x": given.normal(8, 16 * 9, 900)}),
    # ---- padding
    _pad("reflection", 1, _sequences, "ReflectionPad2d on a tensor with one dimension more."),
    _pad("reflection", 2, _images),
    _pad("reflection", 3, _volumes, "index_select of the mirrored positions, one axis after the other."),
    _pad("replication", 1, _sequences),
    _pad("replication", 2, _images),
    _pad("replication", 3, _volumes),
    # ---- losses and layers
    Op(
        "nll_loss-backward",
        "losses",
        "F.nll_loss(x, labels)",
        lambda given: _labels({"x": given.log_probabilities(1, 5000, 16)}, given, 16, 5000),
        ("x",),
        documented=("torch.nn.NLLLoss",),
    ),
    Op(
        "nll_loss2d-backward",
        "losses",
        "F.nll_loss(x, labels)",
        lambda given: _labels({"x": given.log_probabilities(1, 8, 16, 32, 32)}, given, 16, 8, 32, 32),
        ("x",),
        documented=("torch.nn.NLLLoss",),
        instead="reduction='none', then the mean, does not use that kernel.",
    ),
    Op(
        "ctc_loss-backward",
        "losses",
        "F.ctc_loss(x, labels, lengths, label_lengths)",
        lambda given: {
            "x": given.log_probabilities(2, 50, 16, 20),
            "labels": given.index(20, 16, 20, low=1),
            "lengths": given.index(51, 16, low=50),
            "label_lengths": given.index(21, 16, low=20),
        },
        ("x",),
        documented=("torch.nn.CTCLoss",),
        instead="compute this loss on the CPU.",
    ),
    Op(
        "cdist-backward",
        "losses",
        "torch.cdist(a, b)",
        lambda given: {"a": given.normal(300, 16), "b": given.normal(200, 16)},
        ("a", "b"),
    ),
    Op(
        "attention-backward", "layers", "F.scaled_dot_product_attention(q, k, v)", _attention, ("q", "k", "v")
    ),
    Op(
        "layer_norm-backward",
        "layers",
        "F.layer_norm(x, (64,), w, b)",
        lambda given: {"x": given.normal(5000, 64), "w": given.normal(64), "b": given.normal(64)},
        ("x", "w", "b"),
    ),
    Op(
        "batch_norm-backward",
        "layers",
        "F.batch_norm(x, None, None, w, b, True)",
        lambda given: _images(given) | {"w": given.normal(16), "b": given.normal(16)},
        ("x", "w", "b"),
    ),
    # ---- memory
    Op(
        "empty",
        "memory",
        "torch.empty_like(values)",
        lambda given: {"values": given.normal(5000)},
        # What a program did before decides what lies in the memory that it gets.
        before="torch.full_like(values, run)  # freed at once",
        documented=("torch.empty",),
        races=("cpu", "cuda"),
    ),
    Op(
        "resize-quantized",
        "memory",
        "quantized.clone().resize_(5000)",
        _quantized,
        before="torch.full((5000,), run % 127, dtype=torch.int8)  # freed at once",
        documented=("torch.Tensor.resize_",),
        features=("quantized",),
        races=("cpu",),
        instead="make a new tensor of the size that you want, and write all of it.",
    ),
)

GROUPS: tuple[str, ...] = tuple(dict.fromkeys(op.group for op in OPS))


# ------------------------------------------------------------------------------------ the experiment


@dataclass
class _State:
    names: dict[str, Any]  # what the lines may use: torch, F, the inputs, g, run
    inputs: list[Any]
    before: CodeType | None
    line: CodeType
    device: Any


def _run_once(state: _State) -> tuple[Any, float]:
    """(the output as tensors that have bytes, seconds) of one run."""
    if state.before:
        state.names["run"] += 1
        eval(state.before, state.names)
    output, seconds = torch_worker.timed(lambda: eval(state.line, state.names), state.device)
    return _plain(output), seconds


def _plain(output: Any) -> Any:
    """Sparse and quantized tensors as the ordinary ones that they are made of."""
    if isinstance(output, (list, tuple)):
        return [_plain(part) for part in output if part is not None]
    if output.is_sparse:
        return [output._indices(), output._values()]
    return output.int_repr() if output.is_quantized else output.detach()


def _prepared(op: Op, settings: dict) -> Prepared:
    torch_worker.set_flags(threads=THREADS, deterministic=False)
    device = torch_worker.choose_device(settings["device"])
    state, shapes = _state(op, device)
    # Only now: an op that raises under the flag must not do so while its gradient's shape is found out.
    torch_worker.set_flags(threads=THREADS, deterministic=settings["deterministic"])
    return torch_worker.prepared(state, device, inputs=shapes)


@functools.lru_cache(maxsize=1)  # the atlas goes back and forth between the settings of one op
def _state(op: Op, device: Any) -> tuple[_State, str]:
    import torch

    given = Inputs(device)
    inputs = dict(op.inputs(given))
    names: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "run": 0, **inputs}
    if op.gradient_of:
        for name in op.gradient_of:
            inputs[name].requires_grad_()
        output = eval(op.forward, names)
        names["g"] = inputs["g"] = given.wide(*output.shape)
    shapes = ", ".join(f"{name} {_shape(value)}" for name, value in inputs.items())
    before = compile(op.before, op.name, "eval") if op.before else None
    plain = [_plain(value) for value in inputs.values()]
    return _State(names, plain, before, compile(op.line, op.name, "eval"), device), shapes


def _shape(tensor: Any) -> str:
    sizes = "×".join(f"{size:,}" for size in tensor.shape)
    return f"{str(tensor.dtype).removeprefix('torch.')} {sizes or 'scalar'}"


def observe(state: _State, n: int) -> Iterator[Observation]:
    algorithm = "mix64" if state.device.type == "cuda" else "xxh3"
    _run_once(state)  # the first call allocates and, on a GPU, loads the kernel
    for _ in range(n):
        output, seconds = _run_once(state)
        sample, dtype = _sample(output)
        yield Observation(
            fingerprint(output, algorithm),
            fingerprint(state.inputs, algorithm),
            seconds,
            sample=sample,
            dtype=dtype,
        )


def _sample(output: Any) -> tuple[tuple[float, ...], str]:
    """The first 64 floats of the output, and their format."""
    first = output[0] if isinstance(output, list) else output
    dtype = str(first.dtype).removeprefix("torch.")
    if dtype not in ("float32", "float64"):
        return (), "float32"
    return tuple(first.reshape(-1)[:64].tolist()), dtype


def experiment(name: str, ops: tuple[Op, ...]) -> Experiment:
    """An experiment over these ops; `ATLAS_OP` has the course's."""
    by_name = {op.name: op for op in ops}

    def code(settings: dict) -> str:
        op = by_name[settings["op"]]
        return "\n".join(
            [
                f"torch.set_num_threads({THREADS})",
                f"torch.use_deterministic_algorithms({settings['deterministic']})",
                "# the inputs come from NumPy, with one seed: the same bits in every run",
                *([op.before] if op.before else []),
                op.line,
            ]
        )

    return Experiment(
        name=name,
        title="One op of the atlas",
        question="Does this line give the same bits twice?",
        knobs=(
            Knob(
                "op",
                "Operation",
                "From the documented lists of use_deterministic_algorithms, and known surprises.",
                "choice",
                ops[0].name,
                choices=tuple(by_name),
            ),
            torch_worker.DETERMINISTIC,
            torch_worker.DEVICE,
        ),
        prepare=lambda settings: _prepared(by_name[settings["op"]], settings),
        observe=observe,
        code=code,
        framework="torch",
        card=torch_worker.card,
    )


ATLAS_OP = experiment("atlas-op", OPS)


def documentation(device: str) -> dict[str, str]:
    """For the atlas, in a worker: what torch.use_deterministic_algorithms says of itself, and which device
    the setting `device` means here. Raises BadSetting for a GPU that is not there."""
    import torch

    text = inspect.getdoc(torch.use_deterministic_algorithms) or ""
    return {"text": text, "device": torch_worker.choose_device(device).type}
