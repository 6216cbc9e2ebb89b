"""The op atlas: every op measured on this machine, beside what the installed documentation says of it.

    atlas = sweep(["index_put-accumulate", "max_unpool2d"])
    print(atlas)                                   # the table, and one line of advice for each op
    atlas["max_unpool2d"].kernel                   # "max_unpooling2d_forward_out"

For each op: how many different results its runs gave without the flag of torch.use_deterministic_algorithms;
with it the same, an error that names a kernel, or still different ones; what the flag costs; what the
documentation says for the device at hand; and whether that agrees with what was measured.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import re
import statistics
import textwrap
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from samebits import runner
from samebits.experiment import BadSetting, Runs, Source, nearest
from samebits.experiments.atlas_ops import GROUPS, OPS, Op

# Runs without and with the flag, in blocks that take turns, so that a slow moment of the machine falls on
# both; twenty of each, the least from which "the same" is a verdict.
TURNS = ((False, 10), (True, 10), (True, 10), (False, 10))
BUDGET = 3.0  # seconds of looking for a difference, for an op that can race
BLOCK_SECONDS = 20.0  # after which a block of a very slow op ends early

DEVICES = ("CPU", "CUDA", "MPS", "XPU")

# ------------------------------------------------------------------------------------- documentation


@dataclass(frozen=True)
class Entry:
    """One line of the documentation's two lists.

    listed    "switches" (will act deterministically), "raises" (will throw a RuntimeError), or "fills" (its
              memory is filled)
    names     as the documentation has them, such as "torch.nn.Conv2d"
    text      the line itself, in plain text
    devices   those of DEVICES that it speaks of; empty: any
    gradient  True if it speaks of differentiating only
    needs     further conditions, each a set of alternatives, such as {"reduce='sum'", "reduce='mean'"}
    unread    words that could not be read; what the line says is then not known
    """

    listed: str
    names: tuple[str, ...]
    text: str
    devices: frozenset[str] = frozenset()
    gradient: bool = False
    needs: tuple[frozenset[str], ...] = ()
    unread: str = ""

    def concerns(self, op: Op) -> bool:
        """Whether it speaks of this op, on whichever device."""
        if not set(self.names) & set(op.documented) or (self.gradient and not op.gradient_of):
            return False
        return bool(self.unread) or all(alternatives & set(op.features) for alternatives in self.needs)

    def here(self, device: str) -> bool:
        return not self.devices or device.upper() in self.devices


@dataclass(frozen=True)
class Documentation:
    """What could be read of a docstring; `problem` is a sentence where its lists could not be found."""

    entries: tuple[Entry, ...] = ()
    slower: bool = False  # it says that deterministic operations tend to be slower
    problem: str = ""

    def about(self, op: Op) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if entry.concerns(op))


_HEADINGS = {
    "switches": re.compile(r"operations will act deterministically when"),
    "raises": re.compile(r"operations will throw a (:class:)?`*RuntimeError`* when"),
}
_ROLE = r":(?:class|func|meth|attr|py:\w+):`~?([\w.]+)`"
_LINKING = {
    *(
        "when",
        "with",
        "and",
        "called",
        "on",
        "a",
        "an",
        "tensor",
        "tensors",
        "that",
        "is",
        "the",
        "or",
        "dtype",
    ),
    *("attempting", "to", "one", "of", "following", "modes", "used", "in"),
}


def read_documentation(text: str) -> Documentation:
    """The lists in the docstring of torch.use_deterministic_algorithms.

    Nothing is guessed: an entry with words that are not known is kept as unread, and lists that are not
    where they are expected make a Documentation without entries that says so.
    """
    blocks = _blocks(text)
    entries: list[Entry] = []
    for listed, heading in _HEADINGS.items():
        found = [i for i, (_, words) in enumerate(blocks) if heading.search(words)]
        bullets = _bullets(blocks, found[0]) if len(found) == 1 else []
        if not bullets:
            return Documentation(
                problem="The lists in the documentation of torch.use_deterministic_algorithms are not where "
                "they were; its wording has changed."
            )
        entries += [_entry(listed, bullet) for bullet in bullets]
    fills = [words for _, words in blocks if "fill uninitialized memory" in words]
    if fills:
        said = re.split(r"(?<=\.) ", _plain(fills[0]))[0]
        entries.append(Entry("fills", ("torch.empty",), said))
    slower = any("tend to have worse performance" in words for _, words in blocks)
    return Documentation(tuple(entries), slower)


def _blocks(text: str) -> list[tuple[int, str]]:
    """(indentation, words) of each paragraph and each bullet, a bullet with the lines that continue it."""
    blocks: list[tuple[int, str]] = []
    fresh = True
    for line in text.expandtabs().splitlines():
        words, indent = line.strip(), len(line) - len(line.lstrip())
        if not words:
            fresh = True
        elif fresh or words.startswith(("* ", "- ")):
            blocks.append((indent, words))
            fresh = False
        else:
            blocks[-1] = (blocks[-1][0], f"{blocks[-1][1]} {words}")
    return blocks


def _bullets(blocks: Sequence[tuple[int, str]], heading: int) -> list[str]:
    """The bullets under a heading; what is indented deeper than a bullet belongs to it."""
    bullets: list[str] = []
    level = None
    for indent, words in blocks[heading + 1 :]:
        if indent <= blocks[heading][0] or (level is not None and indent < level):
            break
        if level is None or indent == level:
            level = indent
            bullets.append(words)
        else:
            bullets[-1] += " " + words
    return bullets if bullets and bullets[0].startswith(("* ", "- ")) else []


def _entry(listed: str, bullet: str) -> Entry:
    """One bullet, such as "* :func:`torch.bmm` when called on sparse-dense CUDA tensors"."""
    text = _plain(bullet)
    said = re.match(rf"[*-] ({_ROLE}(?:,? and |, )?)+", bullet)
    if not said:
        return Entry(listed, (), text, unread=text)
    names = tuple(re.findall(_ROLE, said[0]))
    rest = bullet[said.end() :]

    def take(pattern: str) -> list[str]:
        nonlocal rest
        found = re.findall(pattern, rest)
        rest = re.sub(pattern, " ", rest)
        return found

    needs: list[frozenset[str]] = []
    options = take(r"`+(\w+=['\"]?\w+['\"]?)`+")
    if options:
        needs.append(frozenset(option.replace('"', "'") for option in options))
    modes = take(r"(?<!\w)- `+(\w+)`+")
    if modes:
        needs.append(frozenset(f"mode='{mode}'" for mode in modes))
    for words, feature in (
        (r"sparse-dense", "sparse-dense"),
        (r"quantized", "quantized"),
        (r"`+weights`+ tensor is given", "weights"),
        (r"with indices output", "indices"),
        (r"the index is a list of tensors", "tensor index"),
        (r"`+src`+ type is Tensor", "tensor src"),
        (r"floating(?: point)? or complex", "floating"),
    ):
        if take(words):
            needs.append(frozenset({feature}))
    gradient = bool(take(r"differentiate|that requires grad"))
    devices = frozenset(take(rf"\b({'|'.join(DEVICES)})\b"))
    unknown = [word for word in re.findall(r"[^\s,:.]+", rest) if word not in _LINKING]
    return Entry(listed, names, text, devices, gradient, tuple(needs), " ".join(unknown))


def _plain(words: str) -> str:
    """Without the markup of Sphinx."""
    return re.sub(r"`+", "", re.sub(_ROLE, r"\1", words)).lstrip("*- ")


# ------------------------------------------------------------------------------------ what was found


@dataclass(frozen=True)
class Row:
    """What is known of one op on this device.

    off         Runs without the flag; None where the op could not run
    on          Runs with the flag; None where it raised, or could not run
    kernel      what the error under the flag names, as the library wrote it; "" where there was none
    price       median seconds with the flag over those without, from runs that took turns; None where it raised
    priced      whether the two differ by more than the runs do among themselves
    documented  the entries that speak of it, on whichever device
    agreement   "agrees"; "wrong": the documentation says something else than was measured; "missing": it
                doesn't list what was measured; "nothing to compare"; "cannot be read"; "" where the op did
                not run
    says        that, in a sentence
    advice      what to do, in a sentence
    failed      why the op could not run here, in a sentence
    """

    op: str
    group: str
    line: str
    device: str
    off: Runs | None = None
    on: Runs | None = None
    kernel: str = ""
    price: float | None = None
    priced: bool = False
    documented: tuple[Entry, ...] = ()
    agreement: str = ""
    says: str = ""
    advice: str = ""
    failed: str = ""

    @property
    def varies(self) -> bool:
        return self.off is not None and self.off.distinct > 1

    @property
    def varies_under_flag(self) -> bool:
        return self.on is not None and self.on.distinct > 1

    @property
    def without(self) -> str:
        """Such as "17 answers in 20 runs"."""
        return answers(self.off) if self.off else "did not run"

    @property
    def under_flag(self) -> str:
        """Such as "raises: put_"."""
        if self.kernel:
            return f"raises: {self.kernel}"
        return answers(self.on) if self.on else "did not run"

    @property
    def costs(self) -> str:
        """The price in words."""
        if self.price is None:
            return "–"
        return f"{self.price:.2g} ×" if self.priced else "no difference seen"

    @property
    def listed(self) -> str:
        """What the documentation says for this device, in a few words."""
        here = {entry.listed for entry in self.documented if entry.here(self.device)}
        if here:
            words = {"switches": "repeats", "raises": "raises", "fills": "fills memory"}
            return " and ".join(words[listed] for listed in words if listed in here)
        others = _devices(self.documented)
        return f"{others} only" if others else "not listed"

    @property
    def interesting(self) -> bool:
        """Whether it varies, raises, did not run, or the documentation is wrong, has a gap, or can't be read."""
        return bool(
            self.varies
            or self.varies_under_flag
            or self.kernel
            or self.failed
            or self.agreement in ("wrong", "missing", "cannot be read")
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "op": self.op,
            "group": self.group,
            "line": self.line,
            "device": self.device,
            "without": _counts(self.off),
            "under_flag": _counts(self.on) or ({"raises": self.kernel} if self.kernel else None),
            "price": self.price,
            "priced": self.priced,
            "documented": [
                {"listed": e.listed, "text": e.text, "devices": sorted(e.devices)} for e in self.documented
            ],
            "agreement": self.agreement,
            "says": self.says,
            "advice": self.advice,
            "failed": self.failed,
            "source": dataclasses.asdict(self.off.source) if self.off else None,
        }


