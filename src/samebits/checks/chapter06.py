"""Checks of chapter 06: TensorFlow's seeds, its switch, tf.data, and the ops that vary on a CPU.

They share one TensorFlow process, so the switch is turned off again by a function that TensorFlow does not
export, and that its own tests use.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from samebits import digits
from samebits.bits import fingerprint
from samebits.checks import THREADS, Seen, check, in_new_process
from samebits.experiments import keras_scripts, keras_training, tf_ops, tf_pipeline, tf_worker

ENVIRONMENT = tf_worker.environment({"device": "cpu"})
RUNS = 20  # of an op that may race
EPOCHS = 10  # of a pipeline that may


INT64, AXIS = "bincount, int64", "bincount, axis=-1"


def tf_check(claim: str, control: str, **options: Any) -> Callable:
    return check(claim, control=control, framework="tensorflow", environment=ENVIRONMENT, **options)


def _switch(on: bool, threads: int = THREADS) -> None:
    """Turn op determinism on or off, whatever the check before this one left."""
    import tensorflow as tf
    from tensorflow.python.framework import config

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    (tf.config.experimental.enable_op_determinism if on else config.disable_op_determinism)()


def _state(
    op: str, values: str = tf_ops.NORMAL, on: bool = False, n: int = 1_000_000, slots: int = 1000
) -> Any:
    """An op of the experiment tf-ops on its input, ready to run; with the exact answer where the values are ones."""
    _switch(on)
    return tf_ops.prepare(
        tf_ops.TF_OPS.settings(op=op, values=values, n=n, slots=slots, deterministic=on, threads=THREADS)
    ).state


@functools.cache
def _answers(op: str, **options: Any) -> int:
    """How many answers it gives in RUNS runs; several claims ask for the same ones."""
    state = _state(op, **options)
    return _distinct([np.asarray(state.run()) for _ in range(RUNS)])


def _distinct(results: list) -> int:
    return len({fingerprint(result) for result in results})


def _documented(function: str, words: str) -> Seen:
    import tensorflow as tf

    place: Any = tf
    for name in function.split("."):
        place = getattr(place, name)
    found = words in " ".join(place.__doc__.split())
    return Seen(found, f"the documentation of {function} {'says' if found else 'does not say'} “{words}”")


# --- Documentation ---------------------------------------------------------------------------------------


@tf_check("06-docs-almost", control="words that it does not say: every Keras program")
def docs_almost(control: bool) -> Seen:
    return _documented(
        "keras.utils.set_random_seed",
        "make every Keras program fully" if control else "make almost any Keras program fully deterministic",
    )


@tf_check("06-docs-bugs", control="words that it does not say: no op is nondeterministic")
def docs_bugs(control: bool) -> Seen:
    words = (
        "no op is nondeterministic"
        if control
        else "due to bugs, some ops might be nondeterministic and not raise"
    )
    return _documented("config.experimental.enable_op_determinism", words)


@tf_check("06-docs-slower", control="words that it does not say: ten times slower")
def docs_slower(control: bool) -> Seen:
    words = "ten times slower" if control else "can become several orders of magnitude slower"
    return _documented("config.experimental.enable_op_determinism", words)


@check("06-torch-lists-bilinear", control="nearest", framework="torch")
def torch_lists_bilinear(control: bool) -> Seen:
    import torch

    mode = "nearest" if control else "bilinear"
    found = mode in torch.use_deterministic_algorithms.__doc__
    return Seen(found, f"{mode} {'is' if found else 'is not'} in the documentation's list")


# --- The training ----------------------------------------------------------------------------------------


@functools.cache
def _trained(on: bool = False, most: int = 2, **changed: Any) -> tuple[list[str], list[str]]:
    """Fingerprints of the first and of the last weights of trainings: two, and then up to `most`, until two of the
    last differ. Several claims ask for the same ones."""
    settings = keras_training.KERAS_TRAINING.settings(
        **{"seeds": tf_worker.EVERYTHING, "epochs": 1} | changed
    )
    images, labels = digits.load()
    images, labels = images.astype(np.int32)[:256], labels.astype(np.int32)[:256]
    _switch(on)
    first, last = [], []
    while len(last) < 2 or (len(set(last)) == 1 and len(last) < most):
        run = keras_training.train(images, labels, settings)
        first.append(fingerprint(run["first"]))
        last.append(fingerprint(run["last"]))
    return first, last


def _parted(control: bool, **changed: Any) -> Seen:
    """The trainings begin alike and end apart; in the control arm they must not end apart."""
    first, last = _trained(most=2 if control else 5, **changed)
    if len(set(first)) > 1:
        return Seen(False, f"{len(set(first))} distinct first weights")
    return Seen.varies(len(set(last)), len(last), control)


@tf_check("06-training-parts", control="no parallel calls and no glimpses")
def training_parts(control: bool) -> Seen:
    return _parted(control, **({"calls": 1, "glimpses": False} if control else {}))


@tf_check("06-map-alone", control="one call")
def map_alone(control: bool) -> Seen:
    return _parted(control, glimpses=False, **({"calls": 1} if control else {}))


@tf_check("06-glimpses-alone", control="max-pooling in their place")
def glimpses_alone(control: bool) -> Seen:
    return _parted(control, calls=1, **({"glimpses": False} if control else {}))


@tf_check("06-recipe", control="the seeds alone")
def recipe(control: bool) -> Seen:
    _, last = _trained(most=5) if control else _trained(on=True, most=3)
    return Seen.same(len(set(last)), len(last), control)


@tf_check("06-switch-other-bits", control="the switch off both times")
def switch_other_bits(control: bool) -> Seen:
    without = {"shift": "stateless", "glimpses": False}
    found = _trained(**without)[1] + (_trained(**without)[1] if control else _trained(on=True, **without)[1])
    count = len(set(found))
    return Seen(count == 2, f"{count} distinct weights in two runs off and two {'off' if control else 'on'}")


# --- tf.data ---------------------------------------------------------------------------------------------


@functools.cache
def _epochs(draws: str, calls: int, on: bool = False, threads: int = THREADS) -> list[str]:
    """Fingerprints of epochs of the pipeline, each after the seeds; several claims ask for the same ones."""
    _switch(on, threads)
    settings = tf_pipeline.TF_DATA.settings(
        draws=draws, calls=calls, seeds=tf_worker.EVERYTHING, threads=threads, deterministic=on
    )
    state = tf_pipeline.prepare(settings).state
    return [observed.fingerprint for observed in tf_pipeline.observe(state, EPOCHS)]


def _as_one_call(control: bool, draws: str, on: bool = False) -> Seen:
    found = _epochs(draws, 8, on=on)
    one = _epochs(tf_pipeline.STATELESS if draws == tf_pipeline.STATELESS else tf_pipeline.STATEFUL, 1)
    return Seen.same(len({*one, *found}), len(one) + len(found), control)


@tf_check("06-parallel-map", control="one call at a time")
def parallel_map(control: bool) -> Seen:
    epochs = _epochs(tf_pipeline.STATEFUL, 1 if control else 8)
    return Seen.varies(len(set(epochs)), len(epochs), control)


@tf_check("06-own-map", control="drawn within the parallel map")
def own_map(control: bool) -> Seen:
    return _as_one_call(control, tf_pipeline.STATEFUL if control else tf_pipeline.HOISTED)


@tf_check("06-stateless-map", control="tf.random in its place")
def stateless_map(control: bool) -> Seen:
    return _as_one_call(control, tf_pipeline.STATEFUL if control else tf_pipeline.STATELESS)


@tf_check("06-map-switched", control="the switch off")
def map_switched(control: bool) -> Seen:
    return _as_one_call(control, tf_pipeline.STATEFUL, on=not control)


@tf_check("06-map-order", control="Options.deterministic = False")
def map_order(control: bool) -> Seen:
    import time

    import tensorflow as tf

    _switch(False)

    def slow_at_first(number):
        return tf.py_function(lambda n: time.sleep(0.2 * (int(n) == 0)) or n, [number], tf.int64)

    options = tf.data.Options()
    options.deterministic = not control
    data = tf.data.Dataset.range(20).map(slow_at_first, num_parallel_calls=8).with_options(options)
    numbers = [int(number) for number in data]
    return Seen(numbers == sorted(numbers), f"the results came as {numbers[:4]} …")


@tf_check("06-map-splits", control="words that are not in it")
def map_splits(control: bool) -> Seen:
    words = (
        "was split into twenty pieces" if control else "was split into two pieces in the make_deterministic"
    )
    return _in_library(words)


def _in_library(words: str) -> Seen:
    """Whether a text is in one of TensorFlow's compiled libraries."""
    folder = Path(importlib.util.find_spec("tensorflow").origin).parent
    found = any(keras_scripts.holds(path, words) for path in folder.glob("*tensorflow_*.[sd]*"))
    return Seen(found, f"the library {'has' if found else 'lacks'} “{words}”")


