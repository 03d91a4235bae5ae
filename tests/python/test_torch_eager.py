"""onepass.torch on plain tensors, which go past PyTorch's dispatcher and take plans of calls before."""

import subprocess
import sys

import pytest
from conftest import qkv

# A process of its own: the cache of one that has made a thousand calls is full, and then it grows no more.
KEPT = """
import torch
from onepass import _onepass
from onepass.torch import attention

plans = []
for rows in (19, 19, 21, 19):
    for _ in range(2):
        q, k, v = (torch.randn(2, heads, rows, 16, requires_grad=True) for heads in (4, 2, 2))
        torch.autograd.grad(attention(q, k, v, mask="causal_bottom_right").sum(), q)
    plans.append(_onepass.kept_plans())
assert plans[1] == plans[0] and plans[2] == plans[0] + 2 and plans[3] == plans[2], plans
"""


def test_plans_are_kept(torch):
    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("this PyTorch has no DLPack exchange table: the general path takes every call")
    done = subprocess.run([sys.executable, "-c", KEPT], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_plan_is_of_its_options(attention, torch):
    """Calls that differ in one thing alone; every one is computed as itself."""
    q, k, v = qkv(torch, rows=30, keys=30)
    square = [x[:, :2] for x in (q, k, v)]
    variants = [
        (square, options)
        for options in [
            dict(),
            dict(mask="causal_top_left"),
            dict(mask="causal_offset", align_offset=3),
            dict(mask="causal_offset", align_offset=4),
            dict(window=(4, 2)),
            dict(window=(2, 4)),
            dict(scale=0.5),
            dict(scale=1),
            dict(softcap=2),
            dict(bool_mask=torch.rand(30, 30) < 0.5),
            dict(bias=torch.randn(30, 30)),
            dict(bias=torch.randn(30, 30).bfloat16()),
            dict(sinks=torch.randn(2)),
            dict(sinks=torch.randn(2).half()),
            dict(alibi_slopes=torch.rand(2)),
            dict(threads=1),
        ]
    ]
    variants += [([x.half() for x in square], {}), ([x[:, :, :29] for x in square], {})]
    variants += [([x.transpose(1, 2).contiguous().transpose(1, 2) for x in square], {})]
    variants += [((square[0], square[1], square[1]), {}), ((square[0], square[1], square[1].clone()), {})]
    import onepass

    for _ in range(2):
        for tensors, options in variants:
            out, lse = attention(*tensors, **options, return_lse=True)
            expected = onepass.attention(*tensors, **options, return_lse=True)
            assert torch.equal(out, expected[0]) and torch.equal(lse, expected[1]), options


def test_keywords_that_are_read_where_they_are_given(attention, torch):
    """Ordinary ones by the extension alone, with the result of a call that says all; others by the general path."""
    import onepass

    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("this PyTorch has no DLPack exchange table: the general path takes every call")
    q, k, v = qkv(torch, heads=2)
    read = onepass._onepass.torch_attention
    everything = dict(onepass._options.keywords(attention))
    ordinary = [
        {},
        everything,
        dict(mask="causal_top_left", scale=0.5, softcap=3, threads=1),
        dict(window=(3, -1), seed=7, dropout_p=0.0, accumulation="exact"),
        dict(bias=torch.randn(19, 23), sinks=torch.randn(2), deterministic=True, return_lse=True),
        dict(out=torch.empty(2, 2, 19, 24), batch_invariant=True),
        {"".join(["sca", "le"]): 0.5},
    ]
    for options in ordinary:
        result, expected = attention(q, k, v, **options), onepass.attention(q, k, v, **_of_onepass(options))
        for mine, theirs in zip(*(x if isinstance(x, tuple) else (x,) for x in (result, expected))):
            assert torch.equal(mine, theirs), options
    tokens = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
    torch.testing.assert_close(read(*tokens, dict(layout="bshd")).transpose(1, 2), attention(q, k, v))
    assert all(read(q, k, v, options) is not None for options in ordinary[:-1])
    with_gradient = torch.ones(1, requires_grad=True)
    for options in [
        dict(nothing=1),
        dict(tokens_first=True),
        dict(mask="diagonal"),
        dict(layout="sbhd"),
        dict(layout=1),
        dict(window=[1, 2]),
        dict(window=(1, 2, 3)),
        dict(seed=1.5),
        dict(seed=-1),
        dict(dropout_p=0.5, seed=1),
        dict(return_lse=1),
        dict(return_max=True),
        dict(return_entropy=True),
        dict(fp8=True),
        dict(score_mod="score"),
        dict(mod_buffers={}),
        dict(k_descale=with_gradient),
        dict(out=with_gradient),
        dict(bias=[1.0]),
    ]:
        assert read(q, k, v, options) is None, options


def _of_onepass(options):
    return {name: x for name, x in options.items() if name not in ("deterministic", "out_dtype", "out")}


def test_tensors_that_mean_more_than_their_memory(attention, torch):
    q, k, v = qkv(torch)
    negative = torch.complex(torch.zeros_like(q), -q).conj().imag
    assert negative.is_neg()
    torch.testing.assert_close(attention(negative, k, v), attention(q, k, v))
    apart = q.mT.contiguous().mT
    torch.testing.assert_close(attention(apart, k, v), attention(q, k, v))


def test_modes_see_calls(attention, torch):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    seen, tensors = [], qkv(torch, grad=True)
    with Watch():
        torch.autograd.grad(attention(*tensors).sum(), tensors)
    assert "onepass.attention.default" in seen and "onepass.attention_backward.default" in seen


def test_a_graph_holds_its_results_once(attention, torch):
    """Nothing keeps a result alive but its users, and a changed input is seen by the backward."""
    import weakref

    import onepass.torch

    for call in (attention, onepass.torch.scaled_dot_product_attention):
        q, k, v = qkv(torch, heads=2, grad=True)
        v = v[..., :16]  # the functions that make results differ by this
        out = call(q, k, v)
        inner, kept = weakref.ref(out), weakref.ref(v)
        out.square().sum().backward()
        del out, v
        assert inner() is None and kept() is None
        out = call(q, k * 1, k)
        with torch.no_grad():
            q.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


def test_gradients_that_come_in_any_way(attention, torch):
    """Repeated numbers, the LSE's alone, strided ones, and what was kept has been elsewhere: as float64 has them."""
    tensors = qkv(torch, heads=2, grad=True)
    wide = [x.detach().double().requires_grad_() for x in tensors]
    scores = wide[0] @ wide[1].mT / 4
    exact, exact_lse = scores.softmax(-1) @ wide[2], scores.logsumexp(-1)
    losses = {
        "sum": lambda out, lse: out.sum(),
        "lse": lambda out, lse: lse.square().sum(),
        "both": lambda out, lse: out.square().sum() + lse.sum(),
        "strided": lambda out, lse: out.mT.contiguous().square().sum(),
    }
    for loss in losses.values():
        expected = torch.autograd.grad(loss(exact, exact_lse), wide, retain_graph=True, allow_unused=True)
        with torch.autograd.graph.save_on_cpu():
            grads = torch.autograd.grad(loss(*attention(*tensors, return_lse=True)), tensors, allow_unused=True)
        for mine, x in zip(grads, expected):
            mine, x = (torch.zeros(()) if t is None else t.double() for t in (mine, x))
            torch.testing.assert_close(mine, x.to(mine).expand_as(mine), atol=2e-5, rtol=2e-5)


def test_threads_are_pytorchs(attention, torch):
    """The same bits with any number, and none but the caller's where PyTorch has one."""
    import os

    q, k, v = qkv(torch, rows=300, keys=300)
    before = torch.get_num_threads()
    try:
        results = []
        for n in (1, 2, 3):
            torch.set_num_threads(n)
            results.append(attention(q, k, v))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])
    if hasattr(os, "fork"):  # PyTorch's threads are not a child's
        child = os.fork()
        if child == 0:
            same = (attention(q, k, v).numpy() == results[0].numpy()).all()
            os._exit(0 if same else 1)
        assert os.waitpid(child, 0)[1] == 0


