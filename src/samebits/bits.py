"""Floats as bits: what a pattern means, how far apart two are, and a fingerprint of any array or tensor.

    print(anatomy(0.1))                          # sign, exponent, fraction, value, neighbours
    ulp_distance(np.float32(0.1), 0.2)           # 8388608 floats apart
    fingerprint(tensor)                          # "sha256:…", of bytes, dtype and shape

Formats are those of IEEE 754 (float16, float32, float64), and bfloat16, which is float32 without its lower
16 bits.
"""

from __future__ import annotations

import hashlib
import math
import struct
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

# --- One float ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FloatFormat:
    """How a binary floating-point format divides its bits: one sign bit, then exponent, then fraction."""

    name: str
    exponent_bits: int
    fraction_bits: int

    @property
    def width(self) -> int:
        return 1 + self.exponent_bits + self.fraction_bits

    @property
    def bias(self) -> int:
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def sign_bit(self) -> int:
        return 1 << (self.width - 1)

    @property
    def infinity(self) -> int:
        """Pattern of +infinity: every exponent bit set, no fraction. What lies above it is NaN."""
        return ((1 << self.exponent_bits) - 1) << self.fraction_bits


FORMATS = {
    "float16": FloatFormat("float16", exponent_bits=5, fraction_bits=10),
    "bfloat16": FloatFormat("bfloat16", exponent_bits=8, fraction_bits=7),
    "float32": FloatFormat("float32", exponent_bits=8, fraction_bits=23),
    "float64": FloatFormat("float64", exponent_bits=11, fraction_bits=52),
}


@dataclass(frozen=True, repr=False)
class Anatomy:
    """One bit pattern of one format, taken apart. Make it with `anatomy` or `from_bits`.

    format   the FloatFormat
    pattern  the bits as an unsigned integer
    """

    format: FloatFormat
    pattern: int

    @property
    def sign(self) -> int:
        """0 for plus, 1 for minus."""
        return self.pattern >> (self.format.width - 1)

    @property
    def exponent(self) -> int:
        """The exponent field as it stands, bias included: 0 for zeros and subnormals, all ones for inf, NaN."""
        return (self.pattern & self.format.infinity) >> self.format.fraction_bits

    @property
    def fraction(self) -> int:
        """The fraction field as an unsigned integer; the leading 1 of a normal number is not stored."""
        return self.pattern & ((1 << self.format.fraction_bits) - 1)

    @property
    def kind(self) -> str:
        """One of "zero", "subnormal", "normal", "infinity" and "nan"."""
        magnitude = self.pattern & ~self.format.sign_bit
        if magnitude == 0:
            return "zero"
        if magnitude > self.format.infinity:
            return "nan"
        if magnitude == self.format.infinity:
            return "infinity"
        return "normal" if self.exponent else "subnormal"

    @property
    def value(self) -> float:
        """The number itself. A Python float holds the value of every format here exactly."""
        if self.kind == "nan":
            return math.copysign(math.nan, -1 if self.sign else 1)
        if self.kind == "infinity":
            return -math.inf if self.sign else math.inf
        leading = (1 << self.format.fraction_bits) if self.exponent else 0
        magnitude = math.ldexp(leading + self.fraction, max(self.exponent, 1) - self._offset)
        return -magnitude if self.sign else magnitude

    @property
    def below(self) -> float:
        """The next smaller number of the format; −infinity has none and is its own, and so is NaN."""
        return self._neighbour(-1)

    @property
    def above(self) -> float:
        """The next larger number of the format; +infinity has none and is its own, and so is NaN."""
        return self._neighbour(+1)

    @property
    def ulp(self) -> float:
        """Value of the last bit, the unit in the last place: the distance to the next number away from zero."""
        if self.kind in ("infinity", "nan"):
            return abs(self.value)
        return math.ldexp(1, max(self.exponent, 1) - self._offset)

    @property
    def bits(self) -> str:
        """Sign, exponent and fraction as bits, such as "0 01111011 10011001100110011001101"."""
        digits = f"{self.pattern:0{self.format.width}b}"
        return f"{digits[0]} {digits[1 : -self.format.fraction_bits]} {digits[-self.format.fraction_bits :]}"

    def __repr__(self) -> str:
        lines = [f"{self.format.name}  {self.bits}"]
        if self.kind in ("normal", "subnormal"):
            power = max(self.exponent, 1) - self.format.bias
            significand = abs(math.ldexp(self.value, -power))
            lines += [
                f"value     {self.value!r}, {self.kind}",
                f"          = {'-' if self.sign else '+'}{significand!r} × 2^{power}",
                f"exponent  {self.exponent} stored, bias {self.format.bias}",
            ]
        else:
            lines.append(f"value     {self.value!r}, {self.kind}")
        if self.kind != "nan":
            lines.append(f"between   {self.below!r} and {self.above!r}")
        return "\n".join(lines)

    @property
    def _offset(self) -> int:
        return self.format.bias + self.format.fraction_bits

    def _neighbour(self, step: int) -> float:
        if self.kind == "nan":
            return self.value
        magnitude = self.pattern & ~self.format.sign_bit
        place = (-magnitude if self.sign else magnitude) + step  # on the ordered line of integers
        if abs(place) > self.format.infinity:
            return self.value
        return Anatomy(self.format, abs(place) | (self.format.sign_bit if place < 0 else 0)).value


