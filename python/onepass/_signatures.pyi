"""The keywords that the functions of onepass, onepass.torch and onepass.jax share, by the kind of their arrays."""

from collections.abc import Callable, Mapping
from typing import Any, Generic, Literal, TypedDict, TypeVar

from ._block_mask import BlockMask

_Array = TypeVar("_Array")

Layout = Literal["bhsd", "bshd"]
Mask = Literal["causal_bottom_right", "causal_top_left", "causal_offset", "aligned_top_left", "aligned_offset"] | None

class BackwardOptions(TypedDict, Generic[_Array], total=False):
    """Keywords of attention and its backward."""

    mask: Mask
    align_offset: int | None
    window: tuple[int, int] | None
    bool_mask: _Array | None
    block_mask: _Array | BlockMask | None
    mask_tile_q: int | None
    mask_tile_k: int | None
    bias: _Array | None
    alibi_slopes: _Array | None
    sinks: _Array | None
    scale: float | None
    softcap: float
    dropout_p: float
    seed: int | _Array | None
    dropout_start: tuple[int, int, int, int] | None
    cu_seqlens_q: _Array | None
    cu_seqlens_k: _Array | None
    max_seqlen_q: int | None
    max_seqlen_k: int | None
    score_mod: str | Callable[..., Any] | None
    mask_mod: str | Callable[..., Any] | None
    mod_buffers: Mapping[str, _Array] | None
    precision: Literal["fp32", "tf32"]
    layout: Layout
    implementation: str | None
    threads: int | None

class AttentionOptions(BackwardOptions[_Array], Generic[_Array], total=False):
    """Keywords of attention, but return_lse."""

    seqused_k: _Array | None
    page_table: _Array | None
    tree: _Array | None
    batch_invariant: bool
    partial: bool
    q_descale: _Array | None
    k_descale: _Array | None
    v_descale: _Array | None
    v_mean: _Array | None
    fp8: bool | Mapping[str, Any]
    accumulation: Literal["exact", "fast"]
    unified_max: float | None

class StatisticsOptions(BackwardOptions[_Array], Generic[_Array], total=False):
    """Keywords of key_mass and weights."""

    deterministic: bool
    seqused_k: _Array | None
    page_table: _Array | None

class AppendOptions(TypedDict, Generic[_Array], total=False):
    """Keywords of append_kv."""

    cache_seqlens: _Array | None
    slot_mapping: _Array | None
    positions: _Array | None
    page_table: _Array | None
    cu_seqlens_q: _Array | None
    cos: _Array | None
    sin: _Array | None
    cos_sin_cache: _Array | None
    interleaved: bool
    k_descale: _Array | None
    v_descale: _Array | None
    q: _Array | None
    layout: Layout
    threads: int | None
