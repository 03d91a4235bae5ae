"""Forward mode of onepass.torch.attention: torch.func and dual tensors, beside PyTorch's own of the textbook."""

import onepass
import pytest


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def torch_case(torch):
    generator = torch.Generator().manual_seed(3)
    x = [torch.randn(shape, generator=generator) for shape in ((2, 4, 6, 8), (2, 2, 9, 8), (2, 2, 9, 5), (4, 6, 9))]
    return x, [torch.randn(y.shape, generator=generator) for y in x]


def textbook(torch, q, k, v, bias):
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    s = q @ k.mT / q.shape[-1] ** 0.5 + bias
    return torch.softmax(s, -1) @ v, torch.logsumexp(s, -1)


def test_torch_func_jvp(torch):
    x, t = torch_case(torch)

    def mine(q, k, v, bias):
        return onepass.torch.attention(q, k, v, bias=bias, return_lse=True)

    found = torch.func.jvp(mine, tuple(x), tuple(t))
    expected = torch.func.jvp(lambda *x: textbook(torch, *x), tuple(x), tuple(t))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    for i in range(4):  # one tangent alone: the others are 0

        def along(function, i=i):
            return torch.func.jvp(lambda y: function(*x[:i], y, *x[i + 1 :])[0], (x[i],), (t[i],))

        alone, other = along(mine), along(lambda *x: textbook(torch, *x))
        torch.testing.assert_close(alone, other, rtol=1e-5, atol=1e-5)


def test_forward_ad_of_dual_tensors(torch):
    from torch.autograd import forward_ad

    x, t = torch_case(torch)
    expected = torch.func.jvp(lambda *x: textbook(torch, *x)[0], tuple(x), tuple(t))[1]
    with forward_ad.dual_level():
        q, k, v, bias = (forward_ad.make_dual(a, b) for a, b in zip(x, t))
        out, tout = forward_ad.unpack_dual(onepass.torch.attention(q, k, v, bias=bias))
        assert forward_ad.unpack_dual(onepass.torch.attention(*x[:3])).tangent is None
    torch.testing.assert_close(tout, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out, textbook(torch, *x)[0], rtol=1e-5, atol=1e-5)


def test_gradcheck_in_forward_mode(torch):
    x = [y[:1, :, :3].clone().requires_grad_() for y in torch_case(torch)[0][:3]]

    def call(q, k, v):
        return onepass.torch.attention(q, k, v, mask="causal_bottom_right", softcap=2.0)

    assert torch.autograd.gradcheck(
        call, x, eps=1e-2, atol=2e-3, rtol=2e-2, check_forward_ad=True, check_backward_ad=True, nondet_tol=0
    )


def test_jacfwd_and_jvp_over_examples(torch):
    x, t = torch_case(torch)
    q, k, v, bias = x
    forward = torch.func.jacfwd(lambda y: onepass.torch.attention(y, k[:1], v[:1])[0, 0, 0])(q[:1])
    reverse = torch.func.jacrev(lambda y: onepass.torch.attention(y, k[:1], v[:1])[0, 0, 0])(q[:1])
    torch.testing.assert_close(forward, reverse, rtol=1e-4, atol=1e-5)

    def one(q, k, v, tq):
        return torch.func.jvp(lambda y: onepass.torch.attention(y[None], k[None], v[None]), (q,), (tq,))[1]

    each = torch.vmap(one)(q, k, v, t[0])
    expected = torch.func.jvp(lambda y: textbook(torch, y, k, v, 0.0)[0], (q,), (t[0],))[1]
    torch.testing.assert_close(each[:, 0], expected, rtol=1e-5, atol=1e-5)


def test_a_loss_of_the_primal_and_a_detached_derivative(torch):
    """MeanFlow's: gradients flow through the primal alone."""
    x, t = torch_case(torch)
    q = x[0].clone().requires_grad_()
    out, tout = torch.func.jvp(lambda y: onepass.torch.attention(y, *x[1:3]), (q,), (t[0],))
    (out - tout.detach()).square().sum().backward()
    r = x[0].clone().requires_grad_()
    (textbook(torch, r, *x[1:3], 0.0)[0] - tout.detach()).square().sum().backward()
    torch.testing.assert_close(q.grad, r.grad, rtol=1e-4, atol=1e-4)


