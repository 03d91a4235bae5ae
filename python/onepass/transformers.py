"""onepass in Hugging Face's transformers: after ``register()``, ``attn_implementation="onepass"`` takes it.

``with context_parallel(layout):`` shards a sequence between ranks. ``with record_max(model):`` records the largest
scores. ``with serving(model):`` computes continuous batching. ``flash_attn_kernel()`` is a kernel for ``kernels``.
"""

import contextlib
import functools
import os
import pathlib
import re
from collections.abc import Iterator
from typing import Any, Literal

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

import onepass.torch
from onepass import _transformers_cache, _transformers_maxima, _transformers_ranks, _transformers_weights
from onepass import _transformers_masks as masks
from onepass._flex.block_mask import BlockMask
from onepass._statistics import check_mean

__all__ = ["context_parallel", "flash_attn_kernel", "record_max", "register", "serving"]


def __dir__() -> Any:
    return sorted(__all__)


def register(name: str = "onepass", *, expressions: bool = False, mean: Literal["heads"] | None = None) -> None:
    """Makes ``name`` an attention implementation: ``from_pretrained(..., attn_implementation=name)``.

    Grouped heads, windows, softcaps, sinks and position biases are computed as the models' eager attention does, in
    training too. Masks are bool, and there is none where causal order and a window say it all. Continuous batching
    (``generate_batch``) accepts the name, also as ``paged|name``.

    Args:
      expressions: masks are expressions where the model allows it, and no tensor of all rows and keys is made.
      mean: what ``output_attentions=True`` returns: with None each head's weights ``[batch, heads, rows, keys]``, as
        eager attention, with ``"heads"`` their mean over the heads, ``[batch, rows, keys]``. Neither has a gradient.
    """
    check_mean(mean)
    for each in {name, f"paged|{name}", _transformers_cache.SERVING}:
        AttentionInterface.register(each, functools.partial(_attend, mean=mean) if mean else _attend)
        AttentionMaskInterface.register(each, _expression if expressions else _mask)
        _transformers_cache.accept(each)


@contextlib.contextmanager
def context_parallel(
    layout: Any,
    group: Any = None,
    *,
    scheme: str = "auto",
    documents: Any = None,
    deterministic: bool = False,
    reproducible: bool = False,
    head_groups: int = 1,
) -> Iterator[None]:
    """Inside the block each rank's model has its rows of a sequence, and its attention sees the keys of all ranks.

    All ranks call their models alike, with ``layout.shard`` of the token ids and with ``layout.positions`` as
    ``position_ids``. The block applies to all threads and to models whose implementation is onepass. With gradient
    checkpointing the backward must be inside, too.

    Args:
      layout, group, scheme, documents, deterministic, reproducible, head_groups: as
        ``onepass.torch.context_parallel.attention`` takes them. Positions may also count in their document.
    """
    options = dict(scheme=scheme, documents=documents, head_groups=head_groups)
    options |= dict(deterministic=deterministic, reproducible=reproducible)
    with _transformers_ranks.inside(_transformers_ranks.Block(layout, group, options)):
        yield


@contextlib.contextmanager
def record_max(model: Any) -> Iterator[dict[str, torch.Tensor]]:
    """Inside the block the largest score of each head is recorded: what QK-clip needs of a training step.

    The scores are those that the softmax sees, as in ``return_max`` of ``onepass.attention``. With context parallelism
    they are those of all ranks. The block applies to all threads.

    Args:
      model: its layers whose implementation is onepass are recorded.

    Returns:
      A dict that grows in the block: the name of each attention module, as ``model.get_submodule`` takes it, and
      float32 ``[heads]``, the largest score of its calls in the block over batch and rows.
    """
    with _transformers_maxima.recording(model) as maxima:
        yield maxima


@contextlib.contextmanager
def serving(model: Any) -> Iterator[Any]:
    """Inside the block the continuous batching (``generate_batch``) of any model is computed by onepass.

    A model whose implementation is onepass needs no block. Keys and values are read where transformers' paged cache has
    them. The rolling cache of a sliding window is packed first, as transformers does. There are no gradients.
    """
    register(_transformers_cache.SERVING)
    with _transformers_cache.attention_named(model, _transformers_cache.SERVING):
        yield model


