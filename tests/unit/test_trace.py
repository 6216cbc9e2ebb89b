"""Recording and comparing: each kind of difference by a planted one, an unharmed program, and files of any kind.

Programs are functions that are recorded twice in one process; what needs fresh processes is in test_diverge.py.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import sys
import threading
import tracemalloc
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from samebits import trace
from samebits.bits import fingerprint
from samebits.trace import FORMAT, KINDS, Divergence, Trace, Unreadable, Unwritable, compare, recording


@pytest.fixture
def record(tmp_path):
    """`record(work, *arguments)` → path of the trace of one call."""
    made = []

    def recorded(work, *arguments):
        path = tmp_path / f"{len(made)}.trace"
        made.append(path)
        with recording(path, "a test"):
            work(*arguments)
        return path

    return recorded


@pytest.fixture
def parted(record):
    """`parted(work)` → what is found between the traces of work(0) and work(1), each after the same seed."""

    def found(work, seeded=True):
        paths = []
        for run in (0, 1):
            if seeded:
                torch.manual_seed(0)
            paths.append(record(work, run))
        return compare(*paths)

    return found


def ops_of(path):
    return list(Trace(path))


# --- Kinds -----------------------------------------------------------------------------------------------


def test_runs_that_agree_are_said_to(parted):
    def work(run):
        model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 1))
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(5, 4)).square().mean().backward()
            optimizer.step()

    found = parted(work)
    assert found.kind == "none" and found.first is None and set(found.pattern) == {"."}
    assert found.ops[0] == found.ops[1] == found.same == len(found.pattern) > 50
    assert str(found) == f"No difference: all {found.ops[0]} ops have the same inputs and the same results."


def test_another_result_of_the_same_inputs(parted, monkeypatch):
    """Planted where a race would be: the library computes, and another number comes out."""
    library = torch.library.Library("samebits_test", "DEF")
    runs = []
    library.define("shaky(Tensor x) -> Tensor")
    library.impl("shaky", lambda x: x + len(runs), "CPU")

    def work(run):
        runs.append(run)
        y = torch.ops.samebits_test.shaky(torch.ones(3))
        (y * 2).sum()

    found = parted(work)
    assert (found.kind, found.first.name, found.tensors) == (
        "result",
        "samebits_test.shaky.default",
        ("result",),
    )
    assert found.pattern == ".rxx" and found.same == 1 and "float32[3]" in str(found)
    assert "a race, or another algorithm" in found.sentence and not found.settings


def test_another_result_under_other_settings_says_settings(record):
    x = torch.randn(4096, 128, requires_grad=True)
    weight = torch.ones(128, requires_grad=True)
    before = torch.get_num_threads()
    paths = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            paths.append(
                record(lambda: nn.functional.layer_norm(x, (128,), weight).square().mean().backward())
            )
    finally:
        torch.set_num_threads(before)
    found = compare(*paths)
    assert found.settings == {"threads": ("1", "2")}
    if found.kind != "none":  # another build may add in one order
        assert found.kind == "result" and "under other settings" in found.sentence
        assert "threads: 1 and 2" in str(found)


def test_data_from_outside(parted):
    def work(run):
        x = torch.from_numpy(np.full(3, run, np.float32))
        nn.functional.relu(torch.ones(3) + x)

    found = parted(work)
    assert (
        found.kind == "input" and "NumPy" in found.sentence and found.first.line.startswith("test_trace.py:")
    )


def test_data_from_outside_that_differ_by_a_sign_or_in_order_only(parted):
    """A norm sees neither."""
    data = np.arange(1, 7, dtype=np.float32).reshape(3, 2)
    for change in (-data, data[::-1].copy()):
        assert parted(lambda run, other=change: torch.from_numpy((data, other)[run]) * 2).kind == "input"


def test_numbers_from_python(parted):
    def work(run):
        torch.ones(3).mul_(1 + run)

    found = parted(work)
    assert (found.kind, found.tensors) == ("python", ("other",))
    assert "other=1 | other=2" in str(found)


def test_another_part_of_the_same_tensor(parted):
    def work(run):
        (torch.arange(10.0)[run : run + 3] * 2).sum()

    found = parted(work)
    assert found.kind == "python" and found.tensors == ("self",)


def test_another_number_of_tensors(parted):
    found = parted(lambda run: torch.stack([torch.ones(2)] * (2 + run)))
    assert (found.kind, found.tensors) == ("python", ("number of tensors",))


def test_a_generator_that_stood_elsewhere(parted):
    found = parted(lambda run: torch.rand(3) * 2, seeded=False)
    assert (found.kind, found.first.name, found.tensors) == ("random", "aten.rand.default", ("generator",))
    own = torch.Generator().manual_seed(0)
    assert parted(lambda run: torch.rand(3, generator=own)).kind == "random"


def test_a_generator_that_is_not_drawn_from_parts_nothing(parted):
    """Ops that may draw, and don't, are many: attention without dropout, a dropout that is off."""
    q = torch.ones(1, 2, 4, 8)

    def work(run):
        nn.functional.scaled_dot_product_attention(q, q, q)
        nn.functional.dropout(torch.ones(3), 0.0)

    def moved(run):
        torch.manual_seed(run)
        return work(run)

    assert parted(work, seeded=False).kind == "none"


