"""Attention of a whole sequence in float64 with its gradients: what tests of ranks compare with."""

import itertools

import numpy as np

import reference

SIDE = "sinks", "alibi_slopes", "bias"


def textbook(q, k, v, dout, dlse, causal=False, window=(-1, -1), documents=None, head_groups=1, **o):
    """By name out, lse, the rows' maxima and gradients, each with the sums of the sizes of a gradient's terms.

    dlse may be None. A bias beside documents has one row.
    """
    found = {}
    mask = "causal_top_left" if causal else "aligned_top_left"
    q, k, v, dout = (np.asarray(x).astype(np.float64) for x in (q, k, v, dout))
    dlse = np.zeros(q.shape[:3]) if dlse is None else np.asarray(dlse).astype(np.float64)
    for d, (a, b) in enumerate(itertools.pairwise(documents or (0, q.shape[2]))):
        own = {name: x[..., a:b] if name == "bias" and documents else x for name, x in o.items()}
        words = {"mask": mask, "window": window, "batch_offset": d * len(q), **own}
        rows = [x[:, :, a:b] for x in (dout, q, k, v)]
        out, lse = reference.attention(*rows[1:], **words)
        made = reference.gradients(*rows, out, lse, dlse=dlse[:, :, a:b], **words)
        made.pop("t")
        most = maxima(*rows[1:3], **words)
        for name, x in {"out": (out, out), "lse": (lse, lse), "most": (most, most), **made}.items():
            found.setdefault(name, []).append(x)

    def whole(name, x):
        if name == "dbias" or name[1:] not in SIDE:
            return np.concatenate(x, 3 if name == "dbias" else 2)
        return sum(x)

    return {name: [whole(name, y) for y in zip(*x)] for name, x in found.items()}


def maxima(q, k, sinks=None, dropout_p=0.0, seed=0, **words):
    """[batch, heads, rows]: the largest score of each row."""
    scores = reference.Scores(q, np.repeat(k, q.shape[1] // k.shape[1], axis=1), **words)
    return scores.value.max(-1, initial=-np.inf)
