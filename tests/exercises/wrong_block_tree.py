"""Kernels for the exercise "block tree": right ones of several shapes, and wrong ones with what the check must say.

Most wrong ones are the first right one with one mistake in it, so that the mistake is all there is to read.
"""

HALVING = '''
def block_sum(x, total):
    """The sum of x, added to total[0]."""
    shared = cuda.shared.array(BLOCK, float32)
    thread = cuda.threadIdx.x
    i = cuda.grid(1)
    shared[thread] = 0
    if i < x.size:
        shared[thread] = x[i]
    cuda.syncthreads()
    stride = BLOCK // 2
    while stride > 0:
        if thread < stride:
            shared[thread] += shared[thread + stride]
        cuda.syncthreads()
        stride //= 2
    if thread == 0:
        cuda.atomic.add(total, 0, shared[0])
'''

INTERLEAVED = """
def block_sum(x, total):
    shared = cuda.shared.array(BLOCK, float32)
    thread = cuda.threadIdx.x
    i = cuda.blockIdx.x * cuda.blockDim.x + thread
    shared[thread] = x[i] if i < len(x) else 0
    stride = 1
    while stride < cuda.blockDim.x:
        cuda.syncthreads()
        if thread % (2 * stride) == 0:
            shared[thread] = shared[thread] + shared[thread + stride]
        stride *= 2
    if thread == 0:
        cuda.atomic.add(total, 0, shared[thread])
"""

DOUBLE_BUFFER = """
@cuda.jit
def block_sum(x, total):
    even = cuda.shared.array(BLOCK, float32)
    odd = cuda.shared.array(BLOCK, dtype=float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    if i < x.shape[0]:
        even[t] = x[i]
    else:
        even[t] = float32(0)
    cuda.syncthreads()
    left = BLOCK
    while left > 1:
        left = left // 2
        if t < left:
            odd[t] = even[2 * t] + even[2 * t + 1]
        cuda.syncthreads()
        if t < left:
            even[t] = odd[t]
        cuda.syncthreads()
    if t == BLOCK - 1:
        cuda.atomic.add(total, 0, even[0])
"""

GRID_STRIDE = """
def block_sum(x, total):
    shared = cuda.shared.array(BLOCK, float32)
    thread = cuda.threadIdx.x
    shared[thread] = 0
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        shared[thread] += x[i]
    stride = BLOCK // 2
    while stride > 0:
        cuda.syncthreads()
        if thread < stride:
            shared[thread] += shared[thread + stride]
        stride = stride // 2
    if thread == 0:
        cuda.atomic.add(total, 0, shared[0])
"""

ANNOTATED = HALVING.replace("(x, total)", "(x: np.ndarray, total: 'float64[:]') -> None")

TUPLE_INDEX = HALVING.replace("total, 0,", "total, (0,),").replace(
    "shared[thread] = 0", "shared[thread,] = 0"
)

# Both buffers are read at two places in each step, which is as many elements as a thread of a tree touches.
PING_PONG = """
def block_sum(x, total):
    here = cuda.shared.array(BLOCK, float32)
    there = cuda.shared.array(BLOCK, float32)
    thread = cuda.threadIdx.x
    i = cuda.grid(1)
    here[thread] = x[i] if i < x.size else 0.0
    cuda.syncthreads()
    stride = BLOCK // 2
    while stride > 0:
        if thread < stride:
            there[thread] = here[thread] + here[thread + stride]
        cuda.syncthreads()
        here, there = there, here
        stride >>= 1
    if thread == 0:
        cuda.atomic.add(total, 0, here[0])
"""

# Name → source; all earn every point.
RIGHT = {
    "stride halving": HALVING,
    "neighbours first": INTERLEAVED,
    "two buffers": DOUBLE_BUFFER,
    "grid stride": GRID_STRIDE,
    "annotated": ANNOTATED,
    "tuples of one as indices": TUPLE_INDEX,
    "ping-pong": PING_PONG,
}


def changed(old: str, new: str) -> str:
    assert HALVING.count(old) == 1, old
    return HALVING.replace(old, new)


def without_last_barrier() -> str:
    before, after = HALVING.rsplit("        cuda.syncthreads()\n", 1)
    return before + after


