"""onepass.flash_attn beside a textbook in PyTorch, in float64."""

import sys

import pytest
from flash_textbook import TOLERANCE, near, same_gradients, textbook


@pytest.fixture
def flash(torch):
    import onepass.flash_attn

    torch.manual_seed(0)
    return onepass.flash_attn


WORDS = {
    "plain": dict(),
    "causal": dict(causal=True),
    "window": dict(window_size=(5, 3), softmax_scale=0.3),
    "causal_window_softcap": dict(causal=True, window_size=(7, 0), softcap=3.0),
    "alibi": dict(causal=True, alibi_slopes=(4,)),
    "alibi_of_the_batch": dict(alibi_slopes=(2, 4), deterministic=True),
}


def options_of(torch, words, device):
    slopes = words.get("alibi_slopes")
    return words | ({"alibi_slopes": torch.rand(slopes, device=device) * 0.3} if slopes else {})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)
def test_dense_and_packed_forms(flash, torch, device, words, dtype):
    words = options_of(torch, words, device)
    q = torch.randn(2, 20, 4, 32, device=device, dtype=getattr(torch, dtype), requires_grad=True)
    kv = torch.randn(2, 33, 2, 2, 32, device=device, dtype=q.dtype, requires_grad=True)
    exact = [x.detach().double().requires_grad_() for x in (q, kv)]
    expected, lse = textbook(exact[0], *exact[1].unbind(2), **words)
    separate = flash.flash_attn_func(q, *kv.unbind(2), **words)
    out, given_lse, nothing = flash.flash_attn_kvpacked_func(q, kv, **words, return_attn_probs=True)
    assert torch.equal(out, separate) and out.is_contiguous() and nothing is None
    near(out, expected, dtype)
    near(given_lse, lse, "float32" if dtype == "float32" else "float16")
    same_gradients(out, [q, kv], expected, exact, dtype)

    qkv = torch.randn(2, 20, 3, 4, 32, device=device, dtype=q.dtype, requires_grad=True)
    exact = [qkv.detach().double().requires_grad_()]
    expected, _ = textbook(*exact[0].unbind(2), **words)
    out = flash.flash_attn_qkvpacked_func(qkv, **words)
    near(out, expected, dtype)
    same_gradients(out, [qkv], expected, exact, dtype)


@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)
def test_varlen_forms(flash, torch, device, words):
    """Packed sequences are the dense call of each."""
    words = options_of(torch, words, device)
    cu_q, cu_k = (torch.tensor(x, dtype=torch.int32, device=device) for x in ([0, 9, 20], [0, 15, 40]))
    q = torch.randn(20, 4, 32, device=device, requires_grad=True)
    kv = torch.randn(40, 2, 2, 32, device=device, requires_grad=True)
    exact = [x.detach().double().requires_grad_() for x in (q, kv)]
    slopes = words.get("alibi_slopes")
    parts = []
    for b, (rows, keys) in enumerate([(slice(0, 9), slice(0, 15)), (slice(9, 20), slice(15, 40))]):
        own = words | ({"alibi_slopes": slopes[b]} if slopes is not None and slopes.dim() == 2 else {})
        parts.append(textbook(exact[0][None, rows], *exact[1][None, keys].unbind(2), **own))
    expected, lse = (torch.cat([x[0] for x in part], d) for part, d in zip(zip(*parts), (0, 1)))
    separate = flash.flash_attn_varlen_func(q, *kv.unbind(1), cu_q, cu_k, 11, 25, **words)
    out, given_lse, _ = flash.flash_attn_varlen_kvpacked_func(
        q, kv, cu_q, cu_k, 11, 25, **words, return_attn_probs=True
    )
    assert torch.equal(out, separate)
    near(out, expected, "float32")
    near(given_lse, lse, "float32")
    same_gradients(out, [q, kv], expected, exact, "float32")

    qkv = torch.randn(20, 3, 4, 32, device=device)
    out = flash.flash_attn_varlen_qkvpacked_func(qkv, cu_q, 11, **words)
    torch.testing.assert_close(out, flash.flash_attn_varlen_func(*qkv.unbind(1), cu_q, cu_q, 11, 11, **words))


