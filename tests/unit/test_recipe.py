"""The recipe: right for many versions and devices, as short as it can be, and true when it is run."""

from __future__ import annotations

import ast
import importlib.util
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from samebits import cli, machine, recipe
from samebits.experiment import BadSetting
from samebits.recipe import USES, USUAL, Found


def codes(lines):
    return [line.code for line in lines]


def made(framework="torch", version="2.13.0", cuda=False, uses=USUAL):
    return recipe.recipe(found=Found(framework, version, cuda, uses))


# --- PyTorch ----------------------------------------------------------------------------------------------

PLAIN = [
    "random.seed(0)",
    "np.random.seed(0)",
    "torch.manual_seed(0)",
    "torch.use_deterministic_algorithms(True)",
]


@pytest.mark.parametrize(
    "version", ["2.8.0", "2.9.1", "2.10.0", "2.13.0+cpu", "2.14.1", "2.15.0.dev20261101"]
)
def test_on_a_cpu_it_is_three_seeds_and_the_flag(version):
    assert codes(made(version=version).lines) == PLAIN
    assert not any("cuda" in code or "cudnn" in code for code in codes(made(version=version).left_out))


@pytest.mark.parametrize(
    ("version", "rnn", "value"),
    [
        ("1.13.1", False, ":4096:8"),
        ("2.9.1", False, ":4096:8"),
        ("2.9.1", True, ":16:8"),  # the flag takes :16:8 and :4096:8, cuDNN :16:8 and :4096:2
        ("2.10.0", False, None),
        ("2.10.0", True, ":4096:2"),
        ("2.14.1+cu130", False, None),
    ],
)
def test_on_a_gpu_the_cublas_variable_is_there_for_old_versions_and_for_recurrent_networks(
    version, rnn, value
):
    found = made(version=version, cuda=True, uses=USES if rnn else USUAL)
    variable = [code for code in codes(found.lines) if "CUBLAS_WORKSPACE_CONFIG" in code]
    assert variable == ([] if value is None else [f'os.environ["CUBLAS_WORKSPACE_CONFIG"] = "{value}"'])
    assert any("CUBLAS_WORKSPACE_CONFIG" in code for code in codes(found.left_out)) == (value is None)


def test_a_recurrent_network_on_a_cpu_needs_no_variable():
    assert codes(made(version="2.9.1", uses=USES).lines) == PLAIN


def test_the_variable_comes_before_what_reads_it():
    lines = made(version="2.9.1", cuda=True).code.splitlines()
    assert lines.index("import os") < lines.index('os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"')
    assert lines.index('os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"') < lines.index("import torch")


def test_what_is_redundant_on_a_gpu_is_listed_as_not_needed():
    left_out = codes(made(cuda=True).left_out)
    for code in ("torch.cuda.manual_seed_all(0)", "torch.backends.cudnn.deterministic = True"):
        assert code in left_out


def test_worker_init_fn_was_needed_before_1_9():
    assert "worker_init_fn" in made(version="1.8.1").code
    assert "worker_init_fn" not in made(version="1.9.0").code
    assert "worker_init_fn" not in made(version="1.8.1", uses=("numpy",)).code


def test_what_a_program_does_not_use_is_left_out():
    found = made(uses=())
    assert codes(found.lines) == PLAIN[2:]
    assert found.before == ()
    assert "import random" not in found.code and "import numpy" not in found.code
    assert codes(made(uses=("hash order",)).before) == ["PYTHONHASHSEED=0"]


# --- TensorFlow -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (
            "2.21.0",
            ["tf.keras.utils.set_random_seed(0)", "tf.config.experimental.enable_op_determinism()"],
        ),
        ("2.7.4", ['os.environ["TF_DETERMINISTIC_OPS"] = "1"', "tf.keras.utils.set_random_seed(0)"]),
        (
            "2.6.0",
            [
                'os.environ["TF_DETERMINISTIC_OPS"] = "1"',
                "random.seed(0)",
                "np.random.seed(0)",
                "tf.random.set_seed(0)",
            ],
        ),
    ],
)
def test_tensorflow_by_version(version, expected):
    found = made("tensorflow", version)
    assert codes(found.lines) == expected
    assert any("TF_DETERMINISTIC_OPS" in code for code in codes(found.left_out)) == (version == "2.21.0")


# --- Both -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cuda", [False, True])
@pytest.mark.parametrize(
    ("framework", "version"),
    [
        ("torch", "1.8.0"),
        ("torch", "2.9.1"),
        ("torch", "2.13.0"),
        ("tensorflow", "2.6.0"),
        ("tensorflow", "2.21.0"),
    ],
)
def test_what_is_printed_is_a_program_with_a_reason_for_each_line(framework, version, cuda):
    found = made(framework, version, cuda, USES)
    tree = ast.parse(str(found))
    assert ast.dump(tree) == ast.dump(ast.parse(found.code)), "the comments change nothing"
    assert all(line.why for line in (*found.before, *found.lines, *found.left_out))
    assert not set(codes(found.lines)) & set(codes(found.left_out))
    assert max(map(len, str(found).splitlines())) <= 120
    assert found.to_json()["code"] == found.code


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Found("jax", "0.8"), "no recipe for 'jax'"),
        (Found("torch", "1.7.1"), "1.8 is the oldest"),
        (Found("tensorflow", "1.15"), "2.1 is the oldest"),
        (Found("torch", "2.13.0", uses=("dice",)), "no use 'dice'"),
        (Found("torch", "unknown"), "version 'unknown' .* cannot be read"),
        (Found("torch", None), "version None .* cannot be read"),
    ],
)
def test_what_has_no_recipe_is_refused_in_a_sentence(found, words):
    with pytest.raises(BadSetting, match=words):
        recipe.recipe(found=found)