def test_inference_mode_and_parameters(attention, torch):
    q, k, v = qkv(torch)
    with torch.inference_mode():
        out = attention(*(x.clone() for x in (q, k, v)))
    torch.testing.assert_close(out, attention(q, k, v))
    parameter = torch.nn.Parameter(q)
    attention(parameter, k, v).sum().backward()
    assert parameter.grad.shape == q.shape


def test_sentences_are_the_general_ones(attention, torch):
    q, k, v = qkv(torch)
    for error, call in {
        r"heads_q \(4\) must be a multiple of heads_kv \(3\)": lambda: attention(q, k[:, [0, 0, 0]], v[:, [0, 0, 0]]),
        r"mask must be one of .* \(got 'causal'\)": lambda: attention(q, k, v, mask="causal"),
        r"align_offset must be given .*align_offset=3 and mask=None": lambda: attention(q, k, v, align_offset=3),
        "v must be fp16, as k": lambda: attention(q, k.half(), v),
        r"scale must be a number \(got 'a'\)": lambda: attention(q, k, v, scale="a"),
        "softcap must be 0 .* or a positive number": lambda: attention(q, k, v, softcap="30"),
        r"dropout_p must be from 0 to 1 \(got -1e-50\)": lambda: attention(q, k, v, dropout_p=-1e-50),
        "window must be a pair": lambda: attention(q, k, v, window=5),
        "seed must be an integer": lambda: attention(q, k, v, dropout_p=0.5, seed="a"),
        r"threads must be None .* \(got 0\)": lambda: attention(q, k, v, threads=0),
        r"threads must be None .* \(got 4294967297\)": lambda: attention(q, k, v, threads=2**32 + 1),
        r"max_seqlen_k must be None .* \(got 0\)": lambda: attention(q, k, v, max_seqlen_k=0),
        r"q must be a torch.Tensor \(got None\)": lambda: attention(None, k, v),
        r"v must be a torch.Tensor \(got None\)": lambda: attention(q, k, None),
        r"bias must be a torch.Tensor \(got list\)": lambda: attention(q, k, v, bias=[1.0]),
        "mod_buffers must be a dict": lambda: attention(q, k, v, mod_buffers=[q]),
        "invalid mod_buffers name 'a,b': use letters": lambda: attention(q, k, v, mod_buffers={"a,b": q}),
    }.items():
        with pytest.raises((ValueError, TypeError, RuntimeError), match=error):
            call()


