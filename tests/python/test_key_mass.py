"""onepass.key_mass and onepass.weights with every feature beside the whole matrix of weights in float64."""

import numpy as np
import onepass
import pytest
from conftest import inputs, normal

import reference

ROWS, KEYS, HEADS = 37, 65, 4
TABLE = np.random.default_rng(7).standard_normal((ROWS, KEYS)).astype(np.float32)


def rand(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


FEATURES = {
    "plain": {},
    "scale": dict(scale=-0.3),
    "causal": dict(mask="causal_bottom_right"),
    "causal_top_left": dict(mask="causal_top_left"),
    "no row sees the last keys": dict(mask="causal_offset", align_offset=3),
    "rows that see nothing": dict(mask="causal_offset", align_offset=-5),
    "window": dict(window=(5, 3)),
    "aligned window": dict(mask="aligned_top_left", window=(4, 9)),
    "bool_mask": dict(bool_mask=np.random.default_rng(1).random((2, 1, ROWS, KEYS)) < 0.4),
    "bool_mask of keys": dict(bool_mask=np.arange(KEYS) % 3 == 0),
    "bool_mask of heads": dict(bool_mask=np.random.default_rng(2).random((2, HEADS, ROWS, KEYS)) < 0.4),
    "bias": dict(bias=rand(2, 1, ROWS, KEYS)),
    "bias of heads": dict(bias=rand(HEADS, ROWS, KEYS)),
    "bias of keys": dict(bias=rand(HEADS, 1, KEYS)),
    "bias in float16": dict(bias=rand(ROWS, KEYS).astype(np.float16)),
    "bias that hides": dict(bias=np.where(rand(ROWS, KEYS) > 0, -np.inf, 0).astype(np.float32)),
    "bias of heads that hides": dict(bias=np.where(rand(HEADS, ROWS, KEYS) > 0, -np.inf, 0).astype(np.float32)),
    "softcap": dict(softcap=3.0),
    "alibi": dict(alibi_slopes=np.float32([0.1, 0.2, 0.3, 0.4]), mask="causal_bottom_right"),
    "alibi of the batch": dict(alibi_slopes=rand(2, HEADS) ** 2),
    "sinks": dict(sinks=np.float32([1, -2, 5, 30])),
    "score_mod": dict(score_mod="(head < 2) * score * 0.5 + (head >= 2) * tanh(score) - 0.01 * abs(q_index - k_index)"),
    "score_mod with a table": dict(score_mod="score * score + table(q_index, k_index)", mod_buffers={"table": TABLE}),
    "score_mod and a bias of heads": dict(score_mod="min(score, 1.0) * 2.0 + batch", bias=rand(HEADS, ROWS, KEYS)),
    "score_mod and a bias that hides": dict(
        score_mod="2.0 * score", bias=np.where(rand(ROWS, KEYS) > 0, -np.inf, 0).astype(np.float32), softcap=9.0
    ),
    "mask_mod": dict(mask_mod="(q_index + k_index + head) % 3 != 0", window=(-1, 7)),
    "all": dict(
        mask="causal_bottom_right",
        window=(30, 0),
        softcap=8.0,
        bias=rand(HEADS, ROWS, KEYS),
        alibi_slopes=np.float32([0.1, 0.2, 0.3, 0.4]),
        sinks=rand(HEADS),
        score_mod="score * 0.5",
        mask_mod="k_index % 5 != 1",
    ),
}
DTYPES = ["float32", "float16", "bfloat16"]


def made(rng, dtype="float32", **options):
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed").bfloat16
    return inputs(rng, dtype=dtype, **options)


def textbook(q, k, **options):
    """[batch, heads, rows, keys] in float64: what attention gives where the values are the identity."""
    identity = np.broadcast_to(np.eye(k.shape[2]), (*k.shape[:2], k.shape[2], k.shape[2]))
    with np.errstate(invalid="ignore"):  # -inf of a bias in the derivative of a score_mod, which is not used here
        return reference.attention(q, k, identity, **options)[0]


def near(mine, expected, size=1.0, rounded=0.0):
    assert mine.dtype == np.float32 and mine.shape == expected.shape
    np.testing.assert_allclose(mine, expected, atol=2e-5 * size, rtol=2e-5 + rounded)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("feature", FEATURES)
def test_every_feature(rng, feature, dtype):
    q, k, v = made(rng, dtype)
    options = FEATURES[feature]
    _, lse = onepass.attention(q, k, v, return_lse=True, **options)
    expected = textbook(q, k, **options)
    near(onepass.key_mass(q, k, lse, **options), expected.sum(2))
    near(onepass.weights(q, k, lse, **options), expected.mean(1))
    near(onepass.weights(q, k, lse, mean=None, **options), expected)


def on_gpu(torch, value):
    if isinstance(value, dict):
        return {name: on_gpu(torch, item) for name, item in value.items()}
    return torch.from_numpy(value).cuda() if isinstance(value, np.ndarray) else value


# Tensor cores sum weights of the inputs' dtype: half an ulp of each weight, so of their sum too.
ROUNDED = {"float32": 0.0, "float16": 2.0**-11, "bfloat16": 2.0**-8}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("feature", FEATURES)
def test_every_feature_on_a_gpu(torch, rng, feature, dtype):
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    q, k, v = (torch.from_numpy(x).to("cuda", getattr(torch, dtype)) for x in inputs(rng))
    options = on_gpu(torch, FEATURES[feature])
    _, lse = onepass.attention(q, k, v, return_lse=True, **options)
    expected = textbook(*(x.double().cpu().numpy() for x in (q, k)), **FEATURES[feature])
    near(onepass.key_mass(q, k, lse, **options).cpu().numpy(), expected.sum(2), 2, ROUNDED[dtype])
    near(onepass.weights(q, k, lse, **options).cpu().numpy(), expected.mean(1), 2, ROUNDED[dtype])


@pytest.mark.parametrize("feature", ["plain", "causal", "bias of heads", "sinks", "mask_mod"])
def test_bshd(rng, feature):
    q, k, v = made(rng)
    options = FEATURES[feature]
    _, lse = onepass.attention(q, k, v, return_lse=True, **options)
    q, k, turned = (np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, lse))
    mass = onepass.key_mass(q, k, turned, layout="bshd", **options)
    assert mass.shape == (2, KEYS, HEADS)
    expected = textbook(q.swapaxes(1, 2), k.swapaxes(1, 2), **options)
    near(mass, expected.sum(2).swapaxes(1, 2))
    near(onepass.weights(q, k, turned, layout="bshd", **options), expected.mean(1))