# --- Ops -------------------------------------------------------------------------------------------------


@tf_check("06-crop-varies", control="op determinism on")
def crop_varies(control: bool) -> Seen:
    return Seen.varies(_answers(tf_ops.CROP, on=control, n=2_000_000), RUNS, control)


@functools.cache
def _ones(op: str, most: int, on: bool = False) -> tuple[int, float, float]:
    """(runs, error, what is right) of sums of ones, repeated until one is wrong; error: of the element farthest off."""
    state = _state(op, tf_ops.ONES, on=on, n=2_000_000)
    runs, error = 0, 0.0
    while not error and runs < most:
        off = np.asarray(state.run()) - state.exact
        runs, error = runs + 1, float(off.flat[np.abs(off).argmax()])
    return runs, error, float(state.exact.flat[0])


@tf_check("06-crop-loses", control="op determinism on")
def crop_loses(control: bool) -> Seen:
    runs, error, right = _ones(tf_ops.CROP, RUNS if control else 100, on=control)
    if not error:
        return Seen(False if control else None, f"{runs} gradients of ones are right")
    return Seen(error < 0, f"gradient {runs} of ones is wrong, by {error:g} of {right:g}")


@tf_check("06-crop-fixed", control="op determinism off")
def crop_fixed(control: bool) -> Seen:
    return Seen.same(_answers(tf_ops.CROP, on=not control, n=2_000_000), RUNS, control)