def test_this_machines_pytorch_is_found_without_importing_it():
    program = (
        "import sys; from samebits.recipe import detect; print(detect().version, 'torch' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    folder = Path(importlib.util.find_spec("torch").origin).parent
    version, imported = answer.stdout.split()
    assert version == runpy.run_path(folder / "version.py")["__version__"]
    assert imported == "False"


@pytest.mark.parametrize(
    ("packages", "devices", "cuda"),
    [
        ({"torch": "2.13.0+cpu"}, 1, False),
        ({"torch": "2.13.0"}, 0, False),
        ({"torch": "2.13.0"}, 2, True),
        ({"torch": "2.13.0+cu130"}, 1, True),
    ],
)
def test_a_gpu_counts_only_where_this_pytorch_can_use_it(monkeypatch, packages, devices, cuda):
    monkeypatch.setattr(recipe, "_own_packages", lambda names: packages)
    monkeypatch.setattr(machine, "cuda_device_count", lambda: devices)
    assert recipe.detect().cuda is cuda


@pytest.mark.parametrize(
    ("packages", "devices", "cuda"),
    [({"tensorflow_cpu": "2.21.0"}, 1, False), ({"tensorflow": "2.21.0"}, 1, True)],
)
def test_tensorflow_is_looked_for_where_the_course_runs_it(monkeypatch, packages, devices, cuda):
    monkeypatch.setattr(machine, "tensorflow_python", lambda: "/else/where/python")
    monkeypatch.setattr(machine, "installed", lambda python, probes: packages)
    monkeypatch.setattr(machine, "cuda_device_count", lambda: devices)
    assert recipe.detect("tensorflow") == Found("tensorflow", "2.21.0", cuda)


def test_what_is_missing_is_said_in_a_sentence_also_on_the_command_line(monkeypatch, capsys):
    monkeypatch.setattr(machine, "tensorflow_python", lambda: sys.executable)
    monkeypatch.setattr(recipe, "_own_packages", lambda names: {})
    assert cli.main(["recipe", "--framework", "tensorflow"]) == 2
    assert "TensorFlow is not installed here; ./course tensorflow installs it." in capsys.readouterr().err


def test_the_command_prints_what_can_be_run(capsys):
    assert cli.main(["recipe"]) == 0
    assert "torch.use_deterministic_algorithms(True)" in ast.unparse(ast.parse(capsys.readouterr().out))


# --- It works ---------------------------------------------------------------------------------------------

# Each draws from everything that a recipe seeds, and races where nothing stops it.
TORCH_TRAINING = """
import hashlib, random
import numpy as np, torch
torch.set_num_threads(2)
words = list({"zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"})
levels = torch.from_numpy((np.arange(64 * 64 * 8) * 7 % 17).reshape(512, 64))
classes = torch.tensor([words.index("three")] * 64)
palette = torch.nn.Parameter(torch.randn(17, 8))
last = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(), torch.nn.Linear(512, 10))
adam = torch.optim.Adam([palette, *last.parameters()], lr=0.01)
loader = torch.utils.data.DataLoader(levels, batch_size=64, shuffle=True)
for batch in loader:
    noise = random.random() + np.random.random()
    adam.zero_grad()
    torch.nn.functional.cross_entropy(last(palette[batch] * noise), classes).backward()
    adam.step()
weights = b"".join(p.detach().numpy().tobytes() for p in [palette, *last.parameters()])
print(hashlib.sha256(weights).hexdigest())
"""
TENSORFLOW_TRAINING = """
import hashlib, random
import numpy as np, tensorflow as tf
words = list({"zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"})
inputs = np.random.standard_normal((256, 16)).astype("float32") * random.random()
model = tf.keras.Sequential(
    [tf.keras.layers.Dense(16, "relu"), tf.keras.layers.Dropout(0.5), tf.keras.layers.Dense(10)]
)
loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(tf.keras.optimizers.Adam(0.01), loss)
model.fit(inputs, np.full(256, words.index("three")), batch_size=64, verbose=0)
print(hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights())).hexdigest())
"""


def fingerprints(python, *programs, variables):
    """What the programs print, each in a process of its own, all at once."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    options = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
        "env": environment | variables,
    }
    started = [subprocess.Popen([python, "-c", program], **options) for program in programs]
    answers = [process.communicate(timeout=240) for process in started]
    assert all(process.returncode == 0 for process in started), answers[0][1][-2000:]
    return [printed.split() for printed, _ in answers]


def check_that_it_repeats(python, found, training):
    """Two new processes with the recipe agree; without it, the training does not even agree with itself."""
    program = f"{found}\n{training}"
    (first,), (second,) = fingerprints(python, program, program, variables=variables(found))
    assert first == second
    ((one, other),) = fingerprints(python, training * 2, variables={})
    assert len({first, one, other}) == 3, "without it nothing varied"


def variables(found):
    return dict(line.code.split("=") for line in found.before)


def test_the_printed_pytorch_recipe_gives_one_answer_in_fresh_processes():
    pytest.importorskip("torch")
    check_that_it_repeats(sys.executable, recipe.recipe(), TORCH_TRAINING)


@pytest.mark.tensorflow
def test_the_printed_tensorflow_recipe_gives_one_answer_in_fresh_processes():
    check_that_it_repeats(machine.tensorflow_python(), recipe.recipe("tensorflow"), TENSORFLOW_TRAINING)