@pytest.mark.parametrize("heads, kv", [(1, 1), (3, 1), (6, 2), (5, 5), (12, 1)])
def test_groups(rng, heads, kv):
    q, k, v = made(rng, heads=heads, heads_kv=kv, rows=130, keys=300)
    _, lse = onepass.attention(q, k, v, return_lse=True, mask="causal_bottom_right")
    expected = textbook(q, k, mask="causal_bottom_right")
    mass = onepass.key_mass(q, k, lse, mask="causal_bottom_right")
    near(mass, expected.sum(2))
    np.testing.assert_allclose(mass.sum(-1), 130, rtol=1e-5)  # every row sees a key
    near(onepass.weights(q, k, lse, mask="causal_bottom_right"), expected.mean(1))


def packed_case(rng, cu_q, cu_k):
    total_q, total_k = cu_q[-1], cu_k[-1]
    q = normal(rng, (total_q, HEADS, 40), spread=3.0)
    return q, normal(rng, (total_k, 2, 40)), normal(rng, (total_k, 2, 24))


def documents(rng, feature):
    """(q, k, lse, boundaries, options) of three packed documents; the second has no rows."""
    lengths = {f"cu_seqlens_{x}": np.array(cu, np.int32) for x, cu in (("q", [0, 20, 20, 37]), ("k", [0, 31, 40, 65]))}
    q, k, v = packed_case(rng, *lengths.values())
    options = dict(FEATURES[feature])
    if feature == "bias of heads":
        options["bias"] = rand(HEADS, 20, 31)
    if feature == "bias of keys":
        options["bias"] = rand(HEADS, 1, 31)
    if feature == "alibi of the batch":
        options["alibi_slopes"] = rand(3, HEADS) ** 2
    _, lse = onepass.attention(q, k, v, return_lse=True, **lengths, **options)
    return q, k, lse, lengths, options


@pytest.mark.parametrize("feature", ["plain", "causal", "alibi of the batch", "bias of heads", "score_mod", "mask_mod"])
def test_packed_documents(rng, feature):
    q, k, lse, lengths, options = documents(rng, feature)
    mass, maps = np.zeros((HEADS, 65)), np.zeros((3, HEADS, 20, 31))
    for b, (rows, keys, own) in enumerate(reference.sequences(*lengths.values(), options)):
        p = textbook(reference.alone(q[rows]), reference.alone(k[keys]), **own)[0]
        mass[:, keys] = p.sum(1)
        maps[b, :, : p.shape[1], : p.shape[2]] = p
    near(onepass.key_mass(q, k, lse, **lengths, **options), mass)
    near(onepass.weights(q, k, lse, **lengths, **options), maps.mean(1))