def test_memory_that_nothing_wrote(parted):
    def work(run):
        x = torch.empty(4)
        trace_is_blind(x, run)
        return x + 1

    def trace_is_blind(x, run):
        x.numpy()[:] = run  # as if it had been found there

    found = parted(work)
    assert found.kind == "memory" and found.first.inputs[0].memory == "unwritten"
    assert "differs      self: float32[4], unwritten\n" in str(found)

    def partly(run):
        x = torch.empty(4)
        x[:2] = 1.0
        x.numpy()[2:] = run
        return x + 1

    found = parted(partly)
    assert found.kind == "memory" and found.first.inputs[0].memory == "partly written"
    assert "differs      self: float32[4], partly written, last by op 2\n" in str(found)


@pytest.mark.parametrize(
    "fill", [lambda x: x.zero_(), lambda x: x.copy_(torch.ones(4)), lambda x: x.normal_()]
)
def test_what_is_written_whole_is_no_unwritten_memory_and_is_not_read_before(record, fill):
    def work():
        fill(torch.empty(4)).add(1)
        torch.add(torch.ones(4), 1, out=torch.empty(4))

    for op in ops_of(record(work)):
        assert not any(tensor.memory for tensor in op.inputs), op
        assert op.name == "aten.empty.memory_format" or all(t.name != "out" for t in op.inputs)


def test_a_change_that_no_op_made(parted):
    def work(run):
        x = torch.zeros(4)
        x.numpy()[1] = run
        return x + 1

    found = parted(work)
    assert found.kind == "unseen" and found.first.inputs[0].origin == 0


def test_a_parameter_left_from_before(parted):
    weight = nn.Parameter(torch.zeros(3))

    def work(run):
        (weight * 2).sum().backward()
        torch.optim.SGD([weight], lr=1.0).step()

    found = parted(work)
    assert found.kind == "state" and found.first.inputs[0].kind == "parameter"


def test_another_way_of_python(parted):
    def work(run):
        x = torch.ones(3)
        x = x.sin() if run else x.cos()
        return x.sum()

    found = parted(work)
    assert found.kind == "flow" and (found.first.name, found.second.name) == (
        "aten.cos.default",
        "aten.sin.default",
    )
    text = str(found)
    assert "aten.cos.default (test_trace.py" in found.more and "where the second calls" in found.more
    assert "first        aten.cos" in text and "second       aten.sin" in text


def test_one_run_that_ends_earlier(parted):
    def work(run):
        x = torch.ones(3)
        for _ in range(2 + 3 * run):
            x = x.sin()

    found = parted(work)
    assert found.kind == "flow" and found.first is None and found.second.name == "aten.sin.default"
    assert "first        has ended" in str(found) and found.ops == (3, 6) and found.same == 3
    assert "the second run calls 3 ops" in found.more


def test_ops_that_one_run_has_more_and_that_change_nothing(parted):
    def work(run):
        x = torch.ones(3)
        if run:
            torch.zeros(7).sin().cos()
        for _ in range(30):
            x = x * 2

    found = parted(work)
    assert found.kind == "flow" and found.ops == (31, 34) and found.same == 1
    assert "the second run calls 3 ops, from aten.zeros.default" in found.more
    assert "then both runs call 30 ops, of which 0 differ." in str(found)


@pytest.mark.parametrize(
    ("same", "later", "said"),
    [
        (1, "", "Before it 1 op agrees; none comes after it."),
        (2, ".", "Before it 2 ops agree; of the 1 after it, 0 differ too."),
        (0, ".x", "Before it 0 ops agree; of the 2 after it, 1 differs too."),
    ],
)
def test_what_agrees_and_what_follows_is_told_in_whole_sentences(parted, same, later, said):
    def work(run):
        for _ in range(same):
            torch.ones(3)
        from_outside = torch.from_numpy(np.full(3, run))
        for mark in later:
            from_outside.sin() if mark == "x" else torch.ones(3)

    assert said in str(parted(work))


