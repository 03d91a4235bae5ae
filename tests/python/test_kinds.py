"""Arrays that mean more than their memory says are resolved or refused, and immutable memory is not written.
With stand-ins for the frameworks, and with the frameworks where they are installed."""

import subprocess
import sys
import types

import fake_frameworks
import numpy as np
import onepass
import pytest
from conftest import inputs
from fake_frameworks import Exported, Tensor, Wrapper

Q, K, V = inputs(np.random.default_rng(0))
EXPECTED = onepass.attention(Q, K, V)


def refused(error, sentence, q=Q, k=K, v=V, **options):
    """By attention and by explain; out stays as it was."""
    out = options.get("out")
    before = None if out is None else getattr(out, "array", out).tolist()
    with pytest.raises(error, match=sentence):
        onepass.attention(q, k, v, **options)
    with pytest.raises(error, match=sentence):
        onepass.explain(q, k, v, **options)
    assert out is None or getattr(out, "array", out).tolist() == before


# ------------------------------------------------------------------------------------------------------------- NumPy
def test_a_masked_array_is_refused():
    for mask in (np.zeros(V.shape, bool), np.ma.nomask):
        refused(TypeError, r"^v is a masked array.*v\.data or v\.filled", v=np.ma.MaskedArray(V, mask))
    refused(TypeError, "^bias is a masked array", bias=np.ma.zeros((37, 65), np.float32))
    refused(TypeError, "^out is a masked array", out=np.ma.zeros(EXPECTED.shape, np.float32))
    with pytest.raises(TypeError, match=r"^outs\[0\] is a masked array"):
        onepass.merge([np.ma.MaskedArray(EXPECTED)], [EXPECTED[..., 0]])


def test_other_subclasses_are_plain_memory():
    class Mine(np.ndarray):
        pass

    np.testing.assert_array_equal(onepass.attention(Q.view(Mine), K, V), EXPECTED)
    bias = np.linspace(-1, 1, 37 * 65, dtype=np.float32).reshape(37, 65)
    np.testing.assert_array_equal(
        onepass.attention(Q, K, V, bias=bias.view(np.matrix)), onepass.attention(Q, K, V, bias=bias)
    )


@pytest.mark.parametrize("dtype", [">f4", ">f2", object, "U4", "m8[s]", np.longdouble, [("a", "f4")], np.complex64])
def test_other_element_types_are_refused(dtype):
    refused(TypeError, "^k must ", k=np.zeros(K.shape, dtype))


# ----------------------------------------------------------------------------------------------- read-only arrays
def read_only(array):
    array = array.copy()
    array.setflags(write=False)
    return array


def test_read_only_memory_is_not_written():
    empty = np.zeros_like(EXPECTED)
    refused(ValueError, "^out must be writable", out=read_only(empty))
    refused(ValueError, "^out must be writable", out=Exported(read_only(empty)))  # a flag in a versioned DLPack capsule
    refused(
        ValueError, "^out must be writable", out=np.frombuffer(bytes(empty.nbytes), np.float32).reshape(empty.shape)
    )
    refused(TypeError, r"^out must be .* \(got memoryview\)", out=memoryview(empty))
    with pytest.raises(ValueError, match="^out must be writable"):
        onepass.merge([EXPECTED], [EXPECTED[..., 0]], out=read_only(empty))
    out = np.zeros_like(EXPECTED)
    onepass.attention(Q, K, V, out=Exported(out))
    np.testing.assert_array_equal(out, EXPECTED)


@pytest.mark.parametrize("library, kind", [("jax", "Array"), ("tensorflow", "Tensor")])
def test_immutable_arrays_are_not_written(monkeypatch, library, kind):
    module = getattr(fake_frameworks, library + "_module")()
    monkeypatch.setitem(sys.modules, library, module)
    out = getattr(module, kind)(np.zeros_like(EXPECTED))
    refused(TypeError, rf"^out must be .* \(got a {library} {kind}, which is immutable\)", out=out)
    with pytest.raises(TypeError, match=rf"^out must be .* \(got a {library} {kind},"):
        onepass.merge([EXPECTED], [EXPECTED[..., 0]], out=out)
    assert (out.array == 0).all()