def flash_attn_kernel(name: str = "onepass/flash-attn2") -> str:
    """Makes onepass the kernel ``name`` of Hugging Face's ``kernels`` in this process, and returns the name.

    ``attn_implementation=flash_attn_kernel()`` then calls onepass as transformers calls flash-attn 2, in continuous
    batching too. ``kernels`` reads LOCAL_KERNELS of the environment, which gets an entry.

    Args:
      name: "OWNER/KERNEL". The name of a kernel on the Hub, as "kernels-community/flash-attn2", is then onepass too.
    """
    if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise ValueError(f"name must be OWNER/KERNEL (got '{name}')")
    folder = pathlib.Path(__file__).parent / "_hub_kernel"
    others = os.environ.get("LOCAL_KERNELS", "").split(":")
    entries = [entry for entry in others if entry and not entry.startswith(f"{name}=")]
    os.environ["LOCAL_KERNELS"] = ":".join([*entries, f"{name}={folder}"])
    return name


def _mask(
    *args: Any,
    local_size: Any = None,
    allow_is_causal_skip: bool = True,
    config: Any = None,
    make: Any = sdpa_mask,
    **kwargs: Any,
) -> Any:
    """The mask that transformers makes for PyTorch's function, but none for a causal window that `_attend` is told of.

    Written out are chunks, windows to both sides (ModernBERT) and those that a model's layers keep to themselves
    (PhiMoE, Qwen2-MoE).
    """
    if (block := _transformers_ranks.current()) is not None:
        block.check_mask(local_size=local_size, config=config, **kwargs)
        return None
    if allow_is_causal_skip and local_size is not None and local_size == getattr(config, "sliding_window", None):
        local_size = None if masks.layers_tell_their_window(type(config).__module__) else local_size
    kwargs |= {"local_size": local_size, "allow_is_causal_skip": allow_is_causal_skip, "config": config}
    return make(*args, **kwargs)


def _expression(*args: Any, **kwargs: Any) -> Any:
    """`_mask`, but an expression where the model and the mask function allow it."""
    found = _mask(*args, make=masks.expression_mask, **kwargs)
    return _mask(*args, **kwargs) if found is NotImplemented else found


def _attend(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    dropout: Any = 0.0,
    scaling: Any = None,
    is_causal: bool | None = None,
    sliding_window: Any = None,
    softcap: float | None = None,
    s_aux: Any = None,
    position_bias: Any = None,
    cache: Any = None,
    mean: Literal["heads"] | None = None,
    **kwargs: Any,
) -> tuple[Any, ...]:
    """(out ``[batch, seq, heads, dim]``, weights or None), of query, key and value ``[batch, heads, seq, dim]``."""
    if cache is not None:
        options = dict(scale=scaling, softcap=softcap or 0.0, sinks=s_aux)
        return _transformers_cache.attend(module, query, key, value, cache, options, kwargs), None
    rows, keys = query.shape[2], key.shape[2]
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if (block := _transformers_ranks.current()) is not None:
        words = dict(sinks=s_aux, scale=scaling, softcap=softcap or 0.0, dropout_p=dropout)
        if causal and attention_mask is None:
            words |= dict(causal=True, window=(-1 if sliding_window is None else sliding_window - 1, 0))
        kwargs["position_bias"] = position_bias
        out = block.attend(module, query, key, value, attention_mask, words, kwargs)
        return out.transpose(1, 2).contiguous(), None
    mask: Any = None
    window = bool_mask = None
    expression: dict[str, Any] = {}
    if isinstance(attention_mask, BlockMask):
        expression, attention_mask = masks.words_of(attention_mask), None
    elif attention_mask is not None:
        # The mask of a cache that is not full may be longer or shorter than the keys.
        attention_mask = attention_mask[..., :keys]
    elif causal:
        # Without a mask the queries are the first keys' or, one by one, the last key's: what transformers promises.
        mask = "causal_top_left" if rows > 1 else "causal_bottom_right"
        window = None if sliding_window is None else (sliding_window - 1, 0)
    bias = position_bias
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        bool_mask = attention_mask
    elif attention_mask is not None:
        bias = attention_mask if bias is None else bias + attention_mask
    words = dict(mask=mask, window=window, bool_mask=bool_mask, bias=bias, sinks=s_aux, scale=scaling)
    words |= dict(softcap=softcap or 0.0, **expression)
    attention = _transformers_maxima.recorded(module, onepass.torch.attention)
    if not _transformers_weights.asked(kwargs):
        return attention(query, key, value, dropout_p=dropout, **words).transpose(1, 2).contiguous(), None
    out, lse = attention(query, key, value, dropout_p=dropout, return_lse=True, **words)
    weights = _transformers_weights.weights(query, key, lse, mean, words)
    return out.transpose(1, 2).contiguous(), weights
