"""The op atlas: its list, what it reads of the documentation, what it concludes, and what it measures."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from samebits import atlas, cli, runner
from samebits.atlas import Documentation, Entry, Row, judge, read_documentation
from samebits.experiment import BadSetting, Observation, Runs, Source
from samebits.experiments.atlas_ops import GROUPS, OPS, Op

sys.path.insert(0, str(Path(__file__).parent))
import planted_atlas


@pytest.fixture(autouse=True, scope="module")
def end_workers():
    yield
    runner.close()


@dataclass(frozen=True)
class Swept:
    """One sweep over planted ops, cancelled while the last of them was measured."""

    found: atlas.Atlas
    told: list  # names and rows, in the order in which they were told
    seconds: float  # from cancelling to the end


@pytest.fixture(scope="module")
def swept() -> Swept:
    """Once for the whole file: a test has an environment of its own, and so a worker of its own."""
    cancel, cancelled, told = threading.Event(), [], []

    def start(each):
        told.append(each.name)
        if each.name == "slow":
            threading.Timer(0.4, lambda: (cancelled.append(time.monotonic()), cancel.set())).start()

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        found = atlas.sweep(
            ["planted", "unseen", "gone-1", "slow"],
            device="cpu",
            budget=0.4,
            on_start=start,
            on_row=told.append,
            cancel=cancel,
            experiment="planted_atlas:PLANTED",
            ops=planted_atlas.OPS,
        )
    return Swept(found, told, time.monotonic() - cancelled[0])


def op(name: str) -> Op:
    return next(op for op in OPS if op.name == name)


# ------------------------------------------------------------------------------------------ the list


def test_names_are_unique_and_none_is_also_a_group():
    names = [op.name for op in OPS]
    assert len(names) == len(set(names)) >= 60
    assert not set(names) & set(GROUPS)
    assert [group for group, _ in itertools.groupby(op.group for op in OPS)] == list(GROUPS)


def test_lines_are_python_over_the_inputs():
    for each in OPS:
        compile(each.line, each.name, "eval")


def test_an_unknown_op_is_refused_with_the_nearest_name():
    with pytest.raises(BadSetting, match="Did you mean take-backward"):
        atlas.chosen(["take-bakward"])
    with pytest.raises(BadSetting, match="Its groups: scattering"):
        atlas.chosen(["qqqq"])
    assert [each.name for each in atlas.chosen(["memory", "put"])] == ["put", "empty", "resize-quantized"]
    assert atlas.chosen(None) == list(OPS)


# ------------------------------------------------------------------------------- the documentation

OLD = """
    Sets whether operations must be repeatable.

    The following normally-nondeterministic operations will act
    deterministically when ``mode=True``:

        * :class:`torch.nn.Conv2d` when called on CUDA tensor
        * :func:`torch.Tensor.__getitem__` when attempting to differentiate a CPU tensor
          and the index is a list of tensors
        * :func:`torch.Tensor.index_put` with ``accumulate=False``
        * :func:`torch.Tensor.scatter_reduce` when ``reduce='sum'`` or ``reduce='mean'`` and called on CUDA tensor

    The following normally-nondeterministic operations will throw a
    :class:`RuntimeError` when ``mode=True``:

        * :class:`torch.nn.MaxUnpool2d`
        * :func:`torch.nn.functional.interpolate` when attempting to differentiate a CUDA tensor
          and one of the following modes is used:

          - ``linear``
          - ``bicubic``

        * :func:`torch.kthvalue` with called on a CUDA tensor
        * :func:`torch.Tensor.put_` when ``accumulate=True`` and called on a CUDA tensor

    In addition, several operations fill uninitialized memory when this setting
    is turned on. See elsewhere.

    A handful of CUDA operations need a variable:

        * :func:`torch.mm`

    Note that deterministic operations tend to have worse performance than
    nondeterministic operations.
