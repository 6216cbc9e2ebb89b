"""The compiled trainer of one graph network: forward, backward and Adam in float32, in a stated order.

It imports numba, so thousand.py imports it only when it trains. Compiled without "fast math": no sum is
reordered and no product is fused into one, so each operation below rounds once, as it is written.

A neighbour sum is the only place with a choice of order. `shuffle` draws it: anew for each node, each layer,
forward and backward, and each step.

Arrays, for a graph of N nodes, F features, H hidden units and C classes:

    weights    (P,) float32: layer 1 as (F, 2H), its bias (H,), layer 2 as (H, 2C), its bias (C,); the first
               half of a layer's columns is for the mean of the neighbours, the second for the node itself
    starts     (N + 1,) int32 and neighbours (2 · edges,) int32: the neighbours of node v are
               neighbours[starts[v] : starts[v + 1]]
    rows, columns, values   the features as compressed sparse rows: (N + 1,), (nonzeros,) int32, and float32
"""

import math

import numba
import numpy as np

HIDDEN = 16

# NumPy's rules for a division by zero, because Python's would put a branch into every loop that divides.
_compiled = numba.njit(cache=True, nogil=True, error_model="numpy")
# Into the caller's own code, before LLVM sees it: twice as fast as LLVM's inlining of a call (measured).
_inlined = numba.njit(nogil=True, error_model="numpy", inline="always")


@_inlined
def _clear(totals, i, width):
    """totals[i] = 0, in the first `width` columns."""
    for k in range(width):
        totals[i, k] = np.float32(0)


@_inlined
def _add(totals, i, rows, j, width):
    """totals[i] += rows[j], in the first `width` columns.

    Rows by their numbers, not as slices: numba counts references to each slice, which takes longer than adding it
    (six times, measured). The width as an argument, not a constant: then LLVM makes vector instructions of the loop.
    """
    for k in range(width):
        totals[i, k] += rows[j, k]


@_inlined
def _add_product(totals, i, factor, rows, j, width):
    """totals[i] += factor * rows[j], in the first `width` columns: the product is rounded, and then the sum."""
    for k in range(width):
        totals[i, k] += factor * rows[j, k]