def anatomy(value: Any, dtype: Any = "float32") -> Anatomy:
    """The float of format `dtype` nearest to `value` (ties to even), taken apart.

    value  a number: Python's, NumPy's, or a tensor of one element
    dtype  "float16", "bfloat16", "float32" or "float64", or NumPy's or torch's dtype of that name

    A NaN keeps its sign and as much of its payload as fits. Raises ValueError for another dtype.
    """
    chosen = _format(dtype)
    return Anatomy(chosen, _encode(float(value), chosen))


def from_bits(pattern: int, dtype: Any = "float32") -> Anatomy:
    """What the bits of the unsigned integer `pattern` mean in format `dtype`; `.value` is the number.

    Raises ValueError if the pattern does not fit in the format.
    """
    chosen = _format(dtype)
    if not 0 <= pattern < 1 << chosen.width:
        raise ValueError(f"{pattern} is no pattern of {chosen.width} bits, which {chosen.name} has.")
    return Anatomy(chosen, int(pattern))


def ulp(x: Any, dtype: Any = "float32") -> float:
    """Value of the last bit of `x` in format `dtype`: the gap between it and the next float away from zero.

    As math.ulp does for float64: infinity for infinities, NaN for NaN, the least subnormal for zero.
    """
    return anatomy(x, dtype).ulp


def _format(dtype: Any) -> FloatFormat:
    if isinstance(dtype, type):
        dtype = np.dtype(dtype)
    name = getattr(dtype, "name", str(dtype)).removeprefix("torch.")
    if name not in FORMATS:
        raise ValueError(f"{name} is none of the formats that can be taken apart: {', '.join(FORMATS)}.")
    return FORMATS[name]


def _encode(value: float, chosen: FloatFormat) -> int:
    """Pattern of the float nearest to `value`, ties to even, as IEEE 754 rounds."""
    sign = chosen.sign_bit if math.copysign(1, value) < 0 else 0
    if math.isnan(value):
        payload = struct.unpack("<Q", struct.pack("<d", value))[0] & ((1 << 52) - 1)
        payload >>= 52 - chosen.fraction_bits
        return sign | chosen.infinity | (payload or 1 << (chosen.fraction_bits - 1))
    if math.isinf(value):
        return sign | chosen.infinity
    if value == 0:
        return sign
    exponent = max(math.frexp(value)[1] - 1, 1 - chosen.bias)
    significand = round(math.ldexp(abs(value), chosen.fraction_bits - exponent))
    # A normal significand brings its leading 1 along, which raises the exponent field by one; so does a
    # carry out of the rounding, up to infinity.
    magnitude = ((exponent + chosen.bias - 1) << chosen.fraction_bits) + significand
    return sign | min(magnitude, chosen.infinity)


