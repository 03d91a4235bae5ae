"""Calls whose score_mod reads tensors that require a gradient: second derivatives, forward mode, vmap, Jacobians."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import onepass.torch  # noqa: E402
from onepass._flex.read import expression  # noqa: E402

N, D = 13, 16
TEXT = "score * one + table[k_index]"
REFUSED = "onepass.torch does not support second derivatives by mod_buffers or captured tensors"
generator = torch.Generator().manual_seed(5)
Q, K, V, TQ = torch.randn(4, 2, 2, N, D, generator=generator).unbind(0)
TABLE, ONE = torch.randn(N, generator=generator), torch.tensor(0.8)


def by_text(q, table, one=ONE):
    return onepass.torch.attention(q, K, V, score_mod=TEXT, mod_buffers={"table": table, "one": one})


def by_function(q, table, one=ONE):
    return onepass.torch.flex_attention(q, K, V, lambda s, b, h, i, j: s * one + table[j])


def textbook(q, table, one=ONE):
    return ((q @ K.mT) / D**0.5 * one + table).softmax(-1) @ V


CALLS = pytest.mark.parametrize("call", [by_text, by_function])
LOSSES = {"square": lambda out: out.square().sum(), "linear": lambda out: (out * V).sum()}
near = dict(atol=1e-4, rtol=1e-4)


def leaves():
    return Q.clone().requires_grad_(), TABLE.clone().requires_grad_()


# -------------------------------------------------------------------------------------------------- second derivatives
@CALLS
@pytest.mark.parametrize("loss", LOSSES)
def test_second_derivatives_by_q_are_those_of_the_textbook(call, loss):
    found = []
    for f in (call, textbook):
        q, table = leaves()
        (dq,) = torch.autograd.grad(LOSSES[loss](f(q, table)), q, create_graph=True)
        found.append(torch.autograd.grad(dq.square().sum(), q)[0])
    torch.testing.assert_close(*found, **near)
    assert found[1].norm() > 1


@CALLS
@pytest.mark.parametrize("loss", LOSSES)
def test_second_derivatives_by_q_beside_the_gradient_of_a_buffer(call, loss):
    found = []
    for f in (call, textbook):
        q, table = leaves()
        gradients = torch.autograd.grad(LOSSES[loss](f(q, table)), (q, table), create_graph=True)
        found.append([gradients[1], torch.autograd.grad(gradients[0].square().sum(), q)[0]])
    for mine, exact in zip(*found):
        torch.testing.assert_close(mine, exact, **near)


def test_second_derivatives_by_all_other_inputs():
    bias, sinks = torch.linspace(-1, 1, N * N).view(1, 1, N, N), torch.tensor([0.5, -1])
    found = []
    for of_onepass in (True, False):
        q, k, v, b, s, table = (x.clone().requires_grad_() for x in (Q, K, V, bias, sinks, TABLE))
        if of_onepass:
            buffers = {"table": table, "one": ONE}
            out = onepass.torch.attention(q, k, v, bias=b, sinks=s, score_mod=TEXT, mod_buffers=buffers)
        else:
            scores = ((q @ k.mT) / D**0.5 + b) * ONE + table
            joined = torch.cat([scores, s.view(1, -1, 1, 1).expand(2, -1, N, 1)], -1)
            out = joined.softmax(-1)[..., :N] @ v
        gradients = torch.autograd.grad(out.square().sum(), (q, k, v, b, s), create_graph=True)
        found.append(torch.autograd.grad(sum(x.square().sum() for x in gradients), (q, k, v, b, s)))
    for mine, exact in zip(*found):
        torch.testing.assert_close(mine, exact, atol=2e-5 * exact.abs().max().item(), rtol=0)


@CALLS
@pytest.mark.parametrize("loss", LOSSES)
def test_what_depends_on_a_buffer_twice_is_refused(call, loss):
    """Also in a linear loss, where the buffer reaches dq by the weights alone."""
    q, table = leaves()

    def gradients():
        return torch.autograd.grad(LOSSES[loss](call(q, table)), (q, table), create_graph=True)

    for second in (
        lambda dq, dt: dq.square().sum().backward(),
        lambda dq, dt: torch.autograd.grad(dq.square().sum(), (q, table), allow_unused=True),
        lambda dq, dt: torch.autograd.grad(dq.square().sum(), table, allow_unused=True),
        lambda dq, dt: torch.autograd.grad(dt.square().sum(), q, allow_unused=True),
        lambda dq, dt: torch.autograd.grad(dt.square().sum(), table, allow_unused=True),
    ):
        with pytest.raises(NotImplementedError, match=REFUSED):
            second(*gradients())


@CALLS
def test_second_derivatives_of_torch_func_are_refused(call):
    grad = torch.func.grad

    def loss(table, q=Q):
        return call(q, table).square().sum()

    for second in (
        lambda: torch.func.jacrev(grad(loss))(TABLE),
        lambda: grad(lambda t: grad(loss)(t).sum())(TABLE),
        lambda: grad(lambda t: grad(lambda q: loss(t, q))(Q).sum())(TABLE),
        lambda: grad(lambda q: grad(lambda t: loss(t, q))(TABLE).square().sum())(Q),
    ):
        with pytest.raises(NotImplementedError, match=REFUSED):
            second()


@pytest.mark.parametrize("name", ["bias", "alibi_slopes", "sinks"])
def test_gradients_of_other_inputs_depend_on_buffers_too(name):
    x = {"bias": torch.zeros(1, 1, N, N), "alibi_slopes": torch.ones(2), "sinks": torch.zeros(2)}[name].requires_grad_()
    _, table = leaves()
    words = {"score_mod": TEXT, "mod_buffers": {"table": table, "one": ONE}, name: x}
    out = onepass.torch.attention(Q, K, V, **words)
    (dx,) = torch.autograd.grad((out * V).sum(), x, create_graph=True)
    assert dx.abs().max() > 0.01
    with pytest.raises(NotImplementedError, match=REFUSED):
        torch.autograd.grad(dx.square().sum(), table, allow_unused=True)
    (dt,) = torch.autograd.grad((onepass.torch.attention(Q, K, V, **words) * V).sum(), table, create_graph=True)
    with pytest.raises(NotImplementedError, match=REFUSED):
        torch.autograd.grad(dt.square().sum(), x, allow_unused=True)


# --------------------------------------------------------------------------------------------------- forward mode, vmap
@CALLS
def test_tangents_of_q_beside_a_buffer_that_requires_a_gradient(call):
    table = torch.nn.Parameter(TABLE)
    expected = torch.func.jvp(lambda q: textbook(q, TABLE), (Q,), (TQ,))
    found = torch.func.jvp(lambda q: call(q, table), (Q,), (TQ,))
    with torch.autograd.forward_ad.dual_level():
        out = call(torch.autograd.forward_ad.make_dual(Q, TQ), table)
        dual = torch.autograd.forward_ad.unpack_dual(out)
    for x in (found, dual):
        torch.testing.assert_close(tuple(x), expected, **near)
    second = [
        torch.func.jvp(torch.func.grad(lambda q, f=f: f(q, table).square().sum()), (Q,), (TQ,))[1]
        for f in (call, textbook)
    ]
    torch.testing.assert_close(*second, **near)


@CALLS
def test_a_tangent_of_a_buffer_that_requires_a_gradient_is_refused(call):
    _, table = leaves()
    sentence = "onepass.torch does not support a tangent of mod_buffers or captured tensors"
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(table, torch.ones(N))
        with pytest.raises(NotImplementedError, match=sentence):
            call(Q, dual)
    with pytest.raises(NotImplementedError, match=sentence):
        torch.func.jvp(torch.func.grad(lambda t: call(Q, t).square().sum()), (TABLE,), (torch.ones(N),))


@CALLS
def test_vmap(call):
    """Examples differ in the buffer, in q, or in both; at last they share a Parameter."""
    tables, qs, ones = torch.stack([TABLE, -TABLE, 0.3 * TABLE]), torch.stack([Q, -Q, TQ]), torch.rand(3)
    both = {"table": 0, "q": 0, "one": 0}
    for dims in ({"table": 0}, {"q": 0}, both):
        args = [tables if "table" in dims else TABLE, qs if "q" in dims else Q, ones if "one" in dims else ONE]
        found = []
        for f in (call, textbook):
            gradient = torch.func.grad(lambda t, q, one, f=f: f(q, t, one).square().sum(), (0, 1))
            found.append(torch.func.vmap(gradient, tuple(dims.get(name) for name in ("table", "q", "one")))(*args))
        torch.testing.assert_close(*found, **near)
    found = []
    for f in (call, textbook):
        _, table = leaves()
        out = torch.func.vmap(lambda q, f=f, table=table: f(q, table))(qs)
        found.append(torch.autograd.grad(out.square().sum(), table)[0])
    torch.testing.assert_close(*found, **near)


@CALLS
def test_jacobians(call):
    def some(table, f):
        return f(Q, table)[0, 0, :2, :3]

    found = [torch.func.jacrev(some)(TABLE, f) for f in (call, textbook)]
    torch.testing.assert_close(*found, **near)
    _, table = leaves()
    with pytest.raises(NotImplementedError, match="does not support is_grads_batched beside a gradient"):
        torch.autograd.grad(some(table, call), table, torch.eye(6).view(6, 2, 3), is_grads_batched=True)


# --------------------------------------------------------------------------------------------------------- other arrays
def test_arrays_of_numpy():
    """Beside a tensor that requires a gradient, and beside a q that does. One is read-only, and one is reversed."""
    frozen = np.linspace(0, 1, N, dtype=np.float32)
    frozen.flags.writeable = False
    for array in (frozen, np.ascontiguousarray(frozen[::-1])[::-1]):
        text, found = "score + table[k_index] * array[q_index]", []
        for other in (array, torch.tensor(frozen)):
            q, table = leaves()
            buffers = {"array": other, "table": table}
            outs = [onepass.torch.attention(q, K, V, score_mod=text, mod_buffers=buffers)]
            outs.append(onepass.torch.flex_attention(q, K, V, lambda s, b, h, i, j, t=table, a=other: s + t[j] * a[i]))
            outs.append(onepass.torch.attention(q, K, V, score_mod="score + a[k_index]", mod_buffers={"a": other}))
            outs.append(onepass.torch.attention(q, K, V, score_mod=lambda s, b, h, i, j, a=other: s + a[j]))
            found.append(torch.autograd.grad(sum(out.square().sum() for out in outs), (q, table)))
        torch.testing.assert_close(*found)
        assert found[0][1].norm() > 0.1


def test_a_wrong_text_is_answered_by_its_reader():
    _, table = leaves()
    with pytest.raises(ValueError, match="score_mod, column 9: 'tables'"):
        onepass.torch.attention(Q, K, V, score_mod="score + tables[k_index]", mod_buffers={"table": table})


def test_texts_that_only_cuda_compiles_are_refused():
    with pytest.raises(NotImplementedError, match="gradients of mod_buffers for an expression that only CUDA"):
        expression("[&](float x) { return x; }(score)", {})


def test_a_text_is_read_once(monkeypatch):
    read = []
    monkeypatch.setattr("onepass._torch_learned.expression", lambda *args: read.append(args[0]) or expression(*args))
    by_text(*leaves()).sum().backward()
    assert read == [TEXT]
