"""onepass.torch: the operators under everything that goes through PyTorch's dispatcher."""

import onepass
import pytest
from conftest import qkv


def textbook(torch, q, k, v, bias=None, sinks=None, alibi_slopes=None, softcap=0.0, causal=False):
    """(out, lse), differentiable, in the precision of its tensors."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    s = q @ k.mT / q.shape[-1] ** 0.5
    s = softcap * torch.tanh(s / softcap) if softcap else s
    i = torch.arange(q.shape[2], device=q.device)[:, None] + k.shape[2] - q.shape[2]
    j = torch.arange(k.shape[2], device=q.device)
    if bias is not None:
        s = s + bias
    if alibi_slopes is not None:
        s = s - alibi_slopes[:, None, None] * (i - j).abs()
    if causal:
        s = s.masked_fill(j > i, -torch.inf)
    every = s if sinks is None else torch.cat([s, sinks[:, None, None].expand(*s.shape[:3], 1)], -1)
    lse = every.logsumexp(-1)
    return (s - lse[..., None]).exp() @ v, lse


OPTIONS = {
    "plain": dict(),
    "causal": dict(causal=True),
    "softcap": dict(softcap=2.0, causal=True),
    "bias": dict(bias=(4, 19, 23)),
    "bias_of_keys": dict(bias=(2, 1, 1, 23)),
    "sinks": dict(sinks=(4,)),
    "alibi": dict(alibi_slopes=(4,), causal=True),
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_gradients_are_those_of_float64(attention, torch, device, options):
    """By every differentiable input, with a loss of out and of the LSE."""
    inputs = dict(zip("qkv", qkv(torch, device, grad=True)))
    inputs |= {
        name: torch.randn(x, device=device, requires_grad=True) for name, x in options.items() if isinstance(x, tuple)
    }
    exact = {name: x.detach().double().requires_grad_() for name, x in inputs.items()}
    words = {name: x for name, x in options.items() if not isinstance(x, tuple)}
    expected = textbook(torch, **exact, **words)
    mask = "causal_bottom_right" if words.pop("causal", False) else None
    given = attention(**inputs, **words, mask=mask, return_lse=True)
    weights = [torch.randn(x.shape, device=device) for x in given]
    for mine, theirs in zip(given, expected):
        torch.testing.assert_close(mine.double(), theirs, atol=2e-5, rtol=2e-5)
    for use in ([0], [1], [0, 1]):  # out, the LSE, both
        grads, wanted = (
            torch.autograd.grad(
                sum((xs[n] * weights[n]).sum() for n in use), list(by.values()), retain_graph=True, allow_unused=True
            )
            for xs, by in ((given, inputs), (expected, exact))
        )
        for name, mine, theirs in zip(inputs, grads, wanted):
            theirs = torch.zeros_like(mine, dtype=torch.float64) if theirs is None else theirs
            torch.testing.assert_close(mine.double(), theirs, atol=5e-5, rtol=5e-5, msg=lambda m, n=name: f"d{n}: {m}")


def test_no_gradient_that_nobody_wants(attention, torch):
    q, k, v = qkv(torch)
    assert not attention(q, k, v).requires_grad
    out = attention(q, k.requires_grad_(), v)
    (dk,) = torch.autograd.grad(out.sum(), k)  # of ones, expanded
    assert dk.shape == k.shape and dk.abs().sum() > 0


def test_a_second_backward(attention, torch):
    q, k, v = qkv(torch, grad=True)
    (dq,) = torch.autograd.grad(attention(q, k, v).square().sum(), q, create_graph=True)
    found = torch.autograd.grad(dq.sum(), (q, k, v))
    step = 1e-2 * torch.ones_like(q)
    slopes = []
    for sign in (1, -1):
        moved = (q.detach() + sign * step).requires_grad_()
        slopes.append(torch.autograd.grad(attention(moved, k, v).square().sum(), moved)[0])
    torch.testing.assert_close(found[0], (slopes[0] - slopes[1]) / 2e-2, rtol=2e-2, atol=2e-2)


def test_a_cache_has_no_gradients(attention, torch):
    q, k, v = qkv(torch, grad=True)
    used = torch.full((2,), 20, dtype=torch.int32)
    with torch.no_grad():
        torch.testing.assert_close(attention(q, k, v, seqused_k=used), attention(q, k[:, :, :20], v[:, :, :20]))
    with pytest.raises(RuntimeError, match="attention to a cache .* does not support gradients, but q.requires_grad"):
        attention(q, k, v, seqused_k=used)
    out, *_ = torch.ops.onepass.attention(q, k, v, seqused_k=used)  # below, the backward refuses
    with pytest.raises(RuntimeError, match="attention to a cache .* does not support gradients"):
        out.sum().backward()


@pytest.mark.parametrize("options", [dict(), dict(bias=True, mask="causal_top_left", deterministic=True)])
def test_opcheck(attention, torch, device, options):
    q, k, v = qkv(torch, device, grad=True)
    bias = torch.randn(4, 1, 23, device=device, requires_grad=True) if options.pop("bias", False) else None
    from torch.library import opcheck

    operators = torch.ops.onepass
    opcheck(operators.attention.default, (q, k, v, bias), options)
    with torch.no_grad():
        out, lse, _ = operators.attention.default(q, k, v, bias, **options)
    wanted = [True, True, True, bias is not None, False, False]
    inputs = [None if x is None else x.detach() for x in (q, k, v, bias)]
    opcheck(
        operators.attention_backward.default,
        (torch.randn_like(out), None, out, lse, wanted, *inputs),
        options,
        test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_dynamic"),
    )


@pytest.mark.parametrize(
    "order", [(0, 1, 2, 3), (0, 2, 1, 3), (2, 0, 1, 3)], ids=lambda x: "".join("bhsd"[i] for i in x)
)
def test_fake_results_lie_as_real_ones(attention, torch, order):
    from torch._subclasses.fake_tensor import FakeTensorMode

    q, k, v = (x.permute(order).contiguous().permute(*map(order.index, range(4))) for x in qkv(torch))
    real = attention(q, k, v, return_lse=True)
    with FakeTensorMode() as mode:
        fake = attention(*map(mode.from_tensor, (q, k, v)), return_lse=True)
    for x, y in zip(real, fake):
        assert (x.shape, x.stride(), x.dtype) == (y.shape, y.stride(), y.dtype)
    assert real[0].permute(order).is_contiguous()


def test_meta_tensors_have_shapes(attention, torch):
    q, k, v = (x.to("meta") for x in qkv(torch, grad=True))
    out, lse = attention(q, k, v, return_lse=True)
    assert out.is_meta and out.shape == (2, 4, 19, 24) and lse.shape == (2, 4, 19)
    assert [x.shape for x in torch.autograd.grad(out.sum(), (q, k, v))] == [x.shape for x in (q, k, v)]


def compiled(torch, function, **options):
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, **options)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_with_dynamic_shapes(attention, torch, device, backend):
    def layer(q, k, v, bias):
        out, lse = attention(q * 2, k, v, bias=bias, mask="causal_bottom_right", return_lse=True)
        return out.transpose(1, 2).flatten(2).sin(), lse

    shapes, compiled_at = ((19, 23), (31, 40), (64, 64 + 5)), []

    def counting(graph, example_inputs):
        compiled_at.append((rows, keys))
        return torch._dynamo.lookup_backend(backend)(graph, example_inputs)

    fast = compiled(torch, layer, dynamic=True, backend=counting)
    for rows, keys in shapes:
        q, k, v = qkv(torch, device, rows=rows, keys=keys, grad=True)
        bias = torch.randn(4, rows, keys, device=device, requires_grad=True)
        results = [f(q, k, v, bias) for f in (layer, fast)]
        grads = [torch.autograd.grad(out.sum() + lse.sum(), (q, k, v, bias)) for out, lse in results]
        for mine, theirs in zip((*results[1], *grads[1]), (*results[0], *grads[0])):
            torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)
    assert set(compiled_at) == {shapes[0]}  # once for all


def test_exported(attention, torch):
    class Layer(torch.nn.Module):
        def forward(self, q, k, v):
            return attention(q, k, v, mask="causal_top_left")

    q, k, v = qkv(torch)
    program = torch.export.export(Layer(), (q, k, v))
    torch.testing.assert_close(program.module()(q, k, v), attention(q, k, v, mask="causal_top_left"))


def test_recorders(attention, torch):
    from torch.fx.experimental.proxy_tensor import make_fx

    first, second = qkv(torch), qkv(torch)
    for recorded in (torch.jit.trace(attention, first), make_fx(lambda q, k, v: attention(q, k, v))(*first)):
        torch.testing.assert_close(recorded(*second), attention(*second))


def test_expressions_compile_too(attention, torch, device):
    q, k, v = qkv(torch, device, grad=True)
    table = torch.randn(64, device=device)

    def layer(q, k, v):
        return attention(q, k, v, score_mod="score + table[q_index]", mod_buffers={"table": table})

    out, expected = compiled(torch, layer, backend="aot_eager")(q, k, v), layer(q, k, v)
    torch.testing.assert_close(out, expected)
    for mine, theirs in zip(*(torch.autograd.grad(x.square().sum(), (q, k, v)) for x in (out, expected))):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)


def test_packed_sequences(attention, torch, device):
    lengths = [5, 0, 17]
    cu = torch.tensor([0, 5, 5, 22], dtype=torch.int32, device=device)
    q, k, v = (torch.randn(22, heads, 16, device=device, requires_grad=True) for heads in (4, 2, 2))

    def packed(q, k, v):
        return attention(q, k, v, cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=17, max_seqlen_k=17)

    parts = [x.split(lengths) for x in (q, k, v)]
    one_by_one = [attention(*(x.transpose(0, 1)[None] for x in part))[0].transpose(0, 1) for part in zip(*parts)]
    expected = torch.cat(one_by_one)
    wanted = torch.autograd.grad(expected.square().sum(), (q, k, v))
    for function in (packed, compiled(torch, packed, backend="aot_eager")):
        out = function(q, k, v)
        torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
        for mine, theirs in zip(torch.autograd.grad(out.square().sum(), (q, k, v)), wanted):
            torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)


def test_autocast(attention, torch, device):
    q, k, v = qkv(torch, device, grad=True)
    bias = torch.randn(19, 23, device=device)
    with torch.autocast(device, torch.bfloat16):
        out = attention(q, k, v, bias=bias)
        assert torch.is_autocast_enabled(device)  # still, which the operator switches off inside
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), attention(q, k, v, bias=bias), atol=5e-2, rtol=5e-2)
    assert torch.autograd.grad(out.float().sum(), q)[0].dtype == torch.float32


class TestTransforms:
    """torch.vmap and torch.func, which see no autograd inside of an operator."""

    def test_vmap_folds_into_the_batch(self, attention, torch):
        q, k, v = (torch.stack([x, -x, x + 1]) for x in qkv(torch))
        mask, bias = torch.rand(2, 1, 19, 23) < 0.7, torch.randn(3, 4, 1, 23)

        def layer(q, k, bias):
            return attention(q, k, v[0], bool_mask=mask, bias=bias, return_lse=True)

        mine = torch.vmap(layer)(q, k, bias)
        theirs = [torch.stack(x) for x in zip(*map(layer, q, k, bias))]
        for x, y in zip(mine, theirs):
            torch.testing.assert_close(x, y, atol=1e-6, rtol=1e-6)

    def test_vmap_calls_one_by_one_what_does_not_fold(self, attention, torch):
        q, k, v = qkv(torch)
        sinks = torch.randn(3, 4)
        mine = torch.vmap(lambda s: attention(q, k, v, sinks=s))(sinks)
        torch.testing.assert_close(mine, torch.stack([attention(q, k, v, sinks=s) for s in sinks]))

    def test_gradients_of_each_example(self, attention, torch):
        q, k, v = (torch.stack([x, -x, x + 1]) for x in qkv(torch))

        def loss(q, k, v):
            return attention(q, k, v, mask="causal_top_left").square().sum()

        mine = torch.vmap(torch.func.grad(loss, (0, 1, 2)))(q, k, v)
        for i in range(3):
            one = [x[i].requires_grad_() for x in (q.clone(), k.clone(), v.clone())]
            for x, y in zip(mine, torch.autograd.grad(loss(*one), one)):
                torch.testing.assert_close(x[i], y, atol=1e-5, rtol=1e-5)

    def test_jacobians(self, attention, torch):
        q, k, v = (x[:1, :2, :3] for x in qkv(torch, heads_kv=4))
        mine = torch.func.jacrev(lambda q: attention(q, k, v))(q)
        theirs = torch.autograd.functional.jacobian(lambda q: attention(q, k, v), q)
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)

    def test_dropout_of_each_example(self, attention, torch):
        ones = torch.ones(3, 2, 4, 64, 32)
        runs = []
        for _ in range(2):
            torch.manual_seed(1)
            runs.append(torch.vmap(lambda x: attention(x, x, x, dropout_p=0.5), randomness="different")(ones))
        assert torch.equal(*runs) and not torch.equal(runs[0][0], runs[0][1])

    def test_batched_gradients(self, attention, torch):
        q, k, v = qkv(torch, grad=True)
        out = attention(q, k, v)
        douts = torch.randn(3, *out.shape)
        (mine,) = torch.autograd.grad(out, q, douts, is_grads_batched=True, retain_graph=True)
        theirs = [torch.autograd.grad(out, q, x, retain_graph=True)[0] for x in douts]
        torch.testing.assert_close(mine, torch.stack(theirs), atol=1e-5, rtol=1e-5)


def test_checkpointing_draws_the_same_dropout(attention, torch, device):
    q, k, v = qkv(torch, device, grad=True)

    def layer(q, k, v):
        return attention(q, k, v, dropout_p=0.3)

    grads = []
    for run in (layer, lambda *x: torch.utils.checkpoint.checkpoint(layer, *x, use_reentrant=False)):
        torch.manual_seed(7)
        grads.append(torch.autograd.grad(run(q, k, v).square().sum(), (q, k, v)))
    for mine, theirs in zip(*grads):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)


def test_seeds(attention, torch):
    q, k, v = qkv(torch)
    big = 2**64 - 3
    assert torch.equal(attention(q, k, v, dropout_p=0.3, seed=big), attention(q, k, v, dropout_p=0.3, seed=big))
    assert not torch.equal(attention(q, k, v, dropout_p=0.3, seed=5), attention(q, k, v, dropout_p=0.3, seed=6))
    assert not torch.equal(attention(q, k, v, dropout_p=0.3), attention(q, k, v, dropout_p=0.3))
    for seed in (-1, 2**64):
        with pytest.raises(ValueError, match="seed must be"):
            attention(q, k, v, dropout_p=0.3, seed=seed)


def test_an_out_of_ones_own(attention, torch):
    q, k, v = qkv(torch)
    out = torch.empty(2, 4, 19, 24)
    assert attention(q, k, v, out=out) is out
    assert torch.equal(out, attention(q, k, v))
    spread, tail = torch.empty(2, 19, 4, 24).transpose(1, 2), torch.full((9, 4, 16), 7.0)
    result, lse = attention(q, k, v, out=spread, return_lse=True)
    assert result is spread and torch.equal(spread, out) and torch.equal(lse, attention(q, k, v, return_lse=True)[1])
    packed, cu = torch.randn(9, 4, 16), torch.tensor([0, 2, 7], dtype=torch.int32)
    words = dict(cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=5, max_seqlen_k=5)
    attention(packed, packed, packed, out=tail, **words)
    assert torch.equal(tail[:7], attention(packed, packed, packed, **words)[:7])
    assert (tail[7:] == 7).all()  # tokens of no sequence are left as they are
    with pytest.raises(ValueError, match="out must not share memory with q"):
        attention(packed, packed, packed, out=packed, **words)
    with pytest.raises(RuntimeError, match="q requires a gradient"):
        attention(q.clone().requires_grad_(), k, v, out=out)
    half = [x.half() for x in (q, k, v)]
    assert attention(*half, out_dtype=torch.float32).dtype == torch.float32


@pytest.mark.parametrize("fp8", [True, {"by_block": True, "seed": 2**64 - 1}], ids=["fp8", "fp8 by block"])
def test_fp8(attention, torch, device, fp8):
    q, k, v = qkv(torch, device, dtype=torch.bfloat16, grad=True)
    v = v[..., :16]  # CUDA takes head dims in steps of 16
    with torch.no_grad():
        out = attention(q, k, v, fp8=fp8)
        assert torch.equal(out, torch.compile(attention, fullgraph=True, backend="eager")(q, k, v, fp8=fp8))
        assert torch.equal(out, onepass.attention(*(x.detach() for x in (q, k, v)), fp8=fp8))
    assert 0 < (out - attention(q, k, v)).float().square().mean().sqrt() < 0.1
    with pytest.raises(RuntimeError, match="FP8 attention does not support gradients, but q.requires_grad is set"):
        attention(q, k, v, fp8=fp8)


def test_unified_max(attention, torch):
    q, k, v = qkv(torch)
    recomputed = torch.full((2, 4, 19), 2, dtype=torch.int32)
    options = dict(unified_max=100.0, return_lse=True)
    with torch.no_grad():
        out, lse = attention(q[:, :, :1], k, v, **options)
        own = recomputed[:, :, :1].contiguous()
        again = attention(q[:, :, :1], k, v, **options, recomputed=own, out_dtype=torch.float32)
    torch.testing.assert_close(again, (out, lse))
    assert (own == 1).all()  # no score is within 40 of 100
    torch.testing.assert_close(out, attention(q[:, :, :1], k, v))


def test_deterministic_mode(attention, torch, device):
    q, k, v = qkv(torch, device, heads=8, heads_kv=1, rows=300, keys=300, grad=True, dtype=torch.bfloat16)
    weight = torch.randn(2, 8, 300, 24, device=device, dtype=torch.bfloat16)
    torch.use_deterministic_algorithms(True)
    try:
        runs = [torch.autograd.grad((attention(q, k, v) * weight).sum(), (q, k, v)) for _ in range(3)]
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(x, y) for run in runs[1:] for x, y in zip(run, runs[0]))


def test_a_cuda_graph_replays(attention, torch):
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    q, k, v = qkv(torch, "cuda", dtype=torch.bfloat16, grad=True)

    def step():
        out = attention(q, k, v, mask="causal_bottom_right")
        return out, *torch.autograd.grad(out.sum(), (q, k, v))

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        q.copy_(torch.randn_like(q))
    graph.replay()
    for mine, theirs in zip(captured, step()):
        torch.testing.assert_close(mine, theirs, atol=2e-2, rtol=2e-2)
    with pytest.raises(RuntimeError, match="every replay"):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            attention(q, k, v, dropout_p=0.5)


def test_the_package_imports_no_framework():
    import subprocess
    import sys

    code = "import sys, onepass; print([x for x in ('torch', 'jax', 'transformers') if x in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