@tf_check("06-scatter-varies", control="op determinism on")
def scatter_varies(control: bool) -> Seen:
    return Seen.varies(_answers(tf_ops.SCATTER, on=control), RUNS, control)


@tf_check("06-scatter-exact", control="the gradient of crop_and_resize")
def scatter_exact(control: bool) -> Seen:
    return _exact(tf_ops.CROP if control else tf_ops.SCATTER, control)


@tf_check("06-bincount-exact", control="the gradient of crop_and_resize")
def bincount_exact(control: bool) -> Seen:
    return _exact(tf_ops.CROP if control else tf_ops.BINCOUNT, control)


def _exact(op: str, control: bool) -> Seen:
    """No update is lost: sums of ones are right in every run. In the control arm some must be wrong."""
    if not control and _answers(op, n=2_000_000) == 1:
        return Seen(None, "normal numbers did not vary at this size, so nothing raced")
    runs, error, right = _ones(op, 100 if control else RUNS)
    if error:
        return Seen(False, f"sum {runs} of ones is wrong, by {error:g} of {right:g}")
    return Seen(None if control else True, f"{runs} sums of ones are right")


@tf_check("06-scatter-serial", control="10,000 values for each slot")
def scatter_serial(control: bool) -> Seen:
    found = _answers(tf_ops.SCATTER, n=1_000_000 if control else 1_010_000, slots=100)
    return Seen.same(found, RUNS, control)


@tf_check("06-scatter-fixed", control="op determinism off")
def scatter_fixed(control: bool) -> Seen:
    return Seen.same(_answers(tf_ops.SCATTER, on=not control), RUNS, control)


@tf_check("06-scatter-lock", control="an atomic addition in its place")
def scatter_lock(control: bool) -> Seen:
    path = Path("include/tensorflow/core/kernels/scatter_functor.h")
    header = Path(importlib.util.find_spec("tensorflow").origin).parent / path
    if not header.exists():
        return Seen(None, "this TensorFlow has no headers")
    text = header.read_text(encoding="utf-8")
    words = ("AtomicAdd(",) if control else ("mutex_lock l(accessed[lock_id])", "OpDeterminismRequired();")
    return Seen(all(part in text for part in words), f"{header.name} has {' and '.join(words)}")


