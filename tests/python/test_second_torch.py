"""Second derivatives of onepass.torch.attention: reverse and forward mode over each other."""

import onepass
import pytest


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


SHAPES = ((2, 4, 6, 8), (2, 2, 9, 8), (2, 2, 9, 5), (4, 6, 9), (4,))


def numbers(torch, seed=3, device="cpu"):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(device) for shape in SHAPES]


def textbook(torch, q, k, v, bias=None, sinks=None, softcap=0.0):
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    s = q @ k.mT / q.shape[-1] ** 0.5
    s = softcap * torch.tanh(s / softcap) if softcap else s
    s = s if bias is None else s + bias
    if sinks is not None:
        s = torch.cat([s, sinks[:, None, None].expand(*s.shape[:-1], 1)], -1)
    return torch.softmax(s, -1)[..., : v.shape[-2]] @ v, torch.logsumexp(s, -1)


def mine(q, k, v, bias=None, sinks=None, softcap=0.0):
    return onepass.torch.attention(q, k, v, bias=bias, sinks=sinks, softcap=softcap, return_lse=True)


def double_backward(torch, function, inputs, weights, cotangents):
    """Gradients, and the gradients of their products with cotangents, by inputs and weights."""
    inputs, weights = ([x.clone().requires_grad_() for x in y] for y in (inputs, weights))
    loss = sum((x * w).sum() for x, w in zip(function(*inputs), weights))
    first = torch.autograd.grad(loss, inputs, create_graph=True)
    total = sum((g * c).sum() for g, c in zip(first, cotangents))
    return first, torch.autograd.grad(total, [*inputs, *weights], allow_unused=True)


@pytest.mark.parametrize("softcap", [0.0, 2.0])
@pytest.mark.parametrize("count", [3, 4, 5])
def test_reverse_over_reverse(torch, device, count, softcap):
    x, c = numbers(torch, 3, device)[:count], numbers(torch, 5, device)[:count]
    w = [torch.randn(2, 4, 6, 5, device=device), torch.randn(2, 4, 6, device=device)]
    found = double_backward(torch, lambda *y: mine(*y, softcap=softcap), x, w, c)
    expected = double_backward(torch, lambda *y: textbook(torch, *y, softcap=softcap), x, w, c)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_some_gradients_alone(torch):
    x, w = numbers(torch)[:3], torch.randn(2, 4, 6, 5)

    def hessian_vector(function, of, by):
        y = [a.clone().requires_grad_(i in (of, by)) for i, a in enumerate(x)]
        (first,) = torch.autograd.grad((function(*y)[0] * w).sum(), y[of], create_graph=True)
        return torch.autograd.grad(first.square().sum(), y[by])

    for of in range(3):
        for by in range(3):
            if of == by == 2:  # v's own second derivative is 0: its gradient does not depend on v
                continue
            expected = hessian_vector(lambda *y: textbook(torch, *y), of, by)
            torch.testing.assert_close(hessian_vector(mine, of, by), expected, rtol=1e-4, atol=1e-4)


def test_gradient_penalty(torch):
    x = numbers(torch)[:3]

    def penalty(function):
        q = x[0].clone().requires_grad_()
        k = x[1].clone().requires_grad_()
        (first,) = torch.autograd.grad(function(q, k, x[2])[0].sum(), q, create_graph=True)
        (first.square().sum() - 1).square().backward()
        return q.grad, k.grad

    torch.testing.assert_close(penalty(mine), penalty(lambda *y: textbook(torch, *y)), rtol=1e-4, atol=1e-4)


def test_gradgradcheck(torch, device):
    q, k, v = (y[:1, :, :3].clone().requires_grad_() for y in numbers(torch, 3, device)[:3])

    def call(q, k, v):
        return onepass.torch.attention(q, k, v, mask="causal_bottom_right", softcap=2.0, deterministic=True)

    how = {"eps": 1e-2, "atol": 5e-3, "rtol": 2e-2, "nondet_tol": 0.0}
    assert torch.autograd.gradcheck(call, (q, k, v), **how)
    assert torch.autograd.gradgradcheck(call, (q, k, v), **how)


def test_forward_over_reverse(torch, device):
    x, t = numbers(torch, 3, device)[:4], numbers(torch, 7, device)[:4]

    def hvp(function):
        gradient = torch.func.grad(lambda *y: function(*y)[0].sin().sum(), argnums=(0, 1, 2, 3))
        return torch.func.jvp(gradient, tuple(x), tuple(t))

    torch.testing.assert_close(hvp(mine), hvp(lambda *y: textbook(torch, *y)), rtol=1e-4, atol=1e-4)


def test_reverse_over_reverse_of_torch_func(torch, device):
    x = numbers(torch, 3, device)[:3]

    def twice(function):
        gradient = torch.func.grad(lambda *y: function(*y)[0].sin().sum(), argnums=0)
        return torch.func.grad(lambda *y: gradient(*y).square().sum(), argnums=(0, 1, 2))(*x)

    torch.testing.assert_close(twice(mine), twice(lambda *y: textbook(torch, *y)), rtol=1e-4, atol=1e-4)


