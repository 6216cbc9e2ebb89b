"""python -m samebits …: the course's experiments without notebooks."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import runpy
import sys
import traceback
from pathlib import Path

from samebits.experiment import BadSetting, Experiment, Observation, Runs, nearest

RECORDED_RUNS = 100


def main(arguments: list[str] | None = None) -> int:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # an ASCII terminal shows "?" for a "·"
    options = _parser().parse_args(arguments)
    from samebits.runner import RunFailed

    try:
        code = options.command(options)
        if sys.stdout:
            sys.stdout.flush()
        return code
    except (BadSetting, RunFailed) as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        _drop_output()  # `| head` has read enough
        return 1
    except OSError as error:
        _drop_output()
        print(f"The output could not be written ({error.strerror}).", file=sys.stderr)
        return 1


def _drop_output() -> None:
    """Python would complain once more when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m samebits", description="The course's experiments without notebooks."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    listing = commands.add_parser("list", help="the experiments and their knobs")
    listing.set_defaults(command=_list)

    run = commands.add_parser("run", help="run one experiment")
    run.add_argument("name", metavar="NAME")
    run.add_argument("--set", dest="settings", nargs="+", action="extend", default=[], metavar="knob=value")
    run.add_argument("--repeats", type=int, help="how many runs (default: the experiment's own)")
    run.add_argument(
        "--budget", type=float, default=60.0, metavar="SECONDS", help="end after this time (default 60)"
    )
    run.add_argument(
        "--until-different", action="store_true", help="go on until two runs differ or the budget ends"
    )
    run.add_argument("--json", action="store_true", help="print everything as JSON")
    run.set_defaults(command=_run)

    record = commands.add_parser("record", help="record experiments on an NVIDIA GPU")
    record.add_argument("names", nargs="+", metavar="NAME")
    record.add_argument("--out", type=_writable, required=True, metavar="FILE")
    record.set_defaults(command=_record)

    claims = commands.add_parser("claims", help="check the course's statements against what is installed")
    one = claims.add_mutually_exclusive_group()
    one.add_argument("--chapter", metavar="NN", help="those of one chapter only")
    one.add_argument("--write", type=_writable, metavar="FILE", help="write the page of all of them")
    one.add_argument(
        "--record", type=_writable, metavar="FILE", help="on an NVIDIA GPU: record the claims that need one"
    )
    claims.set_defaults(command=_claims)

    atlas = commands.add_parser(
        "atlas", help="every op: what varies, what the flag does, what the documentation says"
    )
    atlas.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="(default auto)")
    atlas.add_argument(
        "--ops", nargs="+", action="extend", metavar="NAME", help="ops or groups (default: all)"
    )
    atlas.add_argument(
        "--budget", type=float, metavar="SECONDS", help="of looking, for ops that can race (default 3)"
    )
    atlas.add_argument("--json", action="store_true", help="print everything as JSON")
    atlas.add_argument("--list", action="store_true", help="only list the ops, by group")
    atlas.set_defaults(command=_atlas)

    recipe = commands.add_parser(
        "recipe", help="the lines that a program needs to repeat its bits here, and why"
    )
    recipe.add_argument(
        "--framework", choices=("torch", "tensorflow"), default="torch", help="(default torch)"
    )
    recipe.add_argument("--json", action="store_true", help="print everything as JSON")
    recipe.set_defaults(command=_recipe)

    trace = commands.add_parser(
        "trace", help="run a PyTorch program and write what its ops read and gave to a file"
    )
    trace.add_argument("--out", type=_writable, required=True, metavar="FILE")
    _flag_and_program(trace)
    trace.set_defaults(command=_trace)

    compare = commands.add_parser("compare", help="the first op in which two traces differ")
    compare.add_argument("traces", nargs=2, metavar="FILE")
    compare.add_argument("--json", action="store_true", help="print everything as JSON")
    compare.set_defaults(command=_compare)

    diverge = commands.add_parser(
        "diverge", help="run a PyTorch program in fresh processes until two runs part, and say at which op"
    )
    diverge.add_argument("--runs", type=int, metavar="N", help="at most this many (default 5)")
    diverge.add_argument(
        "--budget",
        type=float,
        metavar="SECONDS",
        help="begin no run that ends after this time (default 120)",
    )
    diverge.add_argument(
        "--second",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an environment variable of all runs but the first, to compare two settings; may be repeated",
    )
    diverge.add_argument("--keep", metavar="FOLDER", help="keep the trace files there")
    diverge.add_argument("--no-fix", action="store_true", help="don't try the deterministic flag")
    diverge.add_argument("--json", action="store_true", help="print everything as JSON")
    _flag_and_program(diverge)
    diverge.set_defaults(command=_diverge)

    doctor = commands.add_parser("doctor", help="what this machine can show")
    doctor.set_defaults(command=_doctor)
    return parser


