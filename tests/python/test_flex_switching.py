"""The tables of docs/coming_from/pytorch.md about FlexAttention: they are complete, and each claim holds."""

import inspect
import pathlib
import re
import warnings

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import onepass.torch  # noqa: E402
from flex_like_pytorch import BATCH, HEADS, causal_mask, draw  # noqa: E402
from flex_mods import NEW_BLOCK_MASKS  # noqa: E402
from test_flex_attention import eager  # noqa: E402
from torch.nn.attention import flex_attention as theirs  # noqa: E402

flex, create_block_mask = onepass.torch.flex_attention, onepass.torch.create_block_mask
PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "coming_from" / "pytorch.md"
N = 150


def first_cells(table):
    """The code of the first cells of the table behind that mark."""
    rows = PAGE.read_text().partition(f"<!-- {table} -->\n")[2].partition("\n\n")[0].splitlines()[2:]
    return {x.removesuffix("()") for row in rows for x in re.findall(r"`([^`]+)`", row.split("|")[1])}


@NEW_BLOCK_MASKS
def test_every_argument_and_member_has_a_row():
    for name in ("flex_attention", "create_block_mask"):
        assert inspect.signature(getattr(theirs, name)).parameters.keys() <= first_cells(name)
    members = {name for name in vars(theirs.BlockMask) if not name.startswith("_")}
    made = vars(theirs.create_block_mask(causal_mask, 1, 1, 4, 4, "cpu"))
    assert members | {name for name in made if not name.startswith("dq_")} <= first_cells("BlockMask")
    functions = [x for x in theirs.__all__ if not inspect.isclass(getattr(theirs, x))]
    assert all(f"`{name}`" in PAGE.read_text() for name in functions)


def mask(mask_mod=causal_mask, create=create_block_mask, **options):
    return create(mask_mod, None, None, N, N, "cpu", **options)


def attention_of(seen, q, k, v):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)


def close(x, y):
    torch.testing.assert_close(x, y, atol=1e-5, rtol=1e-5)


# ---------------------------------------------------------------------------------------------------- flex_attention
@pytest.mark.parametrize(
    "options", [{"BLOCK_M": 64}, {"BACKEND": "NONE"}, {"USE_TMA": True, "num_warps": 3}, {"x": None}]
)
def test_kernel_options_have_no_effect(options):
    q, k, v = draw(rows=N)
    assert torch.equal(flex(q, k, v, None, mask()), flex(q, k, v, None, mask(), kernel_options=options))


def test_the_lse_is_given_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, lse = flex(*(x.requires_grad_() for x in draw(rows=N)), return_lse=True)
    assert lse.requires_grad and lse.shape == (BATCH, HEADS, N)


def test_scale():
    q, k, v = draw(rows=N)
    close(flex(q, k, v, scale=0.1), torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=0.1))
    assert torch.equal(flex(q, k, v), flex(q, k, v, scale=0.25))


def test_grouped_heads_are_asked_for():
    q, k, v = draw(rows=N, heads_kv=2)
    close(flex(q, k, v, enable_gqa=True), flex(q, *(x.repeat_interleave(2, 1) for x in (k, v))))
    with pytest.raises(ValueError, match="key must have the heads of query, 4, without enable_gqa=True"):
        flex(q, k, v)


def test_maxima_on_a_cpu():
    q, k, v = draw(rows=N)
    out, aux = flex(q, k, v, return_aux=theirs.AuxRequest(max_scores=True))
    close(aux.max_scores, (q @ k.mT / 4).amax(-1))
    with pytest.raises(NotImplementedError, match="not supported on CPU"):
        theirs.flex_attention(q, k, v, return_aux=theirs.AuxRequest(max_scores=True))


def test_contents_of_captured_tensors_count_at_the_call():
    q, k, v = draw(rows=N)
    slope, calls = torch.zeros(HEADS), []

    def score_mod(score, b, h, q_idx, kv_idx):
        calls.append(score)
        return score - slope[h] * (q_idx - kv_idx)

    first = flex(q, k, v, score_mod)
    slope.fill_(0.1)
    assert not torch.equal(flex(q, k, v, score_mod), first) and len(calls) == 2


