"""Split-K: a matrix product whose K is cut into parts, by the course's own CUDA kernels.

    device = kernels.open_device()
    product = Product("fixed order", a, b, parts=8, block=256, device=device)
    seconds = product.run()
    product.value()

Each part of K gives one partial product for each element of c. Who adds them decides the bits: atomics take
them in any order; with a workspace, which holds them all, a second launch adds them in the order of the parts.

The kernels are plain functions, compiled and launched by kernels.py; arrays have one dimension, matrices lie
in them row by row. Not verified on a GPU: run in numba-cuda's simulator only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from samebits import kernels

# Placeholder for what `kernels.bind` gives a kernel.
cuda = None


def partial_product(a, b, shape, part, element):
    """What one part of K adds to one element of c; shape holds m, n, K and the number of parts."""
    n, k, parts = shape[1], shape[2], shape[3]
    row, column = element // n, element % n
    first, end = k * part // parts, k * (part + 1) // parts
    total = a[row * k + first] * b[first * n + column]
    for i in range(first + 1, end):
        total += a[row * k + i] * b[i * n + column]
    return total


def split_k_atomic(a, b, shape, c):
    """One thread for each element and each part; each adds its partial product to c, in any order."""
    i = cuda.grid(1)
    if i < c.size * shape[3]:
        element = i % c.size
        cuda.atomic.add(c, element, partial_product(a, b, shape, i // c.size, element))


def split_k_store(a, b, shape, workspace):
    """The same threads; each stores its partial product in a place of its own. Together they are the workspace."""
    i = cuda.grid(1)
    if i < workspace.size:
        elements = shape[0] * shape[1]
        workspace[i] = partial_product(a, b, shape, i // elements, i % elements)


def add_parts_in_order(workspace, c):
    """The second launch: one thread for each element adds its partial products, first part first."""
    element = cuda.grid(1)
    if element < c.size:
        total = workspace[element]
        for i in range(element + c.size, workspace.size, c.size):
            total += workspace[i]
        c[element] = total


# Way of adding the parts → the kernels that it launches, one after the other. Unsplit is one part.
WAYS: Mapping[str, tuple[Callable, ...]] = {
    "unsplit": (split_k_store, add_parts_in_order),
    "fixed order": (split_k_store, add_parts_in_order),
    "atomics": (split_k_atomic,),
}


class Product:
    """a @ b in one of the WAYS, with its arrays on a device.

    way    a key of WAYS
    a, b   (m, k) and (k, n) NumPy arrays of one float dtype
    parts  into how many parts k is cut, from 1 to k; "unsplit" takes one
    block  threads in a block

    A GPU may fuse each multiplication with the addition after it, which rounds once less than NumPy does.
    """

    def __init__(self, way: str, a: np.ndarray, b: np.ndarray, parts: int, block: int, device):
        self.kernels = WAYS[way]
        self.parts = 1 if way == "unsplit" else parts
        self._shape = (a.shape[0], b.shape[1])
        elements = a.shape[0] * b.shape[1]
        shape = np.array([a.shape[0], b.shape[1], a.shape[1], self.parts], np.int64)
        self._device, self._block = device, block
        self._zeros = np.zeros(elements, a.dtype)
        self._a, self._b = device.put(a.reshape(-1)), device.put(b.reshape(-1))
        self._sizes = device.put(shape)
        self._c = device.put(self._zeros)
        self.workspace_bytes = 0 if way == "atomics" else self.parts * elements * a.itemsize
        self._workspace = device.put(np.zeros(self.parts * elements, a.dtype))
        self._threads = {
            split_k_atomic: self.parts * elements,
            split_k_store: self.parts * elements,
            add_parts_in_order: elements,
        }
        self.run()  # compiles the kernels and, on a GPU, loads them

    def run(self) -> float:
        """Multiply once. Returns the seconds that the kernels took, without the setting of c to zero."""
        self._device.fill(self._c, self._zeros)
        return self._device.timed(self._launch)

    def _launch(self) -> None:
        arrays = {
            split_k_atomic: (self._a, self._b, self._sizes, self._c),
            split_k_store: (self._a, self._b, self._sizes, self._workspace),
            add_parts_in_order: (self._workspace, self._c),
        }
        for kernel in self.kernels:
            blocks = kernels.blocks_for(self._threads[kernel], self._block)
            self._device.launch(kernel, blocks, self._block, *arrays[kernel])

    def value(self) -> np.ndarray:
        """(m, n) array in a's dtype, read from the device: the last product."""
        return self._device.take(self._c).reshape(self._shape)

    def inputs_read_back(self) -> list[np.ndarray]:
        """a and b, flat, as they are on the device now."""
        return [self._device.take(self._a), self._device.take(self._b)]
