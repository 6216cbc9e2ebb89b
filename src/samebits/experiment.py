"""An experiment is declared once; panel, command, recording and test are made from the declaration.

    SCATTER = Experiment(name="scatter", title=…, question=…, knobs=(…), prepare=…, observe=…, …)

`prepare(settings)` is untimed: it builds the inputs from NumPy with a fixed seed and sets every flag that
it touches, also to "off". `observe(state, n)` yields at most n observations. Both run in a worker
process (worker.py); nothing here imports a framework.
"""

from __future__ import annotations

import dataclasses
import datetime
import difflib
import json
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from samebits import variability
from samebits.bits import fingerprint, max_ulp_distance
from samebits.variability import Verdict

SOURCE_KINDS = ("LIVE", "RECORDED", "MODEL", "PUBLISHED")


class BadSetting(ValueError):
    """A setting that the experiment does not have, or a value that the knob cannot take; the message is
    one sentence for a person."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]  # in a notebook: the sentence, without frames of ours


def nearest(word: str, known: list[str]) -> str:
    """A hint for a mistyped name: ' Did you mean X?' with the nearest known name, else the list of them."""
    close = difflib.get_close_matches(str(word), known, n=1, cutoff=0.5)
    return f"Did you mean {close[0]}?" if close else f"Possible: {', '.join(known)}."


@dataclass(frozen=True)
class Knob:
    """One thing that a learner can turn.

    kind      "toggle" (bool), "choice" (one of `choices`, strings) or "number" (int within `low`..`high`)
    scope     "run": set anew for each run; "process": needs a fresh process (environment variables, thread
              counts, everything that feeds a process-wide cache)
    variable  the environment variable that this knob sets in the worker, if any; the value "unset" removes it
    """

    name: str
    label: str
    help: str
    kind: str
    default: Any
    choices: tuple[str, ...] = ()
    low: int = 0
    high: int = 0
    scope: str = "run"
    variable: str | None = None

    def parse(self, value: Any) -> Any:
        """The setting that `value` (a string from a command line, or already a value) stands for.

        Raises BadSetting, naming the nearest valid value.
        """
        if self.kind == "toggle":
            return self._toggle(value)
        if self.kind == "choice":
            if str(value) in self.choices:
                return str(value)
            raise BadSetting(f"{self.name} cannot be {value!r}. {nearest(value, list(self.choices))}")
        return self._number(value)

    def _toggle(self, value: Any) -> bool:
        words = {
            "true": True,
            "on": True,
            "yes": True,
            "1": True,
            "false": False,
            "off": False,
            "no": False,
            "0": False,
        }
        if str(value).lower() in words:
            return words[str(value).lower()]
        raise BadSetting(f"{self.name} is a toggle and cannot be {value!r}. Use true or false.")

    def _number(self, value: Any) -> int:
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if isinstance(value, bool) or not math.isfinite(number) or number != int(number):
            raise BadSetting(
                f"{self.name} needs a whole number and cannot be {value!r}. Use {self.low} to {self.high}."
            )
        if not self.low <= number <= self.high:
            closest = self.low if number < self.low else self.high
            raise BadSetting(
                f"{self.name} cannot be {value}: it goes from {self.low} to {self.high}. The nearest is {closest}."
            )
        return int(number)


@dataclass(frozen=True)
class Source:
    """Where a number comes from; no result exists without one.

    kind       LIVE (measured by this process or its worker), RECORDED (on a real GPU, by the record command),
               MODEL (a simulator or a model; `why` says which and why it is valid), PUBLISHED (`why` cites)
    device     what computed it, in words, such as "Intel Xeon, 2 threads"
    libraries  name → version
    date       ISO 8601, UTC, to the second
    """

    kind: str
    device: str = ""
    libraries: Mapping[str, str] = field(default_factory=dict)
    date: str = ""
    why: str = ""

    def __post_init__(self):
        if self.kind not in SOURCE_KINDS:
            raise ValueError(f"A source is one of {', '.join(SOURCE_KINDS)}, not {self.kind!r}.")
        if self.kind in ("MODEL", "PUBLISHED") and not self.why:
            raise ValueError(f"A {self.kind} source must say why it is valid or what it cites.")

    @classmethod
    def joined(cls, sources: Iterable[Source]) -> Source:
        """One source for what several runs gave: every device and library, and the latest date.

        Raises ValueError for sources of different kinds, which no one label fits.
        """
        sources = list(sources)
        kinds = dict.fromkeys(source.kind for source in sources)
        if len(kinds) != 1:
            raise ValueError(f"One label cannot stand for {' and '.join(kinds) or 'nothing'}.")
        return cls(
            kind=sources[0].kind,
            device=" and ".join(dict.fromkeys(source.device for source in sources if source.device)),
            libraries={name: version for source in sources for name, version in source.libraries.items()},
            date=max(source.date for source in sources),
            why="; ".join(dict.fromkeys(source.why for source in sources if source.why)),
        )

    @property
    def where(self) -> str:
        """Device and library versions, such as "Intel Xeon, 2 threads · torch 2.13.0+cpu"."""
        versions = [f"{name} {version}" for name, version in self.libraries.items()]
        return " · ".join(part for part in (self.device, *versions) if part)

    @property
    def stored(self) -> str:
        """The line for a stored output, which is no longer LIVE when somebody reads it."""
        if self.kind == "LIVE":
            return f"measured on {self.where}, on {self.date[:10]}"
        return " · ".join(part for part in (self.kind, self.why, self.where, self.date[:10]) if part)


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class Observation:
    """One run of the thing under study.

    fingerprint  of the output, as samebits.bits.fingerprint gives it
    input        fingerprint of everything that went in; runs with unequal inputs get no verdict
    seconds      time of the run alone, without preparation
    scalars      a few numbers worth showing, such as the sum itself
    reported     what the library said it did (kernel names, algorithm, workspace bytes)
    sample       at most 64 elements of the output, from which the distance between runs is told
    dtype        the float format of the sample: float16, float32 or float64
    process      number of the process that ran it, from 0, filled in by the runner
    """

    fingerprint: str
    input: str
    seconds: float
    scalars: Mapping[str, float] = field(default_factory=dict)
    reported: Mapping[str, Any] = field(default_factory=dict)
    sample: tuple[float, ...] = ()
    dtype: str = "float32"
    process: int = 0


@dataclass(frozen=True)
class Prepared:
    """What `prepare` returns.

    state      whatever `observe` needs
    seen       the settings as the worker sees their effect: a thread count asked of the library, a flag read
               back, a kernel's name; "unavailable" where the installed version cannot tell
    device     in words, for the source line
    libraries  name → version, for the source line
    model      empty for a LIVE result; otherwise which model or simulator this is, and why it is valid
    """

    state: Any
    seen: Mapping[str, Any]
    device: str
    libraries: Mapping[str, str]
    model: str = ""

    def source(self) -> Source:
        kind = "MODEL" if self.model else "LIVE"
        return Source(kind, self.device, dict(self.libraries), now(), self.model)


@dataclass(frozen=True)
class Experiment:
    """A question about bits, the knobs that bear on it, and how to measure the answer.

    race_size    setting name → least value at which the unfixed arm can race; empty where nothing races
    framework    "torch", "tensorflow" or None: what a worker imports while it waits
    environment  settings → variables of the worker (None removes one), beside those that knobs name
    card         settings → name of the shared device whose queue the run joins, or None
    fresh        True: no worker is used for two runs (a process-wide cache would carry over)
    recordings   the settings worth recording on a GPU
    repeats      how many runs a click makes
    code         settings → the few lines that "show me the code" shows
    waiting      asked in the worker before `prepare`: a sentence for whoever waits, if preparing will take seconds
                 this time (compiling, say); empty if not
    summary      Runs → what an experiment about time has measured, in words for the panel and the command; empty
                 where the bits say it all
    """

    name: str
    title: str
    question: str
    knobs: tuple[Knob, ...]
    prepare: Callable[[dict], Prepared]
    observe: Callable[[Any, int], Iterator[Observation]]
    code: Callable[[dict], str]
    race_size: Mapping[str, int] = field(default_factory=dict)
    framework: str | None = None
    environment: Callable[[dict], Mapping[str, str | None]] = lambda settings: {}
    card: Callable[[dict], str | None] = lambda settings: None
    fresh: bool = False
    recordings: tuple[Mapping[str, Any], ...] = ()
    repeats: int = 20
    waiting: Callable[[], str] = lambda: ""
    summary: Callable[[Runs], str] = lambda runs: ""

    def knob(self, name: str) -> Knob:
        for knob in self.knobs:
            if knob.name == name:
                return knob
        raise BadSetting(
            f"{self.name} has no knob {name!r}. {nearest(name, [knob.name for knob in self.knobs])}"
        )

    def settings(self, **asked: Any) -> dict[str, Any]:
        """Every knob's value: what was asked, checked, and the default elsewhere. Raises BadSetting."""
        values = {knob.name: knob.default for knob in self.knobs}
        for name, value in asked.items():
            values[name] = self.knob(name).parse(value)
        return values

    @property
    def processes(self) -> int:
        """Processes over which a run is spread: two where a knob acts per process, since one says nothing."""
        return 2 if self.fresh or any(knob.scope == "process" for knob in self.knobs) else 1

    def variables(self, settings: Mapping[str, Any]) -> dict[str, str | None]:
        """Environment variables that the worker must have (None: must not have) for these settings."""
        variables: dict[str, str | None] = {}
        for knob in self.knobs:
            if knob.variable:
                value = str(settings[knob.name])
                variables[knob.variable] = None if value == "unset" else value
        return variables | dict(self.environment(dict(settings)))