def _flag_and_program(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--deterministic",
        action="store_true",
        help="turn the deterministic flag on before the program begins",
    )
    parser.add_argument("program", metavar="PROGRAM.py")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="the program's own")


def _writable(word: str) -> Path:
    """A file that can be written, found out before hours of recording."""
    path = Path(word)
    target = path if path.exists() else path.absolute().parent
    if path.is_dir() or not path.absolute().parent.is_dir() or not os.access(target, os.W_OK):
        raise argparse.ArgumentTypeError(f"{word} is no file in a folder that can be written.")
    return path


def _list(options: argparse.Namespace) -> int:
    from samebits import experiments

    for name in experiments.names():
        experiment = experiments.find(name)
        print(f"{name}: {experiment.question}")
        for knob in experiment.knobs:
            values = (
                "true, false"
                if knob.kind == "toggle"
                else ", ".join(knob.choices) or f"{knob.low} to {knob.high}"
            )
            default = str(knob.default).lower() if knob.kind == "toggle" else knob.default
            process = "; needs a fresh process" if knob.scope == "process" else ""
            print(f"    {knob.name}={default}    {knob.help} ({values}{process})")
    return 0


def settings_from(words: list[str], experiment: Experiment) -> dict:
    """{knob: value} from "knob=value" words, checked. Raises BadSetting."""
    asked = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            names = [knob.name for knob in experiment.knobs]
            such_as = f", such as {name}={experiment.knob(name).default}" if name in names else ""
            hint = "" if name in names else f" {nearest(name, names)}"
            raise BadSetting(f"--set needs knob=value{such_as}, not {word!r}.{hint}")
        asked[name] = value
    return experiment.settings(**asked)


def _run(options: argparse.Namespace) -> int:
    from samebits import experiments, runner, variability

    experiment = experiments.find(options.name)
    settings = settings_from(options.settings, experiment)
    shown = _Counter() if sys.stderr and sys.stderr.isatty() and not options.json else None
    runs = runner.run(
        options.name,
        settings,
        repeats=options.repeats,
        budget=options.budget,
        until_different=options.until_different,
        on_observation=shown or (lambda observation: None),
        on_wait=shown.wait if shown else (lambda sentence: None),
    )
    if shown:
        shown.clear()
    if options.json:
        print(json.dumps(runs.to_json(), indent=1))
        return 0
    letters = variability.letters(runs.fingerprints)
    print(" ".join(letters[:60]) + (" …" if len(letters) > 60 else ""))
    print(runs.verdict.sentence)
    if runs.reported:
        print(f"reported: {runs.reported}")
    if summary := experiment.summary(runs):
        print(summary)
    print(
        f"{runs.source.kind} · {runs.source.where} · seen: {', '.join(f'{k}={v}' for k, v in runs.seen.items())}"
    )
    return 0


class _Counter:
    """A line on a terminal that counts the runs, under what there is to wait for."""

    def __init__(self):
        self.done = 0
        self.said = ""

    def __call__(self, observation: Observation) -> None:
        self.done += 1
        print(f"\r{self.done} runs", end="", file=sys.stderr, flush=True)

    def wait(self, sentence: str) -> None:
        if sentence != self.said:  # a place in a queue is told again and again
            print(f"\r{sentence}", file=sys.stderr, flush=True)
        self.said = sentence

    def clear(self) -> None:
        print("\r" + " " * 30 + "\r", end="", file=sys.stderr, flush=True)


