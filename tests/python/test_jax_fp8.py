"""float8_e4m3fn in onepass.jax, beside onepass on NumPy arrays: attention on it, to a cache of it and by quantizing to
it, quantize, and append_kv to such a cache."""

import re

import numpy as np
import onepass
import pytest
from conftest import jax_or_skip, normal, same

jax = jax_or_skip()

import jax.numpy as jnp  # noqa: E402
import ml_dtypes  # noqa: E402
import onepass.jax  # noqa: E402

E4M3 = ml_dtypes.float8_e4m3fn
ON_CPU = jax.default_backend() == "cpu"
# For numbers of about 1 on CUDA, where weights are e4m3 too, and where only q and the result are of 16 bits.
OF_WEIGHTS, OF_RESULT = 0.15, 0.03


def data(rng, rows=37, keys=200, dtype=np.float32):
    return [normal(rng, (2, heads, n, 64), dtype) for heads, n in ((4, rows), (2, keys), (2, keys))]


def swapped(x):
    return x.swapaxes(1, 2)


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_attention_on_e4m3(rng, layout):
    q, k, v = data(rng)
    q8, q_descale = onepass.quantize(q, factors="block", hadamard=True)
    k8, k_descale = onepass.quantize(k, factors="block", hadamard=True)
    v8, v_descale, v_mean = onepass.quantize(v + 1, mean=True)
    factors = dict(q_descale=q_descale, k_descale=k_descale, v_descale=v_descale, v_mean=v_mean)
    options = dict(mask="causal_bottom_right", accumulation="fast", return_lse=True)

    def call(q, k, v, factors, **more):
        return onepass.jax.attention(q, k, v, layout=layout, **factors, **options, **more)

    eights = [q8, k8, v8] if layout == "bhsd" else [swapped(x) for x in (q8, k8, v8)]
    out, lse = jax.jit(call)(*eights, factors)
    wide, _ = call(*eights, factors, out_dtype="float32")
    into = np.empty_like(q)
    expected, expected_lse = onepass.attention(q8, k8, v8, out=into, **factors, **options)
    assert out.dtype == jnp.bfloat16 and wide.dtype == jnp.float32
    if layout == "bshd":
        out, wide, lse = (swapped(x) for x in (out, wide, lse))
    same(wide, expected, OF_WEIGHTS)
    same(out, expected.astype(ml_dtypes.bfloat16), OF_WEIGHTS)
    same(lse, expected_lse, 1e-2)


@pytest.mark.parametrize("rows", [1, 100])
@pytest.mark.parametrize("paged", [False, True])
def test_a_cache_of_e4m3(rng, paged, rows):
    """Decoding and prefill, of 16-bit queries."""
    q, k, v = data(rng, rows, 192, np.float16)
    (k8, k_descale), (v8, v_descale) = (onepass.quantize(x) for x in (k, v))
    options = dict(seqused_k=np.int32([190, 130]), k_descale=k_descale, v_descale=v_descale, mask="causal_bottom_right")
    if paged:  # [pages, page_size, heads, dim], in any order
        order = rng.permutation(24).astype(np.int32)
        pages = [np.empty((24, 16, 2, 64), E4M3) for _ in "kv"]
        for pool, x in zip(pages, (k8, v8), strict=True):
            pool[order] = x.reshape(2, 2, 12, 16, 64).transpose(0, 2, 3, 1, 4).reshape(24, 16, 2, 64)
        k8, v8 = pages
        options["page_table"] = order.reshape(2, 12)
    out = jax.jit(lambda *x: onepass.jax.attention(*x, **options))(q, k8, v8)
    assert out.dtype == jnp.float16
    same(out, onepass.attention(q, k8, v8, **options), OF_RESULT)