"""


def test_the_lists_are_read_with_their_conditions():
    read = read_documentation(OLD)
    assert read.problem == "" and read.slower
    by_name = {(entry.names[0], entry.listed): entry for entry in read.entries}
    assert len(by_name) == 9
    conv = by_name["torch.nn.Conv2d", "switches"]
    assert conv.devices == {"CUDA"} and not conv.gradient and not conv.unread
    getitem = by_name["torch.Tensor.__getitem__", "switches"]
    assert getitem.gradient and getitem.devices == {"CPU"} and getitem.needs == ({"tensor index"},)
    assert by_name["torch.Tensor.index_put", "switches"].devices == set()
    assert by_name["torch.Tensor.scatter_reduce", "switches"].needs == ({"reduce='sum'", "reduce='mean'"},)
    assert by_name["torch.nn.functional.interpolate", "raises"].needs == (
        {"mode='linear'", "mode='bicubic'"},
    )
    assert by_name["torch.kthvalue", "raises"].devices == {"CUDA"}
    assert by_name["torch.empty", "fills"].text.startswith("In addition, several operations fill")
    assert not any(entry.unread for entry in read.entries)
    assert ("torch.mm", "raises") not in by_name  # a third list, of something else


def test_newer_wording_with_other_devices_and_several_names():
    newer = OLD.replace(
        "        * :func:`torch.kthvalue` with called on a CUDA tensor\n",
        "        * :class:`torch.nn.MaxPool2d`, :func:`torch.nn.MaxPool3d`, and :func:`torch.nn.AvgPool3d`\n"
        "          when attempting to differentiate an MPS tensor\n"
        "        * :func:`torch.Tensor.scatter_reduce` when called on CUDA or MPS tensor\n"
        "        * :func:`torch.nn.functional.interpolate` when attempting to differentiate an MPS tensor\n"
        "          in some cases\n",
    )
    entries = read_documentation(newer).entries
    pools = next(entry for entry in entries if len(entry.names) == 3)
    assert pools.names[2] == "torch.nn.AvgPool3d" and pools.devices == {"MPS"} and pools.gradient
    assert any(entry.devices == {"CUDA", "MPS"} for entry in entries)
    vague = next(entry for entry in entries if entry.unread)
    assert vague.unread == "some cases" and not vague.here("cpu")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Sets whether operations must be repeatable.",
        OLD.replace("act\n    deterministically", "be\n    repeatable"),
        OLD.replace("throw a", "cause a"),
        OLD.replace("        * ", "        "),
        OLD + OLD,
    ],
)
def test_lists_that_are_not_where_they_were_cannot_be_read(text):
    read = read_documentation(text)
    assert read.entries == () and "not where they were" in read.problem
    row = judge(measured(1, 1), op("put-accumulate"), read)
    assert row.agreement == "cannot be read" and row.says == read.problem


def test_an_entry_with_unknown_words_is_not_guessed_at():
    read = read_documentation(
        OLD.replace(
            "called on CUDA tensor\n        * :func:`torch.Tensor.__",
            "called except on a CPU tensor\n        * :func:`torch.Tensor.__",
        )
    )
    conv = next(entry for entry in read.entries if "torch.nn.Conv2d" in entry.names)
    assert conv.unread == "except"
    assert judge(measured(1, 1), op("conv2d-backward"), read).agreement == "cannot be read"


def test_a_line_without_a_name_leaves_open_what_is_not_listed():
    read = read_documentation(OLD.replace(":class:`torch.nn.MaxUnpool2d`", "unpooling of any kind"))
    row = judge(measured(1, kernel="max_unpooling2d_forward_out"), op("max_unpool2d"), read)
    assert row.agreement == "cannot be read" and "unpooling of any kind" in row.says
    assert judge(measured(20, 1), op("index_put"), read).agreement == "agrees"


@pytest.fixture(scope="module")
def installed(swept) -> Documentation:
    return swept.found.documentation


def test_the_installed_documentation_can_be_read_and_each_entry_has_an_op(installed):
    assert installed.problem == ""
    assert len(installed.entries) > 40
    assert [entry.text for entry in installed.entries if entry.unread and entry.here("cpu")] == []
    here = [entry for entry in installed.entries if not entry.devices or entry.devices & {"CPU", "CUDA"}]
    assert [entry.text for entry in here if not any(entry.concerns(each) for each in OPS)] == []


# ------------------------------------------------------------------------------ what is concluded


def runs(distinct: int, count: int = 20, seconds: float = 0.001) -> Runs:
    observations = tuple(
        Observation(f"xxh3:{i % distinct}", "xxh3:input", seconds * (1 + i / 1000)) for i in range(count)
    )
    source = Source("LIVE", "a processor, 8 threads", {"torch": "2"}, "2026-01-01T00:00:00+00:00")
    return Runs("atlas-op", {}, {}, source, observations)


def measured(off: int, on: int | None = None, *, kernel: str = "", device: str = "cpu", **more) -> Row:
    return Row(
        "an op",
        "a group",
        "a line",
        device,
        off=runs(off),
        on=None if kernel else runs(on),
        kernel=kernel,
        **more,
    )


SWITCHES = Entry("switches", ("torch.Tensor.put_",), "put_ switches", frozenset({"CPU"}))
RAISES = Entry("raises", ("torch.Tensor.put_",), "put_ raises", frozenset({"CPU"}))
ELSEWHERE = Entry("raises", ("torch.Tensor.put_",), "put_ raises on CUDA", frozenset({"CUDA"}))


@pytest.mark.parametrize(
    ("entries", "row", "agreement", "says"),
    [
        ([SWITCHES], measured(20, 1), "agrees", "and it does; without it: 20 answers"),
        ([SWITCHES], measured(1, 1), "agrees", "not seen to vary without it"),
        ([SWITCHES], measured(20, 3), "wrong", "it varies: 3 answers in 20 runs"),
        ([SWITCHES], measured(20, kernel="put_"), "wrong", "it raises, and the error names put_"),
        ([RAISES], measured(20, kernel="put_"), "agrees", "the error names put_"),
        ([RAISES], measured(20, 1), "wrong", "it does not: 1 answer in 20 runs"),
        ([RAISES, SWITCHES], measured(20, 1), "wrong", "among what repeats, and among what raises"),
        ([ELSEWHERE], measured(1, 1), "nothing to compare", "speaks of CUDA only"),
        ([ELSEWHERE], measured(1, kernel="put_"), "missing", "speaks of CUDA only"),
        ([ELSEWHERE], measured(20, 1), "missing", "repeats under it"),
        ([], measured(1, 1), "nothing to compare", "Neither of its lists names it"),
        ([], measured(20, 1), "missing", "neither of its lists names it"),
        ([], measured(20, 2), "missing", "varies even under the flag, 2 answers"),
        ([], measured(1, kernel="put_"), "missing", "the error names put_"),
    ],
)
def test_documentation_is_held_against_what_was_measured(entries, row, agreement, says):
    judged = judge(row, op("put-accumulate"), Documentation(tuple(entries)))
    assert (judged.agreement, says in judged.says) == (agreement, True), judged.says
    assert judged.advice.endswith(".")


def test_few_runs_under_the_flag_are_no_agreement():
    row = dataclasses.replace(measured(20, 1), on=runs(1, count=5))
    assert judge(row, op("put-accumulate"), Documentation((SWITCHES,))).agreement == "nothing to compare"


def test_the_same_entry_is_judged_for_the_device_at_hand():
    read = Documentation((ELSEWHERE,))
    row = judge(measured(1, 1, device="cuda"), op("put-accumulate"), read)
    assert row.agreement == "wrong" and row.listed == "raises"
    assert judge(measured(1, 1), op("put-accumulate"), read).listed == "CUDA only"


@pytest.mark.parametrize(
    ("row", "advice"),
    [
        (measured(20, 1, price=0.2, priced=True), "it repeats, and is faster here"),
        (measured(20, 1, price=3.0, priced=True), "it repeats, and is slower here"),
        (measured(20, 1, price=1.1), "costs nothing that was seen"),
        (measured(20, 2), "The flag does not cover it"),
        (measured(20, kernel="put_"), "the flag refuses it: index_put with accumulate=True"),
        (measured(1, kernel="put_"), "though it was not seen to vary"),
        (measured(1, 1), "Known to vary, though not seen to in 20 runs"),
    ],
)
def test_advice_follows_from_what_was_measured(row, advice):
    assert advice in judge(row, op("put-accumulate"), Documentation((SWITCHES,))).advice


def test_an_op_that_is_not_seen_to_vary_needs_nothing_here():
    read = Documentation((Entry("switches", ("torch.gather",), "gather", frozenset({"CUDA"}), True),))
    assert "on CUDA, the documentation says" in judge(measured(1, 1), op("gather-backward"), read).advice
    assert judge(measured(1, 1), op("matmul"), read).advice.startswith("Nothing to do")


def test_a_price_is_told_only_where_the_two_are_apart():
    steady, slow = runs(1), runs(1, seconds=0.003)
    assert atlas._price(steady, slow) == (pytest.approx(3), True)
    price, priced = atlas._price(steady, runs(1, seconds=0.001005))
    assert price == pytest.approx(1.005) and not priced


def test_the_table_the_summary_and_the_json_tell_the_same():
    rows = (
        judge(measured(20, 1, price=0.2, priced=True), op("put-accumulate"), Documentation((SWITCHES,))),
        dataclasses.replace(judge(measured(3, kernel="k"), op("put"), Documentation()), op="other"),
        Row("third", "a group", "a line", "cpu", failed="It could not run."),
    )
    found = atlas.Atlas(rows, Documentation((SWITCHES,), slower=True), "cpu", 3)
    text = str(found)
    for words in (
        "20 of 20",
        "repeats · agrees",
        "not listed · MISSING",
        "0.2 ×",
        "It could not run.",
        "LIVE",
    ):
        assert words in text
    assert (
        "2 ops on the CPU. Without the flag 2 vary; under it 1 raises and none still varies." in found.summary
    )
    assert "the one op that varies and whose time the flag changes is faster" in found.summary
    assert "1 op could not run here" in found.summary
    data = json.loads(json.dumps(found.to_json()))
    assert data["rows"][1]["under_flag"] == {"raises": "k"} and data["rows"][0]["source"]["kind"] == "LIVE"
    assert found["other"].kernel == "k" and found.raising == ["other"] == found.missing
    with pytest.raises(BadSetting, match="Did you mean third"):
        found["thirt"]


def test_the_summary_compares_nothing_where_there_is_nothing_to_compare():
    rows = (judge(measured(1, 1), op("sum"), Documentation((SWITCHES,))),)
    assert "can be compared" not in atlas.Atlas(rows, Documentation((SWITCHES,)), "cpu", 1).summary


# ------------------------------------------------------------------------------- what is measured


def test_planted_faults_are_found(swept):
    found = swept.found
    assert found["steady"].off.verdict.kind == found["steady"].on.verdict.kind == "same"
    assert found["steady"].price > 0 and found["steady"].off.source.kind == "LIVE"
    varies = found["varies-always"]
    assert varies.varies_under_flag and varies.on.distinct == 20
    assert found.varying_under_flag == ["varies-always"]
    # The documentation lists what it calls itself here, put_ with accumulate=True, among what repeats.
    assert varies.agreement == "wrong" and "it varies: 20 answers" in varies.says
    raises = found["raises-under-flag"]
    assert raises.kernel == "planted_kernel_cuda" and raises.on is None and raises.price is None
    assert raises.agreement == "missing" and len(raises.off.observations) == 20


def test_an_op_that_can_race_is_repeated_before_it_is_called_unseen(swept):
    row = swept.found["races-unseen"]
    assert len(row.off.observations) > 20 and not row.varies
    assert "Known to vary, though not seen to" in row.advice


def test_an_op_that_cannot_run_has_a_row_that_says_so(swept):
    assert "no_such_function" in swept.found["gone-1"].failed
    assert "1 op could not run here." in swept.found.summary


def test_cancel_acts_within_a_second_and_keeps_whole_rows(swept):
    assert swept.seconds < 1
    names = ["steady", "varies-always", "raises-under-flag", "gone-1", "races-unseen"]
    assert [row.op for row in swept.found.rows] == names
    assert swept.found.cancelled and swept.found.asked == 6
    assert "of 6: cancelled" in swept.found.summary


def test_each_op_is_told_before_its_row(swept):
    rows = list(swept.found.rows)
    assert swept.told == [*itertools.chain.from_iterable((row.op, row) for row in rows), "slow"]


def test_when_nothing_can_run_the_sweep_says_so_once(monkeypatch):
    def run(*arguments, **more):
        raise runner.RunFailed("No worker process could be started.")

    monkeypatch.setattr(runner, "run", run)
    monkeypatch.setattr(runner, "call", lambda *arguments, **more: {"text": "", "device": "cpu"})
    told = []
    with pytest.raises(runner.RunFailed, match="No worker process"):
        atlas.sweep(on_start=told.append)
    assert len(told) == 3


def test_a_sweep_that_is_cancelled_at_once_is_one_sentence():
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(runner.RunFailed, match="cancelled before its first op"):
        atlas.sweep(["put"], cancel=cancel)


@pytest.mark.parametrize("budget", [0, -1, math.nan, math.inf, "3", None])
def test_a_budget_of_nothing_or_without_end_is_refused(budget):
    with pytest.raises(BadSetting, match="budget of more than 0 seconds"):
        atlas.sweep(["put"], budget=budget)


def test_without_a_gpu_the_sweep_is_one_sentence(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(runner.RunFailed, match="sees no NVIDIA GPU"):
        atlas.sweep(["put"], device="cuda")


def test_the_flag_ends_what_races_on_the_cpu(not_exercised):
    """Every family that is known to race on the CPU: under the flag it gives one answer, or raises."""
    names = [each.name for each in OPS if "cpu" in each.races]
    found = atlas.sweep(names, device="cpu", budget=1)
    for row in found.rows:
        assert row.failed == ""
        if not row.varies:
            not_exercised(
                f"{row.op} did not vary in {len(row.off.observations)} runs, so its fix proved nothing"
            )
        assert row.kernel or row.on.verdict.kind == "same", row.op
    assert "put_" in found["put"].kernel and found["index_put"].kernel == ""
    assert found.wrong == []


def test_what_is_known_to_race_only_on_one_device_is_looked_for_there(installed):
    assert atlas.can_race(op("take-backward"), "cpu", installed)
    assert not atlas.can_race(op("take-backward"), "cuda", installed)
    assert not atlas.can_race(op("histc"), "cpu", installed) and atlas.can_race(
        op("histc"), "cuda", installed
    )


@pytest.mark.gpu
def test_the_documented_lists_hold_on_a_gpu():
    found = atlas.sweep(["scattering", "pooling"], device="cuda")
    assert not found.varying_under_flag


# ------------------------------------------------------------------------------------ the command


@pytest.fixture
def made_up(monkeypatch):
    def sweep(names, on_start, on_row, **more):
        row = judge(measured(20, 1, price=0.2, priced=True), op("put-accumulate"), Documentation((SWITCHES,)))
        on_start(op("put-accumulate"))
        on_row(row)
        return atlas.Atlas((row,), Documentation((SWITCHES,)), "cpu", 1)

    monkeypatch.setattr(atlas, "sweep", sweep)


def test_the_command_prints_the_table_and_the_advice(made_up, capsys):
    assert cli.main(["atlas", "--ops", "put-accumulate"]) == 0
    out = capsys.readouterr().out
    assert "20 of 20" in out and "Advice" in out and "Turn the flag on" in out and "LIVE" in out


def test_the_command_prints_json(made_up, capsys):
    assert cli.main(["atlas", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["agreement"] == "agrees"


def test_the_command_lists_and_refuses(capsys):
    assert cli.main(["atlas", "--list", "--ops", "memory"]) == 0
    assert "resize-quantized" in capsys.readouterr().out
    assert cli.main(["atlas", "--ops", "indx_put"]) == 2
    assert "Did you mean index_put" in capsys.readouterr().err
