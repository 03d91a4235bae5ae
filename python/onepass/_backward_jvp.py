"""Second derivatives: forward mode of the gradients of attention."""

from typing import Any

from . import _arrays, _devices, _gradients, _keywords, _onepass, _options
from ._jvp import zero_tangent


@_keywords.shared(
    "backward_jvp",
    _keywords.OF_DERIVATIVES,
    tdout=None,
    dlse=None,
    tdlse=None,
    tbias=None,
    tsinks=None,
    grads=("dq", "dk", "dv"),
    grad_dtype=None,
    deterministic=False,
)
def backward_jvp(
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    tq: Any,
    tk: Any,
    tv: Any,
    tout: Any,
    tlse: Any,
    **options: Any,
) -> Any:
    """The derivatives of the gradients of ``attention`` along tangents of its inputs: its second derivatives.

    A Hessian is symmetric. With cotangents of dq, dk and dv as tq, tk and tv, the results are therefore also the
    gradients by q, k and v of a double backward. That by dout is tout, which ``jvp`` has computed.

    Args:
      dout: as ``attention_backward`` takes it.
      q, k, v: as ``attention`` takes them.
      out, lse, tout, tlse: what ``jvp(q, k, v, tq, tk, tv, ..., return_lse=True)`` returned as (out, tout, lse, tlse).
      tq, tk, tv: tangents, of the shapes and dtypes of q, k and v. None is 0.
      tdout: tangent of dout, of its shape and dtype. None is 0.
      dlse: float32 of lse's shape, the gradient by lse, if that was used too.
      tdlse: tangent of dlse, float32 of its shape. None is 0.
      tbias: tangent of bias, of its shape and dtype. None is 0.
      tsinks: tangent of sinks, float32 ``[heads_q]``. None is 0.
      grads: whose derivatives to compute, of ``"dq", "dk", "dv", "dbias", "dsinks", "dalibi_slopes"``.
      grad_dtype: of the derivatives of dq, dk and dv: None for q's dtype, or ``"float32"``. The others are float32.
      deterministic: the same bits every time. On the CPU it always is so, for any number of threads.
      options: the other keywords, as ``attention`` takes them. layout also holds for all tangents and results. Masks,
        slopes, buffers and the dropout's draws are constants.

    Returns:
      The derivatives of the gradients in the order of grads, of the shapes of the gradients. Rows that see no key and
      keys that no row sees have 0.

    Raises:
      ValueError, TypeError, RuntimeError: as ``attention``; nothing has been written then.
    """
    given = _keywords.given(backward_jvp, options, dout=dout, q=q, k=k, v=v, out=out, lse=lse, tout=tout, tlse=tlse)
    place = _devices.place_of(q)
    names = _gradients.names_of(given["grads"])
    call = _options.options(place, given)
    call["q"], call["k"], call["v"] = _options.inputs(place, q, k, v, call["tokens_first"])
    for name in ("dout", "out", "lse", "tout", "tlse"):
        if given[name] is None:
            raise TypeError(f"{name} must be an array (got None)")
        call[name] = _arrays.exported(name, given[name], place)
    for name, tangent, like in (("tq", tq, q), ("tk", tk, k), ("tv", tv, v)):
        call[name] = _arrays.exported(name, zero_tangent(name, like) if tangent is None else tangent, place)
    for name in ("dlse", "tdout", "tdlse", "tbias", "tsinks"):
        call[name] = _arrays.exported(name, given[name], place)
    call["deterministic"] = bool(given["deterministic"])
    results = _gradients.results_of(names, {**given, "into": None}, call)
    for name in _gradients.NAMES:
        call["t" + name] = _arrays.target("t" + name, results[name], place) if name in results else None
    _onepass.backward_jvp(call)
    place.finish()
    return tuple(_arrays.finished(results[name]) for name in names)
