"""digits-training: a small network on handwritten digits, written as people write it, with a knob per ingredient.

Everything in it that can vary is something that real programs do: the grey levels go through a learned palette
(whose backward adds into 17 rows from several threads), the augmentation draws from Python's and NumPy's
generators, first weights and dropout from PyTorch's, a loader shuffles, and the class numbers come from a set.

Not verified on a GPU: run on CPUs only.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from samebits import digits
from samebits.bits import fingerprint
from samebits.experiment import Experiment, Knob, Observation, Prepared
from samebits.experiments import torch_worker

SEED = 0
TRAINING, TEST = slice(0, 512), slice(1400, None)
BATCH = 64  # × 64 pixels × 8 tints = 32,768 values: where the CPU's index_put_ begins to share the work
TINTS = 8
UNSET = "unset"

# Every toggle of the recipe, each with its value when it is on, and the knob's value when it is off.
EVERYTHING = {
    "seed_python": True,
    "seed_numpy": True,
    "seed_torch": True,
    "seed_cuda": True,
    "generator": True,
    "worker_init": True,
    "sort_names": True,
    "hash_seed": "0",
    "hash_inside": True,
    "deterministic": "on",
    "cudnn_deterministic": True,
    "tf32": False,
    "cublas": ":4096:8",
}
INGREDIENTS = tuple(EVERYTHING)
# Found here, with two loader processes: one seed, the flag, and names in an order of their own.
SMALLEST = {"seed_torch": True, "deterministic": "on", "sort_names": True}


# --- The program ------------------------------------------------------------------------------------------


def names_in_use(sort: bool) -> list[str]:
    """The ten names without repetitions; the place of a name in this list is the number of its class."""
    names = set(digits.NAMES)
    return sorted(names) if sort else list(names)


class Digits:
    """A dataset: image number → (8, 8) int64 grey levels, moved and speckled at random, and its class."""

    def __init__(self, levels: np.ndarray, classes: np.ndarray):
        self.levels, self.classes = levels, classes

    def __len__(self) -> int:
        return len(self.levels)

    def __getitem__(self, number: int) -> tuple[np.ndarray, int]:
        image = self.levels[number]
        if random.random() < 0.5:
            image = np.roll(image, random.choice([-1, 1]), axis=1)
        image = np.clip(image + np.random.randint(-1, 2, image.shape), 0, 16)
        return image, int(self.classes[number])


@functools.cache
def network_class() -> type:
    """The network, defined where PyTorch may be imported."""
    import torch
    from torch import nn

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            ramp = torch.linspace(0, 1, 17)[:, None]
            self.palette = nn.Parameter(
                ramp * torch.randn(TINTS)
            )  # (17, TINTS): a colour for each grey level
            self.layers = nn.Sequential(
                nn.Conv2d(TINTS, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.2), nn.Linear(144, 10)
            )  # fmt: skip

        def forward(self, levels):
            return self.layers(self.palette[levels].permute(0, 3, 1, 2))

    return Network


def seed_worker(number: int) -> None:
    """What PyTorch's documentation suggests as worker_init_fn, although each worker is seeded already."""
    import torch

    seed = torch.initial_seed() % 2**32
    np.random.seed(seed)
    random.seed(seed)


def seed(settings: dict) -> None:
    """Seed what is to be seeded; the rest as in a new process: from the operating system."""
    import torch

    random.seed(SEED if settings["seed_python"] else None)
    np.random.seed(SEED if settings["seed_numpy"] else None)
    if settings["seed_torch"]:
        torch.manual_seed(SEED)
    else:
        torch.seed()
    if settings["seed_cuda"]:
        torch.cuda.manual_seed_all(SEED)


def loader(settings: dict, dataset: Digits) -> Any:
    """The DataLoader that these settings ask for."""
    import torch

    workers = settings["workers"]
    return torch.utils.data.DataLoader(
        dataset,
        batch_size=BATCH,
        shuffle=True,
        num_workers=workers,
        generator=torch.Generator().manual_seed(SEED) if settings["generator"] else None,
        worker_init_fn=seed_worker if settings["worker_init"] else None,
        persistent_workers=settings["persistent"] and workers > 0,
        # From Python 3.14 on, Linux would start workers anew, and each would import PyTorch.
        multiprocessing_context="fork" if workers and sys.platform == "linux" else None,
    )


@dataclass(frozen=True)
class Trained:
    """What a training leaves: the weights (tensors), the last loss, and the share of right answers in the test."""

    weights: list
    loss: float
    accuracy: float
    names: list[str]