@dataclass(frozen=True)
class Atlas:
    """The rows of one sweep, in the order of the ops; `cancelled` if there would have been more."""

    rows: tuple[Row, ...]
    documentation: Documentation
    device: str
    asked: int
    cancelled: bool = False

    def __getitem__(self, name: str) -> Row:
        for row in self.rows:
            if row.op == name:
                return row
        raise BadSetting(f"This atlas has no op {name!r}. {nearest(name, [row.op for row in self.rows])}")

    @property
    def varying(self) -> list[str]:
        return [row.op for row in self.rows if row.varies]

    @property
    def varying_under_flag(self) -> list[str]:
        return [row.op for row in self.rows if row.varies_under_flag]

    @property
    def raising(self) -> list[str]:
        return [row.op for row in self.rows if row.kernel]

    @property
    def wrong(self) -> list[str]:
        """Ops of which the documentation says something else than was measured."""
        return [row.op for row in self.rows if row.agreement == "wrong"]

    @property
    def missing(self) -> list[str]:
        """Ops that vary or raise here and that the documentation does not list for this device."""
        return [row.op for row in self.rows if row.agreement == "missing"]

    @property
    def source(self) -> Source | None:
        return next((row.off.source for row in self.rows if row.off), None)

    @property
    def summary(self) -> str:
        """The whole in a few sentences."""
        ran = [row for row in self.rows if row.off]
        parts = [
            f"{_number(len(ran), 'op')} on the {_device(self.device)}"
            + (f", of {self.asked}: cancelled" if self.cancelled else "")
            + f". Without the flag {_verb(len(self.varying), 'varies', 'vary')};"
            f" under it {_verb(len(self.raising), 'raises', 'raise')} and"
            f" {_verb(len(self.varying_under_flag), 'still varies', 'still vary')}."
        ]
        if self.documentation.problem:
            parts.append(self.documentation.problem)
        else:
            comparable = [row for row in ran if row.agreement in ("agrees", "wrong", "missing")]
            agrees = sum(row.agreement == "agrees" for row in comparable)
            if comparable:
                parts.append(
                    f"Of {_number(len(comparable), 'op')} that the documentation can be compared for, it agrees for"
                    f" {agrees or 'none'}, is wrong for {len(self.wrong) or 'none'} and misses"
                    f" {len(self.missing) or 'none'}."
                )
        switched = [row for row in ran if row.varies and row.on and row.priced]
        faster = [row for row in switched if row.price < 1]
        if self.documentation.slower and faster:
            verb = "is" if len(faster) == 1 else "are"
            which = (
                f"{len(faster)} of the {len(switched)} ops that vary and whose time the flag changes {verb}"
            )
            if len(switched) == 1:
                which = "the one op that varies and whose time the flag changes is"
            parts.append(
                "It also says that deterministic operations tend to have worse performance; here"
                f" {which} faster under it."
            )
        dearer = sum(row.priced and row.price > 1 and not row.varies for row in ran)
        if dearer:
            parts.append(
                f"{_number(dearer, 'op')} that did not vary {'is' if dearer == 1 else 'are'} slower under it too:"
                " the flag also fills new memory."
            )
        failed = len(self.rows) - len(ran)
        if failed:
            parts.append(f"{_number(failed, 'op')} could not run here.")
        return " ".join(parts)

    @property
    def advice(self) -> list[tuple[str, list[str]]]:
        """(advice, names of the ops that it is for), in the order of the rows; what has nothing to do last."""
        groups: dict[str, list[str]] = {}
        for row in self.rows:
            if row.advice:
                groups.setdefault(row.advice, []).append(row.op)
        return sorted(groups.items(), key=lambda group: group[0].startswith("Nothing"))

    def __str__(self) -> str:
        lines = list(itertools.chain.from_iterable(table_lines(self.rows)))
        return "\n".join([*lines, *self.ending()])

    def ending(self) -> list[str]:
        """What follows the table on a terminal: the documentation's faults, the advice, the summary."""
        lines: list[str] = []
        marked = [row for row in self.rows if row.agreement in ("wrong", "missing", "cannot be read")]
        if marked and not self.documentation.problem:
            lines += ["", "The documentation"]
            lines += [
                _wrapped(f"{row.op}: {'WRONG' if row.agreement == 'wrong' else row.agreement}. {row.says}")
                for row in marked
            ]
        if self.raising:
            lines += ["", "Errors under the flag, and the kernel that each names"]
            lines += [f"  {name:40} {self[name].kernel}" for name in self.raising]
        lines += ["", "Advice"]
        lines += [_wrapped(f"{', '.join(names)}: {advice}") for advice, names in self.advice]
        lines += ["", textwrap.fill(self.summary, 100)]
        if self.source:
            lines.append(f"{self.source.kind} · {self.source.where} · {self.source.date[:10]}")
        return lines

    def to_json(self) -> dict[str, Any]:
        return {
            "device": self.device,
            "cancelled": self.cancelled,
            "summary": self.summary,
            "documentation": {
                "problem": self.documentation.problem,
                "entries": len(self.documentation.entries),
            },
            "rows": [row.to_json() for row in self.rows],
            "advice": [{"advice": advice, "ops": names} for advice, names in self.advice],
        }


