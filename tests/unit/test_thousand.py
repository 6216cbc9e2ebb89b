"""The thousand models: each is the training that PyTorch does in the same order, and threads don't matter."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest

from samebits import graphsage, thousand
from samebits.bits import fingerprint

HIDDEN = thousand.HIDDEN

# How far PyTorch's own training may end from the trainer's after ten epochs; see test_the_textbook_training_is_close.
TEXTBOOK_WEIGHTS = 1e-4
TEXTBOOK_LOSSES = 1e-5


@pytest.fixture(scope="module")
def graph():
    return thousand.synthetic_graph()


def weights_of(models) -> list[str]:
    return [fingerprint(model.weights) for model in models]


def test_the_graph_has_coras_numbers(graph):
    assert (graph.nodes, graph.edges, graph.features, graph.classes) == (2708, 5429, 1433, 7)
    assert len(np.unique(graph.pairs, axis=0)) == 2 * graph.edges
    assert (graph.pairs[:, 0] != graph.pairs[:, 1]).all()
    assert set(map(tuple, graph.pairs.tolist())) == set(map(tuple, graph.pairs[:, ::-1].tolist()))
    sums = np.add.reduceat(graph.values.astype(np.float64), graph.rows[:-1])
    assert np.allclose(sums, 1, atol=1e-6)
    assert len(graph.training) == 140 and len(graph.test) == 1000
    assert not set(graph.training.tolist()) & set(graph.test.tolist())


def test_the_same_seed_gives_the_same_models_at_any_number_of_threads(graph):
    one = weights_of(thousand.train(graph, orders=range(12), threads=1))
    five = weights_of(thousand.train(graph, orders=range(12), threads=5))
    assert one == five
    assert len(set(one)) == 12
    assert weights_of(thousand.train(graph, orders=range(4), threads=2)) == one[:4]


def test_models_come_in_the_order_asked_for_and_can_be_left_early(graph):
    trained = thousand.train(graph, orders=range(1000), threads=2)
    assert [next(trained).order for _ in range(3)] == [0, 1, 2]
    trained.close()


def test_without_an_order_of_its_own_each_model_is_the_same(graph):
    assert len(set(weights_of(thousand.train(graph, orders=[None] * 4)))) == 1


def test_another_start_is_another_model(graph):
    assert len(set(weights_of(thousand.train(graph, orders=[None] * 3, starts=[0, 1, 2])))) == 3


def test_history_holds_the_weights_before_the_first_step_and_after_each(graph):
    model = next(thousand.train(graph, orders=[3], epochs=4, keep_history=True))
    assert model.history.shape == (5, len(model.weights))
    assert fingerprint(model.history[0]) == fingerprint(thousand.first_weights(graph, 0))
    assert fingerprint(model.history[4]) == fingerprint(model.weights)
    plain = next(thousand.train(graph, orders=[3], epochs=4))
    assert fingerprint(plain.weights) == fingerprint(model.weights)


def test_both_modules_mean_the_same_number_of_hidden_units():
    assert graphsage.HIDDEN == thousand.HIDDEN


def test_the_tensors_are_views_of_all_weights(graph):
    weights = thousand.first_weights(graph, 0)
    parts = thousand.tensors(graph, weights)
    assert sum(part.size for part in parts.values()) == weights.size
    assert all(np.shares_memory(part, weights) for part in parts.values())
    assert parts["layer 2, self"].shape == (HIDDEN, 7)


# --- Against PyTorch -------------------------------------------------------------------------------------


def drawn_orders(graph, order, epochs):
    """The neighbour lists in the order in which each sum takes them: four for each step, two at the end."""
    state = np.array([thousand._state(order)], np.uint64)
    neighbours = graph.neighbours
    inputs, hidden, outputs = graph.needed
    everything = np.arange(graph.nodes, dtype=np.int32)
    for nodes in [hidden, outputs, hidden, inputs] * epochs + [everything, everything]:
        graphsage.shuffle(nodes, graph.starts, neighbours, state, True)
        yield neighbours.copy()


def in_torch(graph, order, epochs, rate=0.01, decay=5e-4, exponentials="PyTorch's"):
    """The same training by PyTorch's operations, all nodes computed, each operation rounded once.

    Sums are index_add, which adds one by one on the CPU; so are products of matrices, since a library would
    fuse and reorder. Gradients are written out, because autograd would add them in orders of its own.
    exponentials: "PyTorch's", or "libm's", which the trainer uses, too.
    """
    import torch

    def added(n, index, rows):
        return torch.zeros(n, rows.shape[1]).index_add(0, index, rows)

    def times(x, w):
        """x @ w, the inner index one after the other."""
        total = torch.zeros(x.shape[0], w.shape[1])
        for k in range(w.shape[0]):
            total = total + x[:, k : k + 1] * w[k]
        return total

    nodes, classes = graph.nodes, graph.classes
    first = torch.from_numpy(graph.pairs[:, 0].astype(np.int64))
    divisor = torch.from_numpy(np.maximum(np.diff(graph.starts), 1).astype(np.float32))[:, None]
    of_node = torch.from_numpy(np.repeat(np.arange(nodes), np.diff(graph.rows)))
    columns = torch.from_numpy(graph.columns.astype(np.int64))
    values = torch.from_numpy(graph.values)[:, None]
    training = torch.from_numpy(graph.training.astype(np.int64))
    labels = torch.from_numpy(graph.labels.astype(np.int64))
    sizes = thousand._sizes(graph)
    weights = torch.from_numpy(thousand.first_weights(graph, 0))
    moments = torch.zeros_like(weights), torch.zeros_like(weights)
    orders = drawn_orders(graph, order, epochs)
    losses = []

    def neighbour_sum(rows):
        lists = torch.from_numpy(next(orders).astype(np.int64))
        return added(nodes, first, rows[lists])

    def forward():
        w1, b1, w2, b2 = weights.split(sizes)
        w1, w2 = w1.reshape(-1, 2 * HIDDEN), w2.reshape(HIDDEN, -1)
        z = added(nodes, of_node, values * w1[columns])
        h = torch.relu((neighbour_sum(z[:, :HIDDEN]) / divisor + z[:, HIDDEN:]) + b1)
        y = times(h, w2)
        return h, (neighbour_sum(y[:, :classes]) / divisor + y[:, classes:]) + b2, w2

    for step in range(1, epochs + 1):
        h, logits, w2 = forward()
        wide = logits[training].double().requires_grad_()
        loss = torch.nn.functional.cross_entropy(wide, labels[training])
        loss.backward()
        losses.append(loss.item())
        g = torch.zeros(nodes, classes)
        g[training] = wide.grad.float() if exponentials == "PyTorch's" else by_libm(wide, labels[training])
        y_gradient = torch.cat([neighbour_sum(g / divisor), g], dim=1)
        outer = (h[:, :, None] * y_gradient[:, None, :]).reshape(nodes, -1)
        everything = torch.zeros(nodes, dtype=torch.int64)
        g2 = added(1, everything, outer)
        gb2 = added(1, everything, g)
        h_gradient = times(y_gradient, w2.T) * (h > 0)
        gb1 = added(1, everything, h_gradient)
        z_gradient = torch.cat([neighbour_sum(h_gradient / divisor), h_gradient], dim=1)
        g1 = added(graph.features, columns, values * z_gradient[of_node])
        gradient = torch.cat([part.reshape(-1) for part in (g1, gb1, g2, gb2)]) + decay * weights
        moments[0].mul_(0.9).add_((1 - np.float32(0.9)).item() * gradient)
        moments[1].mul_(0.999).add_(((1 - np.float32(0.999)).item() * gradient) * gradient)
        size, scale = rate / (1 - 0.9**step), torch.full_like(weights, math.sqrt(1 - 0.999**step))
        # PyTorch may take its square roots from MKL, which rounds some of them to the other neighbour.
        root = torch.from_numpy(np.sqrt(moments[1].numpy()))
        weights.sub_((size * moments[0]) / (root / scale + 1e-8))
    return weights.numpy(), losses, forward()[1].numpy()


def by_libm(wide, labels):
    """Gradient of the mean cross-entropy, (outputs, classes) float32, by the exp of the C library."""
    import torch

    gradient = np.empty(wide.shape)
    for row, logits, label in zip(gradient, wide.tolist(), labels.tolist(), strict=True):
        powers = [math.exp(logit - max(logits)) for logit in logits]
        denominator = 0.0
        for power in powers:
            denominator += power
        row[:] = [power / denominator - (c == label) for c, power in enumerate(powers)]
    return torch.from_numpy(gradient / len(gradient)).float()


def repeated(train, not_exercised):
    """What `train` gives twice in a row; a reference that does not repeat is none, and one odd answer is told."""
    answers = [fingerprint(train()[0])]
    while len(answers) < 6:
        weights, losses, logits = train()
        answers.append(fingerprint(weights))
        if answers[-1] == answers[-2]:
            if len(set(answers)) > 1:
                not_exercised(f"PyTorch's own training did not repeat at first: {answers}")
            return weights, losses, logits
    pytest.fail(f"PyTorch's own training does not repeat: {answers}")


def apart(graph, ours, theirs):
    """Which tensors differ, in how many elements and by how much: for a failure that nobody can repeat."""
    pairs = zip(thousand.tensors(graph, ours).items(), thousand.tensors(graph, theirs).values(), strict=True)
    return {
        name: (int((a != b).sum()), float(np.abs(a - b).max())) for (name, a), b in pairs if (a != b).any()
    }


@pytest.mark.parametrize("order", [0, 7])
def test_a_model_is_pytorchs_training_in_the_same_order_bit_for_bit(graph, order, not_exercised):
    model = next(thousand.train(graph, orders=[order]))
    weights, losses, logits = repeated(lambda: in_torch(graph, order, epochs=10), not_exercised)
    assert np.allclose(model.losses, losses, rtol=1e-14, atol=0)  # float64's exp and log differ in last bits
    if fingerprint(model.weights) != fingerprint(weights):
        # Once in many thousand gradients those last bits decide how one is rounded to float32. Then the same
        # exponentials must give the same bits, and PyTorch's own stay as near as one rounding can put them.
        assert np.abs(model.weights - weights).max() < 1e-6, apart(graph, model.weights, weights)
        weights, _, logits = in_torch(graph, order, epochs=10, exponentials="libm's")
    assert fingerprint(model.weights) == fingerprint(weights), apart(graph, model.weights, weights)
    assert fingerprint(model.logits) == fingerprint(logits)


@pytest.mark.parametrize("order", [0, 7])
def test_a_model_is_that_training_with_the_same_exponentials(graph, order):
    weights, _, logits = in_torch(graph, order, epochs=10, exponentials="libm's")
    model = next(thousand.train(graph, orders=[order]))
    assert fingerprint(model.weights) == fingerprint(weights), apart(graph, model.weights, weights)
    assert fingerprint(model.logits) == fingerprint(logits)


def test_the_textbook_training_is_close(graph):
    """autograd, torch.optim.Adam and matrix products fuse and reorder: other bits, within a stated distance."""
    import torch

    from samebits.experiments import sage_training

    tensors, losses = sage_training.train(sage_training.state_on(torch.device("cpu"), graph, epochs=10))
    model = next(thousand.train(graph))
    for ours, textbook in zip(thousand.tensors(graph, model.weights).values(), tensors, strict=True):
        assert ours.shape == textbook.shape
        assert np.abs(ours - textbook.numpy()).max() < TEXTBOOK_WEIGHTS
    assert np.abs(model.losses - losses).max() < TEXTBOOK_LOSSES


# --- Cora, from files ------------------------------------------------------------------------------------


def write_cora(folder, papers=60, classes=2):
    lines = [f"paper{n} {int(n % 3 == 0)} {int(n % 5 == 0)} 1 {'AB'[n % classes]}" for n in range(papers)]
    (folder / "cora.content").write_text("\n".join(lines) + "\n")
    cites = [f"paper{n} paper{(n * 7 + 1) % papers}" for n in range(papers)]
    cites += ["paper1 paper0", "paper0 paper0", "paper3 unheard-of"]
    (folder / "cora.cites").write_text("\n".join(cites) + "\n")


def test_cora_is_read_from_its_two_files(tmp_path):
    write_cora(tmp_path)
    graph = thousand.cora(tmp_path)
    assert (graph.nodes, graph.features, graph.classes, graph.name) == (60, 3, 2, "Cora")
    assert len(graph.training) == 40 and len(graph.test) == 20
    pairs = set(map(tuple, graph.pairs.tolist()))
    assert (0, 1) in pairs and (1, 0) in pairs and (0, 0) not in pairs
    assert len(pairs) == len(graph.pairs)
    first_row = graph.values[graph.rows[0] : graph.rows[1]]
    assert first_row.tolist() == [np.float32(1 / 3)] * 3
    assert 0 <= next(thousand.train(graph, epochs=2)).accuracy(graph) <= 1


@pytest.mark.parametrize(
    ("file", "text", "sentence"),
    [
        ("cora.content", None, "cora.content cannot be read"),
        ("cora.cites", None, "cora.cites cannot be read"),
        ("cora.content", "", "cora.content is not as distributed"),
        ("cora.content", "p1 0 1 A\np2 0 A\n", "cora.content is not as distributed"),
        ("cora.content", "p1 0 2 A\np2 0 1 B\n", "must be 0 or 1"),
        ("cora.cites", "paper1\n", "cora.cites is not as distributed"),
        ("cora.cites", "x y\n", "too little to train on"),
    ],
)
def test_files_that_are_not_cora_are_refused_in_a_sentence(tmp_path, file, text, sentence):
    write_cora(tmp_path)
    (tmp_path / file).unlink()
    if text is not None:
        (tmp_path / file).write_text(text)
    with pytest.raises(ValueError, match=sentence):
        thousand.cora(tmp_path)


def test_files_that_are_no_text_are_refused_in_a_sentence(tmp_path):
    write_cora(tmp_path)
    (tmp_path / "cora.content").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="no text file"):
        thousand.cora(tmp_path)


# --- The machine -----------------------------------------------------------------------------------------


def test_getting_the_trainer_ready_is_said_and_imports_no_framework():
    program = (
        "import sys; from samebits import thousand; assert 'numba' not in sys.modules\n"
        "next(thousand.train(thousand.synthetic_graph(), epochs=1, on_wait=print))\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "compiled trainer" in done.stdout
    assert done.stderr == ""