def train(settings: dict, levels: np.ndarray, labels: np.ndarray, device: Any) -> Trained:
    """One training from scratch, under settings of DIGITS_TRAINING.

    levels (1797, 8, 8) int64, labels (1797,) int64, as digits.load gives them. Flags are set by `prepare`.
    """
    import torch

    seed(settings)
    names = names_in_use(settings["sort_names"])
    classes = np.array([names.index(digits.NAMES[label]) for label in labels])
    network = network_class()().to(device)
    adam = torch.optim.Adam(network.parameters(), lr=0.02)
    batches = loader(settings, Digits(levels[TRAINING], classes[TRAINING]))
    for _ in range(settings["epochs"]):
        for images, wanted in batches:
            adam.zero_grad()
            loss = torch.nn.functional.cross_entropy(network(images.to(device)), wanted.to(device))
            loss.backward()
            adam.step()
    network.eval()
    with torch.no_grad():
        guessed = network(torch.from_numpy(levels[TEST]).to(device)).argmax(1).cpu().numpy()
    accuracy = float((guessed == classes[TEST]).mean())
    return Trained([p.detach() for p in network.parameters()], loss.item(), accuracy, names)


# --- The experiment ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _State:
    settings: dict
    levels: np.ndarray
    labels: np.ndarray
    device: Any


# The variable as this process began, since a run may write it into os.environ.
_HASH_SEED_AT_START = os.environ.get("PYTHONHASHSEED")


def prepare(settings: dict) -> Prepared:
    import torch

    torch_worker.set_flags(
        threads=settings["threads"],
        deterministic=settings["deterministic"] != "off",
        warn_only=settings["deterministic"] == "warn_only",
        fill=settings["fill"],
        cudnn_benchmark=settings["benchmark"],
        cudnn_deterministic=settings["cudnn_deterministic"],
        cudnn_tf32=settings["tf32"],
    )
    device = torch_worker.choose_device(settings["device"])
    _write_hash_seed("0" if settings["hash_inside"] else _HASH_SEED_AT_START)
    levels, labels = digits.load()
    # PyTorch's optimizers import its compiler at their first step, which takes seconds.
    train(settings | {"workers": 0, "epochs": 1}, levels, labels, device)
    return torch_worker.prepared(
        _State(settings, levels, labels, device),
        device,
        **{
            "deterministic": _deterministic_now(),
            "hashes of strings": "random" if sys.flags.hash_randomization else "fixed",
            "cuDNN and cuBLAS": f"cuDNN {torch.backends.cudnn.version()}"
            if device.type == "cuda"
            else "not used",
        },
    )


def _write_hash_seed(value: str | None) -> None:
    if value is None:
        os.environ.pop("PYTHONHASHSEED", None)
    else:
        os.environ["PYTHONHASHSEED"] = value


def _deterministic_now() -> str:
    import torch

    return {0: "off", 1: "warn_only", 2: "on"}[torch.get_deterministic_debug_mode()]


def observe(state: _State, n: int) -> Iterator[Observation]:
    given = fingerprint([state.levels, state.labels])
    for _ in range(n):
        trained, seconds = torch_worker.timed(
            lambda: train(state.settings, state.levels, state.labels, state.device), state.device
        )
        yield Observation(
            fingerprint(trained.weights, "sha256"),
            given,
            seconds,
            scalars={"accuracy": trained.accuracy, "loss": trained.loss},
            reported={"class 0 is": trained.names[0]},
            sample=tuple(trained.weights[-1].tolist()),
        )


def code(settings: dict) -> str:
    """The settings as the lines that a learner would write; the program itself is `train`."""
    s = settings
    variables = {"PYTHONHASHSEED": s["hash_seed"], "CUBLAS_WORKSPACE_CONFIG": s["cublas"]}
    started = " ".join(f"{name}={value}" for name, value in variables.items() if value != UNSET)
    warn = ", warn_only=True" if s["deterministic"] == "warn_only" else ""
    arguments = [
        f"num_workers={s['workers']}",
        *(["generator=torch.Generator().manual_seed(0)"] if s["generator"] else []),
        *(["worker_init_fn=seed_worker"] if s["worker_init"] else []),
        *(["persistent_workers=True"] if s["persistent"] else []),
    ]
    lines = [
        (True, f"# a process started with: {started or 'neither PYTHONHASHSEED nor CUBLAS_WORKSPACE_CONFIG'}"),
        (s["hash_inside"], 'os.environ["PYTHONHASHSEED"] = "0"'),
        (s["seed_python"], "random.seed(0)"),
        (s["seed_numpy"], "np.random.seed(0)"),
        (s["seed_torch"], "torch.manual_seed(0)"),
        (s["seed_cuda"], "torch.cuda.manual_seed_all(0)"),
        (True, f"torch.set_num_threads({s['threads']})"),
        (s["deterministic"] != "off", f"torch.use_deterministic_algorithms(True{warn})"),
        (not s["fill"], "torch.utils.deterministic.fill_uninitialized_memory = False"),
        (s["benchmark"], "torch.backends.cudnn.benchmark = True"),
        (s["cudnn_deterministic"], "torch.backends.cudnn.deterministic = True"),
        (not s["tf32"], "torch.backends.cudnn.allow_tf32 = False"),
        (True, f"names = {'sorted(set(words))' if s['sort_names'] else 'list(set(words))'}"),
        (True, "network = Network()  # first weights and dropout: PyTorch's generator"),
        (True, "dataset = Digits(levels, labels)  # augments with random and np.random"),
        (True, f"loader = DataLoader(dataset, batch_size=64, shuffle=True, {', '.join(arguments)})"),
        (True, f"train(network, loader, epochs={s['epochs']})  # the backward of palette[levels] adds into 17 rows"),
    ]  # fmt: skip
    return "\n".join(line for there, line in lines if there)