def test_a_single_op_that_both_runs_call_after_they_parted(parted):
    def work(run):
        x = torch.from_numpy(np.ones(3))
        for _ in range(30 + run):
            x.cos()
        x.sin()

    found = parted(work)
    assert found.kind == "flow"
    assert "Before it 31 ops agree; then both runs call one more op, which agrees." in str(found)


def test_ops_that_one_run_has_more_and_that_drew_from_the_generator(parted):
    """A look at the validation data: what parts the training is the generator, drawn from in between."""

    def work(run):
        x = torch.randn(3)
        if run:
            torch.randn(2)
            torch.zeros(3).sum()
        for _ in range(30):
            x = nn.functional.dropout(x)

    found = parted(work)
    assert found.kind == "random" and "dropout(x)" in found.lines[found.first.line]
    assert "the second run calls 3 ops, from aten.randn" in found.more and "only there" in str(found)
    assert found.same == 2 and found.pattern[:3] == "..x"


def test_ops_of_another_line_are_not_paired_by_their_name(parted):
    """Both runs call the same ops at first, but one of them does something else with them."""

    def work(run):
        x = torch.randn(3)
        if run:
            torch.randn(3).mul(7).sum()
        for _ in range(30):
            x = x + torch.randn(3).mul(5)

    found = parted(work)
    assert found.kind == "random" and "the second run calls 3 ops, from aten.randn" in found.more


def test_a_line_that_was_edited_is_no_other_way(record):
    def first():
        x = torch.ones(3) * 2
        return x + 1

    def second():
        x = torch.ones(3) * 3
        return x + 1

    found = compare(record(first), record(second))
    assert (found.kind, found.tensors) == ("python", ("other",))


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_a_remedy(kind):
    from samebits.diverge import REMEDIES

    assert REMEDIES[kind].endswith(".")


# --- What is told of an op --------------------------------------------------------------------------------


def test_line_module_phase_and_step(record):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, x):
            return self.inner(x).relu()

    model = nn.Sequential(Block(), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def work():
        for _ in range(2):
            loss = model(torch.ones(3, 2)).sum()
            loss.backward()
            optimizer.step()

    path = record(work)
    read = Trace(path)
    ops = list(read)
    gradients = [op for op in ops if op.name == "aten.threshold_backward.default"]
    assert [op.step for op in gradients] == [0, 1] and {op.phase for op in gradients} == {"backward"}
    assert read.lines[gradients[0].line] == "loss.backward()"
    assert read.lines[gradients[0].forward] == "return self.inner(x).relu()"
    assert gradients[0].module == "Sequential.0"
    forward = [op for op in ops if op.name == "aten.addmm.default"]
    assert [op.module for op in forward] == ["Sequential.0.inner", "Sequential.1"] * 2
    steps = [op for op in ops if op.phase == "optimizer"]
    assert {read.lines[op.line] for op in steps} == {"optimizer.step()"} and {op.step for op in steps} == {
        0,
        1,
    }


def test_a_module_that_raises_is_left(record):
    class Fails(nn.Module):
        def forward(self, x):
            raise ValueError

    def work():
        with pytest.raises(ValueError):
            nn.Sequential(Fails())(1)
        torch.ones(3)

    assert [op.module for op in ops_of(record(work))] == [""]


def test_in_place_writes_foreach_and_fused_optimizers_show_what_they_wrote(record):
    for options in ({"foreach": True}, {"fused": True}, {"foreach": False}):
        weight = nn.Parameter(torch.ones(3))
        weight.grad = torch.ones(3)
        path = record(torch.optim.AdamW([weight], lr=0.1, **options).step)
        written = {tensor.fingerprint for op in ops_of(path) for tensor in op.results}
        assert fingerprint(weight.detach(), "xxh3") in written, options


def test_a_file_holds_no_path_and_no_values(record, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "folder" / "train.py"), "--fast"])
    with recording(tmp_path / "x.trace"):
        torch.full((3,), 1.5).sum().item()
    text = (tmp_path / "x.trace").read_text()
    for place in {str(tmp_path), os.getcwd(), os.path.dirname(__file__), os.path.expanduser("~"), sys.prefix}:
        assert place not in text
    assert Trace(tmp_path / "x.trace").header.command == "train.py --fast"


