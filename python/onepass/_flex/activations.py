"""Activation functions of symbols, by the names that PyTorch gives them, in terms of other operations."""

from typing import Any

from .arithmetic import add, div, mul, named, neg, number, sub
from .symbol import CALLS, refuse

# Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26: erf is off by at most 1.5e-7.
_ERF = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
_ERF_P = 0.3275911


@named("erf")
def erf(a: Any) -> Any:
    a = number(a)
    size = CALLS["abs"](a)
    t = div(1.0, add(mul(_ERF_P, size), 1.0))
    sum_: Any = 0.0
    for factor in reversed(_ERF):
        sum_ = mul(add(sum_, factor), t)
    found = sub(1.0, mul(sum_, CALLS["exp"](neg(mul(size, size)))))
    return CALLS["where"](CALLS["lt"](a, 0.0), neg(found), found)


@named("gelu")
def gelu(a: Any, *, approximate: str = "none") -> Any:
    a = number(a)
    if approximate == "tanh":
        cubic = add(a, mul(0.044715, mul(a, mul(a, a))))
        return mul(mul(0.5, a), add(1.0, CALLS["tanh"](mul(0.7978845608028654, cubic))))
    if approximate != "none":
        refuse(f"gelu(approximate={approximate!r})")
    return mul(mul(0.5, a), add(1.0, erf(mul(a, 0.7071067811865476))))


@named("silu", "swish")
def silu(a: Any, inplace: bool = False) -> Any:
    return mul(number(a), CALLS["sigmoid"](a))


@named("leaky_relu")
def leaky_relu(a: Any, negative_slope: float = 0.01, inplace: bool = False) -> Any:
    a = number(a)
    return CALLS["where"](CALLS["lt"](a, 0.0), mul(negative_slope, a), a)


@named("softplus")
def softplus(a: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    scaled = mul(number(a), float(beta))
    small = div(CALLS["log1p"](CALLS["exp"](CALLS["minimum"](scaled, float(threshold)))), float(beta))
    return CALLS["where"](CALLS["gt"](scaled, float(threshold)), number(a), small)