def _toggle(name: str, label: str, help: str, default: bool = False) -> Knob:
    return Knob(name, label, help, "toggle", default)


DIGITS_TRAINING = Experiment(
    name="digits-training",
    title="A training on handwritten digits",
    question="Which of these lines does it take to get the same weights twice?",
    knobs=(
        _toggle("seed_python", "Seed Python", "random.seed(0): half of the augmentation, in this process."),
        _toggle(
            "seed_numpy", "Seed NumPy", "np.random.seed(0): the other half, from NumPy's global generator."
        ),
        _toggle(
            "seed_torch", "Seed PyTorch", "torch.manual_seed(0): weights, dropout, shuffle, workers' seeds."
        ),
        _toggle("seed_cuda", "Seed CUDA too", "torch.cuda.manual_seed_all(0), beside torch.manual_seed."),
        _toggle(
            "generator",
            "Loader's generator",
            "generator=torch.Generator().manual_seed(0): shuffle and workers' seeds.",
        ),
        Knob(
            "workers",
            "Loader workers",
            "Processes that read and augment images; with 0, this one does.",
            "number",
            2,
            low=0,
            high=4,
        ),
        _toggle(
            "worker_init", "worker_init_fn", "The documentation's seed_worker, called in each new worker."
        ),
        _toggle(
            "persistent", "Persistent workers", "Workers live through all epochs. Without workers: nothing."
        ),
        _toggle(
            "sort_names", "Sorted names", "sorted(set(…)) numbers the classes, instead of a set's own order."
        ),
        Knob(
            "hash_seed",
            "PYTHONHASHSEED",
            "In the environment before the process starts; orders sets of strings.",
            "choice",
            UNSET,
            (UNSET, "0"),
            scope="process",
            variable="PYTHONHASHSEED",
        ),
        _toggle(
            "hash_inside",
            "PYTHONHASHSEED inside",
            'os.environ["PYTHONHASHSEED"] = "0" as the first line of the script.',
        ),
        Knob(
            "deterministic",
            "Deterministic algorithms",
            "torch.use_deterministic_algorithms(True), or with warn_only=True.",
            "choice",
            "off",
            ("off", "warn_only", "on"),
        ),
        _toggle(
            "fill",
            "Fill memory",
            "With that flag on, torch.empty writes NaN first (PyTorch's default).",
            True,
        ),
        _toggle(
            "benchmark", "cudnn.benchmark", "cuDNN times its algorithms and takes the fastest; on a GPU."
        ),
        _toggle(
            "cudnn_deterministic", "cudnn.deterministic", "cuDNN takes algorithms that repeat only; on a GPU."
        ),
        _toggle(
            "tf32", "TF32", "Convolutions may round their inputs to TF32 (PyTorch's default); on a GPU.", True
        ),
        Knob(
            "cublas",
            "CUBLAS_WORKSPACE_CONFIG",
            "In the environment before the process starts; on a GPU.",
            "choice",
            UNSET,
            (UNSET, ":4096:8", ":16:8"),
            scope="process",
            variable="CUBLAS_WORKSPACE_CONFIG",
        ),
        Knob("epochs", "Epochs", "Eight steps of Adam each, over 512 images.", "number", 2, low=1, high=20),
        # With two threads that sleep while they wait, a quiet machine with two cores gave one answer in eight runs;
        # with four it gave eight, at twice the time. Eight take four times as long, since oneDNN's convolutions
        # wait for each other.
        dataclasses.replace(torch_worker.THREADS, default=4),
        torch_worker.DEVICE,
    ),
    prepare=prepare,
    observe=observe,
    code=code,
    race_size={"threads": 4},
    framework="torch",
    # A thread that waits sleeps: on a busy machine, threads that wait in a loop take the time of those they wait
    # for, and a training of 0.2 s takes seconds.
    environment=lambda settings: {"OMP_WAIT_POLICY": "PASSIVE"},
    card=torch_worker.card,
    recordings=({}, dict(SMALLEST), dict(EVERYTHING)),
)