def test_captured_bfloat16_becomes_float32():
    """1 + 2^-10 is 1 in bfloat16. Scores are 0, so that nothing but the table counts."""
    q, k, v = draw(torch.bfloat16, rows=N)
    one = torch.ones(HEADS, dtype=torch.bfloat16)

    def score_mod(score, b, h, q_idx, kv_idx):
        return score + (one[h] + 2.0**-10 - 1) * 4096 * kv_idx

    expected = torch.logsumexp(4.0 * torch.arange(N), 0).expand(BATCH, HEADS, N)
    close(flex(q * 0, k, v, score_mod, return_lse=True)[1], expected)
    close(eager(q * 0, k, v, score_mod)[1], torch.full_like(expected, N).log())  # PyTorch's table is 0


def test_a_tensor_may_be_read_twice():
    q, k, v = draw(rows=N)
    t = torch.rand(N, requires_grad=True)
    flex(q, k, v, lambda s, b, h, i, j: s + t[i] * t[j]).square().sum().backward()
    assert t.grad.abs().sum() > 0


def test_a_mask_as_score_mod():
    q, k, v = draw(rows=N)
    close(flex(q, k, v, lambda s, b, h, i, j: torch.where(i >= j, s, -float("inf"))), flex(q, k, v, None, mask()))


# ------------------------------------------------------------------------------------------------- create_block_mask
def test_a_mask_mod_is_called_once():
    calls = []

    def mask_mod(b, h, q_idx, kv_idx):
        calls.append(type(q_idx).__name__)
        return q_idx >= kv_idx

    made = mask(mask_mod)
    for _ in range(2):
        flex(*draw(rows=N), None, made)
    assert calls == ["Symbol"]


@pytest.mark.parametrize("shared", [None, 1])
def test_masks_that_all_entries_and_heads_share(shared):
    made = create_block_mask(causal_mask, shared, shared, N, N, "cpu")
    assert made.shape == (1, 1, N, N)
    for batch, heads in ((1, 1), (3, 2)):
        q, k, v = draw(batch=batch, heads=heads, rows=N)
        close(flex(q, k, v, None, made), attention_of(torch.ones(N, N).tril().bool(), q, k, v))


def test_the_default_device():
    expected = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    assert create_block_mask(causal_mask, None, None, N, N).kv_indices.device.type == expected.type


@pytest.mark.parametrize("size", [1, 7, (16, 100), 1000])
def test_every_block_size_is_right(size):
    q, k, v = draw(rows=N)
    assert torch.equal(flex(q, k, v, None, mask(BLOCK_SIZE=size)), flex(q, k, v, None, mask()))


def test_compile_has_no_effect():
    x, y = mask(), mask(_compile=True)
    assert torch.equal(x.kv_indices, y.kv_indices) and torch.equal(
        flex(*draw(rows=N), None, x), flex(*draw(rows=N), None, y)
    )


# --------------------------------------------------------------------------------------------------------- BlockMask
def test_lists_are_made_when_they_are_read():
    made = mask()
    flex(*draw(rows=N), None, made)
    assert "kv_indices" not in vars(made)
    assert made.kv_indices.shape == (1, 1, 2, 2) and "kv_indices" in vars(made)


def test_another_mask_mod_decides_in_partial_tiles():
    q, k, v = draw(rows=N)
    seen = torch.ones(N, N).tril().bool()
    for create in (create_block_mask, theirs.create_block_mask):
        made = mask(create=create, BLOCK_SIZE=50)
        made.mask_mod = lambda b, h, q_idx, kv_idx: q_idx > kv_idx + 1
        tiles = torch.arange(N) // 50
        expected = torch.where(tiles[:, None] == tiles, seen.tril(-2), seen)
        expected[0] = expected[1] = False
        close(flex(q, k, v, None, made)[:, :, 2:], attention_of(expected[2:], q[:, :, 2:], k, v))


@NEW_BLOCK_MASKS
def test_to_moves_the_lists_alone():
    t = torch.zeros(N)
    made = mask(lambda b, h, q_idx, kv_idx: q_idx + t[q_idx] >= kv_idx)
    away = made.to("meta")
    assert away.kv_indices.device.type == "meta" and away.mask_mod is made.mask_mod and t.device.type == "cpu"


# ----------------------------------------------------------------------------------------------------------- others
def test_create_mask_is_a_bool_mask():
    q, k, v = draw(rows=N)
    seen = theirs.create_mask(causal_mask, None, None, N, N, "cpu")
    close(onepass.torch.attention(q, k, v, bool_mask=seen), flex(q, k, v, None, mask()))