@tf_check("06-bincount-varies", control="weights in int64")
def bincount_varies(control: bool) -> Seen:
    return Seen.varies(_answers(INT64 if control else tf_ops.BINCOUNT), RUNS, control)


@tf_check("06-bincount-switch", control="the kernel of axis=-1")
def bincount_switch(control: bool) -> Seen:
    return Seen.varies(_answers(AXIS if control else tf_ops.BINCOUNT, on=True), RUNS, control)


@tf_check("06-bincount-int64", control="weights in float32")
def bincount_int64(control: bool) -> Seen:
    return Seen.same(_answers(tf_ops.BINCOUNT if control else INT64, on=True), RUNS, control)


@tf_check("06-bincount-axis", control="no axis")
def bincount_axis(control: bool) -> Seen:
    return Seen.same(_answers(tf_ops.BINCOUNT if control else AXIS, on=True), RUNS, control)


@tf_check("06-bincount-flat", control="one row: index[None] and weights[None]")
def bincount_flat(control: bool) -> Seen:
    if control:
        return Seen.varies(_answers(AXIS, on=True), RUNS, control)
    _switch(True)
    weights = np.random.default_rng(0).standard_normal(200_000, dtype=np.float32)
    return Seen.varies(_distinct(_bincounts(weights, axis=-1)), RUNS, control)


@tf_check("06-bincount-sorted", control="weights in int64")
def bincount_sorted(control: bool) -> Seen:
    return Seen.varies(_answers(INT64 if control else "bincount, sorted", on=True), RUNS, control)


def _bincounts(weights: np.ndarray, **options: Any) -> list[np.ndarray]:
    import tensorflow as tf

    index = np.random.default_rng(1).integers(0, 10, weights.size).astype(np.int32)
    return [tf.math.bincount(index, weights=weights, **options).numpy() for _ in range(RUNS)]


@tf_check("06-bincount-float64", control="weights in int64")
def bincount_float64(control: bool) -> Seen:
    _switch(True)
    weights = np.random.default_rng(0).standard_normal(200_000)
    found = _bincounts((weights * 2**20).astype(np.int64) if control else weights)
    return Seen.varies(_distinct(found), RUNS, control)


@tf_check("06-one-thread", control="eight threads")
def one_thread(control: bool) -> Seen:
    found = _process("usual" if control else "one thread")["bincounts"]
    return Seen.same(found, RUNS, control)


@tf_check("06-one-thread-map", control="one call")
def one_thread_map(control: bool) -> Seen:
    found = _process("one thread")["epochs of one call" if control else "epochs"]
    return Seen.varies(found, EPOCHS, control)


@tf_check("06-numpy-bincount", control="tf.math.bincount")
def numpy_bincount(control: bool) -> Seen:
    weights = np.random.default_rng(0).standard_normal(200_000, dtype=np.float32)
    if control:
        _switch(True)
        return Seen.same(_distinct(_bincounts(weights)), RUNS, control)
    index = np.random.default_rng(1).integers(0, 10, weights.size)
    return Seen.same(_distinct([np.bincount(index, weights=weights) for _ in range(RUNS)]), RUNS, control)


# --- Seeds and the switch --------------------------------------------------------------------------------


def _draws() -> dict[str, Callable[[], Any]]:
    import keras
    import tensorflow as tf

    return {
        "tf.random.uniform": lambda: tf.random.uniform((4,)).numpy(),
        "Dataset.shuffle": lambda: list(tf.data.Dataset.range(99).shuffle(99).as_numpy_iterator()),
        "first weights": lambda: np.asarray(keras.initializers.GlorotUniform()((4, 4))),
        "Dropout": lambda: np.asarray(keras.layers.Dropout(0.5)(np.ones((1, 99), "float32"), training=True)),
        "np.random.rand": lambda: np.random.rand(4),
        "random.random": lambda: np.array([random.random()]),
    }


