"""What chapter 06 runs in a TensorFlow worker beside its experiments: scripts, and learners' code for its checks.

    runner.call("samebits.experiments.keras_scripts:printed", {"source": …}, framework="tensorflow", fresh=True)

Every function takes and gives JSON.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib.util
import io
import mmap
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from samebits.bits import fingerprint
from samebits.experiments import tf_worker

FILE = "<learner>"  # how the learner's lines are told from ours in a traceback


def printed(source: str) -> dict[str, str]:
    """Run a script in this process, with np, tf and keras at hand: {"printed": …, "error": the exception, or ""}."""
    import keras
    import tensorflow as tf

    text, error, _ = _executed(source, np=np, tf=tf, keras=keras)
    return {"printed": text, "error": error}


def gpu_messages() -> list[str]:
    """What the installed library says on a GPU of ops without a way that repeats; none in a CPU build.

    Read from the compiled library, without importing it.
    """
    places = importlib.util.find_spec("tensorflow").submodule_search_locations
    libraries = [path for place in places for path in Path(place).glob("*tensorflow_cc*")]
    found: set[str] = set()
    for path in libraries:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as library:
            for words in (b"eterministic GPU implementation of ", b"Determinism is not yet supported "):
                found |= set(_texts_with(words, library))
    return sorted(found)


def holds(path: Path, words: str) -> bool:
    """Whether a compiled library has this text in it."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as library:
        return library.find(words.encode()) >= 0


def _texts_with(words: bytes, library: mmap.mmap) -> Iterator[str]:
    """Each text in the library that holds `words`; texts in compiled code end with a zero byte."""
    place = library.find(words)
    while place >= 0:
        start, end = library.rfind(b"\0", max(0, place - 300), place) + 1, library.find(b"\0", place)
        yield library[start:end].decode("utf-8", "replace")
        place = library.find(words, end)


def _executed(source: str, **names: Any) -> tuple[str, str, dict[str, Any]]:
    """(what was printed, error, namespace) of a script that finds `names` beside the builtins."""
    namespace: dict[str, Any] = {"__name__": "__main__", "__builtins__": vars(builtins) | names}
    heard = io.StringIO()
    error = ""
    with contextlib.redirect_stdout(heard):
        try:
            exec(compile(source, FILE, "exec"), namespace)
        except (Exception, SystemExit) as raised:
            error = told(raised)
    return heard.getvalue(), error, namespace


def told(error: BaseException) -> str:
    """An exception in one line: its name, the line of the learner's code, and the beginning of its message."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == FILE]
    message = str(error)
    if isinstance(error, SyntaxError):
        lines, message = [error.lineno], error.msg
    if message.startswith("in user code:"):  # a traced function: the frames, and then what happened
        message = message.strip().rpartition("\n\n")[2].strip().removeprefix(f"{type(error).__name__}: ")
    where = f" in line {lines[-1]}" if lines else ""
    # TensorFlow names its C++ node before it says what happened.
    message = " ".join(message.split()).rpartition("}} ")[2][:160].rstrip(". ")
    return f"{type(error).__name__}{where}: {message}." if message else f"{type(error).__name__}{where}."


# --- 06-repair ------------------------------------------------------------------------------------------


class _Forwards(set):
    """A set in alphabetical order; a set of texts has any, which is another one in each process."""

    def __iter__(self):
        return iter(sorted(super().__iter__(), key=repr))


class _Backwards(set):
    def __iter__(self):
        return iter(sorted(super().__iter__(), key=repr, reverse=True))


def diagnosis(source: str) -> dict[str, Any]:
    """What the outcome of a script depends on besides its lines. Returns {"error": sentence}, or

    deterministic  whether op determinism is on at its end
    bincount       whether it adds float weights with tf.math.bincount in one dimension, which races
    prints         whether what it prints last is the fingerprint of the weights of its `model`
    differs        those of the variables `labels`, `kept` and `first` that differ when it is run again, as in
                   another process: with sets in another order and everything that it does not seed drawn anew
    """
    runs = []
    for kind_of_set in (_Forwards, _Backwards):
        _as_new()
        with _watched_bincount() as raced:
            text, error, names = _executed(source, set=kind_of_set)
        if error:
            return {"error": error}
        runs.append(names)
    return {
        "deterministic": tf_worker.is_deterministic(),
        "bincount": bool(raced),
        "prints": text.splitlines()[-1:] == [_weights(names)],
        "differs": [
            name for name in ("labels", "kept", "first") if _bits(runs[0], name) != _bits(runs[1], name)
        ],
    }


def _as_new() -> None:
    """Give this process the state of a new one, as far as a script can tell."""
    import keras
    from tensorflow.python.framework import config

    config.disable_op_determinism()  # not exported; TensorFlow's own tests go back this way
    tf_worker.set_seeds(tf_worker.NONE)
    keras.utils.clear_session()  # Keras's seeds, too: the script's first draw starts them from Python's random


@contextlib.contextmanager
def _watched_bincount() -> Iterator[list[bool]]:
    """A list that gets an entry for each call of tf.math.bincount that adds what rounds in the way that races."""
    import tensorflow as tf

    raced: list[bool] = []
    usual = tf.math.bincount

    def watched(*arguments: Any, **named: Any) -> Any:
        weights = named.get("weights", arguments[1] if len(arguments) > 1 else None)
        axis = named.get("axis", arguments[6] if len(arguments) > 6 else None)
        if weights is not None:
            weights = np.asarray(weights)
            whole = np.array_equal(weights, np.round(weights)) and np.abs(weights).sum() < 2**24
            in_rows = axis == -1 and weights.ndim == 2  # a thread to each row
            if not whole and not in_rows:
                raced.append(True)
        return usual(*arguments, **named)

    tf.math.bincount = watched
    try:
        yield raced
    finally:
        tf.math.bincount = usual


def _weights(names: dict[str, Any]) -> str:
    """The fingerprint of the weights of a script's model; of nothing if it has none."""
    model = names.get("model")
    return fingerprint(model.get_weights()) if hasattr(model, "get_weights") else ""


