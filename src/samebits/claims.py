"""Each statement of the course about a library or the hardware, and what verifies it.

    for claim in of_chapter("04"):
        print(claim.says, verify(claim).words)

Statements are data (statements/NN.toml):

    [[claim]]
    id = "04-no-cublas-check"
    says = "From PyTorch 2.10 on, deterministic mode asks for no cuBLAS variable."
    places = ["lesson message-says", "quiz 04-variable"]     where it is said
    versions = "torch>=2.10"                                 for what it holds; other versions are not asked
    needs = "cuda"                                           what the check needs: see NEEDS
    source = "PyTorch pull request #161749"
    [claim.values]                                           numbers that prose takes from here
    removed = "2.10"

A claim with a check of the same id (checks/chapterNN.py) is verified by running it, and its control, under
which it must not hold. A claim that needs a GPU counts as verified where the same check was recorded on one.
Without either it needs a source, and reads "not verified here".
"""

from __future__ import annotations

import datetime
import functools
import json
import platform
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

from samebits import checks, course, machine
from samebits.checks import Check

FOLDER = Path(__file__).parent / "statements"
RECORDED = Path(__file__).parent / "recordings" / "claims.json"
SECONDS = 60  # for one arm of one check, its worker's start included

# What a claim may be about a version of: of another name, none would ever be installed.
PACKAGES = ("python", "numpy", "numba", "torch", "tensorflow", "keras")

# Status → how it reads. The last three are defects, and fail a test run.
STATUSES = {
    "verified": "verified live here",
    "recorded": "verified on a GPU",
    "not seen": "not seen this time",
    "other versions": "about other versions than those installed",
    "source": "from a source only: not verified here",
    "false": "no longer true",
    "control holds": "proves nothing, since its control holds too",
    "broken": "could not be checked",
}
DEFECTS = ("false", "control holds", "broken")


@dataclass(frozen=True)
class Claim:
    """One statement; see the module for its parts. `values` are strings, as prose writes them."""

    id: str
    says: str
    places: tuple[str, ...]
    source: str = ""
    versions: tuple[Requirement, ...] = ()
    needs: tuple[str, ...] = ()
    values: Mapping[str, str] = field(default_factory=dict)

    @property
    def chapter(self) -> str:
        return self.id[:2]

    @property
    def check(self) -> Check | None:
        return checks.of_chapter(self.chapter).get(self.id)


@dataclass(frozen=True)
class Evidence:
    """What is known of a claim: its status, a sentence of what was seen, and with what.

    device, libraries and date are empty unless something ran.
    """

    status: str
    what: str = ""
    device: str = ""
    libraries: Mapping[str, str] = field(default_factory=dict)
    date: str = ""

    @property
    def words(self) -> str:
        """Such as "verified live here (torch 2.13.0, 2026-11-29)"."""
        ran = [self.device] if self.status == "recorded" else []
        ran += [f"{name} {version}" for name, version in self.libraries.items()]
        details = ", ".join([part for part in (*ran, self.date) if part])
        return STATUSES[self.status] + (f" ({details})" if details else "")


# --- Reading ---------------------------------------------------------------------------------------------


class Malformed(ValueError):
    """A statements file that says something impossible; one sentence with the file and the entry."""


