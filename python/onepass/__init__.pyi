from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeVar, overload

from ._block_mask import BlockMask as BlockMask
from ._block_mask import block_mask as block_mask
from ._quantized import Quantized as Quantized

__version__: str
__all__: list[str]

# A NumPy array, a torch tensor, or any array with DLPack. Results are of the kind of q (merge: of the first out).
_Array = TypeVar("_Array")
_Layout = Literal["bhsd", "bshd"]
_Mask = Literal["causal_bottom_right", "causal_top_left", "causal_offset", "aligned_top_left", "aligned_offset"] | None

@overload
def attention(q: Quantized, k: Any, v: Any, **options: Any) -> Any: ...
@overload
def attention(
    q: _Array,
    k: Any,
    v: Any,
    *,
    mask: _Mask = None,
    align_offset: int | None = None,
    window: tuple[int, int] | None = None,
    bool_mask: Any = None,
    bias: Any = None,
    alibi_slopes: Any = None,
    sinks: Any = None,
    scale: float | None = None,
    softcap: float = 0.0,
    dropout_p: float = 0.0,
    seed: int | None = None,
    dropout_start: tuple[int, int, int, int] | None = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    seqused_k: Any = None,
    page_table: Any = None,
    tree: Any = None,
    batch_invariant: bool = False,
    q_descale: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    v_mean: Any = None,
    fp8: bool | Mapping[str, Any] = False,
    accumulation: Literal["exact", "fast"] = "exact",
    unified_max: float | None = None,
    recomputed: Any = None,
    score_mod: str | Callable[..., Any] | None = None,
    mask_mod: str | Callable[..., Any] | None = None,
    mod_buffers: Mapping[str, Any] | None = None,
    return_lse: Literal[False] = False,
    out: _Array | None = None,
    layout: _Layout = "bhsd",
    implementation: str | None = None,
    threads: int | None = None,
) -> _Array: ...
@overload
def attention(
    q: _Array,
    k: Any,
    v: Any,
    *,
    mask: _Mask = None,
    align_offset: int | None = None,
    window: tuple[int, int] | None = None,
    bool_mask: Any = None,
    bias: Any = None,
    alibi_slopes: Any = None,
    sinks: Any = None,
    scale: float | None = None,
    softcap: float = 0.0,
    dropout_p: float = 0.0,
    seed: int | None = None,
    dropout_start: tuple[int, int, int, int] | None = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    seqused_k: Any = None,
    page_table: Any = None,
    tree: Any = None,
    batch_invariant: bool = False,
    q_descale: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    v_mean: Any = None,
    fp8: bool | Mapping[str, Any] = False,
    accumulation: Literal["exact", "fast"] = "exact",
    unified_max: float | None = None,
    recomputed: Any = None,
    score_mod: str | Callable[..., Any] | None = None,
    mask_mod: str | Callable[..., Any] | None = None,
    mod_buffers: Mapping[str, Any] | None = None,
    return_lse: Literal[True],
    out: _Array | None = None,
    layout: _Layout = "bhsd",
    implementation: str | None = None,
    threads: int | None = None,
) -> tuple[_Array, Any]: ...
@overload
def attention(
    q: _Array,
    k: Any,
    v: Any,
    *,
    mask: _Mask = None,
    align_offset: int | None = None,
    window: tuple[int, int] | None = None,
    bool_mask: Any = None,
    bias: Any = None,
    alibi_slopes: Any = None,
    sinks: Any = None,
    scale: float | None = None,
    softcap: float = 0.0,
    dropout_p: float = 0.0,
    seed: int | None = None,
    dropout_start: tuple[int, int, int, int] | None = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    seqused_k: Any = None,
    page_table: Any = None,
    tree: Any = None,
    batch_invariant: bool = False,
    q_descale: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    v_mean: Any = None,
    fp8: bool | Mapping[str, Any] = False,
    accumulation: Literal["exact", "fast"] = "exact",
    unified_max: float | None = None,
    recomputed: Any = None,
    score_mod: str | Callable[..., Any] | None = None,
    mask_mod: str | Callable[..., Any] | None = None,
    mod_buffers: Mapping[str, Any] | None = None,
    return_lse: bool,
    out: _Array | None = None,
    layout: _Layout = "bhsd",
    implementation: str | None = None,
    threads: int | None = None,
) -> _Array | tuple[_Array, Any]: ...