@pytest.mark.parametrize("feature", ["plain", "causal", "window", "alibi of the batch", "bias of heads", "mask_mod"])
@pytest.mark.parametrize("layout", ["bhsd", "bshd", "pages"])
@pytest.mark.parametrize("packs", [False, True])
def test_caches(rng, feature, layout, packs):
    used, rows, capacity, options = np.array([40, 0, 65], np.int32), 8, 72, dict(FEATURES[feature])
    options["bias"] = rand(HEADS, rows, capacity) if "bias" in options else None
    options["alibi_slopes"] = rand(3, HEADS) ** 2 if "alibi_slopes" in options else None
    q = normal(rng, (3, HEADS, rows, 40), spread=3.0)
    k, v = normal(rng, (3, 2, capacity, 40)), normal(rng, (3, 2, capacity, 24))
    k[0, :, 40:], k[1], k[2, :, 65:] = np.nan, np.nan, np.nan
    mass, maps = np.zeros((3, HEADS, capacity)), np.zeros((3, HEADS, rows, capacity))
    for b, n in enumerate(used):
        own = {x: y[..., :n] if x == "bias" and y is not None else y for x, y in options.items()}
        own["alibi_slopes"] = None if own["alibi_slopes"] is None else own["alibi_slopes"][b : b + 1]
        maps[b, :, :, :n] = textbook(q[b : b + 1], k[b : b + 1, :, :n], batch_offset=b, **own)[0]
    mass = maps.sum(2)
    words = dict(options, seqused_k=used)
    if layout == "pages":
        places = rng.permutation(3 * 9).reshape(3, 9).astype(np.int32)
        pages = np.empty((2, 27, 8, 2, 40), np.float32)
        for x, of in zip(pages, (k, np.pad(v, ((0, 0),) * 3 + ((0, 16),)))):
            x[places] = of.swapaxes(1, 2).reshape(3, 9, 8, 2, 40)
        k, v = pages
        words["page_table"] = places
    elif layout == "bshd":
        q, k, v = (np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, v))
        words["layout"] = "bshd"
    if packs:
        q = (q if layout == "bshd" else q.swapaxes(1, 2)).reshape(3 * rows, HEADS, 40)
        words["cu_seqlens_q"] = np.arange(4, dtype=np.int32) * rows
    _, lse = onepass.attention(q, k, v, return_lse=True, **words)
    found = onepass.key_mass(q, k, lse, **words)
    near(found.swapaxes(1, 2) if layout == "bshd" else found, mass)
    near(onepass.weights(q, k, lse, **words), maps.mean(1))


def test_block_masks(rng):
    q, k, v = made(rng)
    seen = np.kron(np.random.default_rng(3).random((2, HEADS, 3, 5)) < 0.5, np.ones((16, 16)))[:, :, :ROWS, :KEYS] > 0
    for mask in (onepass.block_mask(seen, tile=(16, 16)), onepass.block_mask("k_index % 7 < 4", ROWS, KEYS)):
        if mask.mask_mod is not None:
            seen = np.broadcast_to(np.arange(KEYS) % 7 < 4, (2, HEADS, ROWS, KEYS))
        _, lse = onepass.attention(q, k, v, return_lse=True, block_mask=mask)
        expected = textbook(q, k, bool_mask=seen)
        near(onepass.key_mass(q, k, lse, block_mask=mask), expected.sum(2))
        near(onepass.weights(q, k, lse, block_mask=mask), expected.mean(1))


def test_mods_as_functions(rng):
    q, k, v = made(rng)

    def mod(score, batch, head, q_index, k_index):
        return score * 0.5 + TABLE[q_index, k_index]

    options = dict(score_mod=mod, mask_mod=lambda b, h, i, j: (i + j) % 2 == 0)
    _, lse = onepass.attention(q, k, v, return_lse=True, **options)
    text = dict(score_mod="score * 0.5 + t(q_index, k_index)", mask_mod="(q_index + k_index) % 2 == 0")
    expected = textbook(q, k, mod_buffers={"t": TABLE}, **text)
    near(onepass.key_mass(q, k, lse, **options), expected.sum(2))
    near(onepass.weights(q, k, lse, **options), expected.mean(1))
