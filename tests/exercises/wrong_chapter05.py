"""Answers that people typically give in chapter 05, and what the check must say to each; see test_wrong_answers.py.

Those that need PyTorch share one worker; only a right repair starts new processes.
"""

from samebits.lab.exercises.chapter05 import SCRIPT


def _seed(*lines: str) -> str:
    body = "\n".join(f"    {line}" for line in lines)
    return f"def answer(seed):\n    import random\n    import numpy as np\n    import torch\n{body}\n"


_PYTHON, _NUMPY, _TORCH = "random.seed(seed)", "np.random.seed(seed)", "torch.manual_seed(seed)"
_OWN = ("generator = torch.Generator()", "generator.manual_seed(seed)", "return generator")

_SEEDS = "torch.manual_seed(0)\nnp.random.seed(0)\n"
_REPAIRS = {
    "flag": ("words =", "torch.use_deterministic_algorithms(True)\nwords ="),
    "set": ("list(set(words))", "sorted(set(words))"),
    "torch": (
        "import hashlib, numpy as np, torch\n",
        "import hashlib, numpy as np, torch\ntorch.manual_seed(0)\n",
    ),
    "numpy": ("target =", "np.random.seed(0)\ntarget ="),
    "empty": ("torch.empty(8)", "torch.zeros(8)"),
}


def _repaired(*done: str, also: tuple[str, str] = ("", "")) -> str:
    script = SCRIPT
    for before, after in [also, *map(_REPAIRS.get, done)]:
        assert before in script
        script = script.replace(before, after, 1)
    return f"answer = {script!r}"


def _without(*left: str, also: tuple[str, str] = ("", "")) -> str:
    return _repaired(*(repair for repair in _REPAIRS if repair not in left), also=also)


def _augment(*lines: str, above: str = "") -> str:
    body = "\n".join(f"    {line}" for line in lines)
    return f"import numpy as np\n{above}\ndef answer(image, seed, epoch, index):\n    import numpy as np\n{body}\n"


_ADD = "return image + rng.normal(0, 0.1, image.shape).astype(np.float32)"

_SAVED = {
    "model": "training.model.state_dict()",
    "optimizer": "training.optimizer.state_dict()",
    "scheduler": "training.scheduler.state_dict()",
    "epoch": "training.epoch",
    "torch": "torch.get_rng_state()",
    "numpy": "np.random.get_state()",
    "python": "random.getstate()",
    "loader": "training.generator.get_state()",
}
_RESTORED = {
    "model": "training.model.load_state_dict(saved['model'])",
    "optimizer": "training.optimizer.load_state_dict(saved['optimizer'])",
    "scheduler": "training.scheduler.load_state_dict(saved['scheduler'])",
    "epoch": "training.epoch = saved['epoch']",
    "torch": "torch.set_rng_state(saved['torch'])",
    "numpy": "np.random.set_state(saved['numpy'])",
    "python": "random.setstate(saved['python'])",
    "loader": "training.generator.set_state(saved['loader'])",
}


def _resume(*left: str, copied: str = "copy.deepcopy", changed: dict | None = None, **saved: str) -> str:
    parts = [f"{name!r}: {value}" for name, value in (_SAVED | saved).items() if name not in left]
    back = [line for name, line in (_RESTORED | (changed or {})).items() if name not in left]
    imports = "    import copy, random\n    import numpy as np\n    import torch\n"
    return (
        f"def save(training):\n{imports}    return {copied}({{{', '.join(parts)}}})\n\n"
        f"def restore(training, saved):\n{imports}"
        + "".join(f"    {line}\n" for line in back)
        + "answers = save, restore"
    )


_REPORT = """
import numpy as np
T = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 19: 2.093}
def answer(runs):
    values = np.array(list(dict(runs).values()))
    n, mean = len(values), values.mean()
    if n < 2:
        return {"seeds": n, "mean": mean, "spread": None, "low": None, "high": None}
    spread = values.std(ddof=1)
    half = T[n - 1] * spread / n**0.5
    return {"seeds": n, "mean": mean, "spread": spread, "low": mean - half, "high": mean + half}
"""


def _report(before: str, after: str) -> str:
    assert before in _REPORT
    return _REPORT.replace(before, after)