@pytest.mark.parametrize("paged", [False, True])
def test_a_decoder_carries_its_cache_of_e4m3(rng, paged):
    """Token by token in a scan, donated, quantized by append_kv, beside the same steps on NumPy arrays."""
    q, k, v = (jnp.asarray(normal(rng, (6, 2, heads, 1, 64)), "bfloat16") for heads in (4, 2, 2))
    angles = np.arange(16)[:, None] * 100.0 ** (-np.arange(32) / 32)
    options = dict(cos=np.cos(angles).astype(np.float32), sin=np.sin(angles).astype(np.float32))
    factors = dict(k_descale=np.float32([[2**-6], [2**-5]]), v_descale=np.float32([2**-6]))
    table = dict(page_table=rng.permutation(4).astype(np.int32).reshape(2, 2)) if paged else {}
    shape = (4, 8, 2, 64) if paged else (2, 2, 16, 64)

    def step(onepass, used, caches, new):
        q, k, v = new
        made = onepass.append_kv(k, v, *caches, cache_seqlens=used, q=q, **options, **factors, **table)
        *caches, turned = made if isinstance(made, tuple) else (*caches, made)
        out = onepass.attention(turned, *caches, mask="causal_bottom_right", seqused_k=used + 1, **factors, **table)
        return caches, out

    def decode(k_cache, v_cache, *new):
        def one(carried, new):
            used, *caches = carried
            caches, out = step(onepass.jax, used, caches, new)
            return (used + 1, *caches), out

        return jax.lax.scan(one, (jnp.zeros(2, jnp.int32), k_cache, v_cache), new)

    program = jax.jit(decode, donate_argnums=(0, 1))
    caches = [jnp.zeros(shape, jnp.float8_e4m3fn) for _ in "kv"]
    text = program.lower(*caches, q, k, v).compile().as_text()
    assert not re.search(rf"f8e4m3fn\[{','.join(map(str, shape))}\]\S* copy\(", text)
    (used, *caches), outs = program(*caches, q, k, v)
    assert used.tolist() == [6, 6] and caches[0].dtype == jnp.float8_e4m3fn
    expected = [np.zeros(shape, E4M3) for _ in "kv"]
    for t, new in enumerate(zip(*(np.asarray(x) for x in (q, k, v)), strict=True)):
        _, out = step(onepass, np.int32([t, t]), expected, new)
        same(outs[t], out, OF_RESULT)
    for mine, other in zip(caches, expected, strict=True):
        same(mine, other, 0.5)  # of numbers of up to 448: one that lay between two


@pytest.mark.parametrize(
    "fp8", [True, {"by_block": True, "hadamard": False}, {"center": True, "seed": 2**64 - 3}], ids=str
)
def test_attention_that_quantizes(rng, fp8):
    q, k, v = data(rng, 150)

    def call(*x):
        return onepass.jax.attention(*x, fp8=fp8, mask="causal_bottom_right", return_lse=True)

    expected = onepass.attention(q, k, v + 1, fp8=fp8, mask="causal_bottom_right", return_lse=True)
    for mine, other in zip(jax.jit(call)(q, k, v + 1), expected, strict=True):
        same(mine, other, OF_WEIGHTS)
    stack = [np.stack([x, x[::-1]]) for x in (q, k, v + 1)]
    for mine, other in zip(jax.vmap(call)(*stack), expected, strict=True):
        same(mine[0], other, OF_WEIGHTS)
        same(mine[1, ::-1], other, OF_WEIGHTS)


def test_packed_sequences_that_are_quantized(rng):
    cu = np.int32([0, 30, 30, 100])
    q, k, v = (normal(rng, (104, heads, 64), ml_dtypes.bfloat16) for heads in (4, 2, 2))
    options = dict(cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=70, max_seqlen_k=70, fp8=True)
    out = onepass.jax.attention(q, k, v, **options)
    assert not np.asarray(out[100:]).any()
    same(out, onepass.attention(q, k, v, **options), OF_WEIGHTS)