def test_on_cuda(torch):
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    x, t = torch_case(torch)
    moved, along = ([y.cuda() for y in z] for z in (x, t))
    expected = torch.func.jvp(lambda *x: textbook(torch, *x), tuple(x), tuple(t))

    def mine(q, k, v, bias):
        return onepass.torch.attention(q, k, v, bias=bias, return_lse=True)

    found = torch.func.jvp(mine, tuple(moved), tuple(along))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5, check_device=False)
    out, tout, lse, tlse = onepass.jvp(*moved[:3], *along[:3], bias=moved[3], tbias=along[3], return_lse=True)
    torch.testing.assert_close(((out, lse), (tout, tlse)), expected, rtol=1e-5, atol=1e-5, check_device=False)
    each = torch.vmap(lambda *z: torch.func.jvp(lambda *y: mine(*(w[None] for w in y[:3]), y[3])[0], z[:4], z[4:])[1],
                      in_dims=(0, 0, 0, None, 0, 0, 0, None))(*moved, *along)  # fmt: skip
    torch.testing.assert_close(each[:, 0], expected[1][0], rtol=1e-5, atol=1e-5, check_device=False)


def test_torch_refuses_what_has_no_derivative(torch):
    x, _ = torch_case(torch)
    slopes = torch.rand(4)
    with pytest.raises(NotImplementedError, match="does not support a tangent of alibi_slopes"):
        torch.func.jvp(lambda s: onepass.torch.attention(*x[:3], alibi_slopes=s), (slopes,), (slopes,))
    with pytest.raises(NotImplementedError, match="does not support forward mode over a derivative"):

        def along(y):
            return torch.func.jvp(lambda z: onepass.torch.attention(z, *x[1:3]), (y,), (y,))[1]

        torch.func.jvp(along, (x[0],), (x[0],))


def test_the_demo_of_meanflow_trains_alike(torch):
    import pathlib
    import runpy

    demo = pathlib.Path(__file__).resolve().parents[2] / "demo" / "train_meanflow.py"
    (mine, ours), (theirs, other) = runpy.run_path(str(demo))["main"](["--steps", "60", "--device", "cpu"])
    assert max(abs(x - y) for x, y in zip(mine, theirs)) < 1e-3
    assert mine[-1] < mine[0] - 0.5 and abs(ours - other) < 1e-3


def test_a_jvp_alone_computes_once(torch, monkeypatch):
    """Without a history and a second transformation the kernel gives both results in one call."""
    from onepass import _torch_autograd
    from torch.autograd import forward_ad

    (q, k, v, bias), (tq, *_) = torch_case(torch)

    def refused(*_):
        raise AssertionError("the general path was taken")

    def call(x):
        return onepass.torch.attention(x, k, v, bias=bias, return_lse=True)

    expected = torch.func.jvp(lambda x: textbook(torch, x, k, v, bias), (q,), (tq,))
    with monkeypatch.context() as patch:
        patch.setattr(_torch_autograd.Differentiable, "apply", refused)
        torch.testing.assert_close(torch.func.jvp(call, (q,), (tq,)), expected, rtol=1e-5, atol=1e-5)
        with forward_ad.dual_level():
            pairs = [forward_ad.unpack_dual(x) for x in call(forward_ad.make_dual(q, tq))]
        found = tuple(x.primal for x in pairs), tuple(x.tangent for x in pairs)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        for needs_more in (
            lambda: torch.func.jvp(call, (q.clone().requires_grad_(),), (tq,)),
            lambda: torch.func.grad(lambda x: torch.func.jvp(call, (x,), (tq,))[1][0].sum())(q),
            lambda: torch.func.vmap(lambda t: torch.func.jvp(call, (q,), (t,)))(tq[None]),
        ):
            with pytest.raises(AssertionError, match="general path"):
                needs_more()


