"""Attention over the paged cache of transformers' continuous batching, in place: no key is gathered."""

import contextlib
import functools
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import onepass.torch

from ._transformers_maxima import recorded


@contextlib.contextmanager
def attention_named(model: Any, name: str) -> Iterator[None]:
    """Inside the block the attention of a model and of its parts is the implementation of this name.

    It goes past `set_attn_implementation`: that looks for a flash-attn package behind each name with "flash" in it.
    """
    before = [(config, config._attn_implementation) for config in _configs(model.config)]
    model.config._attn_implementation = name
    try:
        yield
    finally:
        for config, old in before:  # parents first: setting one sets its parts
            config._attn_implementation = old


# The name of onepass while it serves: transformers refuses names without "flash" in it, and plans masks for them.
SERVING = "onepass_flash"


def accept(name: str) -> None:
    """Makes continuous batching accept models whose attention has this name, under the name SERVING."""
    try:
        from transformers.generation.continuous_batching.cache import PagedAttentionCache
        from transformers.generation.continuous_batching.continuous_api import ContinuousBatchingManager
    except ImportError:  # older versions have none
        return
    _names.add(name)
    _tell_of_caches(PagedAttentionCache)
    _switch_names(ContinuousBatchingManager)


def _switch_names(managers: Any) -> None:
    switch = getattr(managers, "switch_to_cb_friendly_attn", None)
    if switch is None or switch in _ours:
        return

    @functools.wraps(switch)
    def switch_to_cb_friendly_attn(manager: Any, model: Any, *args: Any, **kwargs: Any) -> None:
        before = model.config._attn_implementation
        if before not in _names:
            return switch(manager, model, *args, **kwargs)
        if before != SERVING:
            model.config._attn_implementation = SERVING
            manager._original_attn_impl = before  # which the manager sets when it stops
        return None

    managers.switch_to_cb_friendly_attn = switch_to_cb_friendly_attn
    _ours.append(switch_to_cb_friendly_attn)


def _tell_of_caches(caches: Any) -> None:
    """Makes layers tell `attend` of their paged cache, and leave storing to it.

    Since transformers 5.24 a layer stores its keys and gathers all of them before it calls its attention function.
    """
    store = caches.update
    if store in _ours:
        return

    @functools.wraps(store)
    def update(
        cache: Any, key_states: Tensor, value_states: Tensor, layer_idx: int, kwargs: dict[str, Any]
    ) -> tuple[Tensor, Tensor]:
        if cache.config._attn_implementation not in _names:
            return store(cache, key_states, value_states, layer_idx, kwargs)
        kwargs["cache"] = cache
        return key_states, value_states

    caches.update = update
    _ours.append(update)


_names: set[str] = set()  # which accept() was given
_ours: list[Any] = []  # methods of transformers' classes that are made here


def _configs(config: Any) -> Iterator[Any]:
    yield config
    for key in config.sub_configs:
        part = getattr(config, key, None)
        if part is not None:
            yield from _configs(part)


def attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, cache: Any, options: dict[str, Any], step: dict[str, Any]
) -> Tensor:
    """out ``[1, tokens, heads, dim]`` of a step's tokens, ``[1, heads, tokens, dim]``, after their keys are stored.

    `step` holds what transformers tells of a step. Its `read_index` has the slot of each key that a sequence reads,
    `write_index` the slot of each new key, both by group of layers. `read_index` is empty if no key is in the cache.
    """
    if not hasattr(cache, "layer_to_allocator"):
        raise NotImplementedError("onepass.transformers.serving does not support transformers before 5.23")
    if step.get("block_table") is not None:
        raise NotImplementedError("onepass does not support transformers' block_table; set max_blocks_per_request=0")
    layer = module.layer_idx
    group = cache.layer_to_allocator[layer]
    read, write = step["read_index"][group.index], step["write_index"][group.index]
    cu, longest = step["cu_seq_lens_k"][group.layer_type], step["max_length_k"][group.layer_type]
    q, k, v = (x.squeeze(0).transpose(0, 1) for x in (query, key, value))
    windowed = group.layer_type == "sliding_attention"
    if windowed or read.numel() == 0:
        # A window is a ring of slots, so no page holds keys in order: its last keys are packed before the new ones.
        k, v = group.update(k, v, layer, read, write)
        keys = dict(cu_seqlens_k=cu, max_seqlen_k=longest)
    else:
        new, (k, v) = (k, v), group.get_cache_for_block_table(layer)
        # K's and V's pages are views of one array, a page apart: append_kv refuses outputs that share memory.
        for pages, x in zip((k, v), new):
            pages.flatten(0, 1).index_copy_(0, write, x)
        keys = _pages(group, layer, read, cu, longest)
    attention = recorded(module, onepass.torch.attention)
    out: Tensor = attention(
        q,
        k,
        v,
        mask="causal_bottom_right",
        window=(group.sliding_window - 1, 0) if windowed else None,
        cu_seqlens_q=step["cu_seq_lens_q"],
        max_seqlen_q=step["max_length_q"],
        **keys,
        **options,
    )
    return out.unsqueeze(0)


def _pages(group: Any, layer: int, read: Tensor, cu: Tensor, longest: int) -> dict[str, Tensor]:
    """The page table and lengths of a step: made for a group's first layer, and kept for its others.

    The slots of a page follow each other, so the slot of each first key of a page says which page it is.
    """
    if layer == group.layer_indices[0]:
        size = group.tokens_per_page
        first = cu[:-1, None] + torch.arange(0, longest, size, device=cu.device)
        slots = read[first.clamp_(max=read.numel() - 1)]
        table = torch.div(slots, size, rounding_mode="floor").int()
        _steps[group] = dict(page_table=table, seqused_k=cu.diff().int())
    return _steps[group]


# By the group of layers: the tables of the step that runs.
_steps: weakref.WeakKeyDictionary[Any, dict[str, Tensor]] = weakref.WeakKeyDictionary()