# Name → (source, a phrase that the check's sentence must hold); none earns a point.
WRONG = {
    "untouched stub": (
        'def block_sum(x, total):\n    """The sum of x."""\n    ...\n',
        "Not attempted yet",
    ),
    "stub with its first line": (
        "def block_sum(x, total):\n    shared = cuda.shared.array(BLOCK, float32)\n    ...\n",
        "Not attempted yet",
    ),
    "syntax error": (changed("while stride > 0:", "while stride > 0"), "Python cannot read line 12"),
    "renamed": (changed("def block_sum", "def my_sum"), "no function block_sum"),
    "another parameter": (changed("(x, total)", "(x, total, n)"), "must stay x and total"),
    "does nothing": (
        "def block_sum(x, total):\n    pass\n",
        "total[0] is 0 and should be 4656. Nothing was added",
    ),
    "returns its sum": (
        changed(
            "    if thread == 0:\n        cuda.atomic.add(total, 0, shared[0])\n", "    return shared[0]\n"
        ),
        "Nothing was added to total[0]; a kernel returns nothing",
    ),
    "no atomic": (
        changed("cuda.atomic.add(total, 0, shared[0])", "total[0] += shared[0]"),
        "An atomic is missing: line 18",
    ),
    "no atomic, written out": (
        changed("cuda.atomic.add(total, 0, shared[0])", "total[0] = total[0] + shared[0]"),
        "An atomic is missing: line 18",
    ),
    "no atomic per element": (
        "def block_sum(x, total):\n    i = cuda.grid(1)\n    if i < x.size:\n        total[0] += x[i]\n",
        "An atomic is missing: line 4",
    ),
    "last block wins": (
        changed("cuda.atomic.add(total, 0, shared[0])", "total[0] = shared[0]"),
        "An atomic is missing: line 18",
    ),
    "block 0 clears the total": (
        changed("    shared[thread] = 0\n", "    shared[thread] = 0\n    if i == 0:\n        total[0] = 0\n"),
        "An atomic is missing: line 9",
    ),
    "no barrier in the loop": (without_last_barrier(), "A barrier is missing"),
    "no barrier after loading": (
        changed("        shared[thread] = x[i]\n    cuda.syncthreads()\n", "        shared[thread] = x[i]\n"),
        "A barrier is missing",
    ),
    "no barrier before the atomic": (
        changed("if thread == 0:", "if thread == 1:")
        .replace("        cuda.syncthreads()\n        stride //= 2", "        stride //= 2")
        .replace("while stride > 0:", "while stride > 0:\n        cuda.syncthreads()"),
        "A barrier is missing",
    ),
    "barrier in the branch of the loop": (
        changed("+ stride]\n        cuda.syncthreads()", "+ stride]\n            cuda.syncthreads()"),
        "Only 16 of the 32 threads of block 0 reach the barrier in line 15",
    ),
    "barrier in the branch of the bounds check": (
        changed("x[i]\n    cuda.syncthreads()", "x[i]\n        cuda.syncthreads()"),
        "Only 13 of the 32 threads of block 2 reach the barrier in line 10",
    ),
    "early return": (
        changed("    shared[thread] = 0\n", "    if i >= x.size:\n        return\n    shared[thread] = 0\n"),
        "Only 13 of the 32 threads of block 2 reach the barrier in line 12",
    ),
    "no bounds check": (
        changed("    if i < x.size:\n        shared[thread] = x[i]\n", "    shared[thread] = x[i]\n"),
        "Thread 13 of block 2 touches x[77], but x has 77 elements",
    ),
    "bounds check off by one": (
        changed("if i < x.size:", "if i <= x.size:"),
        "touches x[77], but x has 77 elements",
    ),
    "bounds check on the thread": (changed("if i < x.size:", "if thread < x.size:"), "touches x[77]"),
    "slots beyond the end left unset": (
        changed("    shared[thread] = 0\n", ""),
        "no thread has written it",
    ),
    "whole blocks only": (
        changed("if i < x.size:", "if cuda.blockIdx.x < x.size // BLOCK:"),
        "total[0] is 2080 and should be 3003",
    ),
    "reads past the shared array": (
        changed("if thread < stride:", "if thread <= stride:"),
        "touches shared[32], but shared has 32 elements",
    ),
    "stride starts too small": (
        changed("stride = BLOCK // 2", "stride = BLOCK // 4"),
        "should be 4656. Follow one element",
    ),
    "loop ends too early": (changed("while stride > 0:", "while stride > 1:"), "Follow one element"),
    "every thread adds the block's sum": (
        changed("    if thread == 0:\n        cuda.atomic", "    cuda.atomic"),
        "Every thread of a block adds the block's sum",
    ),
    "last thread instead of the first": (
        changed("if thread == 0:", "if i == 0:"),
        "should be 4656. Follow one element",
    ),
    "block size written down": (
        changed("BLOCK, float32", "32, float32").replace("BLOCK // 2", "16"),
        "touches shared[32], but shared has 32 elements. A GPU would not stop",
    ),
    "stride written down": (changed("BLOCK // 2", "16"), "does a number stand where BLOCK belongs?"),
    "strides written down": (
        changed("while stride > 0:", "for stride in (32, 16, 8, 4, 2, 1):")
        .replace("        stride //= 2\n", "")
        .replace("if thread < stride:", "if thread < stride and thread + stride < BLOCK:"),
        "does a number stand where BLOCK belongs?",
    ),
    "more shared memory than a block has": (
        changed("BLOCK, float32", "1000000, float32"),
        "a block has 48 KiB",
    ),
    "float stride": (changed("stride //= 2", "stride /= 2"), "uses 8.0 as an index of shared"),
    "size known too late": (
        changed("array(BLOCK,", "array(cuda.blockDim.x,"),
        "must be known when the GPU's compiler sees it",
    ),
    "float64 inside": (changed("BLOCK, float32", "BLOCK, cuda.float64"), "`float64` in line 4"),
    "float64 by its letter": (changed("BLOCK, float32", "BLOCK, 'd'"), "line 4 (`shared"),
    "float64 by its size": (changed("BLOCK, float32", "BLOCK, 'f8'"), "holds float64"),
    "float64 by its size, in a conversion": (
        changed("total, 0, shared[0]", "total, 0, shared[0].astype('f8')"),
        "a float64 goes into total",
    ),
    "complex": (changed("BLOCK, float32", "BLOCK, 'complex64'"), "holds complex64"),
    "rounded": (
        changed("cuda.atomic.add(total, 0, shared[0])", "cuda.atomic.add(total, 0, round(shared[0], 3))"),
        "`round` in line 18",
    ),
    "truncated to whole numbers": (
        changed("shared[thread] = x[i]", "shared[thread] = int(x[i])"),
        "is a value rounded on the way?",
    ),
    "float of what is float32": (
        changed("shared[thread] = x[i]", "shared[thread] = float(x[i])"),
        "leave out float()",
    ),
    "float as a dtype": (changed("BLOCK, float32", "BLOCK, float"), "For an array write float32"),
    "sum of the shared array": (
        changed("total, 0, shared[0]", "total, 0, sum(shared)"),
        "A kernel can't loop over an array with sum()",
    ),
    "the shared array's own sum": (
        changed("total, 0, shared[0]", "total, 0, shared.sum()"),
        "A kernel can't loop over an array with sum()",
    ),
    "largest of the shared array": (
        changed("total, 0, shared[0]", "total, 0, shared.max()"),
        "'array' object has no attribute 'max'",
    ),
    "loop over the shared array": (
        changed(
            "        cuda.atomic.add(", "        for part in shared:\n            cuda.atomic.add("
        ).replace("0, shared[0]", "0, part"),
        "add by index",
    ),
    "truncated to integers": (changed("BLOCK, float32", "BLOCK, int"), "holds int64"),
    "tree in x itself": (
        "def block_sum(x, total):\n"
        "    i = cuda.grid(1)\n"
        "    stride = BLOCK // 2\n"
        "    while stride > 0:\n"
        "        if cuda.threadIdx.x < stride and i + stride < x.size:\n"
        "            x[i] += x[i + stride]\n"
        "        cuda.syncthreads()\n"
        "        stride //= 2\n"
        "    if cuda.threadIdx.x == 0 and i < x.size:\n"
        "        cuda.atomic.add(total, 0, x[i])\n",
        "The kernel changed x",
    ),
    "stride that does not shrink": (changed("        stride //= 2\n", ""), "does not end"),
    "loop without barriers that does not end": (
        changed("        cuda.syncthreads()\n        stride //= 2\n", ""),
        "used shared 5000 times",
    ),
    "loop until the stride is negative": (changed("while stride > 0:", "while stride >= 0:"), "does not end"),
    "atomic on a number": (
        changed("cuda.atomic.add(total, 0, shared[0])", "cuda.atomic.add(total[0], 0, shared[0])"),
        "takes an array, an index and a value",
    ),
    "unknown name": (changed("shared[thread] = 0\n", "shared[thread] = np.float32(0)\n"), "name 'np' is not"),
    "ends the program": (
        changed("    stride = BLOCK", "    exit()\n    stride = BLOCK"),
        "name 'exit' is not",
    ),
    "import": (changed("    thread = ", "    from numba import cuda\n    thread = "), "must go"),
}