WRONG = {
    "05-seed": [
        ("Python is forgotten", _seed(_NUMPY, _TORCH, *_OWN), "random.seed(seed) is missing"),
        ("NumPy is forgotten", _seed(_PYTHON, _TORCH, *_OWN), "np.random.seed(seed) seeds the global one"),
        (
            "a new NumPy generator",
            _seed(_PYTHON, "np.random.default_rng(seed)", _TORCH, *_OWN),
            "makes another and leaves it",
        ),
        (
            "the CUDA call alone",
            _seed(_PYTHON, _NUMPY, "torch.cuda.manual_seed_all(seed)", *_OWN),
            "torch.manual_seed(seed) is missing",
        ),
        (
            "a seed typed in",
            _seed("random.seed(0)", "np.random.seed(0)", "torch.manual_seed(0)", *_OWN),
            "pass on the seed",
        ),
        ("nothing returned", _seed(_PYTHON, _NUMPY, _TORCH), "It returns nothing"),
        (
            "the global generator",
            _seed(_PYTHON, _NUMPY, "return torch.manual_seed(seed)"),
            "PyTorch's global generator",
        ),
        (
            "a generator without a seed",
            _seed(_PYTHON, _NUMPY, _TORCH, "return torch.Generator()"),
            "that nobody seeds",
        ),
        (
            "a generator seeded from the clock",
            _seed(
                _PYTHON,
                _NUMPY,
                _TORCH,
                "generator = torch.Generator()",
                "generator.seed()",
                "return generator",
            ),
            "seed it from `seed` alone",
        ),
        ("the class", _seed(_PYTHON, _NUMPY, _TORCH, "return torch.Generator"), "not an object of it"),
        (
            "a generator with one seed for all",
            _seed(_PYTHON, _NUMPY, _TORCH, "return torch.Generator().manual_seed(42)"),
            "call its manual_seed(seed)",
        ),
        (
            "no import",
            "def answer(seed):\n    random.seed(seed)\n    tensorflow.random.set_seed(seed)\n",
            "Import what you need inside the function",
        ),
    ],
    "05-repair": [
        ("the script as it is", f"answer = {SCRIPT!r}", "Not attempted yet"),
        ("the seed alone, first", _repaired("torch"), "nobody seeds it"),
        ("everything but the seed of the weights", _without("torch"), "drawn before the seed is set"),
        ("everything but NumPy", _without("numpy"), "nobody seeds it"),
        ("everything but the set", _without("set"), "the order of the vocabulary"),
        (
            "PYTHONHASHSEED inside",
            _without("set", also=("words =", "import os; os.environ['PYTHONHASHSEED'] = '0'\nwords =")),
            "in the script is too late",
        ),
        ("everything but the flag", _without("flag"), "adds 72,000 values into eight rows"),
        ("the flag, and memory that nobody wrote", _without("empty"), "`average` is NaN"),
        (
            "without the flag, memory that nobody wrote",
            _without("empty", "flag", also=("table[index]", "torch.nn.functional.embedding(index, table)")),
            "whatever lay in that memory",
        ),
        (
            "another training",
            _repaired(*_REPAIRS, also=("range(20)", "range(2)")),
            "without changing what it trains",
        ),
        (
            "unwritten memory by another name",
            _without("empty", also=("torch.empty(8)", "torch.Tensor(8)")),
            "`average` is NaN",
        ),
        (
            "a table of zeros in place of a seed",
            _without("torch", also=("torch.randn(8, 8,", "torch.zeros(8, 8,")),
            "start from random numbers",
        ),
        (
            "the flag after the training",
            _without("flag", also=("print(", "torch.use_deterministic_algorithms(True)\nprint(")),
            "adds 72,000 values into eight rows",
        ),
        ("it does not run", _repaired("set", "numpy", also=("hashlib, ", "")), "NameError in line"),
        ("a list of faults", "answer = ['no flag', 'no seed']", "Give the check the script as a text"),
    ],
    "05-augment": [
        (
            "the global generator",
            _augment("return image + np.random.normal(0, 0.1, image.shape).astype(np.float32)"),
            "Make the generator from seed, epoch and index",
        ),
        (
            "a generator beside the function",
            _augment(_ADD, above="rng = np.random.default_rng(0)"),
            "Make the generator from seed, epoch and index",
        ),
        (
            "the global generator seeded for each image",
            _augment(
                "np.random.seed(10_000 * seed + 100 * epoch + index)",
                "return image + np.random.normal(0, 0.1, image.shape).astype(np.float32)",
            ),
            "seeds the worker's global generator",
        ),
        ("one seed for all", _augment("rng = np.random.default_rng(seed)", _ADD), "Every image gets"),
        (
            "the epoch is forgotten",
            _augment("rng = np.random.default_rng([seed, index])", _ADD),
            "repeats the noise of the first",
        ),
        (
            "the image is forgotten",
            _augment("rng = np.random.default_rng([seed, epoch])", _ADD),
            "Every image gets",
        ),
        (
            "the seed is forgotten",
            _augment("rng = np.random.default_rng([epoch, index])", _ADD),
            "The seed must count",
        ),
        (
            "a sum of the three",
            _augment("rng = np.random.default_rng(seed + epoch + index)", _ADD),
            "meet again",
        ),
        (
            "the image is changed",
            _augment(
                "rng = np.random.default_rng([seed, epoch, index])",
                "image += rng.normal(0, 0.1, image.shape).astype(np.float32)",
                "return image",
            ),
            "changes the image",
        ),
        (
            "float64",
            _augment(
                "rng = np.random.default_rng([seed, epoch, index])",
                "return image + rng.normal(0, 0.1, image.shape)",
            ),
            "not float64",
        ),
        (
            "thousands and hundreds",
            _augment("rng = np.random.default_rng(1000 * seed + 100 * epoch + index)", _ADD),
            "meet again",
        ),
        (
            "uniform noise",
            _augment(
                "rng = np.random.default_rng([seed, epoch, index])",
                "return image + rng.uniform(-(0.03**0.5), 0.03**0.5, image.shape).astype(np.float32)",
            ),
            "draw it with rng.normal",
        ),
        (
            "one number for the whole image",
            _augment(
                "rng = np.random.default_rng([seed, epoch, index])",
                "return image + np.float32(rng.normal(0, 0.1))",
            ),
            "Every pixel",
        ),
        (
            "the hash of a text",
            _augment("rng = np.random.default_rng(abs(hash(f'{seed} {epoch} {index}')))", _ADD),
            "In another process",
        ),
        (
            "PyTorch's global generator seeded for each image",
            _augment(
                "import torch",
                "torch.manual_seed(hash((seed, epoch, index)))",
                "return image + 0.1 * torch.randn(8, 8).numpy()",
            ),
            "seeds the worker's global generator",
        ),
        (
            "clipped",
            _augment(
                "rng = np.random.default_rng([seed, epoch, index])",
                "noisy = image + rng.normal(0, 0.1, image.shape)",
                "return np.clip(noisy, 0, 1).astype(np.float32)",
            ),
            "and nothing else",
        ),
        ("no noise", _augment("return image.copy()"), "standard deviation 0"),
    ],
    "05-resume": [
        ("model and optimizer alone", _resume(*list(_SAVED)[2:]), "starts to count anew"),
        ("the model alone", _resume(*list(_SAVED)[1:]), "The optimizer has a state_dict of its own"),
        (
            "parameters instead of the state",
            _resume(
                model="[parameter.data for parameter in training.model.parameters()]",
                changed={
                    "model": "[parameter.data.copy_(old) for parameter, old in zip(training.model.parameters(), "
                    "saved['model'])]"
                },
            ),
            "running mean and variance",
        ),
        ("no copies", _resume(copied="dict"), "hands out the living tensors"),
        ("no scheduler", _resume("scheduler"), "starts to count anew"),
        ("no epoch", _resume("epoch"), "training.epoch is not"),
        (
            "seeded anew",
            _resume("torch", changed={"numpy": "torch.manual_seed(0); np.random.set_state(saved['numpy'])"}),
            "would replay the numbers",
        ),
        ("no NumPy", _resume("numpy"), "np.random.get_state"),
        ("no Python", _resume("python"), "random.getstate"),
        ("no loader", _resume("loader"), "order of the batches"),
        ("the whole training", _resume(model="lambda: training.model"), "return states, not objects"),
        (
            "a key that is not there",
            _resume(changed={"epoch": "training.epoch = saved['epochs']"}),
            "restore raised KeyError in line",
        ),
    ],
    "05-report": [
        ("the best seed", _report("values.mean()", "values.max()"), "reports luck"),
        ("numpy's default", _report("values.std(ddof=1)", "values.std()"), "n − 1"),
        (
            "the standard error as spread",
            _report("values.std(ddof=1)", "values.std(ddof=1) / n**0.5"),
            "standard error",
        ),
        ("the range", _report("values.std(ddof=1)", "np.ptp(values)"), "the range"),
        ("1.96", _report("T[n - 1]", "1.96"), "Student's t"),
        ("one standard error", _report("T[n - 1] * ", ""), "two thirds"),
        ("the spread of single seeds", _report(" / n**0.5", ""), "divide the spread by √n"),
        (
            "the range as an interval",
            _report('"low": mean - half, "high": mean + half', '"low": values.min(), "high": values.max()'),
            "where the seeds lie",
        ),
        ("n degrees of freedom", _report("T[n - 1]", "{**T, 10: 2.228, 20: 2.086}[n]"), "n − 1 degrees"),
        (
            "repeats counted",
            _report("list(dict(runs).values())", "[accuracy for _, accuracy in runs]").replace(
                "19:", "8: 2.306, 19:"
            ),
            "no new evidence",
        ),
        (
            "one seed gets an interval",
            _report(
                "if n < 2:",
                "if n < 2:\n        return dict(seeds=1, mean=mean, spread=0, low=mean, high=mean)\n    if n < 2:",
            ),
            "One seed has no spread",
        ),
        (
            "accuracies told apart, not seeds",
            _report("list(dict(runs).values())", "list({accuracy for _, accuracy in runs})"),
            "Two seeds may agree by chance",
        ),
        ("the variance", _report("values.std(ddof=1)", "values.std(ddof=1) ** 2"), "That is the variance"),
        ("in %", _report('"mean": mean', '"mean": 100 * mean'), "not in %"),
        (
            "low is high",
            _report('"low": mean - half, "high": mean + half', '"low": mean + half, "high": mean - half'),
            "changed places",
        ),
        ("a text", "def answer(runs):\n    return str(len(runs))", "Return a dict"),
    ],
}

RIGHT = {
    "05-seed": _seed(_PYTHON, _NUMPY, _TORCH, *_OWN),
    "05-repair": _repaired(*_REPAIRS),
    "05-augment": _augment("rng = np.random.default_rng([seed, epoch, index])", _ADD),
    "05-resume": _resume(),
    "05-report": _REPORT,
}