@pytest.mark.parametrize("factors", ["block", "head", "tensor"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_quantize(rng, factors, dtype):
    x = normal(rng, (2, 3, 300, 48), np.float32 if dtype == "float32" else ml_dtypes.bfloat16)
    options = dict(factors=factors, hadamard=True, seed=2**64 - 5, mean=True)

    def check(made, expected, rows=300):
        assert [y.dtype for y in made] == [y.dtype for y in expected]
        assert [y.shape for y in made] == [y.shape for y in expected]
        if ON_CPU:
            for mine, other in zip(made, expected, strict=True):
                same(mine, other)
            return
        numbers = []  # a GPU's factors may be other powers of 2
        for y, factor, _ in (made, expected):
            factor = np.repeat(np.asarray(factor), 128 if factor.shape[2] > 1 else rows, 2)[:, :, :rows, None]
            numbers.append(np.asarray(y).astype(np.float32) * factor)
        np.testing.assert_allclose(*numbers, rtol=0.13, atol=2e-2)
        same(made[2], expected[2], 1e-4)

    expected = onepass.quantize(x, **options)
    check(jax.jit(lambda x: onepass.jax.quantize(x, **options))(x), expected)
    y, *rest = onepass.jax.quantize(swapped(x), layout="bshd", **options)
    check((swapped(y), *rest), expected)
    mapped = jax.vmap(lambda x: onepass.jax.quantize(x, **options))(np.stack([x, x[::-1]]))
    check([y[0] for y in mapped], expected)
    check([y[1] for y in mapped], onepass.quantize(x[::-1], **options))


def test_fewer_dimensions(rng):
    """Packed tokens have their heads in the middle."""
    x = normal(rng, (9, 2, 32))
    y, factor = onepass.jax.quantize(x, layout="bshd")
    expected, expected_factor = onepass.quantize(x.swapaxes(0, 1))
    assert y.shape == x.shape and factor.shape == (1, 2, 1)
    numbers = (expected.astype(np.float32) * expected_factor[0, :, None]).swapaxes(0, 1)
    same(np.asarray(y).astype(np.float32) * np.asarray(factor)[0], numbers, 2e-2)
    assert onepass.jax.quantize(x[0])[0].shape == (2, 32)


VMAPPED = {  # of k_descale, v_descale: their shapes, and whether they are mapped
    "one for all": [((1,), False), ((), None)],
    "by head": [((2, 2, 1), True), ((1, 2), False)],
    "by block": [((2, 2, 2), True), ((2, 1, 2), False)],
    "batches": [((2,), True), ((2,), False)],
}


@pytest.mark.parametrize("case", VMAPPED)
def test_vmap_of_factors_is_a_loop(rng, case):
    q, k, v = (normal(rng, (3, 2, heads, n, 64), np.float16) for heads, n in ((4, 1), (2, 150), (2, 150)))
    k8, v8 = (x.astype(E4M3) for x in (k, v))
    factors = {}
    for name, (shape, mapped) in zip(("k_descale", "v_descale"), VMAPPED[case], strict=True):
        if mapped is not None:
            factors[name] = (2.0 ** rng.integers(-1, 2, size=(3, *shape) if mapped else shape)).astype(np.float32)
    axes = {name: 0 if mapped else None for name, (_, mapped) in zip(("k_descale", "v_descale"), VMAPPED[case])}
    axes = {name: axes[name] for name in factors}

    def call(q, k, v, factors):
        return onepass.jax.attention(q, k, v, **factors)

    given = jax.jit(jax.vmap(call, in_axes=(0, 0, 0, axes)))(q, k8, v8, factors)
    for i in range(3):
        one = {name: x if axes[name] is None else x[i] for name, x in factors.items()}
        same(given[i], onepass.attention(q[i], k8[i], v8[i], **one), OF_RESULT)


def test_unified_max_and_the_results_dtype(rng):
    q, k, v = data(rng, 1, 300, np.float16)
    expected = onepass.attention(q, k, v, unified_max=1.5, out=np.empty(q.shape, np.float32))
    given = jax.jit(lambda *x: onepass.jax.attention(*x, unified_max=1.5, out_dtype=jnp.float32))(q, k, v)
    same(given, expected, 2e-3)

    def loss(q):
        return (onepass.jax.attention(q, k, v, unified_max=1.5, out_dtype="float32") ** 2).sum()

    gradient = jax.grad(loss)(q)
    out, lse = onepass.attention(q, k, v, unified_max=1.5, out=np.empty(q.shape, np.float32), return_lse=True)
    wanted = onepass.attention_backward(2 * out, q, k, v, out, lse, grads=("dq",))
    same(gradient, wanted[0], 2e-2)
    assert gradient.dtype == q.dtype


X = np.zeros((1, 2, 3, 16), np.float32)
X8 = X.astype(E4M3)
ONE = np.ones(1, np.float32)


def attends(**options):
    return onepass.jax.attention(options.pop("q", X), options.pop("k", X), options.pop("v", X), **options)


def appends(cache=X8, **options):
    return onepass.jax.append_kv(X, X, cache, cache + 0, cache_seqlens=np.int32([0]), **options)


WRONG = {
    r"k must be .* float8_e4m3fn \(got float8_e5m2\)": lambda: attends(k=X.astype(ml_dtypes.float8_e5m2)),
    "k_descale requires an fp8_e4m3 k .got fp32": lambda: attends(k_descale=ONE),
    "dimension 1 of k_descale must be 2 or 1": lambda: attends(k=X8, v=X8, k_descale=np.ones((1, 3), np.float32)),
    r"accumulation must be 'exact' or 'fast' \(got 'slow'\)": lambda: attends(accumulation="slow"),
    "accumulation=fast requires an fp8_e4m3 q": lambda: attends(accumulation="fast"),
    "fp8 does not support the key 'blocks'": lambda: attends(fp8={"blocks": True}),
    "q must be fp32, fp16 or bf16 .got fp8_e4m3": lambda: attends(q=X8, k=X8, v=X8, fp8=True),
    "attention_fp8 does not support v_descale": lambda: attends(fp8=True, v_descale=ONE),
    "attention_fp8 does not support seqused_k": lambda: attends(fp8=True, seqused_k=np.int32([1])),
    "unified_max must be a number": lambda: attends(unified_max="large"),
    "unified_max must be finite": lambda: attends(unified_max=float("nan")),
    "out must be float32, float16 or bfloat16": lambda: attends(out_dtype="float64"),
    "out must be fp32, as q .got fp16": lambda: attends(out_dtype="float16"),
    "FP8 attention does not support gradients": lambda: jax.grad(lambda q: attends(q=q, fp8=True).sum())(X),
    "^FP8 attention does not": lambda: jax.grad(lambda q: attends(q=q, k=X8, v=X8).sum())(X),
    "quantize does not support gradients": lambda: jax.grad(lambda x: onepass.jax.quantize(x)[1].sum())(X),
    r"factors must be .* \(got 'row'\)": lambda: onepass.jax.quantize(X, factors="row"),
    r"seed must be .* \(got -1\)": lambda: onepass.jax.quantize(X, seed=-1),
    r"layout must be 'bhsd' or 'bshd' \(got 'bhds'\)": lambda: onepass.jax.quantize(X, layout="bhds"),
    "x must be float32, float16 or bfloat16": lambda: onepass.jax.quantize(X8),
    r"x must have the shape \[batch, heads, rows, n\], .* \(got \[16\]\)": lambda: onepass.jax.quantize(X[0, 0, 0]),
    "rows of x must have 1 to 256 elements .got 300": lambda: onepass.jax.quantize(np.zeros((2, 300), np.float32)),
    r"k_cache must be .* float8_e4m3fn \(got float8_e5m2\)": lambda: appends(X.astype(ml_dtypes.float8_e5m2)),
    "k_descale requires an fp8_e4m3 cache": lambda: appends(X, k_descale=ONE),
    "dimension 1 of v_descale must be 2 or 1": lambda: appends(v_descale=np.ones((1, 5), np.float32)),
}


@pytest.mark.parametrize("sentence", WRONG)
def test_refusals(sentence):
    with pytest.raises((ValueError, TypeError, NotImplementedError, jax.errors.JaxRuntimeError), match=sentence):
        jax.block_until_ready(WRONG[sentence]())
