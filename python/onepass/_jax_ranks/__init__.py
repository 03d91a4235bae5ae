"""Context parallelism in JAX: exact attention over a sequence that is sharded along an axis of a mesh."""

from .attention import context_parallel_attention
from .layout import Layout

__all__ = ["Layout", "context_parallel_attention"]
