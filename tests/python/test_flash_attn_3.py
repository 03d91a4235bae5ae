"""onepass.flash_attn_interface (FlashAttention-3's functions) beside a textbook in PyTorch, in float64."""

import sys

import pytest
from flash_textbook import near, same_gradients, textbook


@pytest.fixture
def flash(torch):
    import onepass.flash_attn_interface

    torch.manual_seed(0)
    return onepass.flash_attn_interface


def with_inf(lse):
    """Ours and FlashAttention-3's is -inf in rows that see no key, the textbook's +inf."""
    return lse.masked_fill(lse == -float("inf"), float("inf"))


WORDS = {
    "plain": dict(num_splits=4, pack_gqa=True, sm_margin=8),
    "causal": dict(causal=True, softmax_scale=0.3),
    "window": dict(window_size=(5, 3), softcap=3.0),
    "chunks": dict(causal=True, attention_chunk=7),
    "chunks_both_ways": dict(attention_chunk=5, deterministic=True),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)
def test_dense(flash, torch, device, words, dtype):
    q = torch.randn(2, 20, 4, 32, device=device, dtype=getattr(torch, dtype), requires_grad=True)
    k, v = (torch.randn(2, 33, 2, dim, device=device, dtype=q.dtype, requires_grad=True) for dim in (32, 24))
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    expected, lse = textbook(*exact, **words)
    out, given_lse = flash.flash_attn_func(q, k, v, **words, return_attn_probs=True)
    assert torch.equal(out, flash.flash_attn_func(q, k, v, **words))
    near(out, expected, dtype)
    near(with_inf(given_lse), lse, "float32" if dtype == "float32" else "float16")
    same_gradients(out, [q, k, v], expected, exact, dtype)


def test_more_rows_than_keys_in_chunks(flash, torch, device):
    q, k = torch.randn(1, 30, 2, 16, device=device), torch.randn(1, 11, 2, 16, device=device)
    expected, lse = textbook(q.double(), k.double(), k.double(), attention_chunk=4)
    out, given_lse = flash.flash_attn_func(q, k, k, attention_chunk=4, return_attn_probs=True)
    assert lse.isinf().any() and (given_lse[lse.isinf()] == -torch.inf).all() and not out[expected == 0].any()
    near(out, expected, "float32")


def test_packed_projections(flash, torch, device):
    qkv = torch.randn(2, 20, 3, 4, 32, device=device)
    expected, _ = textbook(*qkv.double().unbind(2), causal=True)
    near(flash.flash_attn_qkvpacked_func(qkv, causal=True), expected, "float32")
    grouped = torch.randn(2, 20, 4 + 2 * 2, 32, device=device)
    q, k, v = grouped.double().split([4, 2, 2], 2)
    near(flash.flash_attn_qkvpacked_func(grouped, num_heads_q=4), textbook(q, k, v)[0], "float32")
    with pytest.raises(ValueError, match=r"qkv must have shape \[batch, seq, 3, heads, dim\], or .* \(got \[2, 20, 8"):
        flash.flash_attn_qkvpacked_func(grouped)


@pytest.mark.parametrize("keys", ["packed", "rows_of_a_cache"])
@pytest.mark.parametrize("used", ["all", "rows", "keys", "both"])
@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)
def test_varlen(flash, torch, device, words, used, keys):
    rows, lengths = [5, 0, 20, 3], [30, 9, 17, 8]
    ends = [torch.tensor([0, *x], device=device).cumsum(0).to(torch.int32) for x in (rows, lengths)]
    q = torch.randn(sum(rows), 4, 32, device=device, requires_grad=keys == "packed")
    shape = (sum(lengths),) if keys == "packed" else (4, 32)
    k, v = (torch.randn(*shape, 2, 32, device=device, requires_grad=keys == "packed") for _ in "kv")
    rows_used = [3, 0, 20, 0] if used in ("rows", "both") else rows
    keys_used = [30, 2, 11, 5] if used in ("keys", "both") else lengths
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    expected = torch.zeros(sum(rows), 4, 32, dtype=torch.float64, device=device)
    lse = torch.full((4, sum(rows)), torch.inf, dtype=torch.float64, device=device)
    for b in range(4):
        start, first = int(ends[0][b]), int(ends[1][b])
        at = slice(start, start + rows_used[b])
        if keys == "packed":
            seen = [x[None, first : first + keys_used[b]] for x in exact[1:]]
        else:
            seen = [x[None, b, : keys_used[b]] for x in exact[1:]]
        own = textbook(exact[0][None, at], *seen, **words)
        expected[at], lse[:, at] = own[0][0], own[1][0].detach()
    given = {}
    if used in ("rows", "both"):
        given["seqused_q"] = torch.tensor(rows_used, dtype=torch.int32, device=device)
    if used in ("keys", "both") or keys != "packed":
        given["seqused_k"] = torch.tensor(keys_used, dtype=torch.int32, device=device)
    sums = ends[0], ends[1] if keys == "packed" else None
    out, given_lse = flash.flash_attn_varlen_func(q, k, v, *sums, 20, 32, **given, **words, return_attn_probs=True)
    near(out, expected.detach(), "float32")
    near(with_inf(given_lse), lse, "float32")
    if keys == "packed":
        same_gradients(out, [q, k, v], expected, exact, "float32")


