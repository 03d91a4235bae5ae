"""onepass.torch.flex_attention against PyTorch's eager one, with its functions: results, gradients, masks, refusals."""

import inspect
import math

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import flex_mods  # noqa: E402
import onepass.torch  # noqa: E402
from flex_mods import HEADS, KEYS, MASK_MODS, NEW_BLOCK_MASKS, ROWS, SCORE_MODS  # noqa: E402
from onepass._flex import block_mask as lists_of  # noqa: E402
from torch._higher_order_ops.flex_attention import math_attention  # noqa: E402
from torch.fx.experimental import proxy_tensor  # noqa: E402
from torch.nn.attention import flex_attention as theirs  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:flex_attention called without torch.compile")


def draw(dtype=torch.float32, heads_kv=HEADS, rows=ROWS, keys=KEYS, grad=False):
    generator = torch.Generator().manual_seed(0)
    shapes = (2, HEADS, rows, 16), (2, heads_kv, keys, 16), (2, heads_kv, keys, 24)
    return [torch.randn(x, generator=generator).to(dtype).requires_grad_(grad) for x in shapes]


def eager(q, k, v, score_mod=None, block_mask=None, scale=None):
    """(out, lse) of PyTorch's eager flex_attention, with gradients, which its own front refuses on CPUs."""
    block_mask = block_mask or theirs._create_empty_block_mask(q, k)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    out, lse, _ = math_attention(q, k, v, score_mod or theirs._identity, block_mask.as_tuple(), scale, {})
    return out, lse * math.log(2)


def their_mask(mask_mod, **options):
    return (
        None if mask_mod is None else theirs.create_block_mask(mask_mod, 2, HEADS, ROWS, KEYS, device="cpu", **options)
    )


def our_mask(mask_mod, **options):
    if mask_mod is None:
        return None
    return onepass.torch.create_block_mask(mask_mod, None, None, ROWS, KEYS, device="cpu", **options)


def agree(score_mod, mask_mod, dtype, heads_kv=HEADS):
    """Results and gradients are as near to float64's as those of PyTorch's eager function in the same dtype."""
    results = {}
    for name, kind in (("reference", torch.float64), ("base", dtype), ("mine", dtype)):
        inputs = [x.detach().to(kind).requires_grad_() for x in draw(dtype, heads_kv)]
        if name == "mine":
            block_mask = our_mask(mask_mod)
            out, lse = onepass.torch.flex_attention(
                *inputs, score_mod, block_mask, enable_gqa=heads_kv != HEADS, return_lse=True
            )
        else:
            out, lse = eager(*inputs, score_mod, their_mask(mask_mod))
        seen = torch.isfinite(lse)
        loss = (out * torch.linspace(-1, 1, out.shape[-1], dtype=out.dtype)).sum() + lse[seen].sum() * 0.5
        gradients = torch.autograd.grad(loss, inputs)
        results[name] = [x.detach().double() for x in (out, lse, *gradients)]
    unit = torch.finfo(dtype).eps
    for what, mine, base, reference in zip(
        ("out", "lse", "dq", "dk", "dv"), *(results[x] for x in ("mine", "base", "reference"))
    ):
        finite = torch.isfinite(reference)
        assert torch.equal(mine[~finite], reference[~finite]), what
        mine, base, reference = (torch.where(finite, x, 0) for x in (mine, base, reference))
        size = reference.abs().max().clamp(min=1)
        allowed = 3 * (base - reference).abs().max() + (4 if what != "lse" else 1) * unit * size + 3e-6 * size
        worst = (mine - reference).abs().max()
        assert worst <= allowed, f"{what} is off by {worst:.3g}; {allowed:.3g} is accepted"


DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", SCORE_MODS)
def test_score_mods(name, dtype):
    agree(SCORE_MODS[name], None, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", MASK_MODS)
def test_mask_mods(name, dtype):
    agree(None, MASK_MODS[name], dtype)


@pytest.mark.parametrize("score, mask", [("alibi", "documents"), ("softcap", "sliding_window"), ("table", "natten")])
def test_both_with_grouped_heads(score, mask):
    agree(SCORE_MODS[score], MASK_MODS[mask], torch.float32, heads_kv=2)


def test_signatures_are_pytorchs():
    for name in ("flex_attention", "create_block_mask", "and_masks", "or_masks", "noop_mask"):
        mine, other = (inspect.signature(getattr(x, name)).parameters for x in (onepass.torch, theirs))
        assert [(x.name, x.kind, x.default) for x in mine.values()][: len(other)] == [
            (x.name, x.kind, x.default) for x in other.values()
        ], name


@pytest.mark.parametrize("block", [16, (32, 16), 128, 24])
@pytest.mark.parametrize("name", MASK_MODS)
def test_block_masks_have_pytorchs_lists(name, block):
    """Also of lengths that tiles do not divide."""
    for rows, keys in ((ROWS, KEYS), (50, 61)):
        mine, other = (
            x.create_block_mask(MASK_MODS[name], 2, HEADS, rows, keys, device="cpu", BLOCK_SIZE=block)
            for x in (onepass.torch, theirs)
        )
        assert isinstance(mine, theirs.BlockMask) and mine.shape == other.shape
        for x, y in zip(mine.as_tuple(), other.as_tuple()):
            assert torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y
        assert mine.sparsity() == other.sparsity() and torch.equal(mine.to_dense(), other.to_dense())
        assert str(mine) == str(other)


def test_a_long_mask_has_no_mask_of_elements():
    """10^10 elements would be 10 GB. Row i of tiles has i full tiles and a partial one."""
    mask = onepass.torch.create_block_mask(flex_mods.causal, 1, 1, 99_968, 99_968, device="cpu")
    assert mask.shape == (1, 1, 99_968, 99_968) and (mask.kv_num_blocks == 1).all()
    assert torch.equal(mask.full_kv_num_blocks[0, 0], torch.arange(781, dtype=torch.int32))


@NEW_BLOCK_MASKS
@pytest.mark.parametrize("separate", [True, False])
def test_pytorchs_block_masks(separate):
    q, k, v = draw()
    for name, mask_mod in MASK_MODS.items():
        block_mask = their_mask(mask_mod, BLOCK_SIZE=16, separate_full_blocks=separate)
        expected, _ = eager(q, k, v, SCORE_MODS["alibi"], block_mask)
        mine = onepass.torch.flex_attention(q, k, v, SCORE_MODS["alibi"], block_mask)
        torch.testing.assert_close(mine, expected, msg=name)


@pytest.mark.parametrize("mask_mod", [None, flex_mods.causal])
@pytest.mark.parametrize("heads", [1, HEADS])
def test_lists_of_tiles_of_the_caller(mask_mod, heads):
    """Full tiles are visible whole, partial ones where the mask_mod is true, and others not at all."""
    generator = torch.Generator().manual_seed(2)
    tiles = torch.randint(0, 3, (1, heads, 4, 4), generator=generator)
    lists = [x for n in (1, 2) for x in theirs._dense_to_ordered((tiles == n).int())]
    block_mask = theirs.BlockMask.from_kv_blocks(*lists, BLOCK_SIZE=16, mask_mod=mask_mod)
    q, k, v = draw()
    tiles = tiles.repeat_interleave(16, 2).repeat_interleave(16, 3)
    inside = torch.ones(ROWS, KEYS).tril().bool() if mask_mod else torch.tensor(True)
    seen = (tiles == 2) | (tiles == 1) & inside
    expected = onepass.torch.attention(q, k, v, bool_mask=seen)
    torch.testing.assert_close(onepass.torch.flex_attention(q, k, v, None, block_mask), expected)


def test_a_block_mask_is_looked_at_once(monkeypatch):
    inputs, calls, shift = draw(), [], torch.tensor(3)

    def mask_mod(b, h, q_idx, kv_idx):
        calls.append(q_idx)
        return q_idx + shift >= kv_idx

    mine = our_mask(mask_mod)
    assert len(calls) == 1
    first = onepass.torch.flex_attention(*inputs, None, mine)
    assert torch.equal(onepass.torch.flex_attention(*inputs, None, mine), first)
    shift.fill_(20)  # the contents of captured tensors count at the call
    assert not torch.equal(onepass.torch.flex_attention(*inputs, None, mine), first)
    assert len(calls) == 1

    read = []
    dense = lists_of._dense
    monkeypatch.setattr(lists_of, "_dense", lambda *lists: read.append(lists) or dense(*lists))
    given = their_mask(lambda b, h, q, k: q >= k, BLOCK_SIZE=16)
    first = onepass.torch.flex_attention(*inputs, None, given)
    assert torch.equal(onepass.torch.flex_attention(*inputs, None, given), first)
    assert len(read) == 2  # partial and full tiles
    given.kv_num_blocks[:, :, 1] = 0
    given.full_kv_num_blocks[:, :, 1] = 0
    changed = onepass.torch.flex_attention(*inputs, None, given)
    assert len(read) == 4
    assert (changed[:, :, 16:32] == 0).all() and torch.equal(changed[:, :, :16], first[:, :, :16])


def captures_a_tensor():
    document = torch.arange(max(ROWS, KEYS)) // 9
    return lambda b, h, q, k: (document * 2)[q] == (document * 2)[k]


def in_inference_mode(inputs, mask):
    with torch.inference_mode():
        onepass.torch.flex_attention(*inputs, None, mask)


def in_a_trace(inputs, mask):
    proxy_tensor.make_fx(
        lambda *x: onepass.torch.flex_attention(*x, None, mask), tracing_mode="fake", _allow_non_fake_inputs=True
    )(*inputs)


@pytest.mark.parametrize("made", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("first", [in_inference_mode, in_a_trace])
@pytest.mark.parametrize("make", [our_mask, their_mask])
def test_a_block_mask_trains_wherever_it_was_made_and_used_first(make, first, made):
    with made():
        mask = make(captures_a_tensor())
    first(draw(), mask)
    inputs = draw(grad=True)
    out = onepass.torch.flex_attention(*inputs, None, mask)
    out.sum().backward()
    torch.testing.assert_close(out, eager(*inputs, None, their_mask(captures_a_tensor()))[0])


@NEW_BLOCK_MASKS
def test_slices_of_block_masks_need_a_new_mask_mod():
    q, k, v = draw()
    block_mask = our_mask(flex_mods.causal, BLOCK_SIZE=16)[:, :, 2]
    with pytest.raises(RuntimeError, match="sliced BlockMask"):
        onepass.torch.flex_attention(q[:, :, 32:48], k, v, None, block_mask)
    block_mask.mask_mod = lambda b, h, q, k: q + 32 >= k
    whole = onepass.torch.flex_attention(q, k, v, None, our_mask(flex_mods.causal))[:, :, 32:48]
    torch.testing.assert_close(onepass.torch.flex_attention(q[:, :, 32:48], k, v, None, block_mask), whole)


def test_masks_joined():
    causal, window = flex_mods.causal, flex_mods.window
    for join in ("and_masks", "or_masks"):
        for masks in ((causal, window), (causal, window, MASK_MODS["documents"]), (causal,), ()):
            agree(None, getattr(onepass.torch, join)(*masks), torch.float32)
            ours, other = (our_mask(getattr(x, join)(*masks)).to_dense() for x in (onepass.torch, theirs))
            assert torch.equal(ours, other)
    agree(None, onepass.torch.noop_mask, torch.float32)


def test_rows_that_see_nothing():
    q, k, v = draw(grad=True)
    out, lse = onepass.torch.flex_attention(q, k, v, None, our_mask(MASK_MODS["hidden_rows"]), return_lse=True)
    assert (out[:, :, :21] == 0).all() and (lse[:, :, :21] == -math.inf).all()
    out.sum().backward()
    assert (q.grad[:, :, :21] == 0).all() and torch.isfinite(k.grad).all()


def test_results_asked_for():
    q, k, v = draw()
    mods = SCORE_MODS["alibi"], our_mask(MASK_MODS["hidden_rows"])
    out, aux = onepass.torch.flex_attention(q, k, v, *mods, return_aux=theirs.AuxRequest(lse=True, max_scores=True))
    their_out, their_lse = eager(q, k, v, mods[0], their_mask(MASK_MODS["hidden_rows"]))
    torch.testing.assert_close(out, their_out)
    torch.testing.assert_close(aux.lse, their_lse)
    distance = torch.arange(KEYS) - torch.arange(ROWS)[:, None]
    scores = q @ k.transpose(-2, -1) / 4 + flex_mods.SLOPES[:, None, None] * distance
    seen = torch.zeros(ROWS, KEYS, dtype=torch.bool)
    seen[21:, 6:] = True
    torch.testing.assert_close(aux.max_scores, scores.masked_fill(~seen, -math.inf).amax(-1))
    out, aux = onepass.torch.flex_attention(q, k, v, *mods, return_aux=theirs.AuxRequest(max_scores=True))
    assert aux.lse is None and aux.max_scores is not None
    assert isinstance(onepass.torch.flex_attention(q, k, v, *mods, kernel_options={"BLOCK_M": 64}), torch.Tensor)


def test_a_batch_of_keys_for_all_queries():
    q, k, v = draw()
    mask = onepass.torch.create_block_mask(MASK_MODS["prefix"], 2, None, ROWS, KEYS, device="cpu")
    mine = onepass.torch.flex_attention(q, k[:1], v[:1], None, mask)
    other, _ = eager(q, k[:1], v[:1], None, their_mask(MASK_MODS["prefix"]))
    torch.testing.assert_close(mine, other)
    with pytest.raises(ValueError, match="key must have the batch of query, 2"):
        onepass.torch.flex_attention(q, k[:1], v[:1])


# --------------------------------------------------------------------------------------- captured tensors that learn
LEARNED = {
    "slopes": ((HEADS,), lambda t: lambda s, b, h, q, k: s - t[h] * (q - k).abs()),
    "table": ((HEADS, ROWS + KEYS), lambda t: lambda s, b, h, q, k: s * 2 + t[h, q - k + KEYS]),
    "one": ((), lambda t: lambda s, b, h, q, k: t * torch.tanh(s / t)),
    "twice": ((2, HEADS), lambda t: lambda s, b, h, q, k: torch.where(q > k, s * t[b, h], s + t[0, h] ** 2)),
    "positions": ((ROWS,), lambda t: lambda s, b, h, q, k: s + t[q] * t[k]),
}


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("masked", [None, "sliding_window", "hidden_rows"])
@pytest.mark.parametrize("name", LEARNED)
def test_captured_tensors_have_gradients(name, masked, grouped, monkeypatch):
    monkeypatch.setattr("onepass._flex.torch_gradients._ELEMENTS", 3 * 2 * HEADS * KEYS)  # strips of three rows
    shape, make = LEARNED[name]
    start = torch.rand(shape, generator=torch.Generator().manual_seed(3)) + 0.5
    found = []
    for mine in (True, False):
        kind = torch.float32 if mine else torch.float64
        inputs = [x.detach().to(kind).requires_grad_() for x in draw(heads_kv=2 if grouped else HEADS)]
        t = start.to(kind).requires_grad_()
        mask_mod = MASK_MODS.get(masked)
        if mine:
            out, lse = onepass.torch.flex_attention(
                *inputs, make(t), our_mask(mask_mod), enable_gqa=grouped, return_lse=True
            )
        else:
            out, lse = eager(*inputs, make(t), their_mask(mask_mod))
        loss = (out * torch.linspace(-1, 1, out.shape[-1], dtype=kind)).sum() + lse[torch.isfinite(lse)].sum()
        found.append([x.double() for x in torch.autograd.grad(loss, [t, *inputs])])
    for what, mine, other in zip(("t", "q", "k", "v"), *found):
        size = other.abs().max().clamp(min=1)
        assert (mine - other).abs().max() <= 3e-5 * size, what


@pytest.mark.parametrize("score_mod", [None, lambda s, b, h, q, k: s * 2])
def test_a_tensor_that_the_mask_alone_reads_has_no_gradient(score_mod):
    t = torch.rand(KEYS, generator=torch.Generator().manual_seed(3), requires_grad=True)
    for mask in (our_mask(lambda b, h, q, k: t[k] > 0.3), our_mask(lambda b, h, q, k: (t * t)[k] > 0.1)):
        for _ in range(2):
            inputs = draw(grad=True)
            onepass.torch.flex_attention(*inputs, score_mod, mask).sum().backward()
            assert inputs[2].grad.abs().sum() > 0 and t.grad is None


# ----------------------------------------------------------------------------------------------------------- refusals
@pytest.mark.parametrize(
    "score_mod, sentence",
    [
        (lambda s, b, h, q, k: torch.lgamma(s), "torch.lgamma"),
        (lambda s, b, h, q, k: s.softmax(-1), ".softmax"),
        (lambda s, b, h, q, k: s if q > k else -s, "if, and, or, not"),
        (lambda s, b, h, q, k: s + flex_mods.SLOPES, "an array of shape [4] as an operand"),
        (lambda s, b, h, q, k: s + flex_mods.SLOPES[s], "a float as an index"),
        (lambda s, b, h, q, k: torch.add(s, 1, out=s), "out"),
        (lambda s, b, h, q, k: flex_mods.POINT.clone().add_(s), "torch.add_"),
        (lambda s, b, h, q, k: "score", "a str as an operand"),
    ],
)
def test_refusals_name_the_operation(score_mod, sentence):
    with pytest.raises((TypeError, AttributeError)) as error:
        onepass.torch.flex_attention(*draw(), score_mod)
    assert sentence in str(error.value)


def test_refusals_of_arguments():
    q, k, v = draw()
    flex = onepass.torch.flex_attention
    for call, sentence in (
        (lambda: flex(q, k[:, :2], v[:, :2]), "key must have the heads of query, 4, without enable_gqa"),
        (lambda: flex(q, k[:, :3], v[:, :3], enable_gqa=True), "must be a multiple of those of key, 3"),
        (lambda: flex(q[0], k, v), "query must be .batch, heads, seq, dim."),
        (lambda: flex(q, k, v, None, flex_mods.causal), "block_mask must be a BlockMask"),
        (
            lambda: flex(q[:, :, 1:], k, v, None, our_mask(flex_mods.causal)),
            "block_mask must have the lengths of query and key, .63, 64.",
        ),
        (lambda: flex(q, k, v, "score"), "score_mod must be a function"),
        (lambda: flex(q, k, v, return_lse=True, return_aux=theirs.AuxRequest()), "must not be given together"),
        (lambda: our_mask("k_index > 3"), "mask_mod must be a function"),
    ):
        with pytest.raises((ValueError, TypeError), match=sentence):
            call()


# ------------------------------------------------------------------------------------------------------ torch.compile
def test_compiled():
    torch._dynamo.reset()
    block_mask = our_mask(MASK_MODS["documents"])
    slopes = torch.rand(HEADS, requires_grad=True)

    def step(q, k, v, slopes):
        scaled = slopes * 2

        def score_mod(s, b, h, q_idx, kv_idx):
            return torch.where(q_idx > 3, s - scaled[h] * (q_idx - kv_idx).abs(), s)

        return onepass.torch.flex_attention(q, k, v, score_mod, block_mask, return_lse=True)

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    results = []
    for function in (compiled, step):
        inputs = [*draw(grad=True), slopes]
        out, lse = function(*inputs)
        results.append((out, lse, *torch.autograd.grad((out * out).sum() + lse.sum(), inputs)))
    for mine, other in zip(*results):
        torch.testing.assert_close(mine, other)


def test_compiled_with_pytorchs_masks_and_masks_inside():
    torch._dynamo.reset()
    q, k, v = draw()
    for make in (our_mask, their_mask):
        block_mask = make(MASK_MODS["sliding_window"], BLOCK_SIZE=16)
        compiled = torch.compile(onepass.torch.flex_attention, fullgraph=True, backend="aot_eager")
        expected = onepass.torch.flex_attention(q, k, v, None, block_mask)
        torch.testing.assert_close(compiled(q, k, v, None, block_mask), expected)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def inside(q, k, v):
        return onepass.torch.flex_attention(q, k, v, None, our_mask(MASK_MODS["sliding_window"]))

    torch.testing.assert_close(inside(q, k, v), expected)