@_compiled
def _next(state):
    """One step of SplitMix64 (Steele, Lea & Flood, OOPSLA 2014): state is (1,) uint64, the result 64 bits."""
    state[0] = state[0] + np.uint64(0x9E3779B97F4A7C15)
    mixed = (state[0] ^ (state[0] >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


@_compiled
def shuffle(nodes, starts, neighbours, state, shuffled):
    """Brings the neighbours of each of `nodes` into a random order, in place (Fisher–Yates), if `shuffled`."""
    if not shuffled:
        return
    for n in range(nodes.size):
        first = starts[nodes[n]]
        for i in range(starts[nodes[n] + 1] - 1, first, -1):
            left = np.uint64(i - first + 1)
            j = first + np.int32(((_next(state) >> np.uint64(32)) * left) >> np.uint64(32))
            chosen = neighbours[j]
            neighbours[j] = neighbours[i]
            neighbours[i] = chosen


@_compiled
def _project_features(nodes, rows, columns, values, weights, out):
    """out[i] = features[i] @ weights, one nonzero after the other; (N, 2H)."""
    for n in range(nodes.size):
        i = nodes[n]
        _clear(out, i, out.shape[1])
        for e in range(rows[i], rows[i + 1]):
            _add_product(out, i, values[e], weights, columns[e], out.shape[1])


@_compiled
def _divisor(starts, v):
    """How many neighbours v has, and 1 for a node without any: their mean is then 0."""
    return np.float32(max(1, starts[v + 1] - starts[v]))


@_compiled
def _forward(inputs, hidden, outputs, starts, neighbours, rows, columns, values, w1, b1, w2, b2, state, shuffled,
             z, h, y, logits):  # fmt: skip
    """The network at the nodes `outputs`; `hidden` and `inputs` are the nodes that they need, layer by layer."""
    classes = b2.size
    _project_features(inputs, rows, columns, values, w1, z)
    shuffle(hidden, starts, neighbours, state, shuffled)
    for n in range(hidden.size):
        v = hidden[n]
        _clear(h, v, h.shape[1])
        for e in range(starts[v], starts[v + 1]):
            _add(h, v, z, neighbours[e], h.shape[1])
        divisor = _divisor(starts, v)
        for k in range(HIDDEN):
            value = (h[v, k] / divisor + z[v, HIDDEN + k]) + b1[k]
            h[v, k] = value if value > 0 else np.float32(0)
        _clear(y, v, y.shape[1])
        for k in range(HIDDEN):
            _add_product(y, v, h[v, k], w2, k, y.shape[1])
    shuffle(outputs, starts, neighbours, state, shuffled)
    for n in range(outputs.size):
        v = outputs[n]
        _clear(logits, v, classes)
        for e in range(starts[v], starts[v + 1]):
            _add(logits, v, y, neighbours[e], classes)
        divisor = _divisor(starts, v)
        for c in range(classes):
            logits[v, c] = (logits[v, c] / divisor + y[v, classes + c]) + b2[c]


@_compiled
def _loss(outputs, labels, logits, gradient):
    """Mean cross-entropy over `outputs`, and its gradient, rounded to float32.

    In float64 (spelled out, since numba's float() leaves a float32 as it is): exp and log of two libraries differ
    in their last bits; rounded to float32, almost never.
    """
    total = 0.0
    classes = logits.shape[1]
    for n in range(outputs.size):
        v = outputs[n]
        largest = np.float64(logits[v, 0])
        for c in range(1, classes):
            largest = max(largest, np.float64(logits[v, c]))
        denominator = 0.0
        for c in range(classes):
            denominator += math.exp(np.float64(logits[v, c]) - largest)
        total += math.log(denominator) + largest - np.float64(logits[v, labels[v]])
        for c in range(classes):
            share = math.exp(np.float64(logits[v, c]) - largest) / denominator
            if c == labels[v]:
                share -= 1.0
            gradient[v, c] = np.float32(share / outputs.size)
    return total / outputs.size


@_compiled
def _backward(inputs, hidden, outputs, starts, neighbours, rows, columns, values, w2, state, shuffled,
              h, y_gradient, h_gradient, z_gradient, output_gradient, g1, gb1, g2, gb2):  # fmt: skip
    """Gradients of the loss: g1, gb1, g2, gb2 are set, in the shapes of the weights.

    What is not in `outputs`, or not in `hidden`, has gradient 0 in these arrays, and stays so.
    """
    classes = gb2.size
    w2_columns = w2.T.copy()
    g1[:] = 0
    gb1[:] = 0
    g2[:] = 0
    gb2[:] = 0
    for n in range(outputs.size):
        v = outputs[n]
        for c in range(classes):
            gb2[c] += output_gradient[v, c]
            y_gradient[v, classes + c] = output_gradient[v, c]
        divisor = _divisor(starts, v)
        for c in range(classes):
            output_gradient[v, c] /= divisor
    shuffle(hidden, starts, neighbours, state, shuffled)
    for n in range(hidden.size):
        u = hidden[n]
        _clear(y_gradient, u, classes)
        for e in range(starts[u], starts[u + 1]):
            _add(y_gradient, u, output_gradient, neighbours[e], classes)
        for k in range(HIDDEN):
            _add_product(g2, k, h[u, k], y_gradient, u, 2 * classes)
        _clear(h_gradient, u, h_gradient.shape[1])
        for c in range(2 * classes):
            _add_product(h_gradient, u, y_gradient[u, c], w2_columns, c, h_gradient.shape[1])
        divisor = _divisor(starts, u)
        for k in range(HIDDEN):
            if h[u, k] <= 0:
                h_gradient[u, k] = 0
            gb1[k] += h_gradient[u, k]
            z_gradient[u, HIDDEN + k] = h_gradient[u, k]
            h_gradient[u, k] /= divisor
    shuffle(inputs, starts, neighbours, state, shuffled)
    for n in range(inputs.size):
        u = inputs[n]
        _clear(z_gradient, u, h_gradient.shape[1])
        for e in range(starts[u], starts[u + 1]):
            _add(z_gradient, u, h_gradient, neighbours[e], h_gradient.shape[1])
        for e in range(rows[u], rows[u + 1]):
            _add_product(g1, columns[e], values[e], z_gradient, u, z_gradient.shape[1])


@_compiled
def _adam(weights, gradients, first, second, step, rate, decay):
    """One step of Adam with L2 weight decay (Kingma & Ba, 2015), each operation rounded to float32."""
    one, beta1, beta2 = np.float32(1), np.float32(0.9), np.float32(0.999)
    size = np.float32(rate / (1 - 0.9**step))
    scale = np.float32(math.sqrt(1 - 0.999**step))
    for i in range(weights.size):
        gradient = gradients[i] + np.float32(decay) * weights[i]
        first[i] = beta1 * first[i] + (one - beta1) * gradient
        second[i] = beta2 * second[i] + ((one - beta2) * gradient) * gradient
        weights[i] -= (size * first[i]) / (np.sqrt(second[i]) / scale + np.float32(1e-8))


@_compiled
def train(weights, epochs, rate, decay, order, shuffled, needed, starts, neighbours, rows, columns, values, labels,
          everything, losses, history, logits):  # fmt: skip
    """One training, in place, and the logits of all nodes after it.

    weights     (P,) where it starts, and where it ends
    order       seed of the orders of all its neighbour sums; used if `shuffled`, else each keeps its order
    needed      (inputs, hidden, outputs): the nodes that the loss depends on; outputs are the training nodes.
                Only they are computed during training: nothing else reaches a weight.
    everything  (N,) all nodes
    losses      (epochs,) float64, set
    history     (epochs + 1, P), set to the weights before the first step and after each; (0, P) to keep none
    logits      (N, C) set
    """
    inputs, hidden, outputs = needed
    nodes, classes = logits.shape
    features = (weights.size - HIDDEN - classes - HIDDEN * 2 * classes) // (2 * HIDDEN)
    bias1 = features * 2 * HIDDEN
    layer2 = bias1 + HIDDEN
    bias2 = layer2 + HIDDEN * 2 * classes
    w1, b1 = weights[:bias1].reshape(features, 2 * HIDDEN), weights[bias1:layer2]
    w2, b2 = weights[layer2:bias2].reshape(HIDDEN, 2 * classes), weights[bias2:]
    gradients = np.empty_like(weights)
    g1, gb1 = gradients[:bias1].reshape(features, 2 * HIDDEN), gradients[bias1:layer2]
    g2, gb2 = gradients[layer2:bias2].reshape(HIDDEN, 2 * classes), gradients[bias2:]
    first, second = np.zeros_like(weights), np.zeros_like(weights)
    z, z_gradient = np.empty((nodes, 2 * HIDDEN), np.float32), np.zeros((nodes, 2 * HIDDEN), np.float32)
    h, h_gradient = np.empty((nodes, HIDDEN), np.float32), np.zeros((nodes, HIDDEN), np.float32)
    y, y_gradient = np.empty((nodes, 2 * classes), np.float32), np.zeros((nodes, 2 * classes), np.float32)
    output_gradient = np.zeros((nodes, classes), np.float32)
    neighbours = neighbours.copy()
    state = np.empty(1, np.uint64)
    state[0] = order

    for epoch in range(epochs):
        if history.shape[0]:
            history[epoch] = weights
        _forward(inputs, hidden, outputs, starts, neighbours, rows, columns, values, w1, b1, w2, b2, state, shuffled,
                 z, h, y, logits)  # fmt: skip
        losses[epoch] = _loss(outputs, labels, logits, output_gradient)
        _backward(inputs, hidden, outputs, starts, neighbours, rows, columns, values, w2, state, shuffled,
                  h, y_gradient, h_gradient, z_gradient, output_gradient, g1, gb1, g2, gb2)  # fmt: skip
        _adam(weights, gradients, first, second, epoch + 1, rate, decay)
    if history.shape[0]:
        history[epochs] = weights
    _forward(everything, everything, everything, starts, neighbours, rows, columns, values, w1, b1, w2, b2, state,
             shuffled, z, h, y, logits)  # fmt: skip
