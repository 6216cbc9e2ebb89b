"""TensorFlow for a notebook whose kernel must not import it: experiments and scripts run in a process beside it.

    runs = tf_process.walls("tf-ops", {"op determinism off": {}, "on": {"deterministic": True}})
    tf_process.script(\"\"\"print(tf.__version__)\"\"\")

Without TensorFlow each prints the one sentence that says what to do, and gives nothing; a notebook runs on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from samebits import runner
from samebits.experiment import Runs
from samebits.experiments import tf_worker
from samebits.lab.tiles import tiles

SECONDS = 50  # after which a script is stopped


def walls(
    experiment: str, settings: Mapping[str, Mapping[str, Any]], repeats: int | None = None
) -> dict[str, Runs]:
    """Run an experiment under several settings, show a wall of tiles for each, and return the runs by label.

    settings  words for the setting → the knobs to turn

    A run that fails says so in one sentence and is left out. Raises BadSetting.
    """
    found: dict[str, Runs] = {}
    failures: dict[str, list[str]] = {}
    for label, knobs in settings.items():
        try:
            found[label] = runner.run(experiment, knobs, repeats=repeats)
        except runner.RunFailed as failure:
            failures.setdefault(str(failure), []).append(label)
    if found:
        tiles(found)
    for sentence, labels in failures.items():
        print(sentence if not found else f"{', '.join(labels)}: {sentence}")
    return found


def script(source: str, **variables: str) -> str | None:
    """Run a script in a new TensorFlow process that has these environment variables, and print what it prints.

    `np`, `tf` and `keras` are imported already. Returns the text; None if the script failed or there is no
    TensorFlow, which it says in one sentence.
    """
    answer = _called("printed", fresh=True, variables=variables, source=source)
    if answer is None:
        return None
    print(answer["printed"], end="")
    if answer["error"]:
        print(answer["error"])
        return None
    return answer["printed"]


def gpu_messages() -> list[str] | None:
    """What the installed TensorFlow says on a GPU of ops without a way that repeats; an empty list for a CPU build.

    None without TensorFlow, which it says in one sentence.
    """
    return _called("gpu_messages")


def _called(
    function: str, fresh: bool = False, variables: Mapping[str, str] | None = None, **given: Any
) -> Any:
    """The answer of a function of keras_scripts; None, after a sentence, if it could not be run."""
    try:
        return runner.call(
            f"samebits.experiments.keras_scripts:{function}",
            given,
            environment=tf_worker.environment({"device": "cpu"}) | dict(variables or {}),
            framework="tensorflow",
            fresh=fresh,
            seconds=SECONDS,
        )
    except runner.RunFailed as failure:
        print(failure)
        return None