TENSORFLOWS = ("tf.random.uniform", "Dataset.shuffle")
KERASES = ("first weights", "Dropout")


def _raising() -> list[str]:
    """What raises when nothing is seeded."""
    raising = []
    for name, draw in _draws().items():
        tf_worker.set_seeds(tf_worker.NONE)
        try:
            draw()
        except RuntimeError:
            raising.append(name)
    return raising


@tf_check("06-tf-raises", control="op determinism off")
def tf_raises(control: bool) -> Seen:
    _switch(not control)
    raising = _raising()
    return Seen(set(TENSORFLOWS) <= set(raising), f"unseeded, {', '.join(raising) or 'nothing'} raises")


@tf_check("06-keras-silent", control="TensorFlow's own random ops")
def keras_silent(control: bool) -> Seen:
    _switch(True)
    raising = _raising()
    asked = TENSORFLOWS if control else (*KERASES, "np.random.rand")
    return Seen(not set(asked) & set(raising), f"unseeded, {', '.join(raising)} raises")


def _reached(seeds: str) -> set[str]:
    """What is the same in two draws, each after seeding so, with everything else started anew in between."""
    _switch(False)
    reached = set()
    for name, draw in _draws().items():
        found = []
        for _ in range(2):
            tf_worker.set_seeds(seeds)
            found.append(fingerprint(np.asarray(draw())))
        if len(set(found)) == 1:
            reached.add(name)
    return reached


@tf_check("06-tf-seed", control="keras.utils.set_random_seed")
def tf_seed(control: bool) -> Seen:
    reached = _reached(tf_worker.EVERYTHING if control else tf_worker.TENSORFLOW)
    return Seen(reached == set(TENSORFLOWS), f"it reached {', '.join(sorted(reached))}")


@tf_check("06-keras-seed", control="tf.random.set_seed")
def keras_seed(control: bool) -> Seen:
    reached = _reached(tf_worker.TENSORFLOW if control else tf_worker.EVERYTHING)
    return Seen(reached == set(_draws()), f"it reached {', '.join(sorted(reached))}")


@tf_check("06-default-rng", control="np.random.rand")
def default_rng(control: bool) -> Seen:
    found = []
    for _ in range(2):
        tf_worker.set_seeds(tf_worker.EVERYTHING)
        found.append(fingerprint(np.random.rand(4) if control else np.random.default_rng().random(4)))
    return Seen(len(set(found)) == 2, f"{len(set(found))} distinct draws after two seedings")


@tf_check("06-python-random", control="NumPy's seed instead")
def python_random(control: bool) -> Seen:
    import keras

    found = []
    for _ in range(2):
        tf_worker.set_seeds(tf_worker.NONE)
        (np.random.seed if control else random.seed)(3)
        found.append(fingerprint(np.asarray(keras.random.SeedGenerator().state)))
    return Seen(len(set(found)) == 1, f"{len(set(found))} distinct starts of Keras's seeds")


@tf_check("06-parentheses", control="with parentheses")
def parentheses(control: bool) -> Seen:
    import tensorflow as tf

    _switch(False)
    line = "tf.config.experimental.enable_op_determinism" + ("()" if control else "")
    exec(line, {"tf": tf})
    return Seen(not tf_worker.is_deterministic(), f"after {line}: {tf_worker.is_deterministic()}")


@tf_check("06-no-way-back", control="the module behind it, which has one")
def no_way_back(control: bool) -> Seen:
    import tensorflow as tf
    from tensorflow.python.framework import config

    names = [name for name in dir(config if control else tf.config.experimental) if "op_determinism" in name]
    return Seen(not any("disable" in name for name in names), ", ".join(names))


@tf_check("06-old-variable", control="TF_CUDNN_DETERMINISTIC")
def old_variable(control: bool) -> Seen:
    name, process = ("TF_CUDNN_DETERMINISTIC", "usual") if control else ("TF_DETERMINISTIC_OPS", "no oneDNN")
    on = _process(process)["switch"]
    return Seen(on, f"with {name}=1 the switch is {'on' if on else 'off'}")


