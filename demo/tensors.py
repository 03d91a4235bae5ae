"""safetensors files, the float64 oracle and the rule by which a result is right, in plain Python."""

import array
import json
import math
import operator
import pathlib
import struct
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

Floats: TypeAlias = "array.array[float]"  # as text: array.array has no brackets before Python 3.12
Tensor = tuple[list[int], Floats]  # shape, values
Numbers = Sequence[float]
Rows = Sequence[Numbers]


def dot(a: Iterable[float], b: Iterable[float]) -> float:
    return sum(map(operator.mul, a, b))


def read(path: pathlib.Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """(tensors, metadata) of fp32 safetensors: {name: (shape, array('f'))}."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, t in header.items():
        values = array.array("f")
        values.frombytes(data[8 + size :][slice(*t["data_offsets"])])
        tensors[name] = (t["shape"], values)
    return tensors, metadata


def write(path: pathlib.Path, tensors: dict[str, tuple[list[int], "array.array[Any]"]]) -> None:
    """Arrays of floats, 'f', as fp32 and of integers, 'i', as int32."""
    header: dict[str, Any] = {}
    at = 0
    for name, (shape, values) in tensors.items():
        header[name] = {
            "dtype": {"f": "F32", "i": "I32"}[values.typecode],
            "shape": shape,
            "data_offsets": [at, at + 4 * len(values)],
        }
        at += 4 * len(values)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(v.tobytes() for _, v in tensors.values()))


def rows(tensor: Tensor) -> list[Rows]:
    """A [1, heads, seq, dim] tensor as heads of rows of floats."""
    (_, heads, seq, dim), values = tensor
    return [[values[(h * seq + i) * dim :][:dim] for i in range(seq)] for h in range(heads)]


def repeated(tensor: Tensor, times: int) -> Tensor:
    """The same with each head's rows repeated."""
    (_, heads, seq, dim), values = tensor
    longer = array.array("f")
    for h in range(heads):
        longer.extend(values[h * seq * dim : (h + 1) * seq * dim] * times)
    return [1, heads, seq * times, dim], longer


def scores(q_row: Numbers, keys: Rows) -> list[float]:
    return [dot(q_row, k) / math.sqrt(len(q_row)) for k in keys]


def weights(q: Rows, k: Rows, lse: Numbers) -> list[list[float]]:
    """The weight of each key in each row, exp(score - LSE). With the LSE, this needs no second softmax."""
    return [[math.exp(s - row_lse) for s in scores(row, k)] for row, row_lse in zip(q, lse)]


def oracle(q: list[Rows], k: list[Rows], v: list[Rows]) -> tuple[list[float], list[float]]:
    """The textbook in float64, two passes: (out, lse) of heads of rows."""
    outs: list[float] = []
    lses: list[float] = []
    for q_head, k_head, v_head in zip(q, k, v):
        columns = list(zip(*v_head))
        for row in q_head:
            s = scores(row, k_head)
            m = max(s)
            p = [math.exp(x - m) for x in s]
            total = sum(p)
            outs += [dot(p, column) / total for column in columns]
            lses.append(m + math.log(total))
    return outs, lses


def fp32(x: Iterable[float]) -> Floats:
    return array.array("f", x)


class Verdict:
    """The rule of docs/reference/conventions.md: `base` is the fp32 textbook, whose error a right result may double."""

    def __init__(self, out: Numbers, lse: Numbers, base: Numbers, ref_out: Numbers, ref_lse: Numbers) -> None:
        def errors(values: Numbers) -> list[float]:
            return [abs(a - b) for a, b in zip(values, ref_out)]

        rounded = fp32(ref_out)
        ulp = 2 * max(abs(a - b) for a, b in zip(fp32(x - 0.3 for x in fp32(x + 0.3 for x in rounded)), rounded))
        unit = max(map(abs, ref_out)) * 2**-24
        error, base_error = errors(out), errors(base)
        self.worst, self.worst_accepted = max(error), 2 * max(base_error) + ulp
        self.mean, self.mean_accepted = sum(error) / len(error), 1.5 * sum(base_error) / len(error) + unit
        self.lse = max(abs(a - b) for a, b in zip(lse, ref_lse))
        lse_right = all(abs(a - b) <= 1e-5 + 1e-6 * abs(b) for a, b in zip(lse, ref_lse))
        finite = all(map(math.isfinite, out)) and all(map(math.isfinite, lse))
        self.right = finite and lse_right and self.worst <= self.worst_accepted and self.mean <= self.mean_accepted