def answers(runs: Runs) -> str:
    """Such as "1 answer in 20 runs"."""
    return f"{_number(runs.distinct, 'answer')} in {_number(len(runs.observations), 'run')}"


def table_lines(rows: Iterable[Row]) -> Iterable[list[str]]:
    """The lines of the table that each row adds: a head before the first, its group where a new one begins."""
    group = None
    for number, row in enumerate(rows):
        lines = [] if number else list(_HEAD)
        if row.group != group:
            group = row.group
            lines.append(group)
        if row.failed:
            lines.append(f"  {row.op:40} {row.failed}")
        else:
            agreement = {"agrees": "agrees", "wrong": "WRONG", "missing": "MISSING"}.get(row.agreement, "")
            said = " · ".join(filter(None, (row.listed, agreement)))
            under = "raises" if row.kernel else _of(row.on)
            price = row.costs if row.priced else "" if row.price is None else "≈ 1"
            lines.append(_columns(f"  {row.op}", _of(row.off), under, price, said))
        yield lines


def _columns(name: str, without: str, under_flag: str, price: str, documentation: str) -> str:
    return f"{name:42} {without:12} {under_flag:12} {price:9} {documentation}"


_HEAD = (
    "Different answers of how many runs, without the flag and with it; price: time with it over time without",
    "",
    _columns("", "without", "with flag", "price", "documentation"),
)