def test_rows_that_see_no_key(flash, torch, device):
    q, k, v = (torch.randn(1, n, 2, 16, device=device) for n in (6, 4, 4))
    out, lse, _ = flash.flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    assert (out[:, :2] == 0).all() and (lse[..., :2] == torch.inf).all() and lse[..., 2:].isfinite().all()


CACHES = {
    "lengths": dict(),
    "append": dict(new=3),
    "append_less_than_queries": dict(new=2, causal=True, rotary=16),
    "rotary": dict(new=3, causal=True, rotary=16),
    "rotary_neox": dict(new=3, causal=True, rotary=32, interleaved=False),
    "rotary_without_order": dict(new=3, rotary=16),
    "window": dict(new=3, window_size=(6, 0), rotary=16),
    "pages": dict(new=3, causal=True, paged=8, rotary=32),
    "batch_index": dict(new=3, causal=True, index=True),
    "leftpad": dict(causal=True, leftpad=True, alibi=True),
    "leftpad_append": dict(new=3, causal=True, leftpad=True, rotary=16, window_size=(9, -1)),
    "one_query": dict(new=1, rows=1, causal=True, softcap=3.0, alibi=True),
    "one_length": dict(one=20, causal=True),
    "whole_cache": dict(one=None),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", CACHES.values(), ids=CACHES)
def test_caches(flash, torch, device, case, dtype):
    from onepass.flash_attn.layers.rotary import apply_rotary_emb

    as_given = dict(device=device, dtype=getattr(torch, dtype))
    new, rows, capacity = case.get("new", 0), case.get("rows", 3), 40
    q = torch.randn(2, rows, 4, 32, **as_given)
    caches = [torch.randn(4 if case.get("index") else 2, capacity, 2, 32, **as_given) for _ in "kv"]
    fresh = [torch.randn(2, new, 2, 32, **as_given) for _ in "kv"]
    lengths = torch.tensor([25, 11], dtype=torch.int32, device=device)
    words = {x: case[x] for x in ("causal", "window_size", "softcap") if x in case}
    if case.get("alibi"):
        words["alibi_slopes"] = torch.rand(2, 4, device=device)
    if "one" in case:
        lengths = torch.full_like(lengths, case["one"] or capacity)
    given = {"cache_seqlens": case["one"] if "one" in case else lengths}
    if case.get("index"):
        given["cache_batch_idx"] = torch.tensor([3, 1], dtype=torch.int32, device=device)
    mine = [x[given["cache_batch_idx"].long()] if case.get("index") else x.clone() for x in caches]
    hidden = torch.arange(capacity, device=device) >= lengths[:, None] + new
    if case.get("leftpad"):
        given["cache_leftpad"] = torch.tensor([7, 0], dtype=torch.int32, device=device)
        hidden |= torch.arange(capacity, device=device) < given["cache_leftpad"][:, None]
    table = None
    if page := case.get("paged"):
        table = torch.randperm(10, dtype=torch.int32, device=device).reshape(2, 5)
        pool = [torch.randn(10, page, 2, 32, **as_given) for _ in "kv"]
        for pages, cache in zip(pool, caches):
            pages[table.long()] = cache.unflatten(1, (5, page))
        given["block_table"] = table
    q_turned, k_turned = q, fresh[0]
    if dim := case.get("rotary"):
        angles = torch.rand(capacity, dim // 2, device=device) * 6
        given |= {"rotary_cos": angles.cos().to(q.dtype), "rotary_sin": angles.sin().to(q.dtype)}
        given["rotary_interleaved"] = interleaved = case.get("interleaved", True)
        tables = given["rotary_cos"], given["rotary_sin"], interleaved
        k_turned = apply_rotary_emb(fresh[0], *tables, seqlen_offsets=lengths)
        in_order = case.get("causal") or "window_size" in case
        flat = q if in_order else q.flatten(1, 2)[:, None]
        q_turned = apply_rotary_emb(flat, *tables, seqlen_offsets=lengths).reshape(q.shape)
    for cache, x in zip(mine, (k_turned, fresh[1])):
        for b in range(2):
            cache[b, lengths[b] : lengths[b] + new] = x[b]
    expected, lse = textbook(*(x.double() for x in (q_turned, *mine)), **words, hidden=hidden)

    used = pool if table is not None else caches
    out, given_lse = flash.flash_attn_with_kvcache(
        q, *used, *(fresh if new else ()), **given, **words, return_softmax_lse=True
    )
    near(out, expected, dtype)
    near(given_lse, lse, "float32" if dtype == "float32" else "bfloat16")
    for theirs, cache in zip(mine, used):
        if table is not None:
            cache = cache[table.long()].flatten(1, 2)
        elif case.get("index"):
            cache = cache[given["cache_batch_idx"].long()]
        torch.testing.assert_close(cache, theirs, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_rotary_of_packed_sequences(flash, torch):
    from onepass.flash_attn.layers.rotary import apply_rotary_emb

    x, cos, sin = torch.randn(12, 3, 16), torch.randn(20, 4), torch.randn(20, 4)
    cu = torch.tensor([0, 5, 12], dtype=torch.int32)
    packed = apply_rotary_emb(x, cos, sin, cu_seqlens=cu, max_seqlen=7, seqlen_offsets=2)
    parts = [apply_rotary_emb(part[None], cos, sin, seqlen_offsets=2)[0] for part in x.split([5, 7])]
    assert torch.equal(packed, torch.cat(parts)) and torch.equal(packed[..., 8:], x[..., 8:])


def test_pages_of_packed_queries(flash, torch, device):
    q = torch.randn(5, 4, 32, device=device)
    pages = torch.randn(6, 16, 2, 32, device=device)
    cu_q, cu_k = (torch.tensor(x, dtype=torch.int32, device=device) for x in ([0, 2, 5], [0, 30, 51]))
    table = torch.tensor([[4, 2], [0, 5]], dtype=torch.int32, device=device)
    out = flash.flash_attn_varlen_func(q, pages, pages, cu_q, cu_k, 3, 30, causal=True, block_table=table)
    flat = [pages[table[b].long()].flatten(0, 1)[:n] for b, n in enumerate((30, 21))]
    parts = [flash.flash_attn_func(x[None], y[None], y[None], causal=True)[0] for x, y in zip(q.split([2, 3]), flat)]
    torch.testing.assert_close(out, torch.cat(parts), atol=1e-5, rtol=1e-5)


def test_below_autograd(flash, torch, device):
    """The functions that ring attention calls, by the names in diffusers."""
    from onepass.flash_attn.flash_attn_interface import _wrapped_flash_attn_backward as _flash_attn_backward
    from onepass.flash_attn.flash_attn_interface import _wrapped_flash_attn_forward as _flash_attn_forward

    q, k, v, dout = torch.randn(4, 2, 20, 4, 32, device=device)
    words = (0.2, 0.3, True, -1, -1, 0.0, None)
    out, lse, _, rng_state = _flash_attn_forward(q, k, v, *words, False)
    grads = [torch.empty_like(x) for x in (q, k, v)]
    _flash_attn_backward(dout, q, k, v, out, lse, *grads, *words, True, rng_state=rng_state)
    inputs = [x.clone().requires_grad_() for x in (q, k, v)]
    turned = (x.transpose(1, 2) for x in inputs)
    theirs = sys.modules["onepass.torch"].attention(
        *turned, mask="causal_bottom_right", scale=0.3, dropout_p=0.2, seed=int(rng_state)
    )
    wanted = torch.autograd.grad(theirs.transpose(1, 2), inputs, dout)
    for x, y in zip((out, *grads), (theirs.transpose(1, 2), *wanted)):
        torch.testing.assert_close(x, y, atol=1e-4, rtol=1e-4)


@pytest.fixture
def no_flash_attn():
    """Modules imported under flash-attn's name are gone afterwards."""

    def taken():
        return {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "flash_attn"}

    before = taken()
    yield
    taken()
    sys.modules.update(before)


def test_in_the_place_of_flash_attn(flash, torch, no_flash_attn):
    sys.modules["flash_attn"] = flash
    code = """
from flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache, __version__
from flash_attn.bert_padding import index_first_axis, pad_input, unpad_input
from flash_attn.flash_attn_interface import flash_attn_qkvpacked_func
from flash_attn.layers.rotary import apply_rotary_emb
import flash_attn
"""
    names = {}
    exec(code, names)
    x = torch.randn(1, 5, 2, 16)
    torch.testing.assert_close(names["flash_attn_func"](x, x, x), flash.flash_attn_func(x, x, x))


def test_the_demo_trains_alike(torch, no_flash_attn):
    import pathlib
    import runpy

    demo = pathlib.Path(__file__).resolve().parents[2] / "demo" / "train_flash_attn.py"
    mine, theirs, written = runpy.run_path(str(demo))["main"](["--steps", "40", "--device", "cpu"])
    assert max(abs(x - y) for x, y in zip(mine, theirs)) < 1e-3 and mine[-1] < mine[0] - 0.2
    assert written.shape == (8, 7)


def test_compiled_with_a_cache(flash, torch, device):
    torch._dynamo.reset()
    cache = torch.zeros(2, 2, 40, 2, 32, device=device)
    lengths = torch.tensor([7, 20], dtype=torch.int32, device=device)
    q, k, v = (torch.randn(2, 1, heads, 32, device=device) for heads in (4, 2, 2))

    def step(q, k, v, k_cache, v_cache, lengths):
        return flash.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=lengths, causal=True)

    runs = []
    for function in (step, torch.compile(step, fullgraph=True, backend="aot_eager")):
        own = cache.clone()
        runs.append((function(q, k, v, *own, lengths), own))
    torch.testing.assert_close(runs[0], runs[1])
    assert runs[1][1].any()


def test_a_refused_call_leaves_the_cache_alone(flash, torch):
    """Everything is looked at before new keys are written."""
    q, new = torch.randn(2, 3, 4, 16), torch.randn(2, 3, 2, 16)
    used = torch.tensor([5, 2], dtype=torch.int32)
    table = torch.tensor([[0, 1], [2, 3]], dtype=torch.int32)
    behind = torch.tensor([[9, 1], [2, 3]], dtype=torch.int32)  # a page of old keys that is not there
    turns = torch.ones(16, 8)
    for accepted, pages in [(torch.zeros(2, 16, 2, 16), None), (torch.zeros(4, 4, 2, 16), table)]:
        flash.flash_attn_with_kvcache(
            q, accepted, accepted.clone(), new, new, cache_seqlens=used, block_table=pages
        )  # calls like these are not checked again
    for cache, words in [
        (torch.zeros(2, 16, 2, 16), dict(q=q[..., :8])),
        (torch.zeros(2, 16, 2, 16), dict(q=q[:, :, :3])),
        (torch.zeros(2, 16, 2, 16), dict(window_size=(-2, 0))),
        (torch.zeros(2, 16, 2, 16), dict(softmax_scale=float("inf"))),
        (torch.zeros(2, 16, 2, 16), dict(alibi_slopes=torch.ones(3))),
        (torch.zeros(2, 16, 2, 16), dict(cache_leftpad=torch.zeros(3, dtype=torch.int32))),
        (torch.zeros(2, 16, 2, 16), dict(q=q.half())),
        (torch.zeros(2, 16, 2, 16), dict(rotary_cos=turns, rotary_sin=turns[:, :3], causal=True)),
        (torch.zeros(4, 4, 2, 16), dict(block_table=behind)),
        (torch.zeros(4, 4, 2, 16), dict(block_table=table, softcap=float("nan"))),
    ]:
        given = dict(q=q, k=new, v=new, cache_seqlens=used) | words
        with pytest.raises((ValueError, TypeError, RuntimeError)):
            flash.flash_attn_with_kvcache(k_cache=cache, v_cache=cache.clone(), **given)
        assert not cache.any(), words
    flash.flash_attn_with_kvcache(q, cache, cache.clone(), new, new, cache_seqlens=used, block_table=table)
    assert torch.equal(cache[1, 1:4], new[0])


def test_pages_of_tensors_that_require_gradients(flash, torch):
    """Computed, as flash-attn does; its backward is refused."""
    q = torch.randn(5, 4, 16, requires_grad=True)
    pages = torch.randn(2, 8, 2, 16)
    sums = torch.tensor([0, 2, 5], dtype=torch.int32), torch.tensor([0, 4, 12], dtype=torch.int32)
    table = torch.tensor([[0], [1]], dtype=torch.int32)
    out = flash.flash_attn_varlen_func(q, pages, pages, *sums, 3, 8, block_table=table)
    with torch.no_grad():
        assert torch.equal(out, flash.flash_attn_varlen_func(q, pages, pages, *sums, 3, 8, block_table=table))
    with pytest.raises(RuntimeError, match="attention to pages .block_table. does not support gradients"):
        out.sum().backward()


class TestPadding:
    def test_there_and_back(self, torch):
        from onepass.flash_attn.bert_padding import pad_input, unpad_input

        x = torch.randn(3, 6, 2, 4, dtype=torch.float64, requires_grad=True)
        mask = torch.tensor([[1, 1, 0, 0, 0, 0], [0, 0, 1, 1, 1, 1], [1, 0, 1, 0, 0, 1]])
        packed, indices, cu_seqlens, longest, used = unpad_input(x, mask)
        assert cu_seqlens.tolist() == [0, 2, 6, 9] and cu_seqlens.dtype == torch.int32
        assert longest == 4 and used.tolist() == [2, 4, 3]
        assert torch.equal(packed, x[mask.bool()])
        back = pad_input(packed, indices, 3, 6)
        assert torch.equal(back, x * mask[..., None, None])
        assert torch.autograd.gradcheck(lambda x: pad_input(unpad_input(x, mask)[0], indices, 3, 6), x)
        unused = torch.tensor([[0, 0, 1, 0, 0, 0], [0] * 6, [0] * 6])
        assert unpad_input(x, mask, unused)[2].tolist() == [0, 3, 7, 10]

    def test_several_sequences_in_a_row(self, torch):
        from onepass.flash_attn.bert_padding import unpad_input_for_concatenated_sequences

        lengths = torch.tensor([[2, 3, 0, 0, 0, 0], [3, 2, 0, 0, 0, 0], [6, 0, 0, 0, 0, 0]])
        packed, indices, cu_seqlens, longest = unpad_input_for_concatenated_sequences(torch.randn(3, 6, 8), lengths)
        assert cu_seqlens.tolist() == [0, 2, 5, 8, 10, 16] and longest == 6 and packed.shape == (16, 8)
        assert indices.tolist() == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, *range(12, 18)]


def test_refusals(flash, torch):
    q = torch.randn(2, 1, 2, 16)
    cache = torch.randn(2, 8, 2, 16)
    table = torch.zeros(2, 1, dtype=torch.int32)
    for words, sentence in [
        (dict(rotary_cos=q, rotary_sin=q), r"rotary_cos requires new keys k and values v \(got k=None\)"),
        (dict(k=q, v=q), r"cache_seqlens must be given with new keys k \(got None\)"),
        (dict(k=q, cache_seqlens=3), r"k and v must be given together \(got v=None\)"),
        (dict(cache_seqlens=[3, 4]), r"cache_seqlens must be an int or an int32 tensor \[batch\] \(got list\)"),
        (dict(window_size=3), "window must be a pair"),
    ]:
        with pytest.raises((ValueError, TypeError), match=sentence):
            flash.flash_attn_with_kvcache(q, cache, cache, **words)
    with pytest.raises(
        ValueError, match=r"qkv must have shape \[batch, seq, 3, heads, dim\] \(got \[2, 8, 2, 3, 16\]\)"
    ):
        flash.flash_attn_qkvpacked_func(torch.randn(2, 8, 2, 3, 16))
    with pytest.raises(ValueError, match=r"kv must have shape \[total, 2, heads, dim\] \(got \[8, 3, 2, 16\]\)"):
        flash.flash_attn_varlen_kvpacked_func(q[0], torch.randn(8, 3, 2, 16), *table, 1, 8)
    lengths = torch.full((2,), 8, dtype=torch.int32)
    for words in (dict(cache_seqlens=lengths + 1), dict(cache_seqlens=lengths, k=q, v=q)):
        with pytest.raises(RuntimeError, match=r"must be at most 8 tokens, the 1 pages of 8 .* \(got 9\)"):
            flash.flash_attn_with_kvcache(q, cache, cache, block_table=table, **words)
