from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Literal, overload

from torch import Tensor, device, dtype
from torch.nn.attention.flex_attention import AuxRequest
from typing_extensions import Unpack

from . import context_parallel as context_parallel
from ._flex.block_mask import BlockMask as BlockMask
from ._quantized import Quantized as Quantized
from ._signatures import AppendOptions, AttentionOptions, StatisticsOptions
from ._signatures import Layout as _Layout

class _Options(AttentionOptions[Tensor], total=False):
    recomputed: Tensor | None
    out: Tensor | None
    out_dtype: dtype | None
    deterministic: bool

_Input = Tensor | Quantized

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
) -> Tensor: ...
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
) -> tuple[Tensor, ...]: ...
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
) -> tuple[Tensor, Tensor]: ...
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
) -> Tensor | tuple[Tensor, Tensor]: ...
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
) -> tuple[Tensor, ...]: ...
def key_mass(q: Tensor, k: Tensor, lse: Tensor, **options: Unpack[StatisticsOptions[Tensor]]) -> Tensor: ...
def weights(
    q: Tensor,
    k: Tensor,
    lse: Tensor,
    *,
    mean: Literal["heads"] | None = "heads",
    **options: Unpack[StatisticsOptions[Tensor]],
) -> Tensor: ...
def append_kv(
    k_new: Tensor, v_new: Tensor, k_cache: Tensor, v_cache: Tensor, **options: Unpack[AppendOptions[Tensor]]
) -> Tensor | None: ...
def quantize(
    x: Tensor,
    *,
    factors: Literal["block", "head", "tensor"] = "head",
    hadamard: bool = False,
    seed: int = 0,
    mean: bool = False,
    layout: _Layout = "bhsd",
    threads: int | None = None,
) -> Quantized: ...
def merge(outs: Iterable[Tensor], lses: Iterable[Tensor]) -> tuple[Tensor, Tensor]: ...
def cascade(
    q: Tensor,
    levels: Iterable[Mapping[str, Any]],
    *,
    sinks: Tensor | None = None,
    return_lse: bool = False,
    return_max: bool | Literal["head"] = False,
    **options: Any,
) -> Any: ...
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor: ...
def register(*, activate: bool = True) -> None: ...
def sdpa() -> AbstractContextManager[None]: ...
def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Any] | None = None,
    block_mask: Any = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Any = None,
    *,
    return_aux: AuxRequest | None = None,
) -> Any: ...
def create_block_mask(
    mask_mod: Callable[..., Any],
    B: int | None,
    H: int | None,
    Q_LEN: int,
    KV_LEN: int,
    device: device | str | None = None,
    BLOCK_SIZE: int | tuple[int, int] = 128,
    _compile: bool = False,
    separate_full_blocks: bool = True,
    compute_dq_write_order: bool = False,
    dq_kv_order: bool = True,
) -> BlockMask: ...
def noop_mask(batch: Any, head: Any, token_q: Any, token_kv: Any) -> Any: ...
def or_masks(*mask_mods: Callable[..., Any]) -> Callable[..., Any]: ...
def and_masks(*mask_mods: Callable[..., Any]) -> Callable[..., Any]: ...
