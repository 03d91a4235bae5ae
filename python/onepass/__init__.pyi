from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar, overload

from typing_extensions import Unpack

from ._block_mask import BlockMask as BlockMask
from ._block_mask import block_mask as block_mask
from ._quantized import Quantized as Quantized
from ._signatures import AppendOptions, AttentionOptions, BackwardOptions, Layout, StatisticsOptions

__version__: str
__all__: list[str]

# A NumPy array, a torch tensor, or any array with DLPack. Results are of the kind of q (merge: of the first out).
_Array = TypeVar("_Array")

class _Options(AttentionOptions[Any], total=False):
    recomputed: Any

@overload
def attention(q: Quantized, k: Any, v: Any, **options: Any) -> Any: ...
@overload
def attention(
    q: _Array,
    k: Any,
    v: Any,
    *,
    return_lse: Literal[False] = False,
    return_max: Literal[False] = False,
    return_entropy: Literal[False] = False,
    out: _Array | None = None,
    **options: Unpack[_Options],
) -> _Array: ...
@overload
def attention(
    q: _Array,
    k: Any,
    v: Any,
    *,
    return_max: Literal[True, "head"],
    return_lse: bool = False,
    return_entropy: bool = False,
    out: _Array | None = None,
    **options: Unpack[_Options],
) -> tuple[Any, ...]: ...
@overload
def attention(
    q: _Array,
    k: Any,
    v: Any,
    *,
    return_lse: Literal[True],
    return_max: Literal[False] = False,
    return_entropy: Literal[False] = False,
    out: _Array | None = None,
    **options: Unpack[_Options],
) -> tuple[_Array, Any]: ...
@overload
def attention(
    q: _Array,
    k: Any,
    v: Any,
    *,
    return_lse: bool,
    return_max: Literal[False] = False,
    return_entropy: Literal[False] = False,
    out: _Array | None = None,
    **options: Unpack[_Options],
) -> _Array | tuple[_Array, Any]: ...
@overload
def attention(
    q: _Array,
    k: Any,
    v: Any,
    *,
    return_entropy: Literal[True],
    return_lse: bool = False,
    return_max: bool | Literal["head"] = False,
    out: _Array | None = None,
    **options: Unpack[_Options],
) -> tuple[Any, ...]: ...

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
    entropy: Any = None,
    dentropy: Any = None,
    grads: _Gradient | Iterable[_Gradient] = ("dq", "dk", "dv"),
    grad_dtype: Literal["float32"] | None = None,
    into: Mapping[str, Any] | None = None,
    deterministic: bool = False,
    **options: Unpack[BackwardOptions[Any]],
) -> tuple[_Array, ...]: ...
def backward_jvp(
    dout: Any,
    q: _Array,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    tq: Any,
    tk: Any,
    tv: Any,
    tout: Any,
    tlse: Any,
    *,
    tdout: Any = None,
    dlse: Any = None,
    tdlse: Any = None,
    tbias: Any = None,
    tsinks: Any = None,
    grads: _Gradient | Iterable[_Gradient] = ("dq", "dk", "dv"),
    grad_dtype: Literal["float32"] | None = None,
    deterministic: bool = False,
    **options: Unpack[BackwardOptions[Any]],
) -> tuple[_Array, ...]: ...
def key_mass(q: _Array, k: Any, lse: Any, **options: Unpack[StatisticsOptions[Any]]) -> _Array: ...
def weights(
    q: _Array, k: Any, lse: Any, *, mean: Literal["heads"] | None = "heads", **options: Unpack[StatisticsOptions[Any]]
) -> _Array: ...
def append_kv(
    k_new: Any, v_new: Any, k_cache: Any, v_cache: Any, *, q_out: Any = None, **options: Unpack[AppendOptions[Any]]
) -> Any: ...
def cascade(
    q: _Array,
    levels: Iterable[Mapping[str, Any]],
    *,
    sinks: Any = None,
    return_lse: bool = False,
    return_max: bool | Literal["head"] = False,
    out: _Array | None = None,
    **options: Any,
) -> Any: ...
@overload
def jvp(
    q: _Array,
    k: _Array,
    v: _Array,
    tq: _Array | None,
    tk: _Array | None,
    tv: _Array | None,
    *,
    tbias: Any = None,
    tsinks: Any = None,
    return_lse: Literal[False] = False,
    **options: Unpack[BackwardOptions[Any]],
) -> tuple[_Array, _Array]: ...
@overload
def jvp(
    q: _Array,
    k: _Array,
    v: _Array,
    tq: _Array | None,
    tk: _Array | None,
    tv: _Array | None,
    *,
    tbias: Any = None,
    tsinks: Any = None,
    return_lse: Literal[True],
    **options: Unpack[BackwardOptions[Any]],
) -> tuple[_Array, _Array, _Array, _Array]: ...
def merge(
    outs: Iterable[_Array],
    lses: Iterable[Any],
    *,
    out: _Array | None = None,
    lse: Any = None,
    threads: int | None = None,
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
    layout: Layout = "bhsd",
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
