"""The course's CUDA kernels, the simulator's watch, the judge of the block tree, and atomic-sum.

numba decides when it is imported whether CUDA is simulated. So what runs kernels runs in a process of its own.
"""

import inspect
import json
import linecache
import math
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from samebits import experiments, kernels, machine, orders
from samebits.experiment import BadSetting
from samebits.experiments import atomic_sum

EXERCISES = Path(__file__).parents[1] / "exercises"
sys.path.append(str(EXERCISES))
import wrong_block_tree  # noqa: E402

# --- Helpers --------------------------------------------------------------------------------------------


def in_simulator(function, *arguments):
    """What `function` (self-contained; JSON in, JSON out) returns in a new process that simulates CUDA."""
    source = "\n".join(
        [
            "import json, sys",
            textwrap.dedent(inspect.getsource(function)),
            f"print(json.dumps({function.__name__}(*json.load(sys.stdin))))",
        ]
    )
    package = str(Path(kernels.__file__).parents[1])
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "1", "PYTHONPATH": package}
    done = subprocess.run(
        [sys.executable, "-c", source],
        input=json.dumps(arguments),
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def numbers(n, dtype):
    return np.random.default_rng(5).standard_normal(n).astype(dtype)


# --- The kernels, in the simulator ----------------------------------------------------------------------

SIZES = (1, 33, 77, 256)


def every_sum(sizes):
    import numpy as np

    from samebits import kernels

    device = kernels.open_device()
    found = []
    for dtype in ("float32", "float64"):
        for n in sizes:
            x = np.random.default_rng(5).standard_normal(n).astype(dtype)
            for way in kernels.WAYS:
                integer = way == "integer atomics"
                numbers = np.rint(x * 2**20).astype(np.int64) if integer else x
                summed = kernels.Sum(way, numbers, 32, device)
                summed.run()
                value = summed.value()
                found.append([dtype, n, way, value.tobytes().hex(), str(value.dtype), summed.counted()])
    return found


@pytest.fixture(scope="module")
def sums():
    """(dtype, n, way) → (bytes of the sum in hex, its dtype, counts)."""
    return {(dtype, n, way): rest for dtype, n, way, *rest in in_simulator(every_sum, SIZES)}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", SIZES)
def test_each_kernel_gives_the_bits_of_its_order(sums, dtype, n):
    x = numbers(n, dtype)
    in_order = orders.block_tree(x, 32)
    expected = {
        "atomic per element": orders.serial(x),  # the simulator's threads commit by number
        "block tree": in_order,
        "single pass": in_order,
        "two passes": in_order,
        "integer atomics": np.rint(x * 2**20).astype(np.int64).sum(),
    }
    for way, value in expected.items():
        bits, its_dtype, _ = sums[dtype, n, way]
        assert its_dtype == str(value.dtype)
        assert bits == value.tobytes().hex(), f"{way} of {n} numbers in {dtype}"


def test_orders_are_told_apart_by_the_inputs():
    """Else the test above would pass for a kernel that adds in another order."""
    x = numbers(256, "float32")
    assert len({orders.serial(x), orders.block_tree(x, 32), x.astype("float64").sum().astype("float32")}) == 3


def test_counts_tell_the_ways_apart(sums):
    counts = {way: sums["float32", 256, way][2] for way in kernels.WAYS}
    assert counts == {
        "atomic per element": {"atomics": 256, "barriers": 0},
        "block tree": {"atomics": 8, "barriers": 6},
        "single pass": {"atomics": 8, "barriers": 6},
        "two passes": {"atomics": 0, "barriers": 6},
        "integer atomics": {"atomics": 256, "barriers": 0},
    }


def test_kernels_stay_short_enough_to_show():
    shown = [kernels.block_tree, *(kernel for way in kernels.WAYS.values() for kernel in way)]
    assert max(len(inspect.getsource(kernel).splitlines()) for kernel in shown) <= 20


# --- What the simulator does, as its docstring says -----------------------------------------------------


def facts_of_the_simulator():
    global cuda, np, went_on  # the kernels below must find them as globals, not in a closure
    import numpy as np
    from numba import cuda

    from samebits import kernels, simulator

    def no_atomic(x, total):
        i = cuda.grid(1)
        if i < x.size:
            total[0] += x[i]

    def barrier_in_branch(x, total):
        shared = cuda.shared.array(32, np.float32)
        thread = cuda.threadIdx.x
        shared[thread] = x[thread]
        cuda.syncthreads()
        if thread < 16:
            shared[thread] += shared[thread + 16]
            cuda.syncthreads()
        total[thread] = shared[thread]

    def returned(x, total):
        total[cuda.grid(1)] = cuda.atomic.add(x, 0, np.float32(1))

    def float_literal(x, total):
        subtotal = 0.0
        for i in range(x.size):
            subtotal += x[i]
        total[0] = subtotal

    def unset(x, total):
        shared = cuda.shared.array(32, np.float32)
        total[cuda.threadIdx.x] = shared[cuda.threadIdx.x]

    def last(x, total):
        total[0] = x[-1]

    went_on = []

    def fault_at_once(x, total):
        if cuda.threadIdx.x == 0:
            total[0] = x[99]
        went_on.append(cuda.threadIdx.x)

    def fault_after_a_barrier(x, total):
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            total[0] = nothing  # noqa: F821
        went_on.append(cuda.threadIdx.x)

    def alone(kernel):
        return type(kernel)(kernel.__code__, {"cuda": cuda, "np": np, "range": range, "went_on": went_on})

    def launched(kernel, blocks, block, x, total):
        trace = simulator.launch(alone(kernel), blocks, block, x, total)
        return total.tolist(), str(trace.fault)

    x = np.arange(64, dtype=np.float32)
    unwatched = np.zeros(1, np.float32)
    cuda.jit(alone(no_atomic))[2, 32](x, unwatched)
    pi = np.full(9, np.pi, np.float32)
    order = [launched(returned, 2, 32, np.zeros(1, np.float32), np.zeros(64, np.float32)) for _ in range(20)]
    return {
        "no atomic, not watched": unwatched.tolist(),
        "no atomic": launched(no_atomic, 2, 32, x, np.zeros(1, np.float32)),
        "barrier in branch": launched(barrier_in_branch, 1, 32, x, np.zeros(32, np.float32))[0][:2],
        "old values, in order": order[0][0],
        "orders": len({str(o) for o in order}),
        "float literal": launched(float_literal, 1, 1, pi, np.zeros(1, np.float32))[0],
        "unset": np.isnan(launched(unset, 1, 32, x, np.zeros(32, np.float32))[0]).tolist(),
        "faults": [
            launched(kernel, 2, 32, x, np.zeros(1, np.float32))[1]
            for kernel in (fault_at_once, fault_after_a_barrier)
        ],
        "went on after a fault": went_on,
        "negative index": launched(last, 1, 1, x, np.zeros(1, np.float32)),
        "model": kernels.open_device().model,
    }


@pytest.fixture(scope="module")
def facts():
    return in_simulator(facts_of_the_simulator)


def test_simulator_alone_does_not_show_a_missing_atomic(facts):
    assert facts["no atomic, not watched"] == [2016]
    assert facts["no atomic"][0] == [2016]


def test_simulator_forgives_a_barrier_in_a_branch(facts):
    assert facts["barrier in branch"] == [16, 18]


def test_atomic_add_returns_the_old_value_and_threads_come_by_number(facts):
    assert facts["old values, in order"] == list(range(64))
    assert facts["orders"] == 1


def test_a_float_literal_does_not_widen_in_the_simulator(facts):
    pi = np.full(9, np.pi, np.float32)
    assert facts["float literal"] == [orders.serial(pi)]
    assert float(orders.serial(pi)) != float(np.float32(pi.astype("float64").sum()))


def test_no_thread_goes_on_after_the_fault_of_another(facts):
    """One that did could come to a loop without end, which the simulator would wait for."""
    assert "touches x[99]" in facts["faults"][0] and "line=" in facts["faults"][0]
    assert "NameError: name 'nothing' is not defined." in facts["faults"][1]
    assert facts["went on after a fault"] == []


def test_shared_memory_starts_as_nan(facts):
    assert facts["unset"] == [True] * 32


def test_negative_indices_count_from_the_end(facts):
    assert facts["negative index"] == [[63], "None"]


def test_the_model_says_which_simulator_and_what_it_cannot_show(facts):
    assert "simulator of numba" in facts["model"] and "cannot vary" in facts["model"]


# --- The judge ------------------------------------------------------------------------------------------


def judge_all(sources):
    import threading

    from samebits import kernels

    judged = {}
    for name, source in sources.items():
        judged[name] = kernels.judge_block_sum(source)
        judged[name]["threads left"] = sum(hasattr(thread, "blockIdx") for thread in threading.enumerate())
    return judged


@pytest.fixture(scope="module")
def judged():
    others = {
        name: source for name, (source, _) in (wrong_block_tree.WRONG | wrong_block_tree.ANOTHER_WAY).items()
    }
    return in_simulator(judge_all, wrong_block_tree.RIGHT | others)


@pytest.mark.parametrize("name", wrong_block_tree.RIGHT)
def test_right_trees_of_any_shape_earn_every_point(judged, name):
    assert judged[name]["points"] == judged[name]["possible"] == kernels.POINTS, judged[name]["sentences"]


@pytest.mark.parametrize("name", wrong_block_tree.WRONG)
def test_wrong_kernels_are_told_what_is_wrong(judged, name):
    verdict = judged[name]
    assert verdict["points"] == 0
    assert wrong_block_tree.WRONG[name][1] in verdict["sentences"][0]
    assert verdict["attempted"] == ("stub" not in name)


@pytest.mark.parametrize("name", wrong_block_tree.ANOTHER_WAY)
def test_right_sums_made_in_another_way_earn_some_points(judged, name):
    assert judged[name]["points"] == kernels.POINTS_FOR_ANOTHER_WAY
    assert wrong_block_tree.ANOTHER_WAY[name][1] in judged[name]["sentences"][0]


def test_no_sentence_shows_the_machinery(judged):
    for verdict in judged.values():
        assert not any(
            word in verdict["sentences"][0] for word in ("_Watched", "Traceback", "tid=", "FakeCUDA")
        )


def test_a_kernel_that_never_ends_is_stopped_and_told_why(monkeypatch):
    from samebits.lab.check import AnswerFailed
    from samebits.lab.exercises import chapter02

    monkeypatch.setattr(chapter02, "SECONDS", 3)
    source = wrong_block_tree.NEVER_ENDS
    monkeypatch.setitem(
        linecache.cache, "<never ends>", (len(source), None, source.splitlines(True), "<never ends>")
    )
    names = {}
    exec(compile(source, "<never ends>", "exec"), names)
    with pytest.raises(AnswerFailed, match="not ended after 3 seconds. A loop in it may never end"):
        list(chapter02.judge_block_tree(names["block_sum"]))


def test_a_kernel_that_stopped_leaves_no_thread_running(judged):
    assert {verdict["threads left"] for verdict in judged.values()} == {0}


def test_every_case_with_an_exact_sum_is_exact_in_any_order():
    shuffle = np.random.default_rng(1)
    for case in kernels.CASES:
        if case.exact:
            totals = {
                float(orders.serial(shuffle.permutation(np.append(case.x, np.float32(0))))) for _ in range(50)
            }
            assert totals == {math.fsum(case.x.tolist())}, case.words
            assert len(set(case.x.tolist())) >= case.x.size - 2, "elements differ, so that a lost one shows"


def test_error_bound_holds_and_is_not_generous():
    x = numbers(200, "float32")
    error = abs(float(orders.block_tree(x, 64)) - math.fsum(x.tolist()))
    assert error <= kernels.error_bound(x, 11) < 1e-3


def run_right_kernel(source):
    from samebits import kernels

    return kernels.run_block_sum(source, repeats=3)


def test_a_learners_kernel_runs_on_the_device_of_the_process():
    result = in_simulator(run_right_kernel, wrong_block_tree.RIGHT["two buffers"])
    assert (result["n"], result["block"]) == (256, 32)
    assert len(result["sums"]) == 3 and len(set(result["fingerprints"])) == 1
    assert max(abs(total - result["exact"]) for total in result["sums"]) <= result["bound"]
    assert "simulator" in result["model"]


# --- The GPU's side, without a GPU ----------------------------------------------------------------------


def sums_through_the_gpu_class():
    """The simulator has numba.cuda's API, so that everything but the hardware is run."""
    import numpy as np
    from numba import cuda

    from samebits import kernels

    cuda.get_current_device = lambda: type("Card", (), {"name": "A card", "MULTIPROCESSOR_COUNT": 7})()
    device = kernels.Gpu(cuda)
    x = np.random.default_rng(5).standard_normal(20).astype(np.float32)
    found = {"name": device.name, "model": device.model, "versions": sorted(device.libraries)}
    for way in kernels.WAYS:
        integer = way == "integer atomics"
        summed = kernels.Sum(way, np.rint(x * 2**20).astype(np.int64) if integer else x, 8, device)
        summed.run()
        found[way] = [summed.value().tobytes().hex(), summed.x_read_back().size, summed.counted()]

    def broken(x, total):
        total[x.size] = nothing  # noqa: F821

    try:
        device.launch(broken, 1, 1, device.put(x), device.put(x))
    except kernels.BadSetting as error:
        found["broken"] = str(error)
    return found


def test_all_kernels_run_through_the_code_for_gpus():
    found = in_simulator(sums_through_the_gpu_class)
    x = numbers(20, "float32")
    assert found["name"] == "A card, 7 SMs" and found["model"] == "" and "numba" in found["versions"]
    in_order = orders.block_tree(x, 8).tobytes().hex()
    for way in ("single pass", "two passes", "block tree"):
        assert found[way] == [in_order, 20, {}]
    assert found["integer atomics"][0] == np.rint(x * 2**20).astype(np.int64).sum().tobytes().hex()
    assert found["broken"].startswith("The GPU did not take broken: ") and "nothing" in found["broken"]


def test_time_on_a_gpu_lies_between_two_events_and_waits_for_the_second():
    happened = []

    class Event:
        def __init__(self):
            happened.append("event")

        def record(self):
            happened.append("record")

        def synchronize(self):
            happened.append("synchronize")

        def elapsed_time(self, end):
            assert end is not self
            return 250.0

    card = SimpleNamespace(name="A card", MULTIPROCESSOR_COUNT=7)
    numba_cuda = SimpleNamespace(is_available=lambda: True, get_current_device=lambda: card, event=Event)
    assert kernels.Gpu(numba_cuda).timed(lambda: happened.append("kernels")) == 0.25
    assert happened == ["event", "event", "record", "kernels", "record", "synchronize"]


@pytest.mark.parametrize(("cards", "reason"), [(0, "no NVIDIA GPU is visible"), (1, "libNVVM, is missing")])
def test_a_gpu_that_cannot_be_used_is_one_sentence(monkeypatch, cards, reason):
    monkeypatch.setattr(machine, "cuda_device_count", lambda: cards)
    with pytest.raises(BadSetting, match=reason) as refused:
        kernels.Gpu(SimpleNamespace(is_available=lambda: False))
    assert "device=simulator" in str(refused.value)


def test_without_numbas_cuda_part_one_sentence_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.raises(BadSetting, match="cannot be imported .* macOS"):
        kernels.open_device()


def test_kernels_and_experiment_import_neither_numba_nor_a_framework():
    script = (
        "import sys, samebits.kernels, samebits.experiments.atomic_sum;"
        "print([name for name in ('numba', 'torch', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_bind_gives_a_kernel_its_names_and_its_helpers():
    made = []

    def device_function(helper):
        made.append(helper.__name__)
        return helper

    bound = kernels.bind(kernels.block_tree_atomic, "the module", 64, device_function)
    names = bound.__globals__
    assert (names["cuda"], names["BLOCK"], made) == ("the module", 64, ["block_tree"])
    assert names["block_tree"].__globals__ is names
    assert kernels.BLOCK is None, "the module itself is left alone"


# --- atomic-sum -----------------------------------------------------------------------------------------


def observe_settings(settings):
    from samebits.experiments.atomic_sum import ATOMIC_SUM

    found = []
    for asked in settings:
        prepared = ATOMIC_SUM.prepare(ATOMIC_SUM.settings(**asked))
        source = prepared.source()
        observations = list(ATOMIC_SUM.observe(prepared.state, 3))
        found.append(
            {
                "seen": prepared.seen,
                "kind": source.kind,
                "why": source.why,
                "where": source.where,
                "fingerprints": [o.fingerprint for o in observations],
                "inputs": [o.input for o in observations],
                "scalars": observations[0].scalars,
                "reported": observations[0].reported,
                "sample": observations[0].sample,
                "dtype": observations[0].dtype,
                "seconds": min(o.seconds for o in observations),
            }
        )
    return found


BASE = {"kernel": "block tree", "n": 100, "block": "32", "dtype": "float32", "device": "simulator"}
OTHERS = [
    {},
    {"kernel": "atomic per element"},
    {"kernel": "integer atomics"},
    {"n": 1_000_000, "block": "512"},
    {"dtype": "float64"},
    {},
]


@pytest.fixture(scope="module")
def observed():
    return in_simulator(observe_settings, [BASE | other for other in OTHERS])


def test_atomic_sum_in_the_simulator_is_a_model(observed):
    for run in observed:
        assert run["kind"] == "MODEL" and "simulator" in run["why"] and "numba" in run["where"]
        assert len(set(run["fingerprints"])) == 1 and len(set(run["inputs"])) == 1
        assert run["seconds"] > 0


def test_atomic_sum_shows_what_really_ran(observed):
    assert observed[0]["seen"] == {
        "kernel": "block_tree_atomic",
        "n": 100,
        "block": 32,
        "dtype": "float32",
        "device": "simulator",
    }
    assert observed[0]["reported"] == {"blocks": 4, "atomics": 4, "barriers": 6}
    clamped = observed[3]["seen"]
    assert (clamped["n"], clamped["block"]) == (256, 32)


def test_atomic_sum_tells_the_sum_and_the_exact_one(observed):
    x = np.random.default_rng(2).standard_normal(100).astype(np.float32)
    assert observed[0]["scalars"]["exact"] == math.fsum(x.tolist())
    assert observed[0]["scalars"]["sum"] == orders.block_tree(x, 32)
    assert observed[0]["sample"] == [observed[0]["scalars"]["sum"]]
    integers = observed[2]
    assert integers["scalars"]["sum"] == integers["scalars"]["exact"]
    assert (integers["seen"]["dtype"], integers["dtype"]) == ("int64", "float64")
    assert abs(integers["scalars"]["exact"] - observed[0]["scalars"]["exact"]) < 100 * 2**-21


def test_each_knob_changes_something_and_nothing_is_left_of_it(observed):
    first, *between, again = observed
    for other, run in zip(OTHERS[1:-1], between, strict=True):
        assert run["fingerprints"] != first["fingerprints"], other
    assert again["fingerprints"] == first["fingerprints"] and again["inputs"] == first["inputs"]


@pytest.mark.parametrize(
    ("device", "cards", "simulated"),
    [("auto", 0, True), ("auto", 1, False), ("simulator", 1, True), ("cuda", 0, False), ("cuda", 1, False)],
)
def test_the_simulator_is_chosen_where_it_will_run_and_nowhere_else(monkeypatch, device, cards, simulated):
    monkeypatch.setattr(machine, "cuda_device_count", lambda: cards)
    experiment = experiments.find("atomic-sum")
    settings = experiment.settings(device=device)
    assert experiment.variables(settings)["NUMBA_ENABLE_CUDASIM"] == ("1" if simulated else None)
    assert experiment.card(settings) == (None if simulated else "cuda-0")


@pytest.mark.parametrize("kernel", kernels.WAYS)
def test_show_me_the_code_shows_the_kernel_itself(kernel):
    code = atomic_sum.code(atomic_sum.ATOMIC_SUM.settings(kernel=kernel))
    for function in kernels.WAYS[kernel]:
        assert f"def {function.__name__}(" in code
    compile(code, "code", "exec")


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", ["single pass", "two passes", "integer atomics"])
def test_order_free_kernels_repeat_their_bits_on_a_gpu(kernel, vary, not_exercised):
    from samebits import runner

    def fingerprints(kernel, repeats):
        settings = {"kernel": kernel, "n": 1_000_000, "device": "cuda"}
        return runner.run(atomic_sum.ATOMIC_SUM, settings, repeats=repeats).fingerprints

    control = vary(lambda: fingerprints("atomic per element", 1)[0], budget_seconds=20)
    if not control.varied:
        not_exercised(f"atomic per element did not vary: {control}")
    assert len(set(fingerprints(kernel, 20))) == 1


# --- Slow motion ----------------------------------------------------------------------------------------


def test_slow_motion_holds_every_partial_sum_in_float32():
    values = [1e8, 3.0, -1e8, 5.0]
    motion = kernels.slow_motion(values, [0, 1, 2, 3], [0, 2, 1, 3])
    assert [sums.dtype for sums in motion.sums] == [np.float32, np.float32]
    assert motion.sums[0].tolist() == [1e8, 1e8, 0.0, 5.0]
    assert motion.sums[1].tolist() == [1e8, 0.0, 3.0, 8.0]
    assert motion.part == 3


def test_two_commits_never_part():
    motion = kernels.slow_motion([0.1, 0.2, 0.3], [0, 1, 2], [1, 0, 2])
    assert motion.part is None, "a + b = b + a, and then the same c"


def test_slow_motion_in_one_order_never_parts():
    assert kernels.slow_motion([0.1, 0.2, 0.3, 0.4], [3, 1, 0, 2], [3, 1, 0, 2]).part is None


@pytest.mark.parametrize("order", [[0, 1], [0, 1, 1], [0, 1, 3]])
def test_slow_motion_wants_each_block_once(order):
    with pytest.raises(ValueError, match="each of 0 to 2 once"):
        kernels.slow_motion([1, 2, 3], [0, 1, 2], order)