# --- The number line of floats --------------------------------------------------------------------------

# What ulp_distance says for NaN against a number; no two numbers are that far apart in any format.
NAN_DISTANCE = 2**64 - 1


def ulp_distance(a: Any, b: Any, dtype: Any = None) -> Any:
    """How many floats `b` is away from `a`: 0 for the same value, 1 for neighbours; elementwise.

    a, b   numbers, arrays or tensors that broadcast. Arrays, tensors and NumPy scalars must be of one format
           (float16, bfloat16, float32, float64); Python numbers are rounded to it, or to `dtype`, or to
           float64 if nothing else is known
    returns an int for two scalars, otherwise an array of uint64

    The distance is counted on the line of all floats in order, so it also crosses zero and powers of two:
      −0.0 and +0.0 are the same place: distance 0
      infinity is one past the largest finite number
      NaN and NaN: 0, whatever their payloads; NaN and a number: 2^64 − 1 (NAN_DISTANCE), further than any two
      numbers
    Raises ValueError if the formats differ.
    """
    chosen = _common_format((a, b), dtype)
    (line_a, nan_a), (line_b, nan_b) = _line(a, chosen), _line(b, chosen)
    distance = np.where(line_a > line_b, line_a - line_b, line_b - line_a)
    distance = np.where(nan_a | nan_b, np.where(nan_a & nan_b, 0, np.uint64(NAN_DISTANCE)), distance)
    return int(distance) if distance.ndim == 0 else distance


def max_ulp_distance(results: Iterable[Any], dtype: Any = None) -> int:
    """The largest elementwise distance in ULPs between any two of several results of one shape.

    Rules and errors as in `ulp_distance`; 0 for one result, for none, and for empty arrays.
    """
    results = list(results)
    if not results:
        return 0
    chosen = _common_format(results, dtype)
    lowest, any_nan = _line(results[0], chosen)
    highest, all_nan = lowest, any_nan
    for result in results[1:]:
        line, nan = _line(result, chosen)
        if line.shape != lowest.shape:
            raise ValueError(
                f"Results of shapes {list(lowest.shape)} and {list(line.shape)} cannot be compared."
            )
        lowest, highest = np.minimum(lowest, line), np.maximum(highest, line)
        any_nan, all_nan = any_nan | nan, all_nan & nan
    if (any_nan & ~all_nan).any():
        return NAN_DISTANCE
    return int(np.where(any_nan, np.uint64(0), highest - lowest).max(initial=0))


def _common_format(operands: Iterable[Any], dtype: Any) -> FloatFormat:
    names = {_format(x.dtype).name for x in operands if hasattr(x, "dtype")}
    if dtype is not None:
        names.add(_format(dtype).name)
    if len(names) > 1:
        raise ValueError(
            f"ULPs of {' and '.join(sorted(names))} are not the same; convert to one of them first."
        )
    return FORMATS[names.pop() if names else "float64"]


def _line(x: Any, chosen: FloatFormat) -> tuple[np.ndarray, np.ndarray]:
    """Where each float stands among all floats in order (uint64, zero at 2^63), and whether it is a NaN.

    uint64 because the whole line of float64 is longer than the positive half of int64.
    """
    pattern = _patterns(x, chosen)
    magnitude = pattern & np.uint64(chosen.sign_bit - 1)
    zero = np.uint64(1 << 63)
    line = np.where(pattern & np.uint64(chosen.sign_bit), zero - magnitude, zero + magnitude)
    return line, magnitude > np.uint64(chosen.infinity)


def _patterns(x: Any, chosen: FloatFormat) -> np.ndarray:
    if not hasattr(x, "dtype"):
        return np.uint64(_encode(float(x), chosen))
    raw = _raw(x).view(f"u{chosen.width // 8}")
    return raw.reshape(tuple(x.shape)).astype(np.uint64)


# --- Fingerprints ---------------------------------------------------------------------------------------

