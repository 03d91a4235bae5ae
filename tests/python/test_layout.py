"""layout="bshd": tensors [batch, seq, heads, dim], as flash-attn and JAX have them, in every interface."""

import json
import subprocess
import sys

import numpy as np
import onepass
import pytest
from conftest import inputs, jax_or_skip

F32 = np.float32


try:
    import torch
except ImportError:
    torch = None


def swapped(x):
    """Between [batch, heads, seq, ..] and [batch, seq, heads, ..]."""
    return np.ascontiguousarray(np.asarray(x).swapaxes(1, 2))


def as_torch(*arrays):
    return [torch.from_numpy(np.array(x)).requires_grad_(x.dtype == F32) for x in arrays]


@pytest.fixture
def qkv(rng):
    return inputs(rng)  # [2, 4, 37, 40], [2, 2, 65, 40], [2, 2, 65, 24]


CASES = {
    "plain": lambda rng: {},
    "causal": lambda rng: dict(mask="causal_bottom_right", window=(20, 0)),
    "bias and mask": lambda rng: dict(
        bias=rng.standard_normal((2, 4, 37, 65), F32), bool_mask=rng.random((2, 1, 37, 65)) < 0.5
    ),
    "slopes and sinks": lambda rng: dict(alibi_slopes=np.ones((2, 4), F32), sinks=np.zeros(4, F32)),
    "dropout": lambda rng: dict(dropout_p=0.3, seed=7),
    "score_mod": lambda rng: dict(score_mod="score - 0.1f * head * abs(q_index - k_index)"),
    "lengths": lambda rng: dict(seqused_k=np.array([65, 3], np.int32), mask="causal_bottom_right"),
}


@pytest.mark.parametrize("case", CASES)
def test_numpy(rng, qkv, case):
    options = CASES[case](rng)
    out, lse = onepass.attention(*qkv, **options, return_lse=True)
    mine, mine_lse = onepass.attention(*map(swapped, qkv), layout="bshd", **options, return_lse=True)
    assert mine.shape == (2, 37, 4, 24) and mine.flags.c_contiguous
    np.testing.assert_array_equal(mine, swapped(out))
    np.testing.assert_array_equal(mine_lse, swapped(lse))


def test_the_default_is_bhsd(qkv):
    np.testing.assert_array_equal(onepass.attention(*qkv), onepass.attention(*qkv, layout="bhsd"))


def test_into_given_results(qkv):
    q, k, v = qkv[0][:, :, :3], *qkv[1:]  # unified_max is for few rows
    out, recomputed = np.empty((2, 3, 4, 24), F32), np.empty((2, 3, 4), np.int32)
    options = dict(layout="bshd", out=out, recomputed=recomputed, unified_max=0.0)
    assert onepass.attention(*map(swapped, (q, k, v)), **options) is out
    np.testing.assert_allclose(out, swapped(onepass.attention(q, k, v)), rtol=1e-5, atol=1e-6)
    assert set(recomputed.ravel()) <= {0, 1}


def test_backward(rng, qkv):
    q, k, v = qkv
    out, lse = onepass.attention(q, k, v, return_lse=True, sinks=np.zeros(4, F32))
    dout, dlse = rng.standard_normal(out.shape, F32), rng.standard_normal(lse.shape, F32)
    options = dict(sinks=np.zeros(4, F32), grads=("dq", "dk", "dv", "dsinks"))
    *theirs, dsinks = onepass.attention_backward(dout, q, k, v, out, lse, dlse=dlse, **options)
    turned = map(swapped, (dout, q, k, v, out, lse))
    *mine, mine_dsinks = onepass.attention_backward(*turned, dlse=swapped(dlse), layout="bshd", **options)
    for x, y in zip(mine, theirs):
        np.testing.assert_array_equal(x, swapped(y))
    np.testing.assert_array_equal(mine_dsinks, dsinks)


def test_packed_and_paged_are_the_same_in_either(rng):
    packed = [rng.standard_normal((30, h, 16), F32) for h in (4, 2, 2)]
    cu = np.array([0, 10, 30], np.int32)
    options = dict(cu_seqlens_q=cu, cu_seqlens_k=cu, return_lse=True)
    for x, y in zip(onepass.attention(*packed, **options), onepass.attention(*packed, layout="bshd", **options)):
        np.testing.assert_array_equal(x, y)
    q = rng.standard_normal((2, 4, 3, 16), F32)
    pages = [rng.standard_normal((5, 8, 2, 16), F32) for _ in "kv"]
    options = dict(page_table=np.array([[0, 1], [4, 2]], np.int32), seqused_k=np.array([9, 16], np.int32))
    out = onepass.attention(q, *pages, **options)
    np.testing.assert_array_equal(onepass.attention(swapped(q), *pages, layout="bshd", **options), swapped(out))