_Gradient = Literal["dq", "dk", "dv", "dbias", "dsinks", "dalibi_slopes"]

def attention_backward(
    dout: Any,
    q: _Array,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    *,
    dlse: Any = None,
    grads: _Gradient | Iterable[_Gradient] = ("dq", "dk", "dv"),
    grad_dtype: Literal["float32"] | None = None,
    into: Mapping[str, Any] | None = None,
    deterministic: bool = False,
    mask: _Mask = None,
    align_offset: int | None = None,
    window: tuple[int, int] | None = None,
    bool_mask: Any = None,
    bias: Any = None,
    alibi_slopes: Any = None,
    sinks: Any = None,
    scale: float | None = None,
    softcap: float = 0.0,
    dropout_p: float = 0.0,
    seed: int | None = None,
    dropout_start: tuple[int, int, int, int] | None = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    score_mod: str | Callable[..., Any] | None = None,
    mask_mod: str | Callable[..., Any] | None = None,
    mod_buffers: Mapping[str, Any] | None = None,
    layout: _Layout = "bhsd",
    implementation: str | None = None,
    threads: int | None = None,
) -> tuple[_Array, ...]: ...
def append_kv(
    k_new: Any,
    v_new: Any,
    k_cache: Any,
    v_cache: Any,
    *,
    cache_seqlens: Any = None,
    slot_mapping: Any = None,
    positions: Any = None,
    page_table: Any = None,
    cu_seqlens_q: Any = None,
    cos: Any = None,
    sin: Any = None,
    cos_sin_cache: Any = None,
    interleaved: bool = False,
    k_descale: Any = None,
    v_descale: Any = None,
    q: Any = None,
    q_out: Any = None,
    layout: _Layout = "bhsd",
    threads: int | None = None,
) -> Any: ...
def cascade(
    q: _Array,
    levels: Iterable[Mapping[str, Any]],
    *,
    sinks: Any = None,
    return_lse: bool = False,
    out: _Array | None = None,
    **options: Any,
) -> Any: ...
def merge(
    outs: Iterable[_Array], lses: Iterable[Any], *, out: _Array | None = None, threads: int | None = None
) -> tuple[_Array, _Array]: ...
@overload
def softmax(
    x: _Array,
    *,
    scale: float = 1.0,
    log: bool = False,
    bool_mask: Any = None,
    row_lse: Any = None,
    return_lse: Literal[False] = False,
    lse_only: bool = False,
    out: _Array | None = None,
    threads: int | None = None,
) -> _Array: ...
@overload
def softmax(
    x: _Array,
    *,
    scale: float = 1.0,
    log: bool = False,
    bool_mask: Any = None,
    row_lse: Any = None,
    return_lse: Literal[True],
    lse_only: Literal[False] = False,
    out: _Array | None = None,
    threads: int | None = None,
) -> tuple[_Array, _Array]: ...
def softmax_backward(
    y: _Array,
    dy: Any,
    *,
    scale: float = 1.0,
    log: bool = False,
    out: _Array | None = None,
    threads: int | None = None,
) -> _Array: ...
def quantize(
    x: Any,
    *,
    factors: Literal["block", "head", "tensor"] = "head",
    hadamard: bool = False,
    seed: int = 0,
    mean: bool = False,
    layout: _Layout = "bhsd",
    threads: int | None = None,
) -> Quantized: ...
def flat_gemm(
    x: _Array, w: Any, *, column_bias: Any = None, out: _Array | None = None, threads: int | None = None
) -> _Array: ...
def linear(
    x: _Array, w: Any, *, column_bias: Any = None, out: _Array | None = None, threads: int | None = None
) -> _Array: ...
def unified_max_of(*lses: Any) -> float: ...
def merge_lse(lses: Iterable[_Array], *, threads: int | None = None) -> _Array: ...
@overload
def explain(q: str, *, target: str | None = None) -> str: ...
@overload
def explain(q: Any, k: Any, v: Any, *, target: str | None = None, **options: Any) -> str: ...
