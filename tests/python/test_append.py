"""append_kv against a loop in float64 NumPy, and attention over what it wrote against attention over all keys."""

import numpy as np
import onepass
import pytest
from conftest import check, normal


def rotate(x, cos, sin, interleaved):
    """One row, in float64."""
    x, cos, sin = (np.asarray(a).astype(np.float64) for a in (x, cos, sin))
    half, y = len(cos), x.copy()
    first = slice(0, 2 * half, 2) if interleaved else slice(0, half)
    second = slice(1, 2 * half, 2) if interleaved else slice(half, 2 * half)
    y[first] = x[first] * cos - x[second] * sin
    y[second] = x[second] * cos + x[first] * sin
    return y


def angles(positions, rotary_dim, dtype=np.float32):
    turns = np.arange(positions)[:, None] * 10000.0 ** (-np.arange(0, rotary_dim, 2) / rotary_dim)
    return np.cos(turns).astype(dtype), np.sin(turns).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotary_dim", [0, 16, 40])
def test_pages(rng, dtype, interleaved, rotary_dim, request):
    kind = request.getfixturevalue("bfloat16") if dtype == "bfloat16" else np.dtype(dtype)
    used, lengths, page = np.array([0, 13, 5], np.int32), np.array([9, 1, 0]), 7
    cu = np.concatenate([[0], np.cumsum(lengths)])
    k_new, v_new = normal(rng, (10, 2, 40), kind), normal(rng, (10, 2, 24), kind)
    q = normal(rng, (10, 4, 40), kind)
    pages_k, pages_v = np.full((9, 2, page, 40), 3, kind), np.full((9, 2, page, 24), 3, kind)  # heads before tokens
    table = rng.permutation(9).astype(np.int32).reshape(3, 3)
    options = dict(cache_seqlens=used, page_table=table, cu_seqlens_q=cu, interleaved=interleaved)
    if rotary_dim:
        cos, sin = angles(21, rotary_dim, kind)
        options.update(cos=cos, sin=sin, q=q)
    expected_k, expected_v = pages_k.astype(np.float64), pages_v.astype(np.float64)
    expected_q = np.zeros(q.shape)
    for b in range(3):
        for t in range(lengths[b]):
            p, row = used[b] + t, cu[b] + t
            at = table[b, p // page], slice(None), p % page
            expected_v[at] = v_new[row]
            turn = (cos[p], sin[p], interleaved) if rotary_dim else ([], [], interleaved)
            expected_k[at] = [rotate(x, *turn) for x in k_new[row]]
            expected_q[row] = [rotate(x, *turn) for x in q[row]]
    rotated = onepass.append_kv(k_new, v_new, pages_k.swapaxes(1, 2), pages_v.swapaxes(1, 2), **options)
    assert np.array_equal(pages_v.astype(np.float64), expected_v)
    check(pages_k, expected_k, dtype)
    if rotary_dim:
        assert rotated.dtype == q.dtype
        check(rotated, expected_q, dtype)
    else:
        assert rotated is None
        assert np.array_equal(pages_k.astype(np.float64), expected_k)


def test_then_attending(rng):
    """Token by token, as a decoder does, against all tokens rotated at once."""
    k, v, q = normal(rng, (2, 2, 12, 32)), normal(rng, (2, 2, 12, 24)), normal(rng, (2, 4, 12, 32))
    cos, sin = angles(16, 32)
    cache_k, cache_v = np.full((2, 16, 2, 32), np.nan, np.float32), np.full((2, 16, 2, 24), np.nan, np.float32)
    cache = cache_k.swapaxes(1, 2), cache_v.swapaxes(1, 2)
    used, outs = np.zeros(2, np.int32), []
    for new in (slice(0, 7), slice(7, 8), slice(8, 12)):
        turned = onepass.append_kv(
            k[:, :, new], v[:, :, new], *cache, cache_seqlens=used, cos=cos, sin=sin, q=q[:, :, new]
        )
        used += new.stop - new.start
        outs.append(onepass.attention(turned, *cache, mask="causal_bottom_right", seqused_k=used))
    all_q, all_k = q.copy(), k.copy()
    for a in (all_q, all_k):
        for b, h, t in np.ndindex(a.shape[:3]):
            a[b, h, t] = rotate(a[b, h, t], cos[t], sin[t], False)
    check(np.concatenate(outs, axis=2), onepass.attention(all_q, all_k, v, mask="causal_bottom_right"))


def by_slots(rng, dtype=np.float32, rotary_dim=16, interleaved=False):
    """(arguments with slots, arguments with lengths and a page table that write the same, pools)."""
    used, lengths, page = np.array([0, 13, 5], np.int32), np.array([9, 1, 0]), 7
    cu = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    table = rng.permutation(9).astype(np.int32).reshape(3, 3)
    new = dict(k_new=normal(rng, (10, 2, 40), dtype), v_new=normal(rng, (10, 2, 24), dtype))
    new |= dict(q=normal(rng, (10, 4, 40), dtype), interleaved=interleaved)
    cos, sin = angles(21, rotary_dim, dtype)
    positions = np.concatenate([np.arange(a, a + n) for a, n in zip(used, lengths)])
    slots = np.array(
        [table[b, p // page] * page + p % page for b, p in zip(np.repeat(np.arange(3), lengths), positions)]
    )
    pools = [np.full((9, page, 2, dim), 3, dtype) for dim in (40, 24)]
    mine = new | dict(slot_mapping=slots, positions=positions, cos_sin_cache=np.concatenate([cos, sin], axis=1))
    return mine, new | dict(cache_seqlens=used, page_table=table, cu_seqlens_q=cu, cos=cos, sin=sin), pools


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("views", [False, True])
def test_slots_are_where_lengths_and_tables_lead(rng, interleaved, views):
    mine, other, pools = by_slots(rng, interleaved=interleaved)
    wanted, given = ([x.copy() for x in pools] for _ in "kv")
    turned = onepass.append_kv(k_cache=wanted[0], v_cache=wanted[1], **other)
    if views:  # two column views of one tensor, and other widths of integers
        both = mine.pop("cos_sin_cache")
        mine |= dict(cos=both[:, :8], sin=both[:, 8:], slot_mapping=np.int32(mine["slot_mapping"]))
        mine["positions"] = np.int32(mine["positions"])[:, None].repeat(2, axis=1)[:, 0]
    got = onepass.append_kv(k_cache=given[0], v_cache=given[1], layout="bshd" if views else "bhsd", **mine)
    np.testing.assert_array_equal(got, turned)
    for x, y in zip(given, wanted):
        np.testing.assert_array_equal(x, y)


def test_negative_slots_are_skipped_and_their_queries_rotated(rng):
    mine, _, pools = by_slots(rng)
    whole = [x.copy() for x in pools]
    turned = onepass.append_kv(k_cache=whole[0], v_cache=whole[1], **mine)
    for name, bad in (("k_new", 3), ("v_new", 3), ("k_new", 8)):
        mine[name][bad] = np.nan
    slots = mine["slot_mapping"].copy()
    mine["slot_mapping"] = np.where(np.isin(np.arange(10), (3, 8)), [-1, -(2**62)] * 5, slots)
    given = [x.copy() for x in pools]
    np.testing.assert_array_equal(onepass.append_kv(k_cache=given[0], v_cache=given[1], **mine), turned)
    for x, y in zip(given, whole):
        rows, wanted = x.reshape(-1, *x.shape[2:]), y.reshape(-1, *y.shape[2:]).copy()
        wanted[slots[[3, 8]]] = 3
        np.testing.assert_array_equal(rows, wanted)


def test_slots_of_a_latent_cache(rng):
    """Rotary and latent columns of one pool, in one call; and whole rows with a v of no columns."""
    new, q = normal(rng, (5, 576)), normal(rng, (5, 128, 576))
    pool, slots = np.zeros((4, 8, 1, 576), np.float32), np.array([31, 2, -1, 9, 8])
    cos, sin = angles(50, 64)
    rotary = dict(positions=np.array([40, 3, 0, 0, 49]), cos=cos, sin=sin, interleaved=True)
    parts = new[:, None, 512:], new[:, None, :512], pool[..., 512:], pool[..., :512]
    turned = onepass.append_kv(*parts, slot_mapping=slots, q=q[..., 512:], **rotary)
    rows = pool.reshape(32, 576)
    for i, (slot, p) in enumerate(zip(slots, rotary["positions"])):
        check(turned[i, 5], rotate(q[i, 5, 512:], cos[p], sin[p], True), "float32")
        if slot >= 0:
            np.testing.assert_array_equal(rows[slot, :512], new[i, :512])
            check(rows[slot, 512:], rotate(new[i, 512:], cos[p], sin[p], True), "float32")
    assert (np.abs(rows).sum(1) > 0).sum() == 4
    whole = np.zeros_like(pool)
    onepass.append_kv(new[:, None], new[:, None, :0], whole, whole[..., :0], slot_mapping=slots)
    np.testing.assert_array_equal(whole.reshape(32, 576)[slots[slots >= 0]], new[slots >= 0])


def test_refused_slots(rng):
    mine, other, pools = by_slots(rng)
    twice = mine["slot_mapping"].copy()
    twice[7] = twice[2]
    beyond = mine["slot_mapping"].copy()
    beyond[4] = 63
    for error, wrong, sentence in [
        (
            ValueError,
            dict(slot_mapping=beyond),
            r"slot_mapping\[4\] must be below 63, the slots of 9 pages of 7 .got 63",
        ),
        (ValueError, dict(slot_mapping=twice), f"only one token may be written to slot {twice[2]} .* tokens 2 and 7"),
        (
            ValueError,
            dict(positions=mine["positions"] + 20),
            r"positions\[1\] must be a row of cos and sin, from 0 to 20",
        ),
        (ValueError, dict(slot_mapping=twice[:4]), "the number of tokens of slot_mapping must be 10, as in k_new"),
        (ValueError, dict(positions=None), "positions must be given: with slot_mapping"),
        (
            ValueError,
            dict(cache_seqlens=other["cache_seqlens"]),
            "cache_seqlens and slot_mapping must not both be given",
        ),
        (ValueError, dict(cos=other["cos"], sin=other["sin"]), "cos_sin_cache and cos or sin must not both be given"),
        (
            ValueError,
            dict(cos_sin_cache=mine["cos_sin_cache"][:, :5]),
            "must have shape .positions, rotary_dim. with an even",
        ),
        (TypeError, dict(slot_mapping=np.float32(twice)), "slot_mapping must be int32 or int64 .got fp32"),
        (ValueError, dict(slot_mapping=None), "cache_seqlens or slot_mapping must be given"),
        (ValueError, dict(slot_mapping=None, cache_seqlens=other["cache_seqlens"]), "positions requires slot_mapping"),
    ]:
        with pytest.raises(error, match=sentence):
            onepass.append_kv(k_cache=pools[0], v_cache=pools[1], **(mine | wrong))
        assert all((x == 3).all() for x in pools)


def test_in_place_and_into(rng):
    cos, sin = angles(8, 16)
    new, cache = normal(rng, (1, 2, 3, 16)), np.zeros((2, 1, 2, 8, 16), np.float32)
    q = normal(rng, (1, 4, 3, 16))
    call = dict(cache_seqlens=np.array([2]), cos=cos, sin=sin)
    expected = onepass.append_kv(new, new, *cache, q=q, **call)
    into = np.empty_like(q)
    assert onepass.append_kv(new, new, *cache, q=q, q_out=into, **call) is into
    assert np.array_equal(into, expected)
    assert onepass.append_kv(new, new, *cache, q=q, q_out=q, **call) is q
    assert np.array_equal(q, expected)
    before = cache.copy()
    for threads in (1, 3):
        cache[...] = 0
        onepass.append_kv(new, new, *cache, threads=threads, **call)
        assert np.array_equal(cache, before)
    cache[...] = 0  # float64 tables are converted
    onepass.append_kv(new, new, *cache, **{**call, "cos": cos.astype(np.float64), "sin": sin.astype(np.float64)})
    assert np.array_equal(cache, before)


def test_torch(rng, torch):
    cos, sin = angles(8, 16)
    new, q = normal(rng, (1, 2, 3, 16)), normal(rng, (1, 4, 3, 16))
    cache = np.zeros((2, 1, 2, 8, 16), np.float32)
    expected_q = onepass.append_kv(new, new, *cache, cache_seqlens=np.array([2]), cos=cos, sin=sin, q=q)
    for dtype in (torch.float32, torch.bfloat16):
        tensors = [torch.from_numpy(x).to(dtype) for x in (new, np.zeros_like(cache), q)]
        pages = tensors[1]
        turned = onepass.append_kv(
            tensors[0],
            tensors[0],
            pages[0],
            pages[1],
            cache_seqlens=torch.tensor([2]),
            cos=torch.from_numpy(cos),
            sin=torch.from_numpy(sin),
            q=tensors[2],
        )
        assert turned.dtype == dtype
        name = str(dtype).rpartition(".")[2]
        check(turned.float().numpy(), expected_q, name)
        check(pages.float().numpy(), cache, name)


@pytest.mark.parametrize("fp8", [False, True])
def test_torch_compiled(rng, torch, device, fp8):
    """onepass.torch.append_kv, traced: the bits of onepass.append_kv, also into a cache of float8_e4m3fn."""
    import onepass.torch

    cos, sin = (torch.from_numpy(x).to(device) for x in angles(8, 16))
    new, q = (torch.from_numpy(normal(rng, (1, heads, 3, 16))).to(device) for heads in (2, 4))
    options = dict(
        cache_seqlens=torch.tensor([2], device=device, dtype=torch.int32), cos=cos, sin=sin, interleaved=True
    )
    if fp8:
        options |= {
            f"{name}_descale": torch.full((1, 2), scale, device=device) for name, scale in (("k", 0.02), ("v", 0.01))
        }

    def caches():
        return [torch.zeros(1, 2, 8, 16, device=device).to(torch.float8_e4m3fn if fp8 else torch.float32) for _ in "kv"]

    def bits(x):
        return x.view(torch.uint8) if fp8 else x

    wanted, given = caches(), caches()
    turned = onepass.append_kv(new, new, *wanted, q=q, **options)
    compiled = torch.compile(onepass.torch.append_kv, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(new, new, *given, q=q, **options), turned)
    assert onepass.torch.append_kv(new, new, *given, **options) is None
    for mine, other in zip(given, wanted):
        assert torch.equal(bits(mine), bits(other)) and bits(mine).any()


@pytest.mark.parametrize("fp8", [False, True])
def test_slots_in_torch_compiled(rng, torch, device, fp8):
    """vLLM's int64 slots and positions and its one table, traced, into both halves of one pool of pages."""
    import onepass.torch

    mine, _, pools = by_slots(rng)
    mine.pop("interleaved")
    tensors = {name: torch.from_numpy(x).to(device) for name, x in mine.items()}
    wanted = onepass.append_kv(k_cache=pools[0], v_cache=pools[1], **mine)
    both = torch.full((9, 7, 2, 64), 3.0, device=device)
    if fp8:
        both = both.to(torch.float8_e4m3fn)
        tensors |= dict(
            k_descale=torch.full((1,), 0.02, device=device), v_descale=torch.full((1, 2), 0.01, device=device)
        )
    caches = both[..., :40], both[..., 40:]
    compiled = torch.compile(onepass.torch.append_kv, fullgraph=True, backend="aot_eager")
    turned = compiled(k_cache=caches[0], v_cache=caches[1], **tensors)
    np.testing.assert_array_equal(turned.cpu(), wanted)
    for x, y, scale in zip(caches, pools, (0.02, 0.01)):
        x, written = x.float().cpu().numpy(), y != 3
        assert (x[~written] == 3).all()
        np.testing.assert_allclose(x[written] * (scale if fp8 else 1), y[written], rtol=0.07 if fp8 else 0, atol=1e-4)


def test_torch_says_that_a_cache_has_changed(rng, torch):
    import onepass.torch

    new, cache = torch.from_numpy(normal(rng, (1, 2, 3, 16))), torch.ones(1, 2, 8, 16)
    x = torch.ones(1, 2, 8, 16, requires_grad=True)
    loss = (x * cache).sum()
    onepass.torch.append_kv(new, new, cache, torch.ones(1, 2, 8, 16), cache_seqlens=torch.tensor([2]))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_torch_names_what_is_no_tensor(rng, torch):
    import onepass.torch

    new, cache = torch.from_numpy(normal(rng, (1, 2, 3, 16))), torch.zeros(2, 1, 2, 8, 16)
    good = dict(k_new=new, v_new=new, k_cache=cache[0], v_cache=cache[1])
    for name in good:
        with pytest.raises(TypeError, match=rf"{name} must be a torch.Tensor \(got None\)"):
            onepass.torch.append_kv(**(good | {name: None}))
    with pytest.raises(TypeError, match=r"cos must be a torch.Tensor \(got ndarray\)"):
        onepass.torch.append_kv(**good, cos=np.ones((8, 4)))
    with pytest.raises(ValueError, match="cache_seqlens or slot_mapping must be given"):
        onepass.torch.append_kv(**good)
    assert not cache.any()


def test_jax_caches_are_refused(rng, jax):
    new, cache = normal(rng, (1, 2, 3, 16)), jax.numpy.zeros((1, 2, 8, 16))
    with pytest.raises(TypeError, match="k_cache must be .* \\(got a jax Array, which is immutable\\)"):
        onepass.append_kv(new, new, cache, cache, cache_seqlens=np.array([2]))


def test_errors(rng):
    cos, sin = angles(8, 16)
    new, q = normal(rng, (1, 2, 3, 16)), normal(rng, (1, 4, 3, 16))
    cache, q_out = np.full((2, 1, 2, 8, 16), 7, np.float32), np.full_like(q, 7)
    call = dict(k_new=new, v_new=new, k_cache=cache[0], v_cache=cache[1], cache_seqlens=np.array([2], np.int32))
    call.update(cos=cos, sin=sin, q=q, q_out=q_out)
    read_only = cache[0].view()
    read_only.flags.writeable = False
    for error, wrong, sentence in [
        (
            ValueError,
            {"cache_seqlens": np.array([6])},
            r"cache_seqlens\[0\] must be 0 to 5 to append 3 tokens to a cache of 8 \(got 6\)",
        ),
        (ValueError, {"cos": cos[:4], "sin": sin[:4]}, "with 4 positions of cos and sin"),
        (ValueError, {"sin": None}, "sin must be given: cos and sin come together"),
        (
            ValueError,
            {"page_table": np.zeros((1, 4), np.int32)},
            r"the number of heads of k must be 2, as in k_new \(got shape \[1, 2, 8, 16\]\)",
        ),
        (ValueError, {"v_new": new[:, :, :2]}, "the sequence length of v_new must be 3, as in k_new"),
        (ValueError, {"k_cache": read_only}, "k must be writable"),
        (ValueError, {"v_cache": cache[0]}, "v must not share memory with k"),
        (TypeError, {"k_new": None}, r"k_new must be an array \(got None\)"),
        (TypeError, {"k_cache": cache[0].astype(np.float16)}, "v must be fp16, as k .got fp32"),
        (TypeError, {"q": None, "q_out": None, "cos": cos.astype(np.int32)}, "cos must be fp32, as k_new .got int32"),
        (ValueError, {"threads": 0}, r"threads must be .* \(got 0\)"),
    ]:
        with pytest.raises(error, match=sentence):
            onepass.append_kv(**{**call, **wrong})
        assert (cache == 7).all() and (q_out == 7).all()
    assert onepass.append_kv(**call) is q_out