@tf_check("06-variable-off", control="the function that is not exported")
def variable_off(control: bool) -> Seen:
    from tensorflow.python.framework import config

    _switch(True)
    os.environ["TF_DETERMINISTIC_OPS"] = "0"
    if control:
        config.disable_op_determinism()
    on = tf_worker.is_deterministic()
    del os.environ["TF_DETERMINISTIC_OPS"]
    return Seen(on, f"the switch is {'on' if on else 'off'}")


# --- Choices made once -----------------------------------------------------------------------------------


# Processes of their own, for what is decided at a process's start: threads and variables. Each answers several
# claims, since TensorFlow takes seconds to start.
_PROCESSES: dict[str, tuple[int, dict[str, str]]] = {
    "usual": (THREADS, {"TF_CUDNN_DETERMINISTIC": "1"}),
    "no oneDNN": (THREADS, {"TF_ENABLE_ONEDNN_OPTS": "0", "TF_DETERMINISTIC_OPS": "1"}),
    "one thread": (1, {}),
}


@functools.cache
def _process(name: str) -> dict[str, Any]:
    """What `of_this_process` says in the process with this name."""
    threads, variables = _PROCESSES[name]
    program = f"from samebits.checks import chapter06; chapter06.of_this_process({threads})"
    return json.loads(in_new_process(program, **variables))


def of_this_process(threads: int) -> None:
    """Print what this process shows, as JSON.

    switch                       whether op determinism is on before anybody turns it; all else is without it
    gradient                     the fingerprint of a convolution's gradient
    bincounts                    how many answers a weighted bincount gives
    epochs, epochs of one call   with one thread: how many a parallel map that draws from tf.random gives, and one
                                 of one call
    """
    seen: dict[str, Any] = {"switch": tf_worker.is_deterministic()}
    _switch(False, threads)
    seen["gradient"] = _convolution_gradient()
    weights = np.random.default_rng(0).standard_normal(200_000, dtype=np.float32)
    seen["bincounts"] = _distinct(_bincounts(weights))
    if threads == 1:
        for name, calls in {"epochs": 8, "epochs of one call": 1}.items():
            seen[name] = len(set(_epochs(tf_pipeline.STATEFUL, calls, threads=threads)))
    print(json.dumps(seen))


def _convolution_gradient() -> str:
    import tensorflow as tf

    rng = np.random.default_rng(6)
    images = tf.constant(rng.standard_normal((8, 28, 28, 16), dtype=np.float32))
    filters = tf.Variable(rng.standard_normal((3, 3, 16, 16), dtype=np.float32))
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(tf.nn.conv2d(images, filters, 1, "SAME") ** 2)
    return fingerprint(tape.gradient(total, filters).numpy())


def _other_bits(process: str) -> Seen:
    """The process has another gradient than this one, which has eight threads and oneDNN as it is."""
    _switch(False)
    here = {_convolution_gradient() for _ in range(3)}
    if len(here) > 1:
        return Seen(False, f"{len(here)} distinct gradients in one process")
    count = len(here | {_process(process)["gradient"]})
    return Seen(count == 2, f"{count} distinct gradients of a convolution in two processes")


@tf_check("06-onednn-bits", control="oneDNN as it is in both")
def onednn_bits(control: bool) -> Seen:
    return _other_bits("usual" if control else "no oneDNN")


@tf_check("06-threads-bits", control="the same number of threads in both")
def threads_bits(control: bool) -> Seen:
    return _other_bits("usual" if control else "one thread")


@tf_check("06-onednn-message", control="words that are not in it")
def onednn_message(control: bool) -> Seen:
    return _in_library("entirely different numerical" if control else "slightly different numerical results")


@tf_check("06-gpu-nearest", control="bilinear")
def gpu_nearest(control: bool) -> Seen:
    messages = keras_scripts.gpu_messages()
    if not messages:
        return Seen(None, "this build of TensorFlow has no GPU kernels")
    op = "ResizeBilinearGrad" if control else "ResizeNearestNeighborGrad"
    found = [message for message in messages if op in message]
    return Seen(bool(found), found[0] if found else f"none of {len(messages)} messages names {op}")
