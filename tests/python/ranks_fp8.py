"""The calls in float8_e4m3fn that tests of ranks make, in PyTorch and in JAX."""

LENGTH, HEADS, HEADS_KV = 90, 6, 3
MASKS = {
    "full": {},
    "window": {"causal": True, "window": (20, 0)},
    "documents": {"causal": True, "documents": (0, 1, 17, 17, 60, LENGTH)},
}