def test_fp8(attention, torch, device):
    """q, k and v of float8_e4m3fn with descales, as onepass.attention computes them; they have no gradients."""
    import onepass

    if device == "cuda" and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("products of e4m3 are computed on Hopper GPUs")
    q, k, v = (torch.randn(2, n, 48, 64, device=device).to(torch.float8_e4m3fn) for n in (4, 2, 2))
    scales = {f"{name}_descale": torch.rand(1, n, 1, device=device) + 0.5 for name, n in (("q", 4), ("k", 2), ("v", 2))}
    mean = dict(v_mean=torch.randn(1, 2, 64, device=device))
    for options in ({}, scales, dict(scales, accumulation="fast", mask="causal_top_left"), mean):
        expected, lse = onepass.attention(q, k, v, **options, return_lse=True)
        out, mine = attention(q, k, v, **options, return_lse=True)
        compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")(q, k, v, **options)
        assert out.dtype == torch.bfloat16 and torch.equal(out, expected) and torch.equal(mine, lse)
        assert compiled.dtype == torch.bfloat16 and torch.equal(compiled, expected)
    if device == "cpu":
        mixed = attention(q.bfloat16(), k, v, k_descale=scales["k_descale"])
        assert torch.equal(mixed, onepass.attention(q.bfloat16(), k, v, k_descale=scales["k_descale"]))
    with pytest.raises(ValueError, match=r"accumulation must be 'exact' or 'fast' \(got 'slow'\)"):
        attention(q, k, v, accumulation="slow")
    k = k.to(torch.float8_e5m2)
    with pytest.raises(TypeError, match=r"k must be float32, float16, bfloat16 or float8_e4m3fn \(got float8_e5m2\)"):
        attention(q, k, k)


