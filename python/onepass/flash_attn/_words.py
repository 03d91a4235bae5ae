"""onepass's arguments from flash-attn's, and what the two write differently."""

import torch

from onepass._options import window_sides


def words_of(dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic):
    """onepass's arguments from flash-attn's."""
    if isinstance(window_size, torch.Tensor):
        window_size = window_size.tolist()
    left, right = window_sides(window_size)
    return {
        "mask": "causal_bottom_right" if causal else None,
        "window": (left, 0 if causal and right > 0 else right),  # causal is the right side there
        "scale": softmax_scale,
        "softcap": max(softcap, 0.0),  # there <= 0 is none
        "alibi_slopes": alibi_slopes,
        "dropout_p": dropout_p,
        "deterministic": deterministic,
    }


def seeded(dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, rng_state=None):
    """(the words that forward and backward share, the seed as a tensor)."""
    words = words_of(dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, False)
    del words["deterministic"]
    if dropout_p and rng_state is None:
        rng_state = torch.randint(2**62, (), dtype=torch.int64, device="cpu")
    words["seed"] = int(rng_state) if dropout_p else 0
    return words, rng_state


def bound(length):
    return int(length) or None if isinstance(length, torch.Tensor) else length or None


def their_lse(lse):
    """Theirs is +inf in rows that see no key."""
    return lse.masked_fill(lse == -torch.inf, torch.inf)


def our_lse(lse):
    return lse.masked_fill(lse == torch.inf, -torch.inf)