def test_packed_queries_of_a_cache_of_their_own_layout(rng):
    q = rng.standard_normal((5, 4, 16), F32)
    k, v = (rng.standard_normal((2, 2, 20, 16), F32) for _ in "kv")
    options = dict(cu_seqlens_q=np.array([0, 2, 5], np.int32), seqused_k=np.array([9, 20], np.int32))
    out = onepass.attention(q, k, v, **options)
    np.testing.assert_array_equal(onepass.attention(q, swapped(k), swapped(v), layout="bshd", **options), out)


def test_append_kv(rng):
    k_new, v_new = (rng.standard_normal((2, 2, 3, 16), F32) for _ in "kv")
    q = rng.standard_normal((2, 4, 3, 16), F32)
    k, v = (np.zeros((2, 2, 20, 16), F32) for _ in "kv")
    table = [rng.standard_normal((20, 8), F32) for _ in "cs"]
    options = dict(cache_seqlens=np.array([5, 17], np.int32), cos=table[0], sin=table[1])
    mine = list(map(swapped, (k_new, v_new, k, v)))
    rotated = onepass.append_kv(*mine, q=swapped(q), layout="bshd", **options)
    np.testing.assert_array_equal(rotated, swapped(onepass.append_kv(k_new, v_new, k, v, q=q, **options)))
    for x, y in zip(mine[2:], (k, v)):
        np.testing.assert_array_equal(x, swapped(y))


@pytest.mark.parametrize("shape", [(2, 3, 200, 64), (3, 200, 64)])
def test_quantize(rng, shape):
    pytest.importorskip("ml_dtypes")
    x = rng.standard_normal(shape, F32)
    y, *more = onepass.quantize(x, factors="block", mean=True)
    axes = len(shape) - 3, len(shape) - 2
    mine, *mine_more = onepass.quantize(
        np.ascontiguousarray(x.swapaxes(*axes)), factors="block", mean=True, layout="bshd"
    )
    np.testing.assert_array_equal(mine.view(np.uint8).swapaxes(*axes), y.view(np.uint8))
    for a, b in zip(mine_more, more):
        np.testing.assert_array_equal(a, b)


def test_fp8(qkv):
    out = onepass.attention(*qkv, fp8=True)
    np.testing.assert_array_equal(onepass.attention(*map(swapped, qkv), fp8=True, layout="bshd"), swapped(out))


def test_explain(qkv):
    line = onepass.explain(*map(swapped, qkv), layout="bshd").partition("\n")[0]
    assert line == "fwd b2 h4/2 s37x65 d40/24 fp32 layout=bshd"
    turned = [swapped(x).swapaxes(1, 2) for x in qkv]
    assert onepass.explain(*turned).partition("\n")[0] == line


# The mistake, and the sentence, which shows what was passed.
WRONG = {
    r"head dim of k must be 40, .* \(got shape \[2, 65, 2, 39\]\)": lambda q, k, v: (q, k[..., :39], v),
    r"length of v must be 65, .* \(got shape \[2, 64, 2, 24\]\)": lambda q, k, v: (q, k, v[:, 1:]),
    r"heads of v must be 2, .* \(got shape \[2, 65, 1, 24\]\)": lambda q, k, v: (q, k, v[:, :, 1:]),
    r"q .*\[batch, seq_q, heads_q, dim_qk\]|q .*\[37, 4, 40\].*": lambda q, k, v: (q[0], k, v),
    r"\[batch, seq, heads, dim\].* \(got \[40\]": lambda q, k, v: (q[0, 0, 0], k, v),
    r"k must be an array of shape \[batch, seq, heads, dim\] \(got None\)": lambda q, k, v: (q, None, v),
}


@pytest.mark.parametrize("sentence", WRONG)
@pytest.mark.parametrize("kind", ["numpy", "torch", "jax"])
def test_sentences_show_the_callers_shapes(qkv, sentence, kind):
    q, k, v = WRONG[sentence](*map(swapped, qkv))
    if kind == "numpy":
        attention, arrays = onepass.attention, (q, k, v)
    elif kind == "torch":
        if torch is None or k is None:
            pytest.skip("needs PyTorch, whose operators refuse None by themselves")
        attention, arrays = onepass.torch.attention, as_torch(q, k, v)
    else:
        jax_or_skip()
        attention, arrays = onepass.jax.attention, (q, k, v)
    with pytest.raises((ValueError, TypeError), match=sentence):
        attention(*arrays, layout="bshd")


def test_sentences_about_results(qkv):
    q, k, v = map(swapped, qkv)
    with pytest.raises(ValueError, match=r"out must be .* \(got shape \[2, 4, 37, 24\]\)"):
        onepass.attention(q, k, v, layout="bshd", out=np.empty((2, 4, 37, 24), F32))
    with pytest.raises(ValueError, match=r"k .*\[2, 20, 3, 16\]"):
        new, cache = np.zeros((2, 1, 2, 16), F32), np.zeros((2, 20, 3, 16), F32)
        onepass.append_kv(new, new, cache, cache.copy(), cache_seqlens=np.zeros(2, np.int32), layout="bshd")


