"""onepass in the place of PyTorch's own attention: inside a block, or in PyTorch's dispatcher."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch

import onepass.torch

_lock = threading.Lock()
_depth = 0
_theirs: Any = None


@contextlib.contextmanager
def sdpa() -> Iterator[None]:
    """Inside the block ``torch.nn.functional.scaled_dot_product_attention`` is onepass's, in all threads.

    Code that has imported the function by its own name before keeps PyTorch's. Blocks may be nested.
    """
    global _depth, _theirs
    functional = torch.nn.functional
    with _lock:
        if _depth == 0:
            _theirs = functional.scaled_dot_product_attention
            functional.scaled_dot_product_attention = onepass.torch.scaled_dot_product_attention
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0:
                functional.scaled_dot_product_attention = _theirs


def register(*, activate: bool = True) -> None:
    """onepass as the flash attention of PyTorch's dispatcher, under the name "onepass": no function is replaced.

    ``torch.nn.functional.scaled_dot_product_attention``, ``torch.nn.attention.varlen`` and nested jagged tensors use it
    wherever PyTorch chooses flash attention, compiled code too. On Hopper PyTorch prefers cuDNN for SDPA:
    ``torch.backends.cuda.enable_cudnn_sdp(False)`` turns to flash attention. float64 and head dims above 512 keep
    PyTorch's kernel.
    Dropout is refused. ``torch.nn.attention.restore_flash_attention_impl()`` ends it.

    Args:
      activate: False only adds the name; ``torch.nn.attention.activate_flash_attention_impl("onepass")`` activates it.

    Raises:
      RuntimeError: this PyTorch has no register_flash_attention_impl.
    """
    from ._torch_register import add

    add(activate)
