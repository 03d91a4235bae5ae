"""The functions of PyTorch's own FlexAttention tests, through onepass.torch.flex_attention.

Source of the cases: test/inductor/test_flex_attention.py of PyTorch 2.15 (BSD-3-Clause); the code is written anew.
test_flex_pytorch.py says which cases are not taken.
"""

import functools
import math

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import onepass.torch  # noqa: E402
from flex_like_pytorch import BATCH, DTYPES, HEADS, LENGTH, causal, causal_mask, distance, draw, follows  # noqa: E402
from torch.nn import functional  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:flex_attention called without torch.compile")
flex, create_block_mask = onepass.torch.flex_attention, onepass.torch.create_block_mask


def random(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(5)).to(dtype)


FIRST_HALF = torch.arange(LENGTH) < LENGTH // 2
DOCUMENT = torch.arange(LENGTH) // 100
OFFSETS = torch.tensor([0, 128, 192, LENGTH], dtype=torch.int32)
SEQUENCE = torch.bucketize(torch.arange(LENGTH), OFFSETS[1:-1], right=True).int()
VIDEO = torch.tensor([30, 200], dtype=torch.int32)
KEYS_OF_ENTRY = torch.arange(BATCH, dtype=torch.int32) + 1
ONE = torch.ones((), dtype=torch.int32)


def skips_odd_keys(score, b, h, q, kv):
    return torch.where(kv % 2 == 0, score, float("-inf"))


def composed(score, b, h, q, kv):
    return torch.where(q <= kv, distance(score, b, h, q, kv), float("-inf"))


def natten(score, b, h, q, kv):
    """Its rows are quotients of floats, as in PyTorch's test."""
    near_row = (q / 17 - kv / 17).abs() <= 3
    return torch.where(near_row | ((q % 17 - kv % 17).abs() <= 3), score, float("-inf"))


def nested(score, b, h, q, kv):
    return causal(score, b, h, q - OFFSETS[SEQUENCE[q]], kv - OFFSETS[SEQUENCE[kv]])


def bidirectional(score, b, h, q, kv):
    return torch.where(((q <= VIDEO[b]) & (kv <= VIDEO[b])) | (q >= kv), score, -float("inf"))


def document_causal(score, b, h, q, kv):
    return torch.where((q >= kv) & (DOCUMENT[q] == DOCUMENT[kv]), score, -float("inf"))


def padded(score, b, h, q, kv):
    return torch.where(score <= KEYS_OF_ENTRY[b], causal(score, b, h, q, kv), -float("inf"))


def one_of_each(dtype):
    heads, entries, rows = random(HEADS), random(BATCH), random(LENGTH)
    return lambda score, b, h, q, kv: score + rows[q] + entries[b] + heads[h]


def two_indices(dtype):
    table = random(BATCH, LENGTH)
    return lambda score, b, h, q, kv: score + table[b][q]


def index_in_pairs(dtype):
    table = random(4, BATCH, HEADS, LENGTH)
    return lambda score, b, h, q, kv: score + table[0][b, h][q]


def index_by_a_tensor(dtype):
    table, which = random(BATCH, HEADS, 4, LENGTH), torch.tensor(0)
    return lambda score, b, h, q, kv: score + table[b][h][which, q]


def plus_table(table):
    return lambda score, b, h, q, kv: score + table[(b, h, q, kv)[-table.dim() :]]


def relative(dtype):
    table = random(2 * LENGTH, dtype=dtype)
    return lambda score, b, h, q, kv: score + table[(q - kv) + LENGTH]