def _of(runs: Runs | None) -> str:
    """Such as "17 of 20"."""
    return f"{runs.distinct:,} of {len(runs.observations):,}" if runs else ""


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 100, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _verb(count: int, one: str, several: str) -> str:
    return f"{count or 'none'} {one if count <= 1 else several}"


def _device(device: str) -> str:
    return {"cpu": "CPU", "cuda": "GPU"}.get(device, device)


def _devices(entries: Iterable[Entry]) -> str:
    """Such as "CUDA and MPS"."""
    named = {device for entry in entries for device in entry.devices}
    return " and ".join(device for device in DEVICES if device in named)


def _counts(runs: Runs | None) -> dict[str, Any] | None:
    if runs is None:
        return None
    return {
        "distinct": runs.distinct,
        "runs": len(runs.observations),
        "verdict": runs.verdict.kind,
        "sentence": runs.verdict.sentence,
        "median_seconds": statistics.median(runs.seconds),
    }


# --------------------------------------------------------------------------------------- the verdicts


def judge(row: Row, op: Op, documentation: Documentation) -> Row:
    """`row`, which has been measured, with what the documentation says of it and what to do."""
    about = documentation.about(op)
    row = dataclasses.replace(row, documented=about)
    if row.failed:
        return row
    agreement, says = _compared(row, documentation)
    row = dataclasses.replace(row, agreement=agreement, says=says)
    return dataclasses.replace(row, advice=_advice(row, op, can_race(op, row.device, documentation)))