def _record(options: argparse.Namespace) -> int:
    from samebits import machine, runner

    if machine.cuda_device_count() == 0:
        print(
            "A recording needs an NVIDIA GPU, and none is visible here. Nothing was written.", file=sys.stderr
        )
        return 2
    planned = [(name, settings) for name in options.names for settings in _recordings(name)]
    command = " ".join(["python -m samebits record", *options.names])
    recorded: list[dict] = []
    for name, settings in planned:
        runs = runner.run(name, settings, repeats=RECORDED_RUNS)
        recorded.append(_as_recording(runs, command).to_json())
        options.out.write_text(
            json.dumps(recorded, indent=1) + "\n", encoding="utf-8"
        )  # nothing made is lost
        print(f"{name} {settings}: {runs.verdict.sentence}", flush=True)
    return 0


def _recordings(name: str) -> list[dict]:
    """The settings under which an experiment is recorded, checked before anything runs. Raises BadSetting."""
    from samebits import experiments

    experiment = experiments.find(name)
    if not experiment.recordings:
        raise BadSetting(f"{name} has nothing that only a GPU can show, so it is not recorded.")
    on_gpu = {"device": "cuda"} if any(knob.name == "device" for knob in experiment.knobs) else {}
    return [experiment.settings(**(dict(settings) | on_gpu)) for settings in experiment.recordings]


def _as_recording(runs: Runs, command: str) -> Runs:
    if runs.source.kind != "LIVE":
        raise BadSetting(
            f"Only what a GPU measured can be recorded, and {runs.experiment} gave a {runs.source.kind} result."
        )
    return dataclasses.replace(runs, source=dataclasses.replace(runs.source, kind="RECORDED", why=command))


def _claims(options: argparse.Namespace) -> int:
    from samebits import claims, course

    def say(claim: claims.Claim, evidence: claims.Evidence) -> None:
        print(f"{claim.id}: {evidence.words}", flush=True)

    numbers = [chapter.number for chapter in course.CHAPTERS]
    if options.chapter not in (None, *numbers):
        raise BadSetting(f"There is no chapter {options.chapter!r}. {nearest(options.chapter, numbers)}")
    try:
        asked = claims.of_chapter(options.chapter) if options.chapter else claims.everything()
    except claims.Malformed as error:
        raise BadSetting(str(error)) from error
    if options.record:
        try:
            print(f"Recorded: {claims.record(options.record, say)} claims.")
        except RuntimeError as error:
            print(error, file=sys.stderr)
            return 2
        return 0
    found = []
    for claim in asked:
        found.append((claim, claims.verify(claim)))
        say(*found[-1])
    defects = [claims.sentence_to_mend(*pair) for pair in found if pair[1].status in claims.DEFECTS]
    print("\n".join([claims.counted(found), *defects]), flush=True)
    if options.write:
        try:
            options.write.write_text(claims.status_page(found), encoding="utf-8")
        except OSError as error:
            print(f"{options.write} could not be written ({error.strerror}).", file=sys.stderr)
            return 1
    return 1 if defects else 0


def _atlas(options: argparse.Namespace) -> int:
    from samebits import atlas

    wanted = atlas.chosen(options.ops)
    if options.list:
        for group, ops in itertools.groupby(wanted, lambda op: op.group):
            print(group)
            for op in ops:
                print(f"  {op.name:36} {op.line}")
        return 0
    progress = _Progress(len(wanted)) if sys.stderr and sys.stderr.isatty() and not options.json else None
    rows: list[atlas.Row] = []

    def show(row: atlas.Row) -> None:
        rows.append(row)
        if progress:
            progress.clear()
        if not options.json:
            print("\n".join(list(atlas.table_lines(rows))[-1]), flush=True)

    found = atlas.sweep(
        options.ops,
        device=options.device,
        budget=atlas.BUDGET if options.budget is None else options.budget,
        on_start=(lambda op: progress(op.name)) if progress else (lambda op: None),
        on_row=show,
        on_wait=progress.wait if progress else (lambda sentence: None),
    )
    print(json.dumps(found.to_json(), indent=1) if options.json else "\n".join(found.ending()))
    return 0


