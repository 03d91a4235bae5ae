from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypedDict, overload

from jax import Array
from jax.typing import ArrayLike
from typing_extensions import Unpack

from ._jax_ranks import Layout as Layout
from ._jax_ranks import context_parallel_attention as context_parallel_attention
from ._quantized import Quantized as Quantized

_Mask = Literal["causal_bottom_right", "causal_top_left", "causal_offset", "aligned_top_left", "aligned_offset"] | None
_Layout = Literal["bhsd", "bshd"]

class _Options(TypedDict, total=False):
    """The keywords of attention, but return_lse."""

    mask: _Mask
    align_offset: int | None
    window: tuple[int, int] | None
    bool_mask: ArrayLike | None
    bias: ArrayLike | None
    alibi_slopes: ArrayLike | None
    sinks: ArrayLike | None
    scale: float | None
    softcap: float
    dropout_p: float
    seed: int | None
    dropout_start: tuple[int, int, int, int] | None
    cu_seqlens_q: ArrayLike | None
    cu_seqlens_k: ArrayLike | None
    max_seqlen_q: int | None
    max_seqlen_k: int | None
    seqused_k: ArrayLike | None
    page_table: ArrayLike | None
    tree: ArrayLike | None
    batch_invariant: bool
    q_descale: ArrayLike | None
    k_descale: ArrayLike | None
    v_descale: ArrayLike | None
    v_mean: ArrayLike | None
    fp8: bool | Mapping[str, Any]
    accumulation: Literal["exact", "fast"]
    unified_max: float | None
    deterministic: bool
    score_mod: str | Callable[..., Any] | None
    mask_mod: str | Callable[..., Any] | None
    mod_buffers: Mapping[str, ArrayLike] | None
    out_dtype: Any
    layout: _Layout
    implementation: str | None
    threads: int | None

_Input = ArrayLike | Quantized

@overload
def attention(
    q: _Input, k: _Input, v: _Input, *, return_lse: Literal[False] = False, **options: Unpack[_Options]
) -> Array: ...
@overload
def attention(
    q: _Input, k: _Input, v: _Input, *, return_lse: Literal[True], **options: Unpack[_Options]
) -> tuple[Array, Array]: ...
@overload
def attention(
    q: _Input, k: _Input, v: _Input, *, return_lse: bool, **options: Unpack[_Options]
) -> Array | tuple[Array, Array]: ...
@overload
def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: ArrayLike | None = None,
    key_value_seq_lengths: ArrayLike | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
    return_residual: Literal[False] = False,
) -> Array: ...
@overload
def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: ArrayLike | None = None,
    key_value_seq_lengths: ArrayLike | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
    return_residual: bool,
) -> Array | tuple[Array, Array]: ...
def append_kv(
    k_new: ArrayLike,
    v_new: ArrayLike,
    k_cache: ArrayLike,
    v_cache: ArrayLike,
    *,
    cache_seqlens: ArrayLike | None = None,
    slot_mapping: ArrayLike | None = None,
    positions: ArrayLike | None = None,
    page_table: ArrayLike | None = None,
    cu_seqlens_q: ArrayLike | None = None,
    cos: ArrayLike | None = None,
    sin: ArrayLike | None = None,
    cos_sin_cache: ArrayLike | None = None,
    interleaved: bool = False,
    k_descale: ArrayLike | None = None,
    v_descale: ArrayLike | None = None,
    q: ArrayLike | None = None,
    layout: _Layout = "bhsd",
    threads: int | None = None,
) -> tuple[Array, ...]: ...
def quantize(
    x: ArrayLike,
    *,
    factors: Literal["block", "head", "tensor"] = "head",
    hadamard: bool = False,
    seed: int = 0,
    mean: bool = False,
    layout: _Layout = "bhsd",
    threads: int | None = None,
) -> Quantized: ...
def merge(outs: Iterable[ArrayLike], lses: Iterable[ArrayLike]) -> tuple[Array, Array]: ...
