"""tf-ops: one TensorFlow op, the same input, many times."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from samebits.bits import fingerprint
from samebits.experiment import Experiment, Knob, Observation, Prepared
from samebits.experiments import tf_worker

CROP, SCATTER, BINCOUNT = "crop_and_resize gradient", "Variable.scatter_add", "bincount, weighted"
# Each op as the line that a learner would write.
LINES = {
    CROP: "tape.gradient(tf.image.crop_and_resize(maps, boxes, owners, (16, 16)), maps, values)",
    SCATTER: "tf.Variable(zeros).scatter_add(tf.IndexedSlices(values, index))",
    BINCOUNT: "tf.math.bincount(index, weights=values)",
    "bincount, sorted": "tf.math.bincount(tf.sort(index), weights=tf.gather(values, tf.argsort(index, stable=True)))",
    "bincount, int64": "tf.math.bincount(index, weights=tf.cast(tf.round(values * 2**20), tf.int64))",
    "bincount, axis=-1": "tf.math.bincount(index[None], weights=values[None], axis=-1)",
    "unsorted_segment_sum": "tf.math.unsorted_segment_sum(values, index, slots)",
    "bilinear resize gradient": 'tape.gradient(tf.image.resize(maps, (32, 32), "bilinear"), maps, values)',
    "nearest resize gradient": 'tape.gradient(tf.image.resize(maps, (32, 32), "nearest"), maps, values)',
}
NORMAL, ONES = VALUES = ("normal numbers", "ones")
PATCH = (16, 16, 16)  # height, width and channels of a crop, and of the maps it is taken from


@dataclass(frozen=True)
class _State:
    run: Callable[[], Any]
    given: list[np.ndarray]
    exact: np.ndarray | None  # the answer, where every sum is a whole number


def prepare(settings: dict) -> Prepared:
    tf_worker.set_process(settings)
    rng = np.random.default_rng(20240805)
    values = rng.standard_normal(settings["n"], dtype=np.float32)
    if settings["values"] == ONES:
        values = np.ones_like(values)
    index = rng.integers(0, settings["slots"], settings["n"]).astype(np.int32)
    run, exact = _made(settings["op"], values, index, settings["slots"])
    state = _State(run, [values, index], exact if settings["values"] == ONES else None)
    return tf_worker.prepared(state)


def _made(op: str, values: np.ndarray, index: np.ndarray, slots: int) -> tuple[Callable[[], Any], Any]:
    """The op on these inputs as a function of nothing, and its exact answer if the values are ones (or None)."""
    import tensorflow as tf

    counts = np.bincount(index, minlength=slots)
    if op == CROP:
        # Crops of the maps' own size, so that each pixel of a crop adds, with weight 1, to one pixel.
        crops = max(1, values.size // int(np.prod(PATCH)))
        gradient = tf.constant(np.resize(values, (crops, *PATCH)))
        boxes, owners = tf.tile(tf.constant([[0.0, 0.0, 1.0, 1.0]]), (crops, 1)), tf.zeros(crops, tf.int32)
        return _gradient(
            lambda maps: tf.image.crop_and_resize(maps, boxes, owners, PATCH[:2]), PATCH, gradient
        ), np.full((1, *PATCH), crops)
    if op.endswith("resize gradient"):
        shape = (32, 32, max(1, values.size // 1024))
        gradient = tf.constant(np.resize(values, (1, *shape)))
        method = op.split()[0]
        maps = (16, 16, shape[-1])
        return _gradient(lambda maps: tf.image.resize(maps, (32, 32), method), maps, gradient), None
    v, i = tf.constant(values), tf.constant(index)
    if op == SCATTER:
        zeros = tf.zeros(slots)
        return lambda: tf.Variable(zeros).scatter_add(tf.IndexedSlices(v, i)), counts
    if op == "bincount, sorted":
        order = np.argsort(index, kind="stable")
        i, v = tf.constant(index[order]), tf.constant(values[order])
    if op == "bincount, int64":
        v = tf.constant(np.round(values.astype(np.float64) * 2**20).astype(np.int64))
        counts = counts * 2**20
    if op in (BINCOUNT, "bincount, sorted", "bincount, int64"):
        return lambda: tf.math.bincount(i, weights=v, minlength=slots), counts
    if op == "bincount, axis=-1":
        return lambda: tf.math.bincount(i[None], weights=v[None], minlength=slots, axis=-1)[0], counts
    return lambda: tf.math.unsorted_segment_sum(v, i, slots), counts


def _gradient(function: Callable[[Any], Any], shape: tuple[int, ...], upstream: Any) -> Callable[[], Any]:
    import tensorflow as tf

    maps = tf.zeros((1, *shape))

    def run():
        with tf.GradientTape() as tape:
            tape.watch(maps)
            result = function(maps)
        return tape.gradient(result, maps, upstream)

    return run


def observe(state: _State, n: int) -> Iterator[Observation]:
    given = fingerprint(state.given, "xxh3")
    state.run()  # the first call allocates
    for _ in range(n):
        start = time.perf_counter()
        result = np.asarray(state.run())
        seconds = time.perf_counter() - start
        flat = result.reshape(-1)
        scalars = {"element 0": float(flat[0])}
        if state.exact is not None:
            wrong = np.abs(flat - state.exact.reshape(-1))
            scalars = {"largest error": float(wrong.max())}
        yield Observation(
            fingerprint(result), given, seconds, scalars, sample=tuple(flat[:64].astype(np.float32).tolist())
        )


def code(settings: dict) -> str:
    return "\n".join(
        [
            *tf_worker.process_code(settings),
            f"# values: {settings['n']:,} float32 {settings['values']}; the same in every run",
            f"# index: a slot from 0 to {settings['slots'] - 1} for each value",
            LINES[settings["op"]],
        ]
    )


TF_OPS = Experiment(
    name="tf-ops",
    title="One TensorFlow op, many times",
    question="Does the same op give the same bits twice?",
    knobs=(
        Knob(
            "op", "Operation", "An op in which many values meet in one place.", "choice", CROP, tuple(LINES)
        ),
        Knob(
            "values",
            "Values",
            "Normal numbers, or ones: sums of ones are exact in any order, so an error means a lost update.",
            "choice",
            NORMAL,
            choices=VALUES,
        ),
        Knob("n", "How many", "Values that go in.", "number", 1_000_000, low=1, high=4_000_000),
        Knob(
            "slots",
            "Slots",
            "Where they are added. scatter_add takes one thread for more than 10,000 values a slot.",
            "number",
            1000,  # so that scatter_add takes several threads at every number of values
            low=1,
            high=1_000_000,
        ),
        *tf_worker.PROCESS,
    ),
    prepare=prepare,
    observe=observe,
    code=code,
    race_size={"n": 100_000, "threads": 2},
    framework="tensorflow",
    environment=tf_worker.environment,
    card=tf_worker.card,
)