def can_race(op: Op, device: str, documentation: Documentation) -> bool:
    """Whether it's known to vary on this device, or the documentation calls it "normally-nondeterministic"."""
    return device in op.races or any(entry.here(device) for entry in documentation.about(op))


def _compared(row: Row, documentation: Documentation) -> tuple[str, str]:
    """(agreement, the sentence that says it)."""
    if documentation.problem:
        return "cannot be read", documentation.problem
    here = [entry for entry in row.documented if entry.here(row.device)]
    unread = [entry for entry in here if entry.unread]
    if unread:
        return "cannot be read", f"“{unread[0].text}” has words that this atlas does not know."
    listed = {entry.listed for entry in here}
    nameless = [entry for entry in documentation.entries if not entry.names]
    if nameless and not here:
        return "cannot be read", f"One line of its lists could not be read: “{nameless[0].text}”."
    if listed == {"switches", "raises"}:
        return "wrong", "It lists this among what repeats, and among what raises."
    enough = row.kernel or row.varies_under_flag or (row.on and row.on.verdict.kind == "same")
    if here and not enough:
        return "nothing to compare", "There were too few runs under the flag to compare it with."
    if "raises" in listed:
        if row.kernel:
            return "agrees", f"It says that this raises, and it does; the error names {row.kernel}."
        return "wrong", f"It says that this raises; it does not: {row.under_flag} under the flag."
    if listed:
        says = "It says that the flag fills this memory" if "fills" in listed else "It says that this repeats"
        if row.kernel:
            return "wrong", f"{says} under the flag; it raises, and the error names {row.kernel}."
        if row.varies_under_flag:
            return "wrong", f"{says} under the flag; it varies: {row.under_flag}."
        if row.varies:
            return "agrees", f"{says} under the flag, and it does; without it: {row.without}."
        return "agrees", f"{says} under the flag, and it does; it was not seen to vary without it either."
    others = _devices(row.documented)
    unlisted = f"it speaks of {others} only" if others else "neither of its lists names it"
    if row.kernel:
        return "missing", f"It raises, and the error names {row.kernel}, but {unlisted}."
    if row.varies_under_flag:
        return "missing", f"It varies even under the flag, {row.under_flag}, but {unlisted}."
    if row.varies:
        return "missing", f"It varies without the flag, {row.without}, and repeats under it, but {unlisted}."
    return "nothing to compare", f"{unlisted[0].upper()}{unlisted[1:]}, and nothing was seen here."