def test_jax_arrays_are_not_written(jax):
    out = jax.numpy.zeros(EXPECTED.shape)
    refused(TypeError, r"^out must be .* \(got a jax Array, which is immutable\)", out=out)


def test_jax_tracers_are_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", fake_frameworks.jax_module())
    tracer = fake_frameworks.Tracer(K)
    refused(TypeError, "^k is being traced by JAX and has no values: use onepass.jax inside", k=tracer)
    deleted = fake_frameworks.JaxArray(K, is_deleted=lambda: True)
    refused(ValueError, "^the memory of k, a jax Array, has been deleted", k=deleted)


def test_jax_transformations_are_refused(jax):
    q, k, v = map(jax.numpy.asarray, (Q, K, V))
    for transform in (jax.jit, jax.grad, jax.vmap, jax.checkpoint):
        with pytest.raises(TypeError, match="^k is being traced by JAX and has no values"):
            transform(lambda k: onepass.attention(q, k, v))(k)
    called = jax.jit(
        lambda q, k, v: jax.pure_callback(
            lambda *arrays: onepass.attention(*map(np.asarray, arrays)),
            jax.ShapeDtypeStruct(EXPECTED.shape, EXPECTED.dtype), q, k, v,
        )
    )  # fmt: skip
    np.testing.assert_array_equal(np.asarray(called(q, k, v)), EXPECTED)
    k.delete()
    with pytest.raises(ValueError, match="^the memory of k, a jax Array, has been deleted"):
        onepass.attention(q, k, v)


# ---------------------------------------------------------------------------------------------------- a torch of ours
@pytest.fixture
def fake_torch(monkeypatch):
    torch = fake_frameworks.torch_module()
    monkeypatch.setitem(sys.modules, "torch", torch)
    return torch


def test_negated_tensors_are_resolved(fake_torch):
    for index in range(3):
        arrays = [Tensor(x) for x in (Q, K, V)]
        arrays[index] = Tensor(-arrays[index].array, negative=True)
        out = np.empty_like(EXPECTED)
        onepass.attention(*arrays, out=out)
        np.testing.assert_array_equal(out, EXPECTED)
    out = Tensor(np.zeros_like(EXPECTED), negative=True)
    refused(ValueError, r"^out must be a plain tensor \(got a negated view\)", *map(Tensor, (Q, K, V)), out=out)
    refused(ValueError, r"^out must be a plain tensor \(got a negated view\)", out=out)


def test_wrappers_are_refused(fake_torch):
    refused(TypeError, r"^k must be a plain torch.Tensor \(got a fake_frameworks.Wrapper, whose values", k=Wrapper(K))


def test_recorders_are_refused(fake_torch, monkeypatch):
    proxies = types.SimpleNamespace(get_proxy_mode=lambda: None)
    monkeypatch.setitem(sys.modules, "torch.fx.experimental.proxy_tensor", proxies)
    fake_torch._C._len_torch_dispatch_stack = lambda: 1
    onepass.attention(Q, Tensor(K), V)  # a mode that records nothing
    proxies.get_proxy_mode = object
    refused(RuntimeError, "^k is being recorded by torch.fx, .*onepass.torch.attention", k=Tensor(K))
    fake_torch.jit.is_tracing = lambda: True
    refused(RuntimeError, "^k is being recorded by torch.jit.trace", k=Tensor(K))
    refused(RuntimeError, "^out is being recorded by torch.jit.trace", out=Tensor(EXPECTED.copy()))
    np.testing.assert_array_equal(onepass.attention(Q, K, V), EXPECTED)  # no tensor of its


def test_tangents_are_refused(fake_torch):
    refused_k = Tensor(K, tangent=Tensor(K))
    onepass.attention(Q, refused_k, V)  # outside of a dual level there are none
    fake_torch.autograd.forward_ad._current_level = 0
    refused(RuntimeError, r"^k has a tangent, which onepass does not support: pass k\.detach", k=refused_k)
    refused(RuntimeError, "^k has a tangent", Tensor(Q), refused_k)  # also after one without
    refused(RuntimeError, "^k requires a gradient", k=Tensor(K, requires_grad=True))