@functools.cache
def of_chapter(number: str) -> tuple[Claim, ...]:
    """The claims of one chapter in the order of their file; empty if it has none. Raises Malformed."""
    path = FOLDER / f"{number}.toml"
    if not path.exists():
        return ()
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise Malformed(f"statements/{path.name} cannot be read: {error}.") from error
    if unknown := data.keys() - {"claim"}:
        raise Malformed(f"statements/{path.name} holds {min(unknown)!r}; each claim begins with [[claim]].")
    tables = data.get("claim", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise Malformed(f"statements/{path.name} needs [[claim]] before each claim.")
    claims = tuple(_claim(table, number) for table in tables)
    names = [claim.id for claim in claims]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise Malformed(f"statements/{path.name} has two claims {min(repeated)}.")
    if orphans := checks.of_chapter(number).keys() - set(names):
        raise Malformed(f"checks/chapter{number}.py verifies {min(orphans)}, which no claim states.")
    return claims


def everything() -> list[Claim]:
    """The claims of all chapters."""
    return [claim for chapter in course.CHAPTERS for claim in of_chapter(chapter.number)]


def value(reference: str) -> str:
    """The number that prose writes as {04-workspace.hopper}: value `hopper` of claim 04-workspace. Raises Malformed."""
    name, _, key = reference.partition(".")
    for claim in of_chapter(name[:2]):
        if claim.id == name and key in claim.values:
            return claim.values[key]
    raise Malformed(f"No claim holds the value {reference}.")


def filled(text: str) -> str:
    """`text` with each {04-workspace.hopper} replaced by that value. Raises Malformed."""
    return re.sub(r"\{(\d\d-[^{}]*)\}", lambda found: value(found[1]), text)


def _claim(table: dict[str, Any], number: str) -> Claim:
    name = table.get("id", "?")
    where = f"statements/{number}.toml: claim {name}"
    if unknown := table.keys() - {"id", "says", "places", "source", "versions", "needs", "values"}:
        raise Malformed(f"{where} has an unknown entry {min(unknown)!r}.")
    if not re.fullmatch(rf"{number}-[a-z0-9-]+", str(name)):
        raise Malformed(
            f"{where} needs an id of small letters, digits and hyphens that begins with {number}-."
        )
    for key in ("source", "versions", "needs"):
        if not isinstance(table.get(key, ""), str):
            raise Malformed(f"{where} needs a text as its {key}.")
    says, places, source = table.get("says"), table.get("places"), table.get("source", "")
    if not isinstance(says, str) or not says.strip():
        raise Malformed(f"{where} says nothing.")
    if not isinstance(places, list) or not places or not all(isinstance(place, str) for place in places):
        raise Malformed(f"{where} needs a list of the places where it is said.")
    values = table.get("values", {})
    if not isinstance(values, dict):
        raise Malformed(f"{where} needs a table of texts as its values.")
    for key, text in values.items():
        if not re.fullmatch(r"[a-z0-9_]+", key):
            raise Malformed(f"{where} has a value called {key!r}; use small letters, digits and underscores.")
        if not isinstance(text, str):
            raise Malformed(f"{where} has a value {key} that is no text; write it as the prose does.")
        if not text.strip():
            raise Malformed(f"{where} has a value {key} that is empty.")
    try:
        versions = tuple(
            map(Requirement, filter(None, re.split(r",\s*(?=[a-z])", table.get("versions", ""))))
        )
    except InvalidRequirement as error:
        raise Malformed(f"{where} has versions that cannot be read: {error}") from error
    if unknown := {requirement.name for requirement in versions} - set(PACKAGES):
        raise Malformed(f"{where} has versions of {min(unknown)!r}, which is none of {', '.join(PACKAGES)}.")
    needs = tuple(part.strip() for part in table.get("needs", "").split(",") if part.strip())
    if unknown := set(needs) - NEEDS.keys():
        raise Malformed(f"{where} needs {min(unknown)!r}, which is none of {', '.join(NEEDS)}.")
    claim = Claim(
        name, " ".join(says.split()), tuple(places), " ".join(source.split()), versions, needs, values
    )
    if claim.check is None and not source.strip():
        raise Malformed(f"{where} has neither a check nor a source.")
    return claim


# --- Verifying -------------------------------------------------------------------------------------------

# What a check may need → whether this machine has it.
NEEDS: dict[str, Callable[[], bool]] = {
    "cuda": lambda: machine.cuda_device_count() > 0,
    "tensorflow": lambda: _has_tensorflow(),
    "linux": lambda: sys.platform == "linux",
    "x86": lambda: platform.machine().lower() in ("x86_64", "amd64"),
}


def verify(claim: Claim) -> Evidence:
    """Run the claim's check and its control on this machine, or say what is known without."""
    found = claim.check
    if not all(_installed(requirement) for requirement in claim.versions):
        return Evidence("other versions", f"It is about {', '.join(map(str, claim.versions))}.")
    if found is None:
        return Evidence("source", claim.source)
    needs = (*claim.needs, *(["tensorflow"] if found.framework == "tensorflow" else []))
    if missing := [need for need in needs if not NEEDS[need]()]:
        return recorded(claim) or Evidence(
            "source", f"The check needs {' and '.join(missing)}. {claim.source}"
        )
    seen = arm(claim, control=False)
    against = arm(claim, control=True) if seen.status == "verified" else None
    if against is None or against.status == "false":
        return seen
    if against.status == "verified":
        return Evidence("control holds", f"Under {found.control}: {against.what}")
    if against.status == "broken":
        return against
    return Evidence("not seen", f"Its control, {found.control}, did not vary: {against.what}")


def arm(claim: Claim, control: bool) -> Evidence:
    """One arm of a claim's check: "verified" where it held, "false" where it did not, "not seen", or "broken"."""
    from samebits import runner

    found = claim.check
    try:
        seen = runner.call(
            "samebits.checks:run",
            {"claim": claim.id, "control": control},
            framework=found.framework,
            environment=found.environment,
            fresh=found.fresh,
            seconds=SECONDS,
        )
    except runner.RunFailed as error:
        return Evidence("broken", str(error))
    status = {True: "verified", False: "false", None: "not seen"}[seen["holds"]]
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return Evidence(status, seen["what"], machine.device_words(), seen["libraries"], today)


def recorded(claim: Claim) -> Evidence | None:
    """What the same check saw on a GPU, if that was recorded."""
    if not RECORDED.exists():
        return None
    entry = json.loads(RECORDED.read_text(encoding="utf-8")).get(claim.id)
    return Evidence(**(entry | {"status": "recorded"})) if entry else None


def record(path: Path, on_claim: Callable[[Claim, Evidence], None] = lambda claim, evidence: None) -> int:
    """Verify every claim that needs a GPU, on one, and write those that held; returns how many. If none held, the
    file stays as it was.

    Raises RuntimeError without a GPU.
    """
    if not NEEDS["cuda"]():
        raise RuntimeError("A recording needs an NVIDIA GPU, and none is visible here. Nothing was written.")
    kept = {}
    card = _card()
    for claim in everything():
        if "cuda" in claim.needs and claim.check:
            evidence = verify(claim)
            if evidence.status == "verified":
                kept[claim.id] = {k: v for k, v in asdict(evidence).items() if k != "status"} | {
                    "device": card
                }
                path.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")  # nothing made is lost
            on_claim(claim, evidence)
    return len(kept)


def _card() -> str:
    cards = machine.survey().gpus
    return f"{cards[0].name}, driver {cards[0].driver}" if cards else ""


def _installed(requirement: Requirement) -> bool:
    """Whether what is installed fits; a TensorFlow of an environment of its own is not asked from here."""
    if requirement.name == "python":
        version = platform.python_version().rstrip("+")  # built from a checkout
        return requirement.specifier.contains(version, prereleases=True)
    if requirement.name in ("tensorflow", "keras"):
        found = _of_tensorflow()
        if "tensorflow" not in found:
            return True
        version = found.get(requirement.name)
        return version is not None and requirement.specifier.contains(version, prereleases=True)
    try:
        return requirement.specifier.contains(metadata.version(requirement.name), prereleases=True)
    except metadata.PackageNotFoundError:
        return False


@functools.cache
def _of_tensorflow() -> Mapping[str, str]:
    """Versions in the environment that TensorFlow's workers use; empty without TensorFlow."""
    from samebits import runner

    try:
        return runner.call(
            "samebits.checks:versions_of_tensorflow", {}, framework="tensorflow", seconds=SECONDS
        )
    except runner.RunFailed:
        return {}


def _has_tensorflow() -> bool:
    return "tensorflow" in _of_tensorflow()


# --- STATUS.md -------------------------------------------------------------------------------------------


def sentence_to_mend(claim: Claim, evidence: Evidence) -> str:
    """What a test run says of a claim that failed: which, what was seen, and where it is said."""
    return (
        f"{claim.id} {STATUSES[evidence.status]}: “{claim.says}” {evidence.what} "
        f"To mend: statements/{claim.chapter}.toml, and {', '.join(claim.places)} in chapter {claim.chapter}."
    )


def counted(found: list[tuple[Claim, Evidence]]) -> str:
    """How many claims there are, and how many of each status."""
    counts = {status: sum(evidence.status == status for _, evidence in found) for status in STATUSES}
    words = [f"{count} {STATUSES[status]}" for status, count in counts.items() if count]
    return f"{len(found)} claims: {'; '.join(words)}."


def status_page(found: Iterable[tuple[Claim, Evidence]]) -> str:
    """STATUS.md: every claim and what is known of it, as `./course claims` saw it on this machine."""
    found = list(found)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    lines = [
        "# Status of the claims",
        "",
        f"Written by `./course claims` on {today}, on {machine.device_words()}, Python {platform.python_version()}.",
        counted(found),
        "",
        "A claim is a sentence about a library or the hardware. What can be checked is run against what is installed, "
        "and so is a control, under which it must not hold.",
    ]
    for chapter in course.CHAPTERS:
        rows = [(claim, evidence) for claim, evidence in found if claim.chapter == chapter.number]
        if not rows:
            continue
        lines += [
            "",
            f"## {chapter.number} · {chapter.title}",
            "",
            "| Claim | Status | Seen, or source |",
            "|---|---|---|",
        ]
        lines += [
            "| " + " | ".join(map(_cell, (claim.says, evidence.words, evidence.what or claim.source))) + " |"
            for claim, evidence in rows
        ]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
