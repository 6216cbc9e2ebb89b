"""sage-training: the same graph network, trained by PyTorch itself, live: on a GPU its neighbour sums may race.

Not verified on a GPU: run on CPUs only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from samebits import thousand
from samebits.bits import fingerprint
from samebits.experiment import Experiment, Knob, Observation, Prepared
from samebits.experiments import torch_worker


@dataclass(frozen=True)
class _State:
    graph: thousand.Graph
    inputs: dict[str, Any]  # tensors on the device
    epochs: int
    device: Any


def prepare(settings: dict) -> Prepared:

    torch_worker.set_flags(threads=settings["threads"], deterministic=settings["deterministic"])
    device = torch_worker.choose_device(settings["device"])
    state = state_on(device, thousand.synthetic_graph(), settings["epochs"])
    return torch_worker.prepared(state, device)


def state_on(device: Any, graph: thousand.Graph, epochs: int) -> _State:
    """The graph and the first weights as tensors on `device`; features dense, so that products are plain ones."""
    import torch

    features = np.zeros((graph.nodes, graph.features), np.float32)
    features[np.repeat(np.arange(graph.nodes), np.diff(graph.rows)), graph.columns] = graph.values
    arrays = {
        "features": features,
        "receiver": graph.pairs[:, 0].astype(np.int64),
        "sender": graph.pairs[:, 1].astype(np.int64),
        "degree": np.maximum(np.diff(graph.starts), 1).astype(np.float32)[:, None],
        "labels": graph.labels.astype(np.int64),
        "training": graph.training.astype(np.int64),
        "weights": thousand.first_weights(graph),
    }
    tensors = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
    return _State(graph, tensors, epochs, device)


def train(state: _State) -> tuple[list, list[float]]:
    """The textbook loop: weights (as thousand.tensors orders them, flat) and the loss before each step."""
    import torch

    given = state.inputs
    layers = thousand.tensors(state.graph, given["weights"].cpu().numpy())
    layers = {
        name: torch.tensor(part, device=state.device, requires_grad=True) for name, part in layers.items()
    }
    adam = torch.optim.Adam(layers.values(), lr=0.01, weight_decay=5e-4)

    def sage(x, layer):
        rows = (x @ layers[f"{layer}, neighbours"]).index_select(0, given["sender"])
        sums = torch.zeros(len(x), rows.shape[1], device=state.device).index_add_(0, given["receiver"], rows)
        return sums / given["degree"] + x @ layers[f"{layer}, self"] + layers[f"{layer}, bias"]

    losses = []
    for _ in range(state.epochs):
        adam.zero_grad()
        logits = sage(sage(given["features"], "layer 1").relu(), "layer 2")
        loss = torch.nn.functional.cross_entropy(
            logits[given["training"]], given["labels"][given["training"]]
        )
        loss.backward()
        adam.step()
        losses.append(loss.detach())
    return [part.detach() for part in layers.values()], [loss.item() for loss in losses]


def observe(state: _State, n: int) -> Iterator[Observation]:
    given = fingerprint(list(state.inputs.values()), "mix64" if state.device.type == "cuda" else "xxh3")
    train(state)  # the first training allocates and, on a GPU, loads the kernels
    for _ in range(n):
        (weights, losses), seconds = torch_worker.timed(lambda: train(state), state.device)
        yield Observation(
            fingerprint(weights, "sha256"),
            given,
            seconds,
            scalars={"loss": losses[-1]},
            reported={"printed loss": f"{losses[-1]:.4f}"},
            sample=tuple(weights[0].reshape(-1)[:64].tolist()),
        )


def code(settings: dict) -> str:
    return f"""\
torch.use_deterministic_algorithms({settings["deterministic"]})
def sage(x, layer):
    rows = (x @ layer.neighbours).index_select(0, sender)
    sums = torch.zeros(len(x), rows.shape[1]).index_add_(0, receiver, rows)
    return sums / degree + x @ layer.self + layer.bias

for _ in range({settings["epochs"]}):
    adam.zero_grad()
    logits = sage(sage(features, layer1).relu(), layer2)
    loss = torch.nn.functional.cross_entropy(logits[training], labels[training])
    loss.backward()
    adam.step()"""


SAGE_TRAINING = Experiment(
    name="sage-training",
    title="A graph network, live",
    question="The same seed, the same graph, PyTorch's own training: the same weights?",
    knobs=(
        Knob("epochs", "Epochs", "Steps of Adam, each on all training nodes.", "number", 10, low=1, high=200),
        torch_worker.DETERMINISTIC,
        torch_worker.THREADS,
        torch_worker.DEVICE,
    ),
    prepare=prepare,
    observe=observe,
    code=code,
    framework="torch",
    card=torch_worker.card,
    recordings=({"deterministic": False}, {"deterministic": True}),
)