ALGORITHMS = ("sha256", "xxh3", "mix64")


def fingerprint(x: Any, algorithm: str = "sha256") -> str:
    """A short name for the exact bits of `x`, such as "sha256:9f86d0…": equal bits have equal fingerprints.

    x          NumPy array or scalar, torch tensor of any dtype and device, bool, int, float or complex; or a
               list, tuple or dict of these. dtype and shape are part of the fingerprint; strides, device and
               the order of a dict are not, and a list equals a tuple
    algorithm  "sha256" for records; "xxh3" (128 bits) for speed on the CPU; "mix64" for tensors on a GPU,
               which are reduced to one integer there (see device_fingerprint)

    −0.0 and +0.0 differ, and so do two NaNs with different payloads. Fingerprints of two algorithms are never
    equal. Raises ValueError for an unknown algorithm, TypeError for anything else than the above.
    """
    if algorithm == "mix64":
        return read_device_fingerprints([device_fingerprint(x)])[0]
    if algorithm == "sha256":
        digest = hashlib.sha256()
    elif algorithm == "xxh3":
        import xxhash

        digest = xxhash.xxh3_128()
    else:
        raise ValueError(f"{algorithm!r} is no fingerprint algorithm; use one of {', '.join(ALGORITHMS)}.")
    structure, leaves = _flatten(x)
    # Structure first: it says how many bytes each leaf has, so that no two inputs make the same stream.
    digest.update(structure.encode() + b"\n")
    for leaf in leaves:
        digest.update(_raw(leaf))
    return f"{algorithm}:{digest.hexdigest()}"


def device_fingerprint(x: Any) -> torch.Tensor:
    """The "mix64" fingerprint as a tensor of one int64 that stays on x's device: nothing waits for the GPU.

    x  as for `fingerprint`; NumPy arrays and Python numbers count as tensors on the CPU. All tensors must
       be on one device

    The bytes are read as 64-bit words; the fingerprint is the sum, modulo 2^64, of a *nonlinear* mix of each
    word and its position, with dtype and shape mixed into the sum. Integer sums are associative, so the
    result does not depend on the order in which a GPU adds. A sum of words with fixed odd weights would be
    cheaper, but two flipped signs add 2^63 twice, which is 0. The mix is the finaliser of SplitMix64 (Steele,
    Lea & Flood, OOPSLA 2014; constants of Stafford's variant 13).
    Read with read_device_fingerprints.
    """
    import torch

    structure, leaves = _flatten(x)
    key = int.from_bytes(hashlib.sha256(structure.encode()).digest()[:8], "little", signed=True)
    total, position = torch.zeros((), dtype=torch.int64), 0
    for leaf in leaves:
        for words in _words(leaf):
            total = total + _mixed_sum(words, position)
            position += words.numel()
    return _mix_(total ^ key)


def read_device_fingerprints(fingerprints: Sequence[torch.Tensor]) -> list[str]:
    """The texts "mix64:…" of what device_fingerprint gave, moved off the device in one transfer."""
    if not fingerprints:
        return []
    import torch

    return [f"mix64:{value & _MASK64:016x}" for value in torch.stack(list(fingerprints)).tolist()]


def _flatten(x: Any) -> tuple[str, list[Any]]:
    """Structure of `x` as text, and its tensors and arrays in the order in which the text names them."""
    if isinstance(x, dict):
        opening, closing = "{}"
        parts = [(f"{key!r}: ", x[key]) for key in sorted(x, key=repr)]
    elif isinstance(x, (list, tuple)):
        opening, closing = "()"
        parts = [("", part) for part in x]
    else:
        leaf = x if _is_tensor(x) else _array(x)
        return f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}", [leaf]
    texts: list[str] = []
    leaves: list[Any] = []
    for name, part in parts:
        text, below = _flatten(part)
        texts.append(name + text)
        leaves += below
    return opening + ", ".join(texts) + closing, leaves