# --- The program is not disturbed --------------------------------------------------------------------------


def training(seed=0):
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(144, 3)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = torch.utils.data.TensorDataset(torch.randn(24, 1, 8, 8), torch.randint(3, (24,)))
    for x, y in torch.utils.data.DataLoader(data, batch_size=8, shuffle=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    state = (torch.get_rng_state(), np.random.get_state()[1], repr(random.getstate()))
    return fingerprint([*model.state_dict().values(), *(p.grad for p in model.parameters())]), [
        fingerprint(state[0]),
        fingerprint(state[1]),
        state[2],
    ]


def test_a_recorded_program_ends_with_the_same_bits_and_generators(tmp_path):
    plain = training()
    with recording(tmp_path / "x.trace"):
        recorded = training()
    assert recorded == plain
    assert training(seed=1) != plain, "the control"
    assert len(ops_of(tmp_path / "x.trace")) > 100


def test_nothing_stays_behind(tmp_path):
    from torch.nn.modules import module
    from torch.optim import optimizer

    def hooks():
        return [
            len(table)
            for table in (
                module._global_forward_hooks,
                module._global_forward_pre_hooks,
                optimizer._global_optimizer_pre_hooks,
                optimizer._global_optimizer_post_hooks,
            )
        ]

    before = hooks()
    weight = torch.ones(3, requires_grad=True)
    for ending in (None, ValueError, KeyboardInterrupt):
        try:
            with recording(tmp_path / "x.trace"):
                (weight * 2).sum().backward()
                if ending:
                    raise ending
        except (ValueError, KeyboardInterrupt):
            pass
        read = Trace(tmp_path / "x.trace")
        assert len(list(read)) == 4 or list(read)
        assert read.ended == (ending.__name__ if ending else "complete")
        assert hooks() == before and not weight._backward_hooks
    torch.ones(3)
    assert all(op.name != "aten.zeros.default" for op in Trace(tmp_path / "x.trace"))


def test_tensors_are_not_kept_alive(tmp_path):
    import gc
    import weakref

    with recording(tmp_path / "x.trace"):
        x = torch.ones(1000)
        storage = torch.multiprocessing.reductions.StorageWeakRef(x.untyped_storage())
        alive = weakref.ref(x)
        (x * 2).sum()
        del x
        gc.collect()
        assert alive() is None and storage.expired()


def test_a_recording_inside_another_is_refused_and_the_outer_one_goes_on(tmp_path):
    with recording(tmp_path / "outer.trace"):
        torch.ones(1)
        with pytest.raises(RuntimeError, match="already"), recording(tmp_path / "inner.trace"):
            pass
        torch.ones(2)
    assert len(ops_of(tmp_path / "outer.trace")) == 2 and not (tmp_path / "inner.trace").exists()


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


class Wrapped(torch.Tensor):
    """A subclass without contents of its own."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        inner = (value.inner if isinstance(value, Wrapped) else value for value in args)
        return Wrapped(function(*inner, **(kwargs or {})))


class Named(torch.Tensor):
    pass


def sparse():
    return [torch.eye(3).to_sparse() @ torch.ones(3, 2), torch.eye(3).to_sparse_csr() @ torch.ones(3, 2)]


def quantized():
    return torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8).dequantize()


def odd_dtypes():
    x = torch.arange(6.0)
    return [
        x.to(torch.complex64).sum(),
        x.bfloat16() + 1,
        x.half() * 2,
        x.bool() | True,
        x.to(torch.float8_e5m2),
    ]


def small():
    return [torch.empty(0).sum(), torch.tensor(1.0) + 1, torch.ones(2, 0).sum(0)]


def meta():
    return (torch.empty(3, device="meta") + 1).shape


def transforms():
    x = torch.arange(6.0).reshape(3, 2)
    func = torch.func
    return [
        func.vmap(func.grad(lambda row: (row**3).sum()))(x),
        func.jvp(torch.sin, (x,), (x,))[1],
        func.jacrev(torch.cos)(x[0]),
    ]


def without_gradient():
    layer = nn.Linear(3, 3)
    with torch.no_grad():
        first = layer(torch.ones(1, 3))
    with torch.inference_mode():
        second = layer(torch.ones(1, 3)).add_(1)
    return [first, second]


def checkpointed():
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(0)
    x = torch.ones(2, 3, requires_grad=True)
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    for reentrant in (True, False):
        checkpoint(model, x, use_reentrant=reentrant).sum().backward()
    return x.grad


def twice_backward():
    x = torch.ones(3, requires_grad=True)
    (gradient,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    gradient.square().sum().backward()
    return x.grad


def own_function():
    x = torch.ones(3, requires_grad=True)
    Twice.apply(x).sum().backward()
    return x.grad


def subclasses():
    return [(Wrapped(torch.ones(3)) + 1).inner, torch.ones(3).as_subclass(Named) + 1]


def views_and_outs():
    out, x = torch.empty(3), torch.zeros(4, 4)
    torch.add(torch.ones(3), 1, out=out)
    x[1:3].add_(1)
    x[:, 1].mul_(2)
    x.t().copy_(torch.arange(16.0).reshape(4, 4))
    return [out, x, *torch.sort(x), *torch.split(x, 2), x.expand(2, 4, 4).sum(0)]


def nested():
    parts = [torch.ones(2, 3), torch.ones(1, 3)]
    return [
        *(torch.nested.nested_tensor(parts) * 2).unbind(),
        (torch.nested.nested_tensor(parts, layout=torch.jagged) * 2).values(),
    ]


def compiled(backend):
    def work():
        torch._dynamo.reset()
        return torch.compile(lambda x: (x * 2).sin(), backend=backend)(torch.ones(3))

    return work


def autocast():
    torch.manual_seed(0)
    layer = nn.Linear(3, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        layer(torch.ones(1, 3)).sum().backward()
    return layer.weight.grad


def faked():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return list((torch.ones(3) + 1).shape)


def other_thread():
    """Its ops are not seen, and its modules do not confuse the others."""
    torch.manual_seed(0)
    results = []
    worker = threading.Thread(target=lambda: results.append(nn.Linear(3, 3)(torch.ones(1, 3)).shape))
    worker.start()
    worker.join()
    return [*results[0]]


def recurrent():
    torch.manual_seed(0)
    net = nn.LSTM(3, 4, num_layers=2, dropout=0.5)
    net(torch.ones(5, 1, 3))[0].sum().backward()
    return [p.grad for p in net.parameters()]


PROGRAMS = [
    sparse, quantized, odd_dtypes, small, meta, transforms, checkpointed, twice_backward, own_function,
    subclasses, views_and_outs, nested, autocast, faked, other_thread, recurrent,
]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("work", PROGRAMS, ids=lambda work: work.__name__)
def test_any_program_runs_as_without_recording_and_is_repeatable(record, work):
    def bits(value):
        flat = value if isinstance(value, (list, tuple)) else [value]
        return [
            fingerprint(
                x.detach().float()
                if isinstance(x, torch.Tensor)
                else list(x)
                if hasattr(x, "__iter__")
                else x
            )
            for x in flat
        ]

    results = []
    plain = work()
    paths = [record(lambda: results.append(work())) for _ in range(2)]
    assert [bits(result) for result in results] == [bits(plain)] * 2
    found = compare(*paths)
    assert found.kind == "none", str(found)
    assert found.ended == ("complete", "complete")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_code_is_run_op_by_op(record, backend):
    results = []
    path = record(lambda: results.append(compiled(backend)()))
    assert torch.equal(results[0], (torch.ones(3) * 2).sin())
    assert [op.name for op in ops_of(path)] == ["aten.ones.default", "aten.mul.Tensor", "aten.sin.default"]


def test_sparse_and_quantized_tensors_are_read_and_what_has_no_contents_is_counted(record):
    for work, unread in ((sparse, 0), (quantized, 0), (meta, 2)):
        read = Trace(record(work))
        ops = list(read)
        assert read.unread == unread
        assert all(t.fingerprint for op in ops[1:] for t in op.results) == (not unread)


def test_scratch_memory_of_a_library_is_no_difference(record):
    """mkldnn gives an LSTM's backward pass memory that it doesn't fill; with gradients it is a result of an op."""
    scratch = [op for op in ops_of(record(recurrent)) if op.name == "aten.mkldnn_rnn_layer.default"]
    for op in scratch:
        assert [tensor.name for tensor in op.results] == ["[0]", "[1]", "[2]"]
    known = {f"{op}.default" for op in trace._SCRATCH}
    for name in known:
        found = getattr(torch.ops.aten, name.partition("::")[2].partition(".")[0], None)
        if found is not None:  # miopen and cudnn are declared in every build
            places = {f"[{place}]" for place in range(len(found.default._schema.returns))}
            assert set(trace._SCRATCH[name.removesuffix(".default")]) <= places, name


@pytest.mark.filterwarnings("ignore:Sparse invariant")
def test_a_difference_in_a_sparse_tensor_is_seen(parted):
    found = parted(lambda run: torch.sparse_coo_tensor([[run]], [1.0], (3,)) * 2)
    assert found.kind != "none"


def test_a_forked_child_writes_nothing(tmp_path):
    with recording(tmp_path / "x.trace"):
        torch.ones(1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            child = os.fork()
        if child == 0:
            try:
                torch.ones(2)
                trace_of_child = trace  # as a child does that leaves the `with` by an exception
                assert trace_of_child
                raise SystemExit
            except BaseException:
                os._exit(0)
        os.waitpid(child, 0)
        torch.ones(3)
    assert [op.results[0].what for op in ops_of(tmp_path / "x.trace")] == ["float32[1]", "float32[3]"]


def test_a_forked_child_with_more_ops_than_wait_to_be_written_writes_none(tmp_path, monkeypatch):
    monkeypatch.setattr(trace, "_WAITING", 3)
    with recording(tmp_path / "x.trace"):
        torch.ones(1)
        child = os.fork()
        if child == 0:
            for _ in range(10):
                torch.ones(2)
            os._exit(0)
        os.waitpid(child, 0)
    assert [op.results[0].what for op in ops_of(tmp_path / "x.trace")] == ["float32[1]"]


def test_a_forked_child_that_leaves_the_recording_does_not_end_the_file(tmp_path):
    path = tmp_path / "x.trace"
    me = os.getpid()
    try:
        with recording(path):
            torch.ones(1)
            child = os.fork()
            if child == 0:
                raise SystemExit
            os.waitpid(child, 0)
    except SystemExit:
        os._exit(0)
    assert os.getpid() == me
    assert path.read_text().count('"end"') == 1 and len(ops_of(path)) == 1


# --- A GPU's fingerprints, without a GPU -------------------------------------------------------------------


def test_fingerprints_that_wait_on_a_device_go_to_their_tensors(tmp_path, monkeypatch):
    monkeypatch.setattr(trace, "_is_at_hand", lambda tensor: False)
    monkeypatch.setattr(trace, "_WAITING", 7)  # so that they are read several times
    expected = []
    with recording(tmp_path / "x.trace"):
        x = torch.zeros(3)
        for step in range(20):
            x.add_(step)  # the fingerprint is of now, not of when it is read
            expected.append(fingerprint(x.clone().detach(), "mix64"))
    ops = [op for op in ops_of(tmp_path / "x.trace") if op.name == "aten.add_.Tensor"]
    assert [op.results[0].fingerprint for op in ops] == expected
    assert [op.inputs[0].fingerprint for op in ops[1:]] == expected[:-1]


def test_a_device_that_cannot_be_read_ends_no_program(tmp_path, monkeypatch):
    monkeypatch.setattr(trace, "_is_at_hand", lambda tensor: False)

    def broken(fingerprints):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(trace, "read_device_fingerprints", broken)
    with recording(tmp_path / "x.trace"):
        torch.ones(3) * 2
    read = Trace(tmp_path / "x.trace")
    assert [t.fingerprint for op in read for t in op.results] == ["", ""] and read.unread == 3


def test_without_private_functions_of_torch_lines_of_the_forward_pass_are_left_out(record, monkeypatch):
    monkeypatch.delattr(torch.autograd, "_get_sequence_nr")

    def work():
        (torch.ones(3, requires_grad=True) * 2).sum().backward()

    assert {op.phase for op in ops_of(record(work))} == {"forward", "backward"}


@pytest.mark.gpu
def test_a_gpu_is_recorded_like_a_cpu(parted):
    def work(run):
        x = torch.ones(3, device="cuda")
        with torch.cuda.stream(torch.cuda.Stream()):
            y = torch.rand(3, device="cuda") * (1 + run)
        torch.cuda.synchronize()
        return (x + y).sum().item()

    found = parted(work)
    assert (found.kind, found.tensors) == ("python", ("other",)) and not any(found.unread)


# --- Files ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    path = tmp_path_factory.mktemp("good") / "good.trace"
    torch.manual_seed(0)
    with recording(path, "a test"):
        weight = nn.Parameter(torch.rand(3))
        (torch.empty(3).copy_(weight) * 2).sum().backward()
        torch.optim.SGD([weight], lr=0.1).step()
    return path


def test_ops_come_back_as_they_were_written(good):
    lines = [json.loads(line) for line in good.read_text().splitlines()]
    written = [line for line in lines if "number" in line]
    for tensor in (
        tensor for line in written for key in ("inputs", "results") for tensor in line.get(key, [])
    ):
        if not tensor["name"]:
            del tensor["name"]
    assert [op.to_json() for op in Trace(good)] == written and len(written) > 5


def test_what_is_found_can_be_written_as_json(good, tmp_path):
    other = tmp_path / "other.trace"
    other.write_text(good.read_text().replace("xxh3:", "xxh3:0", 3))
    found = compare(good, other)
    data = json.loads(json.dumps(found.to_json()))
    assert data["kind"] == found.kind and data["sentence"] == found.sentence and data["unread"] == [0, 0]
    assert set(data) == {f.name for f in dataclasses.fields(Divergence)} | {"sentence"}


def test_traces_of_different_versions_compare(good, tmp_path):
    other = tmp_path / "other.trace"
    header, *rest = good.read_text().splitlines()
    data = json.loads(header)
    data["libraries"]["torch"] = "1.0"
    data["libraries"]["numpy"] = "9"
    other.write_text("\n".join([json.dumps(data), *rest]) + "\n")
    found = compare(good, other)
    assert found.kind == "none"
    assert found.settings == {"torch": (torch.__version__, "1.0"), "numpy": ("not set", "9")}
    assert "The runs differ in torch" in str(found)


@pytest.mark.parametrize(
    "content, sentence",
    [
        (b"", "is no trace"),
        (b"\n", "is no trace"),
        (b"hello", "is no trace"),
        (b"[1]\n", "is no trace"),
        (b"{}\n", "is no trace"),
        (b"\xff\xfe\x00", "it is no text"),
        (b"[" * 100_000, "is no trace"),
        (b'{"samebits": "trace"}\n', "has format None"),
        (b'{"samebits": "trace", "format": 99}\n', "record it again"),
        (b'{"samebits": "trace", "format": %d}\n' % FORMAT, "says nothing of 'command'"),
    ],
)
def test_what_is_no_trace_is_told_in_one_sentence(tmp_path, good, content, sentence):
    path = tmp_path / "bad.trace"
    path.write_bytes(content)
    for pair in ((path, good), (good, path)):
        with pytest.raises(Unreadable) as raised:
            compare(*pair)
        text = str(raised.value)
        assert sentence in text and text.endswith(".") and "\n" not in text
        assert raised.value._render_traceback_() == [text]


def test_a_folder_and_a_missing_file_are_told(tmp_path, good):
    for path, reason in ((tmp_path, "directory"), (tmp_path / "none.trace", "No such file")):
        with pytest.raises(Unreadable, match=reason):
            compare(good, path)


def test_a_cut_file_is_read_as_far_as_it_goes(good, tmp_path):
    text = good.read_bytes()
    second_line = text.index(b"\n") + 1
    for length in range(second_line, len(text), 37):
        cut = tmp_path / "cut.trace"
        cut.write_bytes(text[:length])
        read = Trace(cut)
        assert len(list(read)) < 20 and read.ended == "cut off"
        found = compare(good, cut)
        assert found.kind == "flow" or found.ended[1] == "cut off"
        assert "cut off" in str(found)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=300)
@given(st.data())
def test_wrong_types_anywhere_are_told_or_harmless(good, tmp_path_factory, data):
    lines = [json.loads(line) for line in good.read_text().splitlines()]
    line = data.draw(st.sampled_from(lines))
    key = data.draw(st.sampled_from(sorted(line) + ["end", "number", "new"]))
    if key in ("inputs", "results") and data.draw(st.booleans()) and line.get(key):
        tensor = data.draw(st.sampled_from(line[key]))
        tensor[
            data.draw(st.sampled_from(["name", "what", "fingerprint", "origin", "part", "memory", "new"]))
        ] = data.draw(JSON)
    elif data.draw(st.booleans()):
        line.pop(key, None)
    else:
        line[key] = data.draw(JSON)
    path = tmp_path_factory.mktemp("fuzz") / "x.trace"
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    for pair in ((path, good), (good, path)):
        try:
            found = compare(*pair)
        except Unreadable as error:
            assert str(error).endswith(".")
        else:
            assert found.kind in KINDS
            str(found)
            json.dumps(found.to_json())


@given(st.binary(max_size=40), st.integers(0, 5000), st.integers(0, 60))
def test_bytes_anywhere_are_told_or_harmless(good, tmp_path_factory, inserted, place, removed):
    text = good.read_bytes()
    place %= len(text)
    path = tmp_path_factory.mktemp("fuzz") / "x.trace"
    path.write_bytes(text[:place] + inserted + text[place + removed :])
    try:
        str(compare(good, path))
    except Unreadable as error:
        assert str(error).endswith(".")


@pytest.mark.parametrize("how", ["reordered", "twice", "without one"])
def test_missing_and_doubled_ops_are_damage(good, tmp_path, how):
    header, *rest = good.read_text().splitlines(keepends=True)
    places = [place for place, line in enumerate(rest) if '"number"' in line]
    a, b = places[2], places[3]
    if how == "reordered":
        rest[a], rest[b] = rest[b], rest[a]
    elif how == "twice":
        rest.insert(a, rest[a])
    else:
        del rest[a]
    path = tmp_path / "x.trace"
    path.write_text("".join([header, *rest]))
    with pytest.raises(Unreadable, match="is damaged in line"):
        list(Trace(path))


@pytest.mark.parametrize("place", ["no/such/folder/x.trace", "."])
def test_a_file_that_cannot_be_made_is_told(tmp_path, place):
    with pytest.raises(Unwritable, match="could not be written") as raised, recording(tmp_path / place):
        raise AssertionError("the program must not begin")
    assert raised.value._render_traceback_() == [str(raised.value)]
    with recording(tmp_path / "afterwards.trace"):
        torch.ones(1)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a disk that is always full")
def test_a_full_disk_is_told_and_leaves_nothing_behind(tmp_path, monkeypatch):
    with pytest.raises(Unwritable, match=r"/dev/full could not be written \(No space left"):
        with recording("/dev/full"):
            raise AssertionError("the program must not begin")
    # Later: the header fits, and nothing after it.
    monkeypatch.setattr(trace, "_WAITING", 3)
    done = []
    with pytest.raises(Unwritable, match="No space left"), recording(tmp_path / "x.trace"):
        writer = sys._getframe(0)
        assert writer
        os.dup2(os.open("/dev/full", os.O_WRONLY), _number_of(tmp_path / "x.trace"))
        for _ in range(100):
            done.append(torch.ones(1))
    assert len(done) < 10
    with recording(tmp_path / "afterwards.trace"):
        torch.ones(1)
    assert len(ops_of(tmp_path / "afterwards.trace")) == 1


def _number_of(path):
    """Of the open file."""
    [number] = [
        int(name)
        for name in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{name}") and os.path.samefile(f"/proc/self/fd/{name}", path)
    ]
    return number


def test_a_write_that_takes_only_a_part_is_continued(tmp_path):
    class Slow:
        name = "slow"

        def __init__(self):
            self.written = b""

        def write(self, data):
            self.written += bytes(data[:5])
            return min(len(data), 5)

    file = Slow()
    trace._Writer(file)._write({"a": "x" * 50}, {"b": 1})
    assert [json.loads(line) for line in file.written.splitlines()] == [{"a": "x" * 50}, {"b": 1}]


def test_names_that_are_no_text_are_written(tmp_path):
    with recording(tmp_path / "x.trace", command="caf\udce9.py"):
        pass
    assert Trace(tmp_path / "x.trace").header.command == "caf?.py"


def long_trace(path, good, ops, other_from=None):
    header = good.read_text().splitlines()[0]
    with open(path, "w") as file:
        file.write(header + "\n")
        for number in range(ops):
            name = "aten.mul" if other_from is None or number < other_from else "aten.other"
            file.write(json.dumps({"number": number, "name": name, "line": "a.py:1"}) + "\n")
        file.write('{"end": "complete", "ops": 0, "seconds": 1, "unread": 0}\n')


@pytest.mark.parametrize("other_from", [None, 1000])
def test_memory_does_not_grow_with_the_ops(good, tmp_path, other_from):
    peaks = []
    for ops in (20_000, 60_000):
        long_trace(tmp_path / "a", good, ops)
        long_trace(tmp_path / "b", good, ops, other_from)
        tracemalloc.start()
        try:
            found = compare(tmp_path / "a", tmp_path / "b")
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
        assert found.ops == (ops, ops) and found.kind == ("none" if other_from is None else "flow")
    assert peaks[1] < 1.5 * peaks[0] + 1_000_000