def test_other_layouts_are_refused(qkv):
    for layout in ("sbhd", None, ["bshd"]):
        with pytest.raises(ValueError, match=r"layout must be 'bhsd' or 'bshd' \(got "):
            onepass.attention(*qkv, layout=layout)


# ------------------------------------------------------------------------------------------------------- frameworks
@pytest.mark.skipif(torch is None, reason="needs PyTorch")
class TestTorch:
    def test_gradients(self, rng, qkv):
        bias = rng.standard_normal((4, 37, 65), F32)
        ours, theirs = as_torch(*map(swapped, qkv), bias), as_torch(*qkv, bias)

        def losses(q, k, v, bias, layout):
            out, lse = onepass.torch.attention(
                q, k, v, bias=bias, mask="causal_top_left", return_lse=True, layout=layout
            )
            return out, lse, (out.square().sum() + lse.square().sum())

        out, lse, loss = losses(*ours, "bshd")
        other, other_lse, other_loss = losses(*theirs, "bhsd")
        assert torch.equal(out.transpose(1, 2), other) and torch.equal(lse.transpose(1, 2), other_lse)
        for x, y, turned in zip(
            torch.autograd.grad(loss, ours), torch.autograd.grad(other_loss, theirs), (True, True, True, False)
        ):
            assert torch.equal(x.transpose(1, 2) if turned else x, y)

    def test_plans_of_both_layouts_are_apart(self):
        """A tensor that is a problem in either: the second call must not get the first one's plan."""
        q = torch.randn(1, 3, 3, 8)
        out = onepass.torch.attention(q, q, q)
        mine = onepass.torch.attention(q, q, q, layout="bshd")
        assert torch.equal(mine, onepass.torch.attention(*[q.transpose(1, 2)] * 3).transpose(1, 2))
        assert not torch.equal(mine, out) and torch.equal(onepass.torch.attention(q, q, q), out)

    @pytest.mark.parametrize("dynamic", [False, True])
    def test_compile(self, qkv, dynamic):
        @torch.compile(fullgraph=True, dynamic=dynamic, backend="aot_eager")
        def attend(q, k, v):
            return onepass.torch.attention(q, k, v, layout="bshd", mask="causal_bottom_right")

        q, k, v = as_torch(*map(swapped, qkv))
        attend(q, k, v).sum().backward()
        expected = onepass.torch.attention(*(x.detach().transpose(1, 2) for x in (q, k, v)), mask="causal_bottom_right")
        torch.testing.assert_close(attend(q, k, v).transpose(1, 2), expected)
        assert q.grad.shape == q.shape and k.grad.shape == k.shape

    def test_vmap(self, qkv):
        q, k, v = (x.detach()[None].expand(3, *x.shape) for x in as_torch(*map(swapped, qkv)))
        out = torch.vmap(lambda *x: onepass.torch.attention(*x, layout="bshd"))(q, k, v)
        torch.testing.assert_close(out[2], onepass.torch.attention(q[0], k[0], v[0], layout="bshd"))

    def test_out_and_append(self, rng, qkv):
        q, k, v = (x.detach() for x in as_torch(*map(swapped, qkv)))
        out = torch.empty(2, 37, 4, 24)
        assert onepass.torch.attention(q, k, v, layout="bshd", out=out) is out
        assert torch.equal(out, onepass.torch.attention(q, k, v, layout="bshd"))
        new = torch.randn(2, 1, 2, 40), torch.randn(2, 1, 2, 24)
        onepass.torch.append_kv(*new, k, v, cache_seqlens=torch.tensor([4, 5]), layout="bshd")
        assert torch.equal(k[1, 5], new[0][1, 0]) and torch.equal(v[0, 4], new[1][0, 0])


def test_jax_gradients(qkv):
    jax = jax_or_skip()

    def loss(layout):
        return lambda *x: (onepass.jax.attention(*x, layout=layout, mask="causal_bottom_right") ** 2).sum()

    mine = jax.grad(loss("bshd"), (0, 1, 2))(*map(swapped, qkv))
    theirs = jax.grad(loss("bhsd"), (0, 1, 2))(*qkv)
    for x, y in zip(mine, theirs):
        np.testing.assert_array_equal(np.asarray(x), swapped(y))


def test_the_command(tmp_path, qkv):
    names = {}
    for name, x in zip("qkv", qkv):
        names[name] = tmp_path / f"{name}.npy"
        np.save(names[name], swapped(x))
    words = [f"--{name}={path}" for name, path in names.items()]
    words += ["--layout", "bshd", f"--out={tmp_path / 'o.npy'}", f"--lse={tmp_path / 'l.npy'}", "--json"]
    done = subprocess.run([sys.executable, "-m", "onepass", "run", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "layout=bshd" in json.loads(done.stdout)["problem"]
    out, lse = onepass.attention(*map(swapped, qkv), layout="bshd", return_lse=True)
    np.testing.assert_allclose(np.load(tmp_path / "o.npy"), out, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.load(tmp_path / "l.npy"), lse, rtol=1e-5, atol=1e-6)