def test_the_state_of_torch_is_looked_at_in_every_call(fake_torch):
    onepass.attention(Q, Tensor(K), V)
    fake_torch.jit.is_tracing = lambda: True
    refused(RuntimeError, "^k is being recorded", k=Tensor(K))
    with pytest.raises(RuntimeError, match=r"^outs\[0\] is being recorded"):
        onepass.merge([Tensor(EXPECTED)], [EXPECTED[..., 0]], out=EXPECTED.copy())


# ----------------------------------------------------------------------------------------------------- the real torch
def test_torch_views_with_the_negative_bit(torch):
    q, k, v = (torch.from_numpy(x) for x in (Q, K, V))
    for index in range(3):
        arrays = [q, k, v]
        arrays[index] = torch._neg_view(-arrays[index])
        np.testing.assert_array_equal(onepass.attention(*arrays).numpy(), EXPECTED)
    imaginary = torch.complex(q, q).conj().imag
    assert imaginary.is_neg()
    assert torch.equal(onepass.attention(imaginary, k, v), onepass.attention(-q, k, v))
    refused(
        ValueError,
        r"^out must be a plain tensor \(got a negated view\)",
        q,
        k,
        v,
        out=torch._neg_view(torch.zeros(EXPECTED.shape)),
    )


def test_torch_recorders(torch):
    q, k, v = (torch.from_numpy(x) for x in (Q, K, V))
    with pytest.raises(RuntimeError, match="^q is being recorded by torch.jit.trace"):
        torch.jit.trace(onepass.attention, (q, k, v))
    make_fx = pytest.importorskip("torch.fx.experimental.proxy_tensor").make_fx
    with pytest.raises(RuntimeError, match="^q is being recorded by torch.fx"):
        make_fx(lambda q: onepass.attention(q, k, v))(q)
    with pytest.raises(TypeError, match=r"^q must be a plain torch.Tensor \(got a torch\.\S*FakeTensor"):
        make_fx(lambda q: onepass.attention(q, k, v), tracing_mode="fake")(q)
    with pytest.raises(TypeError, match=r"^q must be .* \(got Proxy\)"):
        torch.fx.symbolic_trace(lambda q: onepass.attention(q, k, v))
    compiled = torch.compile(lambda q: onepass.attention(2 * q, k, v) + 1, backend="eager")
    assert torch.equal(compiled(q), onepass.attention(2 * q, k, v) + 1)


def test_torch_functional_transformations(torch):
    q, k, v = (torch.from_numpy(x) for x in (Q, K, V))
    with pytest.raises(TypeError, match=r"^q must export .* \(got this torch.Tensor\)"):
        torch.vmap(lambda q: onepass.attention(q, k, v))(torch.stack([q, q]))
    with pytest.raises(RuntimeError, match="^q requires a gradient"):
        torch.func.grad(lambda q: onepass.attention(q, k, v).sum())(q)
    with pytest.raises(RuntimeError, match="^q has a tangent"):
        torch.func.jvp(lambda q: onepass.attention(q, k, v), (q,), (q,))
    with torch.autograd.forward_ad.dual_level():
        refused(RuntimeError, "^k has a tangent", q, torch.autograd.forward_ad.make_dual(k, k), v)
        assert torch.equal(onepass.attention(q, k, v), torch.from_numpy(EXPECTED))


def test_torch_tensors_of_other_kinds(torch):
    k = torch.from_numpy(K)
    for other, sentence in [
        (torch.nested.nested_tensor([k[0], k[0]]), "^k must not be a nested tensor"),
        (
            torch.nested.nested_tensor([k[0], k[0]], layout=torch.jagged),
            r"^k must be a plain torch.Tensor \(got a torch.nested",
        ),
        (torch.quantize_per_tensor(k, 0.1, 0, torch.qint8), r"^k must export .* \(got this torch.Tensor\)"),
        (torch.masked.masked_tensor(k, k > 0), r"^k must be a plain torch.Tensor \(got a torch\.masked"),
    ]:
        refused(TypeError, sentence, k=other)


def test_frameworks_are_not_imported():
    code = (
        "import sys, numpy as np, onepass\n"
        "x = np.ones((1, 1, 2, 8), np.float32)\n"
        "onepass.attention(x, x, x, sinks=np.ones(1), out=np.empty_like(x))\n"
        "assert not {'torch', 'jax', 'tensorflow', 'cupy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
