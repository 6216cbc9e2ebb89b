"""What every experiment that uses TensorFlow shares: the process it needs, the seeds, the device.

Each of them has the knobs of PROCESS, in this order, so that they share their workers: a TensorFlow process
takes seconds to start.
"""

from __future__ import annotations

import os
from typing import Any

from samebits import digits, machine
from samebits.experiment import BadSetting, Knob, Prepared

DETERMINISTIC = Knob(
    "deterministic",
    "Op determinism",
    "tf.config.experimental.enable_op_determinism(): known ops take a way that repeats, or raise.",
    "toggle",
    False,
    scope="process",  # TensorFlow has no public way back
)
THREADS = Knob(
    "threads",
    "CPU threads",
    "Threads within an op, and as many that run ops side by side. tf.data has threads of its own.",
    "number",
    8,  # as for PyTorch (torch_worker.py): more than cores, so that a race shows on a busy machine, too
    low=1,
    high=64,
    scope="process",
)
ONEDNN = Knob(
    "onednn",
    "oneDNN",
    "TF_ENABLE_ONEDNN_OPTS: whether oneDNN's kernels take the place of TensorFlow's own.",
    "choice",
    "unset",
    choices=("unset", "0", "1"),
    scope="process",
    variable="TF_ENABLE_ONEDNN_OPTS",
)
DEVICE = Knob(
    "device",
    "Device",
    "The CPU, or a GPU if TensorFlow can use one (this chapter was not verified on a GPU).",
    "choice",
    "cpu",
    choices=("cpu", "auto", "cuda"),
    scope="process",
)
PROCESS = (DETERMINISTIC, THREADS, ONEDNN, DEVICE)

NONE, TENSORFLOW, EVERYTHING = SEEDS = ("none", "tf.random.set_seed", "keras.utils.set_random_seed")
SEEDING = Knob(
    "seeds",
    "Seeds",
    "Which seed is set before each run; without one, each run begins as a new process does.",
    "choice",
    NONE,
    choices=SEEDS,
)
SEED = 0

# Older switches, which must not act where the knob says "off"; and the log, which nobody here reads.
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_DETERMINISTIC_OPS": None, "KERAS_BACKEND": "tensorflow"}
NO_GPU = {"CUDA_VISIBLE_DEVICES": "-1"}


def environment(settings: dict) -> dict[str, str | None]:
    """The variables of a TensorFlow worker; a GPU is hidden from it unless it is asked for."""
    hidden = NO_GPU if settings["device"] == "cpu" else {}
    # The worker's Python need not have scikit-learn, which brings the digits; a worker passes on what it was given.
    return QUIET | hidden | {digits.VARIABLE: os.environ.get(digits.VARIABLE) or digits.file()}


def card(settings: dict) -> str | None:
    """The queue that a run joins: every run that may use the first GPU."""
    return "cuda-0" if settings["device"] != "cpu" and machine.cuda_device_count() > 0 else None


def set_process(settings: dict) -> None:
    """Set threads and the switch, in a new process or in one with the same settings.

    Raises BadSetting for a GPU that is not there.
    """
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(settings["threads"])
    tf.config.threading.set_inter_op_parallelism_threads(settings["threads"])
    if settings["device"] == "cuda" and not tf.config.list_physical_devices("GPU"):
        raise BadSetting("TensorFlow sees no NVIDIA GPU here. Choose device=cpu; ./course doctor says why.")
    if settings["deterministic"]:
        tf.config.experimental.enable_op_determinism()


def is_deterministic() -> bool:
    """Whether the switch is on, as TensorFlow says; it exports no function that tells."""
    from tensorflow.python.framework.config import is_op_determinism_enabled

    return is_op_determinism_enabled()


def set_seeds(which: str, seed: int = SEED) -> None:
    """Seed as `which` of SEEDS says; what it does not cover starts from the operating system's randomness."""
    import keras
    import tensorflow as tf

    fresh = int.from_bytes(os.urandom(4), "big")
    keras.utils.set_random_seed(seed if which == EVERYTHING else fresh)  # Python, NumPy, TensorFlow and Keras
    if which != EVERYTHING:
        tf.random.set_seed(seed if which == TENSORFLOW else None)  # None: as if it had never been set


def versions() -> dict[str, str]:
    import keras
    import tensorflow as tf

    return {"tensorflow": tf.__version__, "keras": keras.__version__}


def device_words() -> str:
    import tensorflow as tf

    cards = tf.config.list_physical_devices("GPU")
    if cards:
        return tf.config.experimental.get_device_details(cards[0]).get("device_name", "GPU")
    return machine.device_words(threads=tf.config.threading.get_intra_op_parallelism_threads())


def prepared(state: Any, **more: Any) -> Prepared:
    """`state` with what TensorFlow says of device, threads and the switch, and `more` that was seen."""
    import tensorflow as tf

    return Prepared(
        state,
        seen={
            "device": "cuda" if tf.config.list_physical_devices("GPU") else "cpu",
            "threads": tf.config.threading.get_intra_op_parallelism_threads(),
            "deterministic": is_deterministic(),
            **more,
        },
        device=device_words(),
        libraries=versions(),
    )


def process_code(settings: dict) -> list[str]:
    """The lines that make such a process, for "show me the code"."""
    lines = []
    if settings["onednn"] != "unset":
        lines.append(f"# a fresh process, started with TF_ENABLE_ONEDNN_OPTS={settings['onednn']}")
    lines.append(f"tf.config.threading.set_intra_op_parallelism_threads({settings['threads']})")
    if settings["deterministic"]:
        lines.append("tf.config.experimental.enable_op_determinism()")
    return lines


def seeding_code(which: str) -> list[str]:
    return [] if which == NONE else [f"{which}({SEED})"]
