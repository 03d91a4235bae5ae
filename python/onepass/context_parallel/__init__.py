"""Context parallelism on torch.distributed: exact attention over a sequence that is sharded between ranks.

``onepass.torch.context_parallel`` is this package.
"""

from .attention import attention
from .decode import decode
from .layout import Layout
from .sdpa import sdpa

__all__ = ["Layout", "attention", "decode", "sdpa"]


def __dir__() -> list[str]:
    return sorted(__all__)
