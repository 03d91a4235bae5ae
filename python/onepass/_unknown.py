"""Keyword arguments that a function does not have: those of other libraries are answered with ours."""

from collections.abc import Iterable, Mapping
from typing import Any

from . import _onepass


def refuse(function: str, unknown: Iterable[str], known: Mapping[str, Any]) -> None:
    """Raises a TypeError about the first of `unknown`; `known` are the options that the function has."""
    name = next(iter(unknown))
    sentence = f"{function} does not accept {name!r}"
    if theirs := _onepass.foreign_word(name):
        raise TypeError(f"{sentence}: {theirs}")
    import difflib  # takes longer to import than onepass does

    close = difflib.get_close_matches(name, known, 1)
    raise TypeError(
        f"{sentence}; did you mean {close[0]!r}?" if close else f"{sentence}; it accepts {', '.join(known)}"
    )