def _advice(row: Row, op: Op, known: bool) -> str:
    runs = f"{len(row.off.observations):,} runs"
    if row.varies_under_flag:
        return f"The flag does not cover it: {op.instead or 'keep it out of what must repeat.'}"
    if row.kernel:
        way = op.instead or "leave the flag off for this line."
        if row.varies:
            return f"It varies, and the flag refuses it: {way}"
        return f"The flag refuses it, though it was not seen to vary: {way}"
    if op.name == "empty":
        return "Write before you read. The flag fills the memory, which hides the mistake."
    if row.varies and row.priced:
        times = "faster" if row.price < 1 else "slower"
        return f"Turn the flag on: it repeats, and is {times} here."
    if row.varies:
        return "Turn the flag on: it repeats, and costs nothing that was seen here."
    if row.device in op.races:
        return f"Known to vary, though not seen to in {runs}: leave the flag on."
    if known:
        return f"Not seen to vary in {runs}, though the documentation lists it: leave the flag on."
    elsewhere = sorted({entry.listed for entry in row.documented if entry.listed in ("switches", "raises")})
    others = _devices(row.documented)
    if row.device == "cpu" and elsewhere and others:
        does = " and ".join(
            {"switches": "repeats only under the flag", "raises": "raises under the flag"}[e]
            for e in elsewhere
        )
        return f"Nothing to do on the CPU; on {others}, the documentation says, it {does}."
    return "Nothing to do: it was not seen to vary."


# ------------------------------------------------------------------------------------------ the sweep


def chosen(names: Iterable[str] | None, ops: Sequence[Op] = OPS) -> list[Op]:
    """The ops of these names and groups, in the order of the atlas; all where there are none.

    Raises BadSetting, with the nearest name, for one that does not exist.
    """
    if isinstance(names, str):
        names = [names]
    names = list(names or [])
    known = [*(op.name for op in ops), *dict.fromkeys(op.group for op in ops)]
    for name in names:
        if name not in known:
            hint = nearest(name, known)
            hint = hint if hint.startswith("Did") else f"Its groups: {', '.join(GROUPS)}."
            raise BadSetting(f"The atlas has no op and no group {name!r}. {hint}")
    return [op for op in ops if not names or op.name in names or op.group in names]


def check_budget(budget: Any) -> None:
    """Raises BadSetting for what is no number of seconds: nothing, or without an end, where an op never varies."""
    if not isinstance(budget, int | float) or not 0 < budget < math.inf:
        raise BadSetting(f"The atlas needs a budget of more than 0 seconds, and an end; not {budget!r}.")


def sweep(
    names: Iterable[str] | None = None,
    *,
    device: str = "auto",
    budget: float = BUDGET,
    on_start: Callable[[Op], None] = lambda op: None,
    on_row: Callable[[Row], None] = lambda row: None,
    on_wait: Callable[[str], None] = lambda sentence: None,
    cancel: threading.Event | None = None,
    experiment: str = "atlas-op",
    ops: Sequence[Op] = OPS,
) -> Atlas:
    """Measure these ops (names and groups; all where there are none) on "cpu", "cuda" or "auto".

    budget      seconds of looking for a difference, for each op that can race and was not seen to
    on_start    called with each op before it's measured, on_row with its row
    on_wait     called with a sentence while a worker starts or other runs have the card
    cancel      set it from another thread to end the sweep; the ops that were measured until then are kept
    experiment  the experiment over `ops`, for tests with ops of their own

    An op that cannot run here gets a row that says so. Raises BadSetting for a name that does not exist or a budget
    that is none, and RunFailed, in one sentence, if nothing can be measured.
    """
    wanted = chosen(names, ops)
    check_budget(budget)
    cancel = cancel or threading.Event()
    told = _told(wanted[0], experiment, device, on_wait, cancel)
    documentation = read_documentation(told["text"])
    rows: list[Row] = []
    for op in wanted:
        if cancel.is_set():
            break
        on_start(op)
        measure = _Measurement(op, experiment, told["device"], cancel, on_wait)
        row = measure.row(budget if can_race(op, told["device"], documentation) else 0)
        if cancel.is_set():
            break  # half measured
        rows.append(judge(row, op, documentation))
        _give_up(rows)
        on_row(rows[-1])
    if not rows:
        raise runner.RunFailed(_NOTHING)
    return Atlas(tuple(rows), documentation, told["device"], len(wanted), len(rows) < len(wanted))