OPTIONS = {
    "masks": {"mask": "causal_bottom_right", "window": (3, -1)},
    "scores": {"softcap": 2.0, "scale": 0.3},
    "dropout": {"dropout_p": 0.3, "seed": 5},
    "score_mod": {"score_mod": "score + 0.1f * q_index"},
    "threads": {"threads": 1},
    "entropy": {"return_entropy": True},
    "maxima": {"return_max": True},
    "invariant": {"batch_invariant": True},
    "unified": {"unified_max": 1.0},
    "accumulation": {"accumulation": "fast"},
    "partial": {"partial": True, "out_dtype": "float32", "dtype": "bfloat16"},
    "wide out": {"out_dtype": "float32", "dtype": "bfloat16"},
    "implementation": {"implementation": "cpu.plain"},
    "fp8": {"fp8": True},
    "tokens first": {"layout": "bshd"},
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("way", ["torch.func", "dual", "vmap", "inference mode", "autocast"])
def test_one_call_and_the_general_path_agree(torch, monkeypatch, name, way):
    """In results and their dtypes, or in the refusal: an option that forward mode lacks is not lost."""
    from onepass import _torch_autograd
    from torch.autograd import forward_ad

    options = dict(OPTIONS[name])
    dtype = getattr(torch, options.pop("dtype", "float32"))
    if "out_dtype" in options:
        options["out_dtype"] = getattr(torch, options["out_dtype"])
    (q, k, v, _), (tq, *_) = torch_case(torch)
    if options.get("layout") == "bshd":
        q, k, v, tq = (x.transpose(1, 2) for x in (q, k, v, tq))
    q, k, v, tq = (x.to(dtype) for x in (q, k, v, tq))

    def call(x):
        with torch.inference_mode(way == "inference mode"), torch.autocast("cpu", torch.bfloat16, way == "autocast"):
            return onepass.torch.attention(x, k, v, **options)

    def run():
        if way == "vmap":
            return torch.func.jvp(torch.func.vmap(call), (q[None],), (tq[None],))
        if way != "dual":
            return torch.func.jvp(call, (q,), (tq,))
        with forward_ad.dual_level():
            found = call(forward_ad.make_dual(q, tq))
            return [tuple(forward_ad.unpack_dual(x)) for x in (found if isinstance(found, tuple) else (found,))]

    def answer():
        try:
            return run()
        except Exception as error:  # noqa: BLE001 - both must refuse alike
            return f"{type(error).__name__}: {error}"

    once = answer()
    monkeypatch.setattr(_torch_autograd, "at_once", lambda *_: None)
    general = answer()
    if isinstance(once, str) or isinstance(general, str):
        assert once == general
    else:
        torch.testing.assert_close(once, general, rtol=1e-5, atol=1e-5)


def test_the_operator_has_three_results_with_tangents(torch):
    from torch.autograd import forward_ad

    (q, k, v, _), (tq, *_) = torch_case(torch)
    with forward_ad.dual_level():
        out, lse, most = torch.ops.onepass.attention(forward_ad.make_dual(q, tq), k, v)
        assert forward_ad.unpack_dual(out).tangent is not None and most.numel() == 0


def test_a_tangent_of_a_buffer_is_refused(torch):
    (q, k, v, _), (tq, *_) = torch_case(torch)
    table = torch.ones(9)

    def call(x, table):
        return onepass.torch.attention(x, k, v, score_mod="score + table[k_index]", mod_buffers={"table": table})

    for jvp in (
        lambda: torch.func.jvp(lambda t: call(q, t), (table,), (table,)),
        lambda: torch.func.jvp(call, (q, table), (tq, table)),
        lambda: torch.func.jvp(lambda t: torch.func.grad(lambda x: call(x, t).sum())(q), (table,), (table,)),
        lambda: torch.func.jvp(lambda t: torch.func.vmap(lambda x: call(x, t))(q[None]), (table,), (table,)),
    ):
        with pytest.raises((NotImplementedError, RuntimeError), match="mod.buffer"):
            jvp()


def test_linearize_is_refused_in_a_sentence(torch):
    (q, k, v, _), _ = torch_case(torch)
    with pytest.raises(NotImplementedError, match="does not support forward mode while torch.fx records it"):
        torch.func.linearize(lambda x: onepass.torch.attention(x, k, v), q)
