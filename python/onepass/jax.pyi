from collections.abc import Iterable
from typing import Any, Literal, overload

from jax import Array
from jax.typing import ArrayLike
from typing_extensions import Unpack

from ._jax_ranks import Layout as Layout
from ._jax_ranks import context_parallel_attention as context_parallel_attention
from ._quantized import Quantized as Quantized
from ._signatures import AppendOptions, AttentionOptions, BackwardOptions
from ._signatures import Layout as _Layout

class _Options(AttentionOptions[ArrayLike], total=False):
    deterministic: bool
    out_dtype: Any

_Input = ArrayLike | Quantized

@overload
def attention(
    q: _Input,
    k: _Input,
    v: _Input,
    *,
    return_lse: Literal[False] = False,
    return_max: Literal[False] = False,
    return_entropy: Literal[False] = False,
    **options: Unpack[_Options],
) -> Array: ...
@overload
def attention(
    q: _Input,
    k: _Input,
    v: _Input,
    *,
    return_max: Literal[True, "head"],
    return_lse: bool = False,
    return_entropy: bool = False,
    **options: Unpack[_Options],
) -> tuple[Array, ...]: ...
@overload
def attention(
    q: _Input,
    k: _Input,
    v: _Input,
    *,
    return_lse: Literal[True],
    return_max: Literal[False] = False,
    return_entropy: Literal[False] = False,
    **options: Unpack[_Options],
) -> tuple[Array, Array]: ...
@overload
def attention(
    q: _Input,
    k: _Input,
    v: _Input,
    *,
    return_lse: bool,
    return_max: Literal[False] = False,
    return_entropy: Literal[False] = False,
    **options: Unpack[_Options],
) -> Array | tuple[Array, Array]: ...
@overload
def attention(
    q: _Input,
    k: _Input,
    v: _Input,
    *,
    return_entropy: Literal[True],
    return_lse: bool = False,
    return_max: bool | Literal["head"] = False,
    **options: Unpack[_Options],
) -> tuple[Array, ...]: ...
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
    **options: Unpack[AppendOptions[ArrayLike]],
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
def key_mass(
    q: ArrayLike, k: ArrayLike, lse: ArrayLike, *, deterministic: bool = False, **options: Unpack[BackwardOptions[Any]]
) -> Array: ...
def weights(
    q: ArrayLike,
    k: ArrayLike,
    lse: ArrayLike,
    *,
    mean: Literal["heads"] | None = "heads",
    deterministic: bool = False,
    **options: Unpack[BackwardOptions[Any]],
) -> Array: ...
def merge(outs: Iterable[ArrayLike], lses: Iterable[ArrayLike]) -> tuple[Array, Array]: ...