def of_a_view(dtype):
    """A table that is a strided view, read at a quotient."""
    table = random(BATCH, 9, LENGTH, HEADS, dtype=dtype).permute(0, 3, 2, 1)
    return lambda score, b, h, q, kv: score + table[b, h, q, kv // 32]


def of_batch_and_positions(dtype):
    table = random(BATCH, LENGTH, LENGTH, dtype=dtype)
    return lambda score, b, h, q, kv: score + table[b, q, kv]


def scaled_heads(dtype):
    table = random(HEADS, dtype=dtype)
    return lambda score, b, h, q, kv: score * table[h]


def summed_row(dtype):
    """A sum of a row of a table. PyTorch's compiled function refuses it."""
    table = random(BATCH, 8)
    return lambda score, b, h, q, kv: score + table[b].sum(dim=-1)


def euclidean(dtype):
    """The distance of two rows of a table."""
    points, lengths = random(LENGTH, 3), torch.logspace(0.001, 0.1, HEADS)

    def score_mod(score, b, h, q, kv):
        far = (points[q] - points[kv]).pow(2).sum(-1).sqrt()
        return torch.exp(-far / lengths[h]) * score

    return score_mod


def continuous_positions(dtype):
    """Swin's continuous position bias: a table of a table's entries, gates, and halves of a tensor."""
    first, index = torch.tensor(2), torch.randint(0, 40, (LENGTH, LENGTH), generator=torch.Generator().manual_seed(7))
    table, gates = random(40, HEADS), torch.sigmoid(random(HEADS))
    of_rows, of_keys = random(BATCH, HEADS, 2, LENGTH).unbind(2)

    def score_mod(score, b, h, q, kv):
        inside = (q >= first) & (kv >= first)
        gate = gates[h] * (of_rows[b, h, q] + of_keys[b, h, kv])
        return score + inside.to(score.dtype) * gate * table[index[q, kv], h]

    return score_mod


FIXED = [skips_odd_keys, composed, natten, nested, bidirectional, document_causal, padded]
MADE = [one_of_each, two_indices, index_in_pairs, index_by_a_tensor, relative, of_a_view, of_batch_and_positions]
MADE += [scaled_heads, summed_row, euclidean, continuous_positions]
FUNCTIONS = {
    **{f.__name__: lambda dtype, f=f: f for f in FIXED},
    **{f.__name__: f for f in MADE},
    "sequences": lambda dtype: lambda s, b, h, q, kv: torch.where(FIRST_HALF[q] == FIRST_HALF[kv], s, -math.inf),
    "bias": lambda dtype: plus_table(random(LENGTH, LENGTH, dtype=dtype)),
    "bias_by_head": lambda dtype: plus_table(random(BATCH, HEADS, LENGTH, LENGTH, dtype=dtype)),
    "silu": lambda dtype: lambda s, b, h, q, kv: functional.silu(s),
    "sine": lambda dtype: lambda s, b, h, q, kv: torch.sin(torch.cos(s)) + torch.tan(b),
    "product": lambda dtype: lambda s, b, h, q, kv: torch.cos(s) * torch.sin(s) + torch.tan(b),
    "scale": lambda dtype: lambda s, b, h, q, kv: s + ONE,
    "mass": lambda dtype: lambda s, b, h, q, kv: s + torch.log(torch.ones(1, dtype=torch.float16)[0]),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name, dtype):
    follows(FUNCTIONS[name](dtype), dtype=dtype)


def test_a_row_of_256_elements_is_refused():
    """PyTorch refuses it when it compiles."""
    points = random(LENGTH, 256)
    with pytest.raises(TypeError, match=r"an array of shape \[256\] as an operand; a row has at most 64 elements"):
        flex(*draw(), lambda score, b, h, q, kv: score * (points[q] - points[kv]).pow(2).sum(-1))


def test_the_function_counts_at_the_call():
    add, one = True, torch.ones((), dtype=torch.int32) * 3

    def score_mod(score, b, h, q, kv):
        return score + one * q if add else score * one

    first = follows(score_mod, rows=40)
    add = False
    assert not torch.equal(follows(score_mod, rows=40), first)


@pytest.mark.parametrize("of", ["multiplied", "added"])
def test_captured_16_bit_buffers_of_lengths_that_tiles_do_not_divide(of):
    length = LENGTH - 3
    rows, keys = random(2, length, dtype=torch.bfloat16)

    def score_mod(score, b, h, q, kv):
        return score * rows[q] if of == "multiplied" else score + rows[q] + keys[kv]

    follows(score_mod, causal_mask if of == "added" else None, rows=length, dtype=torch.bfloat16)


def test_new_tensors_of_an_index():
    """A mask by a table of bools, at an index that h.new_zeros makes."""
    table = torch.ones(BATCH, 1, LENGTH, LENGTH, dtype=torch.bool).tril()

    def score_mod(score, b, h, q, kv):
        return score + table[b, h.new_zeros(h.shape), q, kv]

    def mask_mod(b, h, q, kv):
        return table[b, h.new_zeros(h.shape), q, kv]

    follows(score_mod, mask_mod, mask=(BATCH, None))


def test_partials_and_callable_objects():
    class Window:
        def __init__(self, size):
            self.size = size

        def __call__(self, b, h, q, kv):
            return (q >= kv) & (q - kv < self.size)

    def shifted(b, h, q, kv, shift):
        return q + shift >= kv

    follows(None, functools.partial(shifted, shift=31))
    follows(None, functools.partial(shifted, shift=torch.tensor(31.5)))
    follows(None, Window(40))
    follows(functools.partial(lambda score, b, h, q, kv, factor: score * factor, factor=0.5))


def test_sizes_in_a_closure():
    q, k, v = draw(rows=192, keys=128)

    def mask_mod(b, h, q_idx, kv_idx):
        return q_idx < (q.size(-2) // 32 + k.size(-2) // 32 - 5) * 32

    follows(lambda score, b, h, q_idx, kv_idx: score + q.shape[0], mask_mod, inputs=(q, k, v))


@pytest.mark.parametrize("name", ["bias", "reciprocal", "log"])
def test_nan_where_nothing_looks(name):
    """NaN in entries of a table that no call reads, and scores that the function makes large or NaN behind a mask."""
    table = random(2 * BATCH, HEADS, LENGTH, LENGTH)
    table[BATCH:] = math.nan
    table[:BATCH].masked_fill_(~torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril(), math.nan)
    mods = {
        "bias": lambda score, b, h, q, kv: score + table[b, h, q, kv],
        "reciprocal": lambda score, b, h, q, kv: 1 / score,
        "log": lambda score, b, h, q, kv: torch.where(score > 0, torch.log(score), score),
    }
    inputs = [x.requires_grad_() for x in draw()]
    out = flex(*inputs, mods[name], create_block_mask(causal_mask, None, None, LENGTH, LENGTH, device="cpu"))
    grads = torch.autograd.grad(out.sum(), inputs)
    assert out.isfinite().all()
    assert all(x.isfinite().all() for x in grads)