def test_merge(attention, torch, device):
    """Attention over pieces of the keys, one of which some rows do not see: values and gradients of the whole."""
    import onepass.torch

    mask = torch.ones(19, 23, dtype=torch.bool, device=device)
    mask[:4, 15:] = False

    def merged(q, k, v):
        pieces = [slice(0, 7), slice(7, 15), slice(15, 23)]
        parts = [attention(q, k[:, :, x], v[:, :, x], bool_mask=mask[:, x], return_lse=True) for x in pieces]
        return onepass.torch.merge(*zip(*parts))

    tensors = qkv(torch, device, grad=True)
    expected = attention(*tensors, bool_mask=mask, return_lse=True)
    wanted = torch.autograd.grad((expected[0] ** 3).sum() + expected[1].sum(), tensors)
    for function in (merged, torch.compile(merged, fullgraph=True, backend="aot_eager")):
        given = function(*tensors)
        grads = torch.autograd.grad((given[0] ** 3).sum() + given[1].sum(), tensors)
        for mine, theirs in zip((*given, *grads), (*expected, *wanted)):
            torch.testing.assert_close(mine, theirs, atol=5e-5, rtol=5e-5)
    with torch.no_grad():
        for mine, theirs in zip(merged(*tensors), expected):
            torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)
    x, nothing = torch.randn(7, 4, 8, device=device), torch.full((4, 7), -torch.inf, device=device)  # packed
    out, lse = onepass.torch.merge([x.clone().requires_grad_(), x * torch.nan], [nothing, nothing])
    assert (out == 0).all() and torch.equal(lse, nothing)
    with pytest.raises(ValueError, match="all of one shape"):
        onepass.torch.merge([x.requires_grad_()], [nothing[0]])
    for wrong, sentence in ((([x.double()], [nothing]), "outs"), (([x], [nothing.half()]), "lses")):
        for grad in (False, True):
            with pytest.raises(TypeError, match=rf"{sentence}\[0\] must be "):
                onepass.torch.merge([wrong[0][0].detach().requires_grad_(grad)], wrong[1])


def test_what_merge_reads(attention, torch):
    """Parts of no weight but an LSE are read, as onepass.merge reads them: what is not finite there comes out."""
    import onepass
    import onepass.torch

    ones = torch.ones(1, 1, 1, 2)
    for hidden, expected in ((-200.0, torch.nan), (-torch.inf, 1.0)):
        lses = [torch.zeros(1, 1, 1), torch.full((1, 1, 1), hidden)]
        outs = [ones, ones * torch.nan]
        given = onepass.torch.merge([outs[0].clone().requires_grad_(), outs[1]], lses)[0]
        for out in (given, onepass.merge(outs, lses)[0]):
            torch.testing.assert_close(out, ones * expected, equal_nan=True)


def test_tangents_are_not_lost(attention, torch):
    from torch.autograd import forward_ad

    q, k, v = qkv(torch)
    with forward_ad.dual_level():
        tout = forward_ad.unpack_dual(attention(forward_ad.make_dual(q, q), k, v)).tangent
    step = 1e-2 * q
    slope = (attention(q + step, k, v) - attention(q - step, k, v)) / 2e-2
    torch.testing.assert_close(tout, slope, rtol=1e-2, atol=1e-3)


def test_the_demo_trains_alike(torch):
    import pathlib
    import runpy

    demo = pathlib.Path(__file__).resolve().parents[2] / "demo" / "train_torch.py"
    mine, theirs = runpy.run_path(str(demo))["main"](["--steps", "60", "--device", "cpu"])
    assert max(abs(x - y) for x, y in zip(mine, theirs)) < 1e-3 and mine[-1] < mine[0] - 0.3