class _Progress:
    """A line on a terminal that says which of how many comes now."""

    def __init__(self, all_: int):
        self._all = all_
        self._done = 0

    def __call__(self, name: str) -> None:
        self.clear()
        self._done += 1
        print(f"\r{self._done} of {self._all}: {name}", end="", file=sys.stderr, flush=True)

    def wait(self, sentence: str) -> None:
        if not self._done:
            print(f"\r{sentence}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        print("\r" + " " * 60 + "\r", end="", file=sys.stderr, flush=True)


def _recipe(options: argparse.Namespace) -> int:
    from samebits.recipe import recipe

    found = recipe(options.framework)
    print(json.dumps(found.to_json(), indent=1) if options.json else found)
    return 0


def _trace(options: argparse.Namespace) -> int:
    from samebits.trace import Unwritable, recording

    program = Path(options.program)
    if not program.is_file():
        raise BadSetting(f"There is no program {program}. Give the path of a Python file.")
    if options.deterministic:
        import torch

        torch.use_deterministic_algorithms(True)
    # As Python itself starts a program.
    sys.argv = [options.program, *options.arguments]
    if not sys.flags.safe_path:
        sys.path[0] = str(program.resolve().parent)
    try:
        with recording(options.out):
            runpy.run_path(options.program, run_name="__main__")
    except SystemExit as end:
        return _exit_code(end)
    except Unwritable as error:
        print(error, file=sys.stderr)
        return 1
    except Exception as error:  # the program's own: shown as if we weren't there
        print(_own_traceback(error), end="", file=sys.stderr)
        return 1
    return 0


def _own_traceback(error: BaseException) -> str:
    """Without the frames that run a program, those that record its ops, and PyTorch's around these."""
    import torch

    from samebits import trace

    library = os.path.dirname(torch.__file__)
    wrappers = tuple(
        os.path.join(library, *path) for path in (("_compile.py",), ("_dynamo", "eval_frame.py"))
    )

    def own(stack: traceback.StackSummary) -> list[traceback.FrameSummary]:
        kept: list[traceback.FrameSummary] = []
        recording = False
        for frame in stack:
            if frame.filename == trace.__file__:
                recording = True
                while kept and kept[-1].filename in wrappers:
                    kept.pop()
            elif not recording or not frame.filename.startswith(library):
                recording = False
                if frame.filename not in (__file__, runpy.__file__, "<frozen runpy>"):
                    kept.append(frame)
        return kept

    shown = traceback.TracebackException.from_exception(error)
    rest = [shown]
    while rest:
        one = rest.pop()
        one.stack = traceback.StackSummary.from_list(own(one.stack))
        rest += [chained for chained in (one.__cause__, one.__context__) if chained]
        rest += getattr(one, "exceptions", None) or []
    return "".join(shown.format())


def _exit_code(end: SystemExit) -> int:
    """As Python takes sys.exit's argument: None is success, a number is the code, anything else is printed."""
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    return 1


def _compare(options: argparse.Namespace) -> int:
    from samebits import trace

    try:
        found = trace.compare(*options.traces)
    except trace.Unreadable as error:
        raise BadSetting(str(error)) from error
    print(json.dumps(found.to_json(), indent=1) if options.json else found)
    return 0 if found.kind == "none" else 1


def _diverge(options: argparse.Namespace) -> int:
    from samebits import diverge

    second = {}
    for word in options.second:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise BadSetting(f"--second needs NAME=VALUE, not {word!r}.")
        second[name] = value

    def say(run: int, flag: bool) -> None:
        if sys.stderr and sys.stderr.isatty() and not options.json:
            print(diverge.begins(run, flag), file=sys.stderr, flush=True)

    try:
        found = diverge.diverge(
            options.program,
            options.arguments,
            runs=diverge.RUNS if options.runs is None else options.runs,
            budget=diverge.BUDGET if options.budget is None else options.budget,
            second=second,
            flag=options.deterministic,
            try_flag=not options.no_fix,
            keep=options.keep,
            on_run=say,
        )
    except diverge.ProgramFailed as error:
        print(error, error.output, sep="\n" if error.output else "", file=sys.stderr)
        return 2
    print(json.dumps(found.to_json(), indent=1) if options.json else found)
    return 0 if found.divergence.kind == "none" else 1


def _doctor(options: argparse.Namespace) -> int:
    from samebits import machine

    return machine.main()


if __name__ == "__main__":
    sys.exit(main())