@dataclass(frozen=True)
class Runs:
    """The observations of one experiment under one setting, and where they come from."""

    experiment: str
    asked: Mapping[str, Any]
    seen: Mapping[str, Any]
    source: Source
    observations: tuple[Observation, ...]
    per_process: bool = False
    ended: str = "repeats"  # why it ended: repeats, budget, different or cancelled

    @property
    def fingerprints(self) -> list[str]:
        return [observation.fingerprint for observation in self.observations]

    @property
    def distinct(self) -> int:
        return variability.distinct(self.fingerprints)

    @property
    def processes(self) -> int:
        return len({observation.process for observation in self.observations})

    @property
    def verdict(self) -> Verdict:
        verdict = variability.verdict(
            self.fingerprints,
            processes=self.processes,
            per_process=self.per_process,
            inputs=[observation.input for observation in self.observations],
        )
        if self.source.kind != "MODEL" or verdict.kind != "same":
            return verdict
        reason = f"one answer in {verdict.runs} runs of a model; only hardware can show whether it varies"
        return dataclasses.replace(verdict, kind="not enough evidence", bound=None, reason=reason)

    @property
    def seconds(self) -> list[float]:
        return [observation.seconds for observation in self.observations]

    @property
    def farthest(self) -> int | None:
        """Distance in ULPs between the two runs that differ most in one element of their samples, if they have any."""
        samples = [observation.sample for observation in self.observations]
        if not samples or not samples[0]:
            return None
        return max_ulp_distance([np.array(sample, self.observations[0].dtype) for sample in samples])

    def scalars(self, name: str) -> list[float]:
        """The scalar `name` of each run that has it."""
        return [o.scalars[name] for o in self.observations if name in o.scalars]

    @property
    def reported(self) -> str:
        """What the library reported, in words, such as "chosen: native 12, oneDNN 8; weight gradient: 3 answers".

        Only what is a word, a count or a fingerprint; times and tables are in the observations.
        """
        values: dict[str, list] = {}
        for observation in self.observations:
            for name, value in observation.reported.items():
                values.setdefault(name, []).append(value)
        words = {name: _in_words(several) for name, several in values.items()}
        return "; ".join(f"{name}: {text}" for name, text in words.items() if text)

    def to_json(self) -> dict[str, Any]:
        return {
            "experiment": self.experiment,
            "settings": {"asked": dict(self.asked), "seen": dict(self.seen)},
            "source": dataclasses.asdict(self.source),
            "runs": [_without_nan(dataclasses.asdict(o)) for o in self.observations],
            "processes": self.processes,
            "per_process": self.per_process,
            "ended": self.ended,
            "distinct": self.distinct,
            "verdict": dataclasses.asdict(self.verdict) | {"sentence": self.verdict.sentence},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Runs:
        """Inverse of to_json. Raises ValueError, in one sentence, for anything that to_json cannot have made."""
        try:
            runs = cls(
                experiment=str(data["experiment"]),
                asked=dict(data["settings"]["asked"]),
                seen=dict(data["settings"]["seen"]),
                source=Source(**data["source"]),
                observations=tuple(_observation(run) for run in data["runs"]),
                per_process=bool(data["per_process"]),
                ended=str(data["ended"]),
            )
            # Fields of the wrong type fail here, not when somebody looks at them.
            json.dumps([runs.to_json(), runs.farthest, runs.reported, runs.source.stored, sum(runs.seconds)])
            return runs
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise ValueError(
                f"This is not a recording of an experiment: {error!r} is wrong in it."
            ) from error


def _observation(data: Mapping[str, Any]) -> Observation:
    numbers = {name: float(value) for name, value in data["scalars"].items()}
    sample = tuple(float(value) for value in data["sample"])
    return Observation(**(dict(data) | {"scalars": numbers, "sample": sample}))


def _without_nan(value: Any) -> Any:
    """JSON has no NaN and no infinity: they are written as the words that float() reads."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(inner) for inner in value]
    return value


def _in_words(values: list) -> str:
    """Several reports of one thing: a fingerprint is counted, words and counts are listed with how often each came."""
    if not all(isinstance(value, str | int) for value in values):
        return ""
    different = Counter(map(str, values)).most_common()
    if all(re.fullmatch(r"\w+:[0-9a-f]{16,}", value) for value, _ in different):
        return "1 answer" if len(different) == 1 else f"{len(different)} answers"
    if len(different) == 1:
        return different[0][0]
    return ", ".join(f"{value} {count}" for value, count in different)


def repeat(
    function: Callable[[], Any], times: int = 20, name: str = "", libraries: Mapping[str, str] | None = None
) -> Runs:
    """Call `function` `times` times in this very process and fingerprint what it returns.

    For lessons, where the code under study stands in the cell. The function takes nothing, so its input is
    the same by construction; its output may be an array, a tensor or a number.
    """
    from samebits import machine

    observations = []
    output = None
    for _ in range(times):
        start = time.perf_counter()
        output = function()
        seconds = time.perf_counter() - start
        observations.append(Observation(fingerprint(output), "the same call", seconds))
    source = Source(
        "LIVE", machine.device_words(output=output), libraries or machine.loaded_libraries(), now()
    )
    return Runs(name or getattr(function, "__name__", "function"), {}, {}, source, tuple(observations))