# Name → (source, phrase); right sums, but not by a tree and one atomic per block: some points.
ANOTHER_WAY = {
    "one atomic per element": (
        "def block_sum(x, total):\n"
        "    i = cuda.grid(1)\n"
        "    if i < x.size:\n"
        "        cuda.atomic.add(total, 0, x[i])\n",
        "96 atomics for 96 numbers in 3 blocks",
    ),
    "atomics on shared memory": (
        "def block_sum(x, total):\n"
        "    shared = cuda.shared.array(1, float32)\n"
        "    i = cuda.grid(1)\n"
        "    if cuda.threadIdx.x == 0:\n"
        "        shared[0] = 0\n"
        "    cuda.syncthreads()\n"
        "    if i < x.size:\n"
        "        cuda.atomic.add(shared, 0, x[i])\n"
        "    cuda.syncthreads()\n"
        "    if cuda.threadIdx.x == 0:\n"
        "        cuda.atomic.add(total, 0, shared[0])\n",
        "atomics on shared memory",
    ),
    "one thread adds its block": (
        "def block_sum(x, total):\n"
        "    if cuda.threadIdx.x == 0:\n"
        "        first = cuda.blockIdx.x * BLOCK\n"
        "        subtotal = float32(0)\n"
        "        for i in range(first, min(first + BLOCK, x.size)):\n"
        "            subtotal += x[i]\n"
        "        cuda.atomic.add(total, 0, subtotal)\n",
        "one thread reads 32 elements",
    ),
    "thread 0 adds the shared array": (
        "def block_sum(x, total):\n"
        "    shared = cuda.shared.array(BLOCK, float32)\n"
        "    i = cuda.grid(1)\n"
        "    shared[cuda.threadIdx.x] = x[i] if i < x.size else 0\n"
        "    cuda.syncthreads()\n"
        "    if cuda.threadIdx.x == 0:\n"
        "        subtotal = float32(0)\n"
        "        for k in range(BLOCK):\n"
        "            subtotal += shared[k]\n"
        "        cuda.atomic.add(total, 0, subtotal)\n",
        "one thread reads 32 elements",
    ),
    "four threads add a quarter each": (
        "def block_sum(x, total):\n"
        "    shared = cuda.shared.array(BLOCK, float32)\n"
        "    part = cuda.shared.array(4, float32)\n"
        "    thread = cuda.threadIdx.x\n"
        "    i = cuda.grid(1)\n"
        "    shared[thread] = x[i] if i < x.size else 0\n"
        "    cuda.syncthreads()\n"
        "    if thread < 4:\n"
        "        part[thread] = 0\n"
        "        for k in range(BLOCK // 4):\n"
        "            part[thread] += shared[4 * k + thread]\n"
        "    cuda.syncthreads()\n"
        "    if thread == 0:\n"
        "        cuda.atomic.add(total, 0, part[0] + part[1] + part[2] + part[3])\n",
        "one thread reads",
    ),
}

# Never ends and touches nothing that is watched: only the end of the worker's time helps.
NEVER_ENDS = "def block_sum(x, total):\n    while total is not None:\n        pass\n"