def _bits(names: dict[str, Any], name: str) -> str:
    """The fingerprint of a variable of a script; of nothing if it has none, or none that can be told."""
    found = names.get(name)
    try:
        parts = found if isinstance(found, list) else [found]
        return fingerprint([np.asarray(part) for part in parts])
    except (TypeError, ValueError):
        return ""


# --- 06-augment -----------------------------------------------------------------------------------------

IMAGES = 400
STEPS = [(down, right) for down in (-1, 0, 1) for right in (-1, 0, 1)]


class _Failed(Exception):
    """The learner's function does something else; the message is the sentence to print."""


def augmentation(source: str, name: str) -> dict[str, Any]:
    """Judge augment(seed, number, image), given as text: {"attempted", "points", "sentence"}."""
    import tensorflow as tf

    namespace: dict[str, Any] = {"tf": tf, "np": np, "__name__": "learner"}
    try:
        exec(compile(source, FILE, "exec"), namespace)
        return {"attempted": True, "points": 3, "sentence": _augmentation(namespace[name])}
    except _Failed as failure:
        return {"attempted": True, "points": 0, "sentence": str(failure)}
    except _Stub:
        return {"attempted": False, "points": 0, "sentence": ""}
    except Exception as error:
        return {"attempted": True, "points": 0, "sentence": f"In tf.data's map, {name} raised {told(error)}"}


class _Stub(Exception):
    """The learner's function is still `...`."""


def _augmentation(augment: Callable) -> str:
    numbers = np.arange(IMAGES)
    forwards = _steps(augment, 5, numbers)
    backwards = _steps(augment, 5, numbers[::-1])[::-1]
    if len(set(forwards)) == 1:
        raise _Failed(
            "Every image takes the same step. Python and NumPy draw once, when the function is traced, and a stateless "
            "op gives the same numbers for the same seed: let the number of the image into the seed."
        )
    if forwards != backwards:
        raise _Failed(
            "Images that arrive in another order take other steps: tf.random hands the next number of its stream to "
            "whoever comes first, also with seed=…. Use tf.random.stateless_uniform, its seed made of seed and number."
        )
    if missing := [step for step in STEPS if step not in set(forwards)]:
        raise _Failed(
            f"Among {IMAGES} images none takes the step {missing[0]}. The upper end of a range of whole numbers is "
            "left out: -1 to 1 is minval=-1, maxval=2, and there are two steps to draw, down and right."
        )
    later = _steps(augment, 6, numbers)
    if later == forwards:
        raise _Failed(
            "Seed 6 gives the same steps as seed 5, so every epoch would be alike: let seed in, too."
        )
    for way in (0, 1):  # down, right
        now, then = [step[way] for step in forwards], [step[way] for step in later]
        if any(now[period:] == now[:-period] for period in range(1, IMAGES // 2)):
            raise _Failed("The steps come again and again in one order, so they are not random. Draw them.")
        if now[1:] == then[:-1] or then[1:] == now[:-1]:
            raise _Failed(
                "With seed 6 each image takes its neighbour's step with seed 5: a sum of seed and number makes one "
                "epoch a copy of the other. Give both to the op, as its seed of two numbers."
            )
    if len({_pipeline(augment, numbers, 8).tobytes() for _ in range(5)}) > 1:
        raise _Failed("With eight parallel calls, five runs have different bits.")
    return (
        "The same steps forwards, backwards and with eight parallel calls, without op determinism; all nine steps "
        "occur, and another seed gives others."
    )


def _steps(augment: Callable, seed: int, numbers: np.ndarray) -> list[tuple[int, int]]:
    """The step that each image takes when they arrive in the order of `numbers`, one after the other."""
    moved = _pipeline(augment, numbers, 1, seed)
    steps = []
    for number, image in zip(numbers, moved, strict=True):
        found = [step for step in STEPS if np.array_equal(np.roll(_image(number), step, (0, 1)), image)]
        if not found:
            raise _Failed(
                f"Image {number} is no longer itself, moved by -1, 0 or 1 pixels down and right. tf.roll(image, step, "
                "(0, 1)) moves it; draw nothing else."
            )
        steps.append(found[0])
    return steps


def _pipeline(augment: Callable, numbers: np.ndarray, calls: int, seed: int = 5) -> np.ndarray:
    import tensorflow as tf

    def move(number, image):
        result = augment(seed, number, image)
        if result is ...:
            raise _Stub
        if result is None:
            raise _Failed("It returns nothing. Return the moved image.")
        if result.shape != image.shape or result.dtype != image.dtype:
            raise _Failed(
                f"The image went in as {image.dtype.name}{list(image.shape)} and came out as "
                f"{result.dtype.name}{list(result.shape)}."
            )
        return result

    images = np.stack([_image(number) for number in numbers])
    data = tf.data.Dataset.from_tensor_slices((numbers, images)).map(move, num_parallel_calls=calls)
    return np.stack(list(data.as_numpy_iterator()))


def _image(number: int) -> np.ndarray:
    """An image that differs from itself moved: (8, 8) int32."""
    return np.random.default_rng(number).permutation(64).reshape(8, 8).astype(np.int32)