_NOTHING = "The atlas was cancelled before its first op was measured."


def _told(
    op: Op, experiment: str, device: str, on_wait: Callable[[str], None], cancel: threading.Event
) -> dict:
    """What the worker says of the documentation and the device."""
    settings = {"op": op.name, "device": device}
    # A call cannot be cancelled, and the first one would wait for PyTorch to be imported; a run can.
    with contextlib.suppress(runner.RunFailed):
        runner.run(experiment, settings, repeats=1, on_wait=on_wait, cancel=cancel)
    if cancel.is_set():
        raise runner.RunFailed(_NOTHING)
    function = "samebits.experiments.atlas_ops:documentation"
    return runner.call(function, {"device": device}, framework="torch", seconds=runner.PATIENCE)


def _give_up(rows: Sequence[Row]) -> None:
    """Three ops in succession that fail with the same sentence: it's not the ops."""
    last = {row.failed for row in rows[-3:]}
    if len(rows) >= 3 and len(last) == 1 and "" not in last:
        raise runner.RunFailed(last.pop())


_ALERT = re.compile(r"(?:RuntimeError: )?(\S.*?) does not have a deterministic implementation")


@dataclass
class _Measurement:
    """One op being measured: blocks of runs without and with the flag."""

    op: Op
    experiment: str
    device: str
    cancel: threading.Event
    on_wait: Callable[[str], None]

    def row(self, budget: float) -> Row:
        """The op's row without the documentation; half of it where `cancel` was set."""
        row = Row(self.op.name, self.op.group, self.op.line, self.device)
        blocks: dict[bool, list[Runs]] = {False: [], True: []}
        try:
            for flag, repeats in TURNS:
                if flag and row.kernel:
                    continue
                try:
                    blocks[flag].append(self._runs(flag, repeats, BLOCK_SECONDS))
                except runner.RunFailed as error:
                    alert = _ALERT.search(str(error).removeprefix("The run stopped with "))
                    if not flag or not alert:
                        raise
                    row = dataclasses.replace(row, kernel=alert[1])
            off, on = _joined(blocks[False]), _joined(blocks[True])
            price, priced = (None, False) if row.kernel else _price(off, on)
            if budget and off.distinct == 1 and not self.cancel.is_set():
                off = _joined([off, self._runs(False, 1, budget, until_different=True)])
        except runner.RunFailed as error:
            return dataclasses.replace(row, kernel="", failed=str(error))
        return dataclasses.replace(row, off=off, on=on, price=price, priced=priced)

    def _runs(self, flag: bool, repeats: int, budget: float, until_different: bool = False) -> Runs:
        settings: Mapping[str, Any] = {"op": self.op.name, "deterministic": flag, "device": self.device}
        return runner.run(
            self.experiment,
            settings,
            repeats=repeats,
            budget=budget,
            until_different=until_different,
            on_wait=self.on_wait,
            cancel=self.cancel,
        )


def _joined(blocks: Sequence[Runs]) -> Runs | None:
    if not blocks:
        return None
    observations = tuple(itertools.chain.from_iterable(block.observations for block in blocks))
    return dataclasses.replace(blocks[0], observations=observations)


def _price(off: Runs, on: Runs) -> tuple[float, bool]:
    """(median with the flag over median without, whether the middle halves of the two are apart)."""
    without, under = (statistics.quantiles(runs.seconds, n=4) for runs in (off, on))
    return under[1] / without[1], under[0] > without[2] or under[2] < without[0]