CACHES = {
    "read": dict(),
    "append": dict(new=3, rows=3),
    "rotary": dict(new=3, rows=3, rotary=16),
    "rotary_elsewhere": dict(new=3, rows=3, rotary=16, elsewhere=True, causal=True),
    "rotary_of_more_keys": dict(new=4, rows=2, rotary=32, causal=True),
    "pages": dict(new=3, rows=3, causal=True, paged=8, rotary=32),
    "packed": dict(packed=True, causal=True),
    "packed_append": dict(packed=True, new=2, causal=True),
    "packed_rotary": dict(packed=True, new=2, rotary=16, causal=True),
    "packed_rotary_without_order": dict(packed=True, new=2, rotary=16),
    "packed_pages": dict(packed=True, new=2, causal=True, paged=8, rotary=16),
    "pages_index": dict(new=3, rows=3, causal=True, paged=8, rotary=32, index=True),
    "packed_index": dict(packed=True, new=2, index=True, window_size=(9, 0)),
    "chunks": dict(rows=3, attention_chunk=7),
    "pages_chunks": dict(new=3, rows=3, causal=True, paged=8, rotary=32, attention_chunk=5),
    "packed_chunks": dict(packed=True, new=2, causal=True, attention_chunk=6),
}


@pytest.mark.parametrize("case", CACHES.values(), ids=CACHES)
def test_caches(flash, torch, device, case):
    from onepass.flash_attn.layers.rotary import apply_rotary_emb

    new, rows, capacity, batch = case.get("new", 0), case.get("rows", 3), 40, 2
    packed, words = (
        case.get("packed", False),
        {x: case[x] for x in ("causal", "window_size", "attention_chunk") if x in case},
    )
    counts = [new, new + 2] if packed and new else [new, new]  # of new keys
    counts_q = ([new, new + 2] if new else [3, 1]) if packed else [rows, rows]
    lengths = torch.tensor([25, 11], dtype=torch.int32, device=device)
    q = [torch.randn(n, 4, 32, device=device) for n in counts_q]
    fresh = [[torch.randn(n, 2, 32, device=device) for n in counts] for _ in "kv"]
    caches = [torch.randn(4 if case.get("index") else 2, capacity, 2, 32, device=device) for _ in "kv"]
    given = {"cache_seqlens": lengths}
    if case.get("index"):
        given["cache_batch_idx"] = torch.tensor([3, 1], dtype=torch.int32, device=device)
    mine = [x[given["cache_batch_idx"].long()] if case.get("index") else x.clone() for x in caches]
    used, table = caches, None
    if page := case.get("paged"):
        table = torch.randperm(20, dtype=torch.int32, device=device)[: 5 * len(caches[0])].reshape(-1, 5)
        used = [torch.randn(20, page, 2, 32, device=device) for _ in "kv"]
        for pages, cache in zip(used, caches):
            pages[table.long()] = cache.unflatten(1, (5, page))
        given["page_table"] = table
    turned_q, turned_k = q, fresh[0]
    if dim := case.get("rotary"):
        angles = torch.rand(60, dim // 2, device=device) * 6
        tables = angles.cos(), angles.sin()
        given |= {"rotary_cos": tables[0], "rotary_sin": tables[1]}
        first = lengths
        if case.get("elsewhere"):
            given["rotary_seqlens"] = first = torch.tensor([3, 20], dtype=torch.int32, device=device)
        turned_k = [apply_rotary_emb(x[None], *tables, True, seqlen_offsets=int(n))[0] for x, n in zip(fresh[0], first)]
        turned_q = []
        for x, n in zip(q, first):
            flat = x[None] if words else x.flatten(0, 1)[None, None]
            turned_q.append(apply_rotary_emb(flat, *tables, True, seqlen_offsets=int(n)).reshape(x.shape))
    expected, lses = [], []
    for b in range(batch):
        end = lengths[b] + counts[b]
        for cache, x in zip(mine, (turned_k, fresh[1])):
            cache[b, lengths[b] : end] = x[b]
        out, lse = textbook(turned_q[b][None].double(), *(x[b : b + 1, :end].double() for x in mine), **words)
        expected, lses = [*expected, out[0]], [*lses, lse[0]]
    if packed:
        sums = [torch.tensor([0, *x], device=device).cumsum(0).to(torch.int32) for x in (counts_q, counts)]
        given |= {"cu_seqlens_q": sums[0], "max_seqlen_q": max(counts_q)}
        given |= {"cu_seqlens_k_new": sums[1]} if new else {}
    join = torch.cat if packed else torch.stack
    given |= dict(zip("kv", map(join, fresh))) if new else {}
    out, lse = flash.flash_attn_with_kvcache(join(q), *used, **given, **words, return_softmax_lse=True)
    near(out, join(expected), "float32")
    near(with_inf(lse), torch.cat(lses, 1) if packed else torch.stack(lses), "float32")
    assert torch.equal(out, flash.flash_attn_with_kvcache(join(q), *used, **given, **words))
    for theirs, cache in zip(mine, used):
        if table is not None:
            cache = cache[table.long()].flatten(1, 2)
        if case.get("index"):
            cache = cache[given["cache_batch_idx"].long()]
        torch.testing.assert_close(cache, theirs, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("order", ["k_first", "v_first"])
@pytest.mark.parametrize("new", [0, 2])
def test_qv_of_a_latent_cache(flash, torch, device, order, new):
    latent = torch.randn(2, 30, 1, 16 + 48, device=device)
    parts = [16, 48] if order == "k_first" else [48, 16]
    k, v = latent.split(parts, -1) if order == "k_first" else latent.split(parts, -1)[::-1]
    q, qv = (torch.randn(2, 2, 4, dim, device=device) for dim in (16, 48))
    fresh = [torch.randn(2, new, 1, dim, device=device) for dim in (16, 48)] if new else []
    lengths = torch.tensor([20, 7], dtype=torch.int32, device=device)
    out = flash.flash_attn_with_kvcache(q, k, v, *fresh, qv=qv, cache_seqlens=lengths, causal=True)
    hidden = torch.arange(30, device=device) >= lengths[:, None] + new
    for b in range(2 if new else 0):
        for cache, x in zip((k, v), fresh):
            assert torch.equal(cache[b, lengths[b] : lengths[b] + new], x[b])
    whole = torch.cat((k, v), -1).double()
    expected, _ = textbook(torch.cat((q, qv), -1).double(), whole, v.double(), causal=True, hidden=hidden)
    near(out, expected, "float32")
    with pytest.raises(ValueError, match="qv requires k and v that divide the last dimension of one tensor"):
        flash.flash_attn_with_kvcache(q, k.clone(), v, qv=qv, cache_seqlens=lengths)


def test_what_qv_and_chunks_refuse(flash, torch, device):
    q, k, v, qv = (torch.randn(1, 4, 2, d, device=device) for d in (16, 16, 32, 32))
    e4m3 = [x.to(torch.float8_e4m3fn) for x in (q, k, v)]
    for function in (flash.flash_attn_func, flash.flash_attn_with_kvcache):
        with pytest.raises(NotImplementedError, match="qv does not support float8_e4m3fn"):
            function(*e4m3, qv=qv.to(torch.float8_e4m3fn))
        with pytest.raises(TypeError, match=r"qv must be torch.float32, as q \(got torch.float16\)"):
            function(q, k, v, qv=qv.half())
        for size, error in ((-1, ValueError), (2.5, TypeError)):
            with pytest.raises(
                error, match=rf"attention_chunk must be 0 \(none\) or a positive integer \(got {size}\)"
            ):
                function(q, k, v, attention_chunk=size)


def test_fp8_with_scales_of_kv_heads(flash, torch, device):
    def e4m3(x):
        scale = x.abs().amax((1, 3)) / 448
        return (x / scale[:, None, :, None]).to(torch.float8_e4m3fn), scale

    x = [torch.randn(2, 40, heads, 64, device=device) for heads in (4, 2, 2)]
    (k, k_scale), (v, v_scale) = e4m3(x[1]), e4m3(x[2])
    q_scale = x[0].abs().reshape(2, 40, 2, -1).amax((1, 3)) / 448
    per_head = q_scale.repeat_interleave(2, 1)[:, None, :, None]
    q = (x[0] / per_head).to(torch.float8_e4m3fn)
    words = {"q_descale": q_scale, "k_descale": k_scale, "v_descale": v_scale, "causal": True}
    exact = [q.double() * per_head, k.double() * k_scale[:, None, :, None], v.double() * v_scale[:, None, :, None]]
    expected, _ = textbook(*exact, causal=True)
    out = flash.flash_attn_func(q, k, v, **words)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.double(), expected, atol=0.12, rtol=0)
    lengths = torch.tensor([40, 40], dtype=torch.int32, device=device)
    cached = flash.flash_attn_with_kvcache(q, k, v, cache_seqlens=lengths, **words)
    torch.testing.assert_close(cached.double(), expected, atol=0.12, rtol=0)
    ends = torch.tensor([0, 40, 80], dtype=torch.int32, device=device)
    q, k, v = (t.flatten(0, 1) for t in (q, k, v))
    flat = flash.flash_attn_varlen_func(q, k, v, ends, ends, 40, 40, seqused_q=lengths - 3, **words)
    expected, _ = textbook(exact[0][:, :37], *exact[1:], causal=True)
    torch.testing.assert_close(flat.unflatten(0, (2, 40))[:, :37].double(), expected, atol=0.12, rtol=0)


@pytest.mark.parametrize("rotary", [0, 32])
def test_new_fp8_keys_have_the_scale_of_the_cache(flash, torch, device, rotary):
    from onepass.flash_attn.layers.rotary import apply_rotary_emb

    q, k, v = (torch.randn(2, 3, heads, 32, device=device).to(torch.float8_e4m3fn) for heads in (4, 2, 2))
    k[0, 0, 0, :3] = torch.tensor([448.0, -0.0, float("nan")]).to(k)
    caches = [torch.zeros(2, 9, 2, 32, dtype=torch.float8_e4m3fn, device=device) for _ in "kv"]
    scales = {name: torch.full((2, 2), 0.25, device=device) for name in ("q_descale", "k_descale", "v_descale")}
    lengths = torch.tensor([5, 0], dtype=torch.int32, device=device)
    angles = torch.rand(9, rotary // 2, device=device) * 6
    tables = {"rotary_cos": angles.cos().to(k.dtype), "rotary_sin": angles.sin().to(k.dtype)} if rotary else {}
    words = {"cache_seqlens": lengths, "causal": True, **scales}
    out = flash.flash_attn_with_kvcache(q, *caches, k, v, **tables, **words)
    if rotary:
        cos, sin = (x.to(torch.bfloat16) for x in tables.values())
        q, k = (
            apply_rotary_emb(x.to(torch.bfloat16), cos, sin, True, seqlen_offsets=lengths).to(k.dtype) for x in (q, k)
        )
    for cache, new in zip(caches, (k, v)):
        for b, first in enumerate(lengths.tolist()):
            written, fresh = (x.float() for x in (cache[b, first : first + 3], new[b]))
            one_step = 2.0**-3 if rotary and cache is caches[0] else 0  # bf16 rounds what is rotated once more
            torch.testing.assert_close(written, fresh, rtol=one_step, atol=one_step / 64, equal_nan=True)
    again = flash.flash_attn_with_kvcache(q, *caches, **words | {"cache_seqlens": lengths + 3})
    assert torch.equal(out[1], again[1]) and out[1].isfinite().all()


def test_fp8_tensors_that_require_gradients(flash, torch, device):
    q = torch.randn(1, 8, 2, 16, device=device).to(torch.float8_e4m3fn).requires_grad_()
    ends = torch.tensor([0, 8], dtype=torch.int32, device=device)
    out = flash.flash_attn_func(q, q, q)
    assert torch.equal(out, flash.flash_attn_func(*3 * [q.detach()]))
    for result in (out, flash.flash_attn_varlen_func(*3 * [q[0]], ends, ends, 8, 8)):
        with pytest.raises(RuntimeError, match="^FP8 attention does not support gradients$"):
            result.float().sum().backward()


@pytest.mark.parametrize("words", [{}, {"causal": True, "softcap": 2.0}, {"window_size": (4, 0), "attention_chunk": 6}])
def test_queries_of_values(flash, torch, device, words):
    """qv: the product with v joins the scores."""
    q, qv = (torch.randn(2, 9, 4, d, device=device, requires_grad=True) for d in (16, 40))
    k, v = (torch.randn(2, 12, 2, d, device=device, requires_grad=True) for d in (16, 40))
    exact = [x.detach().double().requires_grad_() for x in (q, qv, k, v)]
    joined = torch.cat(exact[:2], -1), torch.cat(exact[2:], -1)
    expected, lse = textbook(*joined, exact[3], **words)
    out, given_lse = flash.flash_attn_func(q, k, v, qv=qv, return_attn_probs=True, **words)
    near(out, expected, "float32")
    near(with_inf(given_lse), lse, "float32")
    same_gradients(out, [q, qv, k, v], expected, exact, "float32")
    ends = [torch.tensor([0, n, 2 * n], dtype=torch.int32, device=device) for n in (9, 12)]
    flat = [x.flatten(0, 1) for x in (q, k, v)]
    packed = flash.flash_attn_varlen_func(*flat, *ends, 9, 12, qv=qv.flatten(0, 1), **words)
    near(packed, expected.flatten(0, 1), "float32")


def test_chunks_count_no_hidden_keys(flash, torch, device):
    q, k = torch.randn(2, 3, 4, 16, device=device), torch.randn(2, 30, 2, 16, device=device)
    lengths, pads = (torch.tensor(x, dtype=torch.int32, device=device) for x in ([25, 11], [4, 0]))
    out = flash.flash_attn_with_kvcache(
        q, k, k, cache_seqlens=lengths, cache_leftpad=pads, causal=True, attention_chunk=5
    )
    for b in range(2):
        seen = k[b : b + 1, pads[b] : lengths[b]].double()
        near(out[b : b + 1], textbook(q[b : b + 1].double(), seen, seen, causal=True, attention_chunk=5)[0], "float32")


@pytest.mark.parametrize("packed", [False, True])
def test_combine(flash, torch, packed):
    q, k, v = (torch.randn(2, 20, 2, 16) for _ in range(3))
    expected, lse = flash.flash_attn_func(q, k, v, return_attn_probs=True)
    parts = [flash.flash_attn_func(q, k[:, x], v[:, x], return_attn_probs=True) for x in (slice(7), slice(7, 20))]
    outs, lses = torch.stack([x for x, _ in parts]), torch.stack([x.transpose(1, 2) for _, x in parts])
    if packed:
        outs, lses, expected, lse = outs[:, 0], lses[:, 0], expected[0], lse[:1]
    out, merged = flash.flash_attn_combine(outs, lses)
    near(out, expected.double(), "float32")
    near(merged, (lse.transpose(1, 2)[0] if packed else lse.transpose(1, 2)).double(), "float32")
    target = torch.empty_like(expected, dtype=torch.bfloat16)
    assert flash.flash_attn_combine(outs, lses, target, torch.bfloat16)[0] is target
    near(target, expected.double(), "bfloat16")


def test_refusals(flash, torch):
    q, cache = torch.randn(2, 3, 4, 16), torch.randn(2, 20, 2, 16)
    new, lengths = torch.randn(2, 3, 2, 16), torch.tensor([5, 4], dtype=torch.int32)
    before = cache.clone()
    with pytest.raises(ValueError, match="qv requires k and v that divide the last dimension of one tensor"):
        flash.flash_attn_with_kvcache(q, cache, cache.clone(), qv=q, cache_seqlens=lengths)
    with pytest.raises(ValueError, match="k and v must be given together"):
        flash.flash_attn_with_kvcache(q, cache, cache, k=new, cache_seqlens=lengths)
    with pytest.raises(ValueError, match="scale must be"):
        flash.flash_attn_with_kvcache(
            q, cache, cache.clone(), new, new, cache_seqlens=lengths, softmax_scale=float("nan")
        )
    assert torch.equal(cache, before) and flash.get_scheduler_metadata(1, 2, cache_seqlens=lengths) is None


def test_in_the_place_of_flash_attn_interface(flash, torch, monkeypatch):
    monkeypatch.setitem(sys.modules, "flash_attn_interface", flash)
    from flash_attn_interface import flash_attn_func

    assert flash_attn_func is flash.flash_attn_func and set(flash.__all__) <= set(dir(flash))