def test_reverse_over_forward(torch, device):
    """A loss of the derivative itself, as MeanFlow's without its stop of gradients."""
    x, t = numbers(torch, 3, device)[:4], numbers(torch, 7, device)[:4]

    def gradients(function):
        def loss(*y):
            return torch.func.jvp(lambda *z: function(*z)[0], y[:4], y[4:])[1].sin().sum()

        return torch.func.grad(loss, argnums=tuple(range(8)))(*x, *t)

    torch.testing.assert_close(gradients(mine), gradients(lambda *y: textbook(torch, *y)), rtol=1e-4, atol=1e-4)


def test_hessian(torch):
    q, k, v = (y[:1, :2, :2] for y in numbers(torch)[:3])
    k, v = k[:, :1], v[:, :1]

    def hessian(function):
        return torch.func.hessian(lambda y: function(y, k, v)[0].sin().sum())(q)

    torch.testing.assert_close(hessian(mine), hessian(lambda *y: textbook(torch, *y)), rtol=1e-4, atol=1e-4)


def test_jacfwd_of_grad_over_examples(torch):
    q, k, v = (y[:, None, :2, :2] for y in numbers(torch)[:3])

    def hvp(function):
        def one(q, k, v):
            gradient = torch.func.grad(lambda y: function(y, k, v)[0].sin().sum())
            return torch.func.jvp(gradient, (q,), (q,))[1]

        return torch.vmap(one)(q, k, v)

    torch.testing.assert_close(hvp(mine), hvp(lambda *y: textbook(torch, *y)), rtol=1e-4, atol=1e-4)


def test_16_bits_and_packed_sequences(torch):
    q, k, v = (torch.randn(9, 2, 8).bfloat16().requires_grad_() for _ in range(3))
    cu = torch.tensor([0, 4, 9], dtype=torch.int32)
    how = {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "mask": "causal_bottom_right"}
    out = onepass.torch.attention(q, k, v, **how)
    (dq,) = torch.autograd.grad(out.float().sin().sum(), q, create_graph=True)
    dq.float().square().sum().backward()
    wide = [x.detach().float().requires_grad_() for x in (q, k, v)]
    (dq,) = torch.autograd.grad(onepass.torch.attention(*wide, **how).sin().sum(), wide[0], create_graph=True)
    dq.square().sum().backward()
    for mine_, theirs in zip((q, k, v), wide):
        assert mine_.grad.dtype == torch.bfloat16
        torch.testing.assert_close(mine_.grad.float(), theirs.grad, rtol=5e-2, atol=5e-2)


def test_an_expression_of_the_scores(torch):
    x, c = numbers(torch)[:3], numbers(torch, 5)[:3]
    w = [torch.randn(2, 4, 6, 5)]

    def by_text(q, k, v):
        return (onepass.torch.attention(q, k, v, score_mod="2.0 * tanh(score / 2.0)"),)

    expected = double_backward(torch, lambda *y: textbook(torch, *y, softcap=2.0)[:1], x, w, c)
    torch.testing.assert_close(double_backward(torch, by_text, x, w, c), expected, rtol=1e-4, atol=1e-4)


def test_dropout_drops_the_same_weights(torch):
    q, k, v = (y.requires_grad_() for y in numbers(torch)[:3])
    out = onepass.torch.attention(q, k, v, dropout_p=0.4, seed=7)
    (dv,) = torch.autograd.grad(out.sum(), v, create_graph=True)  # z P^T 1
    (dq,) = torch.autograd.grad(dv[..., 0].sum(), q)
    keys = torch.ones_like(v[..., :1])
    (expected,) = torch.autograd.grad(onepass.torch.attention(q, k, keys, dropout_p=0.4, seed=7).sum(), q)
    torch.testing.assert_close(dq, expected, rtol=1e-4, atol=1e-5)


def test_what_has_none_is_refused(torch):
    q, k, v = (y.requires_grad_() for y in numbers(torch)[:3])

    slopes = torch.rand(4, requires_grad=True)
    (first,) = torch.autograd.grad(
        onepass.torch.attention(q, k, v, alibi_slopes=slopes).sum(), slopes, create_graph=True
    )
    with pytest.raises(NotImplementedError, match="does not support second derivatives along alibi_slopes"):
        first.sum().backward()
    (first,) = torch.autograd.grad(onepass.torch.attention(q, k, v).sin().sum(), q, create_graph=True)
    (twice,) = torch.autograd.grad(first.square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="does not support third derivatives"):
        twice.sum().backward()


def test_reverse_over_dual_tensors(torch):
    from torch.autograd import forward_ad

    x, t = numbers(torch)[:3], numbers(torch, 7)[:3]
    q = x[0].clone().requires_grad_()
    with forward_ad.dual_level():
        out = onepass.torch.attention(forward_ad.make_dual(q, t[0]), *x[1:])
        found = torch.autograd.grad(forward_ad.unpack_dual(out).tangent.sin().sum(), q)

    def loss(q):
        return torch.func.jvp(lambda y: textbook(torch, y, *x[1:])[0], (q,), (t[0],))[1].sin().sum()

    torch.testing.assert_close(found[0], torch.func.grad(loss)(x[0]), rtol=1e-4, atol=1e-4)
