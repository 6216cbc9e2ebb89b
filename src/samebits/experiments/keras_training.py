"""keras-training: chapter 05's training in Keras, many times, its weights as fingerprints."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from samebits import digits
from samebits.bits import fingerprint
from samebits.experiment import Experiment, Knob, Observation, Prepared
from samebits.experiments import tf_worker

IMAGES, TESTED = 512, 1400  # trained on the first 512, tested on the last 397
BATCH, RATE = 64, 0.02
NO_SHIFT, STATEFUL, STATELESS = SHIFTS = ("none", "tf.random", "stateless")


def augmented(images: np.ndarray, labels: np.ndarray, shift: str, calls: int) -> Any:
    """A tf.data.Dataset of shuffled batches, each image moved by up to a pixel each way."""
    import tensorflow as tf

    def stateful(number, image, label):
        step = tf.random.uniform((2,), -1, 2, tf.int32)  # the next number of one stream
        return tf.roll(image, step, (0, 1)), label

    def stateless(number, image, label):
        step = tf.random.stateless_uniform(
            (2,), (number, tf_worker.SEED), -1, 2, tf.int32
        )  # this image's own
        return tf.roll(image, step, (0, 1)), label

    def unmoved(number, image, label):
        return image, label

    move = {STATEFUL: stateful, STATELESS: stateless, NO_SHIFT: unmoved}[shift]
    data = tf.data.Dataset.from_tensor_slices((np.arange(len(images)), images, labels))
    return data.shuffle(len(images)).map(move, num_parallel_calls=calls).batch(BATCH).prefetch(2)


def glimpses(maps: Any) -> Any:
    """Four overlapping crops of each image, resized to 4 × 4: (n, h, w, c) → (n, 64 · c)."""
    import tensorflow as tf

    n, channels = tf.shape(maps)[0], maps.shape[-1]
    corners = [[0, 0, 0.7, 0.7], [0, 0.3, 0.7, 1], [0.3, 0, 1, 0.7], [0.3, 0.3, 1, 1]]
    boxes, owners = tf.repeat(tf.constant(corners), n, axis=0), tf.tile(tf.range(n), (4,))
    crops = tf.image.crop_and_resize(maps, boxes, owners, (4, 4))
    of_each = tf.transpose(tf.reshape(crops, (4, n, 16 * channels)), (1, 0, 2))
    return tf.reshape(of_each, (n, 64 * channels))


def network(looks: bool) -> Any:
    """A small CNN for 8 × 8 grey levels from 0 to 16; it has glimpses, or else max-pooling."""
    import keras

    layers = keras.layers
    pooled = [layers.MaxPooling2D(2), layers.Flatten()]
    return keras.Sequential(
        [
            layers.Input((8, 8), dtype="int32"),
            layers.Embedding(17, 8),  # a learned palette: eight numbers for each grey level
            layers.Conv2D(16, 3, activation="relu"),
            *([layers.Lambda(glimpses, output_shape=(1024,))] if looks else pooled),
            layers.Dropout(0.2),
            layers.Dense(10),
        ]
    )


def train(images: np.ndarray, labels: np.ndarray, settings: dict) -> dict[str, Any]:
    """One training from the seeds on: {"first": weights before it, "last": weights after it, "model", "loss"}."""
    import keras

    keras.utils.clear_session()  # or each model would be a little slower to build than the one before
    tf_worker.set_seeds(settings["seeds"])
    data = augmented(images, labels, settings["shift"], settings["calls"])
    model = network(settings["glimpses"])
    first = model.get_weights()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.Adam(RATE)
    # Without this, fit traces its step twice, which takes longer than the training.
    optimizer.build(model.trainable_variables)
    model.compile(optimizer, loss)
    history = model.fit(data, epochs=settings["epochs"], verbose=0)
    return {"first": first, "last": model.get_weights(), "model": model, "loss": history.history["loss"][-1]}


@dataclass(frozen=True)
class _State:
    images: np.ndarray
    labels: np.ndarray
    settings: dict


def prepare(settings: dict) -> Prepared:
    tf_worker.set_process(settings)
    images, labels = digits.load()
    return tf_worker.prepared(_State(images.astype(np.int32), labels.astype(np.int32), settings))


def observe(state: _State, n: int) -> Iterator[Observation]:
    images, labels = state.images[:IMAGES], state.labels[:IMAGES]
    given = fingerprint([images, labels], "xxh3")
    for _ in range(n):
        start = time.perf_counter()
        trained = train(images, labels, state.settings)
        seconds = time.perf_counter() - start
        right = np.asarray(trained["model"](state.images[TESTED:])).argmax(1) == state.labels[TESTED:]
        yield Observation(
            fingerprint(trained["last"]),
            given,
            seconds,
            scalars={"loss": float(trained["loss"]), "accuracy": float(right.mean())},
            reported={"first weights": fingerprint(trained["first"], "xxh3")},
            sample=tuple(trained["last"][0].reshape(-1)[:64].tolist()),
        )


def code(settings: dict) -> str:
    move = {
        STATEFUL: "roll(image, tf.random.uniform((2,), -1, 2, tf.int32))",
        STATELESS: "roll(image, tf.random.stateless_uniform((2,), (number, 0), -1, 2, tf.int32))",
        NO_SHIFT: "image",
    }[settings["shift"]]
    pool = "Lambda(glimpses)," if settings["glimpses"] else "MaxPooling2D(2), Flatten(),"
    return "\n".join(
        [
            *tf_worker.process_code(settings),
            *tf_worker.seeding_code(settings["seeds"]),
            f"data = digits.shuffle({IMAGES})",
            "data = data.map(lambda number, image, label: (",
            f"    {move}, label), num_parallel_calls={settings['calls']})",
            f"model = keras.Sequential([Embedding(17, 8), Conv2D(16, 3), {pool}",
            "                          Dropout(0.2), Dense(10)])",
            *(["# glimpses: four crops of each image, by tf.image.crop_and_resize"] * settings["glimpses"]),
            f"model.compile(Adam({RATE}), cross_entropy)",
            f"model.fit(data.batch({BATCH}).prefetch(2), epochs={settings['epochs']})",
        ]
    )


KERAS_TRAINING = Experiment(
    name="keras-training",
    title="One training in Keras",
    question="Which lines make every run's weights the same?",
    knobs=(
        tf_worker.SEEDING,
        Knob(
            "shift",
            "Moved by",
            "Each image is moved by up to a pixel: by tf.random, by stateless numbers of its own, or not.",
            "choice",
            STATEFUL,
            choices=SHIFTS,
        ),
        Knob(
            "calls",
            "Parallel calls",
            "num_parallel_calls of the map that moves the images.",
            "number",
            8,
            low=1,
            high=16,
        ),
        Knob(
            "glimpses",
            "Glimpses",
            "Four crops of each image by tf.image.crop_and_resize, instead of max-pooling.",
            "toggle",
            True,
        ),
        Knob("epochs", "Epochs", "Passes over the 512 images.", "number", 2, low=1, high=20),
        *tf_worker.PROCESS,
    ),
    prepare=prepare,
    observe=observe,
    code=code,
    race_size={"threads": 2, "calls": 2},
    framework="tensorflow",
    environment=tf_worker.environment,
    card=tf_worker.card,
    repeats=6,
)