def _is_tensor(x: Any) -> bool:
    torch = sys.modules.get("torch")  # without it, nothing can be a tensor
    return torch is not None and isinstance(x, torch.Tensor)


def _array(x: Any) -> np.ndarray:
    if not isinstance(x, (bool, int, float, complex)) and not hasattr(x, "__array__"):
        raise TypeError(
            f"A {type(x).__name__} has no fingerprint; use an array, a tensor, a number, or a list or dict of them."
        )
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError("A masked array hides elements, which have bytes all the same; use filled() first.")
    array = np.asarray(x)
    if array.dtype.hasobject:
        raise TypeError(
            f"A {type(x).__name__} of Python objects has no bytes to compare; use a numeric dtype."
        )
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _raw(x: Any) -> np.ndarray:
    """The bytes of an array or tensor in C order: a 1-d array of uint8."""
    if _is_tensor(x):
        return _tensor_bytes(x).cpu().numpy()
    return np.ascontiguousarray(_array(x)).reshape(-1).view(np.uint8)


def _tensor_bytes(x: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor in C order, on its device: 1-d, uint8."""
    import torch

    if x.is_meta:
        raise TypeError("A tensor on the meta device has no bytes; compute it on another device first.")
    if x.layout != torch.strided or x.is_quantized:
        raise TypeError(
            "A sparse or quantized tensor has no fingerprint; use to_dense() or dequantize() first."
        )
    # A conjugated or negated view carries its change as a flag, and its bytes would not show it.
    x = x.detach().resolve_conj().resolve_neg().contiguous()
    # Strides of one element, or of none, may be anything, also in a contiguous tensor; view insists on 1.
    return x.as_strided((x.numel(),), (1,)).view(torch.uint8)


# --- mix64 ----------------------------------------------------------------------------------------------

_MASK64 = (1 << 64) - 1
# Words taken at a time, so that the temporaries stay small: on the CPU in its cache, on a GPU large enough
# that starting kernels does not dominate.
_CHUNK_CPU = 1 << 16
_CHUNK_GPU = 1 << 22


def _signed(constant: int) -> int:
    """torch has no arithmetic for uint64 on every device; int64 wraps and multiplies to the same bits."""
    return constant - (1 << 64) if constant >= 1 << 63 else constant


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MULTIPLY_1 = _signed(0xBF58476D1CE4E5B9)
_MULTIPLY_2 = _signed(0x94D049BB133111EB)


def _words(x: Any) -> Iterable[torch.Tensor]:
    """The bytes of `x` as 64-bit words (int64), in chunks; the last word is filled up with zero bytes."""
    import torch

    data = _tensor_bytes(x if _is_tensor(x) else torch.from_numpy(_raw(x).copy()))
    whole = data.numel() // 8 * 8
    body = data[:whole]
    if body.storage_offset() % 8:  # a slice of a larger tensor may start in the middle of a word
        body = body.clone()
    yield from body.view(torch.int64).split(_CHUNK_CPU if body.device.type == "cpu" else _CHUNK_GPU)
    if whole < data.numel():
        yield torch.nn.functional.pad(data[whole:], (0, whole + 8 - data.numel())).view(torch.int64)


def _mixed_sum(words: torch.Tensor, position: int) -> torch.Tensor:
    import torch

    places = torch.arange(position + 1, position + 1 + words.numel(), device=words.device, dtype=torch.int64)
    return _mix_(places.mul_(_GOLDEN).bitwise_xor_(words)).sum()


def _mix_(z: torch.Tensor) -> torch.Tensor:
    """The finaliser of SplitMix64, in place on int64: a bijection in which every bit reaches every bit."""
    import torch

    for shift, multiplier in ((30, _MULTIPLY_1), (27, _MULTIPLY_2), (31, 1)):
        # int64 shifts in copies of the sign; the mask makes the shift a logical one.
        shifted = torch.bitwise_right_shift(z, shift).bitwise_and_((1 << (64 - shift)) - 1)
        z.bitwise_xor_(shifted)
        if multiplier != 1:
            z.mul_(multiplier)
    return z
