"""The gradients of attention."""

from collections.abc import Mapping, Sequence
from typing import Any

from . import _arrays, _devices, _keywords, _kinds, _onepass, _options

# The input of each gradient; side inputs have theirs in float32.
_OF = {"dq": "q", "dk": "k", "dv": "v", "dbias": "bias", "dsinks": "sinks", "dalibi_slopes": "alibi_slopes"}
_SIDE = ("dbias", "dsinks", "dalibi_slopes")
NAMES = tuple(_OF)


@_keywords.shared(
    "attention_backward",
    _keywords.OF_DERIVATIVES,
    dlse=None,
    entropy=None,
    dentropy=None,
    grads=("dq", "dk", "dv"),
    grad_dtype=None,
    into=None,
    deterministic=False,
)
def attention_backward(dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, **options: Any) -> Any:
    """The gradients of ``attention``: dq, dk and dv of a loss from dout, its gradient by out.

    Takes what ``attention`` took, the seed of the dropout included, and what it returned: nothing but out and lse is
    kept between the two, and the score matrix is not stored here either. Where out and lse were merged from several
    calls over disjoint keys, each call's gradients come from the merged ones.

    Args:
      dout: of out's shape and dtype.
      q, k, v: as ``attention`` took them.
      out, lse: what ``attention(..., return_lse=True)`` returned.
      dlse: float32 of lse's shape, the gradient by lse, if that was used too.
      entropy, dentropy: what ``attention(..., return_entropy=True)`` returned, and the gradient by it, if that was used
        too: float32 of lse's shape.
      grads: which gradients to compute, of ``"dq", "dk", "dv", "dbias", "dsinks", "dalibi_slopes"``.
      grad_dtype: of dq, dk and dv: None for q's dtype, or ``"float32"``. The others are float32.
      into: a dict of arrays by the names in grads, to write those into; they share no memory with an input or each
        other. By default new arrays of the inputs' kind, in their memory order.
      deterministic: the same bits every time. On the CPU it always is so, for any number of threads.
      options: the other keywords, as ``attention`` took them. layout also holds for dout, dlse and the gradients.
        Buffers of expressions have no gradients.

    Returns:
      The gradients in the order of grads, ``(dq, dk, dv)`` by default. dbias has the shape of bias: sums over what it
      was broadcast along. Rows that see no key and keys that no row sees have gradients of 0.

    Raises:
      ValueError, TypeError, RuntimeError: as ``attention``; nothing has been written then.
    """
    given = _keywords.given(attention_backward, options, dout=dout, q=q, k=k, v=v, out=out, lse=lse)
    place = _devices.place_of(q)
    names = names_of(given["grads"])
    call = _options.options(place, given)
    call["q"], call["k"], call["v"] = _options.inputs(place, q, k, v, call["tokens_first"])
    for name in ("dout", "out", "lse"):
        if given[name] is None:
            raise TypeError(f"{name} must be an array (got None)")
    for name in ("dout", "out", "lse", "dlse", "entropy", "dentropy"):
        call[name] = _arrays.exported(name, given[name], place)
    call["deterministic"] = bool(given["deterministic"])
    results = results_of(names, given, call)
    for name in _OF:
        call[name] = _arrays.target(name, results[name], place) if name in results else None
    _onepass.attention_backward(call)
    place.finish()
    return tuple(_arrays.finished(results[name]) for name in names)


def names_of(grads: Any) -> Any:
    accepted = f"grads must be one or more of {', '.join(map(repr, _OF))} in an order, each once"
    if isinstance(grads, (set, frozenset)):  # whose order is not defined
        raise TypeError(f"{accepted} (got {type(grads).__name__})")
    try:
        names = (grads,) if isinstance(grads, str) else tuple(grads)
    except TypeError:
        raise TypeError(f"{accepted} (got {grads!r})") from None
    for i, name in enumerate(names):
        if not isinstance(name, str) or name not in _OF or name in names[:i]:
            raise ValueError(f"{accepted} (got {names!r})")
    return names


def results_of(names: Sequence[str], given: dict[str, Any], call: dict[str, Any]) -> Any:
    """By name, what is written into. New packed ones begin as 0: tokens beyond the last sequence are not computed."""
    into, dtype = {} if given["into"] is None else given["into"], given["grad_dtype"]
    if not isinstance(into, Mapping):
        raise TypeError(f"into must be a dict of arrays by the names in grads (got {type(into).__name__})")
    if dtype not in (None, "float32"):
        raise ValueError(f"grad_dtype must be None (q's dtype) or 'float32' (got {dtype!r})")
    for name in into:
        if name not in names:
            raise ValueError(f"into must have only names in grads (got {name!r})")
    packed = call["cu_seqlens_q"] is not None or call["cu_seqlens_k"] is not None
    results = {}
    for name in names:
        like = given[_OF[name]]
        if like is None:
            raise ValueError(f"grads asks for {name} but {_OF[name]} is None")
        if name in into:
            _kinds.refuse_immutable(into[name], name)
            results[name] = into[name]
        elif name in _SIDE:
            results[name] = _arrays.new(like, tuple(like.shape), "float32", ordered=False)
        else:
            _arrays.dtype_name(_OF[name], like)
            results[name] = _arrays.new(like, tuple(like.shape), dtype, fill=0.0 if packed else None)
    return results
