"""tf-data: one epoch of a tf.data pipeline whose map decodes an image and moves it at random."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from samebits.bits import fingerprint
from samebits.experiment import Experiment, Knob, Observation, Prepared
from samebits.experiments import tf_worker

STATEFUL, STATELESS, HOISTED = DRAWS = ("tf.random", "stateless", "a map of its own")
IMAGES, SIDE = 64, 128

LINES = {
    STATEFUL: (
        "data.map(lambda n, png: roll(decode(png), tf.random.uniform((2,), -9, 10, tf.int32)),\n"
        "         num_parallel_calls={calls})"
    ),
    STATELESS: (
        "data.map(lambda n, png: roll(decode(png), tf.random.stateless_uniform((2,), (n, 0), -9, 10, tf.int32)),\n"
        "         num_parallel_calls={calls})"
    ),
    HOISTED: (
        "data.map(lambda n, png: (tf.random.uniform((2,), -9, 10, tf.int32), png)).map(\n"
        "    lambda step, png: roll(decode(png), step), num_parallel_calls={calls})"
    ),
}


def pipeline(files: list[bytes], draws: str, calls: int) -> Any:
    """A tf.data.Dataset of moved images, drawn as `draws` says."""
    import tensorflow as tf

    def moved(png, step):
        return tf.roll(tf.io.decode_png(png), step, (0, 1))

    def drawn():
        return tf.random.uniform((2,), -9, 10, tf.int32)

    def drawn_for(number):
        return tf.random.stateless_uniform((2,), (number, tf_worker.SEED), -9, 10, tf.int32)

    data = tf.data.Dataset.from_tensor_slices((np.arange(len(files), dtype=np.int32), files))
    if draws == STATEFUL:
        return data.map(lambda n, png: moved(png, drawn()), num_parallel_calls=calls)
    if draws == STATELESS:
        return data.map(lambda n, png: moved(png, drawn_for(n)), num_parallel_calls=calls)
    apart = data.map(lambda n, png: (drawn(), png))
    return apart.map(lambda step, png: moved(png, step), num_parallel_calls=calls)


@dataclass(frozen=True)
class _State:
    files: list[bytes]
    settings: dict


def prepare(settings: dict) -> Prepared:
    import tensorflow as tf

    tf_worker.set_process(settings)
    images = np.random.default_rng(6).integers(0, 256, (IMAGES, SIDE, SIDE, 3), dtype=np.uint8)
    files = [tf.io.encode_png(image, compression=1).numpy() for image in images]
    return tf_worker.prepared(_State(files, settings))


def observe(state: _State, n: int) -> Iterator[Observation]:
    given = fingerprint(np.frombuffer(b"".join(state.files), np.uint8), "xxh3")
    for run in range(n + 1):  # the first one warms up
        tf_worker.set_seeds(state.settings["seeds"])
        data = pipeline(state.files, state.settings["draws"], state.settings["calls"])
        start = time.perf_counter()
        images = np.stack(list(data.as_numpy_iterator()))
        seconds = time.perf_counter() - start
        if run:
            yield Observation(fingerprint(images), given, seconds)


def code(settings: dict) -> str:
    return "\n".join(
        [
            *tf_worker.process_code(settings),
            *tf_worker.seeding_code(settings["seeds"]),
            f"# data: {IMAGES} numbered PNG files in memory; decode: tf.io.decode_png; roll: tf.roll",
            LINES[settings["draws"]].format(calls=settings["calls"]),
        ]
    )


TF_DATA = Experiment(
    name="tf-data",
    title="A map with random numbers, in parallel",
    question="Does each image get the same random numbers in every run?",
    knobs=(
        Knob(
            "draws",
            "Random numbers",
            "From tf.random in the parallel map; stateless, by the image's number; or from tf.random in a map before.",
            "choice",
            STATEFUL,
            choices=DRAWS,
        ),
        Knob("calls", "Parallel calls", "num_parallel_calls of the map.", "number", 8, low=1, high=16),
        tf_worker.SEEDING,
        *tf_worker.PROCESS,
    ),
    prepare=prepare,
    observe=observe,
    code=code,
    race_size={"calls": 2},
    framework="tensorflow",
    environment=tf_worker.environment,
    card=tf_worker.card,
)
