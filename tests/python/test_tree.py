"""Draft trees (tree=): a draft sees the keys before all drafts, its ancestors and itself."""

import numpy as np
import onepass
import pytest
from conftest import check, normal


def random_tree(rng, batch, drafts):
    """Parents, with numbers of all kinds where a draft has none."""
    tree = np.array([[rng.integers(-1, i) if i else -1 for i in range(drafts)] for _ in range(batch)], np.int32)
    none = (tree < 0) & (rng.random(tree.shape) < 0.5)
    return np.where(none, rng.choice([-5, drafts, 2**31 - 1], tree.shape), tree).astype(np.int32)


def visible(tree, keys, rows):
    """[rows, keys] of one sequence, by the definition."""
    drafts = len(tree)
    seen = np.zeros((rows, keys), bool)
    for i in range(rows):
        token = keys - rows + i
        for key in range(keys):
            if key < keys - drafts:
                seen[i, key] = key <= token
        draft = token - (keys - drafts)
        while 0 <= draft < drafts:
            if keys - drafts + draft >= 0:
                seen[i, keys - drafts + draft] = True
            draft = tree[draft] if tree[draft] < draft else -1
    return seen


def as_mask(tree, keys, rows, lengths):
    seen = np.zeros((len(tree), 1, rows, keys), bool)
    for b, n in enumerate(lengths):
        own = visible(tree[b], n, rows) if n >= rows else visible(tree[b], n, rows)[:, :n]
        seen[b, 0, :, :n] = own
    return seen


@pytest.mark.parametrize("rows,drafts", [(6, 6), (1, 6), (3, 17), (40, 9), (64, 64), (2, 1)])
@pytest.mark.parametrize("options", [{}, {"window": (20, 0), "softcap": 15.0}, {"batch_invariant": True}])
def test_a_tree_is_the_mask_of_its_ancestors(rng, rows, drafts, options):
    lengths = np.array([150, rows + 3], np.int32)
    tree = random_tree(rng, 2, drafts)
    q, k, v = normal(rng, (2, 4, rows, 40), spread=3), *normal(rng, (2, 2, 2, 150, 40))
    mask = as_mask(tree, 150, rows, lengths)
    cache = {"mask": "causal_bottom_right", "seqused_k": lengths, "return_lse": True, **options}
    expected, expected_lse = onepass.attention(q, k, v, bool_mask=mask, **cache)
    for b in range(2):  # NaN where no row sees
        unseen = ~mask[b, 0].any(axis=0)
        k[b, :, unseen], v[b, :, unseen] = np.nan, np.nan
    out, lse = onepass.attention(q, k, v, tree=tree, **cache)
    check(out, expected)
    check(lse, expected_lse, scale=10)


def test_a_chain_is_no_tree(rng):
    q, k, v = normal(rng, (2, 4, 5, 64)), *normal(rng, (2, 2, 2, 100, 64))
    chain = np.broadcast_to(np.arange(-1, 7), (2, 8))  # a batch stride of 0, int64
    for dtype in (np.float32, np.float16):
        call = [x.astype(dtype) for x in (q, k, v)]
        plain = onepass.attention(*call, mask="causal_bottom_right")
        assert np.array_equal(onepass.attention(*call, mask="causal_bottom_right", tree=chain), plain)


def test_prompts_and_trees_in_one_call(rng):
    rows, lengths = [1, 6, 0, 70, 3], np.array([100, 66, 9, 90, 3], np.int32)
    tree = random_tree(rng, 5, 6)
    tree[3] = np.arange(-1, 5)
    cu = np.cumsum([0, *rows]).astype(np.int32)
    q, k, v = normal(rng, (sum(rows), 8, 64)), *normal(rng, (2, 5, 2, 100, 64))
    out = onepass.attention(q, k, v, mask="causal_bottom_right", cu_seqlens_q=cu, seqused_k=lengths, tree=tree)
    for b in (0, 1, 3, 4):
        own = q[cu[b] : cu[b + 1]].transpose(1, 0, 2)[None]
        keys, values = (x[b : b + 1, :, : lengths[b]] for x in (k, v))
        mask = visible(tree[b], lengths[b], rows[b])
        check(out[cu[b] : cu[b + 1]], onepass.attention(own, keys, values, bool_mask=mask)[0].transpose(1, 0, 2))


def test_refusals(rng):
    q, k, v = normal(rng, (2, 4, 5, 64)), *normal(rng, (2, 2, 2, 100, 64))
    tree = random_tree(rng, 2, 5)
    call = {"mask": "causal_bottom_right", "tree": tree}
    for words, sentence in (
        ({"mask": None}, "tree requires the mask causal_bottom_right"),
        ({"tree": tree[:1]}, r"the batch of tree must be 2, as in q"),
        ({"tree": tree[0]}, r"tree must have shape \[batch, drafts\]"),
        ({"tree": np.zeros((2, 65), np.int32)}, r"tree must have 1 to 64 drafts of a sequence \(got 65\)"),
        ({"tree": np.zeros((2, 0), np.int32)}, r"tree must have 1 to 64 drafts of a sequence \(got 0\)"),
        ({"fp8": True}, "attention_fp8 does not support tree"),
    ):
        with pytest.raises(ValueError, match=sentence):
            onepass.attention(q, k, v, **{**call, **words})
    with pytest.raises(TypeError, match="tree must be int32"):
        onepass.attention(q, k, v, **{**call, "tree": tree.astype(np.float32)})
    assert "tree=5" in onepass.explain(q, k, v, **call)


def test_torch(rng):
    torch = pytest.importorskip("torch")
    import onepass.torch

    q, k, v = normal(rng, (2, 4, 5, 64)), *normal(rng, (2, 2, 2, 100, 64))
    tree = random_tree(rng, 2, 8)
    call = {"mask": "causal_bottom_right", "seqused_k": np.array([100, 30], np.int32), "tree": tree}
    expected = onepass.attention(q, k, v, **call)
    tensors = [torch.from_numpy(x) for x in (q, k, v)]
    words = {name: x if isinstance(x, str) else torch.from_numpy(x) for name, x in call.items()}
    for attend in (onepass.torch.attention, torch.compile(onepass.torch.attention, fullgraph=True)):
        assert np.array_equal(attend(*tensors, **words).numpy(), expected)
    del words["seqused_k"]
    with pytest.raises(RuntimeError, match="tree.* does not support gradients"):
        onepass.torch.attention(tensors[0].requires_grad_(), *tensors[1:], **words)
    out = torch.vmap(lambda q, tree: onepass.torch.attention(q[None], *tensors[1:], **{**words, "tree": tree[None]}))
    with torch.no_grad(), pytest.raises(ValueError):  # k has a batch of two
        out(tensors[0], words["tree"])


def test_jax(rng):
    jax = pytest.importorskip("jax")
    import onepass.jax

    q, k, v = normal(rng, (2, 4, 5, 64)), *normal(rng, (2, 2, 2, 100, 64))
    tree = random_tree(rng, 2, 8)
    expected = onepass.attention(q, k, v, mask="causal_bottom_right", tree=tree)
    attend = jax.jit(lambda q, k, v, tree: onepass.jax.attention(q, k, v, mask="causal_bottom_right", tree=tree))
    assert np.array_equal(attend(q, k, v, tree), expected)
    one = jax.vmap(lambda q, k, v, tree: attend(q[None], k[None], v[None], tree[None])[0])
    assert np.array_equal(one(q, k, v, tree), expected)
    with pytest.raises(ValueError, match="tree.* does not support gradients"):
        jax.grad(lambda q: attend(q, k, v, tree).sum())(q)
