"""The keywords of onepass.attention, which other functions take too. A keyword that it gains is theirs as well."""

import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from . import _onepass, _options, _unknown
from ._attention import attention

_Function = TypeVar("_Function", bound=Callable[..., Any])

BAND = ("mask", "align_offset", "window")  # one option of the table
_EVERYWHERE = {"mod_buffers", "layout", "implementation", "threads"}
_INPUTS = {name for name, _ in _options._SIDE_INPUTS}
_OPTIONS = [(name, kind) for name, kind, forward, backward in _onepass.attention_options() if forward and backward]
# Those of attention that its derivatives take too.
OF_DERIVATIVES = _EVERYWHERE | _INPUTS | {x for name, kind in _OPTIONS for x in (BAND if kind == "band" else (name,))}


def shared(
    called: str, take: Iterable[str] | None = None, without: Iterable[str] = (), of: Any = attention, **more: Any
) -> Callable[[_Function], _Function]:
    """Gives a function of ``**options`` the keywords of another, and `more` with their defaults.

    Its signature and help list them. take: which of the other's, None for all; without: which not; called: the
    function's name in error messages.
    """
    theirs = {
        name: x for name, x in _options.keywords(of).items() if (take is None or name in take) and name not in without
    }

    def give(function: _Function) -> _Function:
        keywords = {**more, **theirs, **more}  # its own first, with its own defaults
        arrays = [x for x in inspect.signature(function).parameters.values() if x.kind is x.POSITIONAL_OR_KEYWORD]
        options = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=x) for name, x in keywords.items()]
        vars(function).update(called=called, keywords=keywords, __signature__=inspect.Signature([*arrays, *options]))
        return function

    return give


def given(function: Any, options: dict[str, Any], /, **arrays: Any) -> dict[str, Any]:
    """All arguments of a call by name: keywords that it does not give at their defaults, and its arrays."""
    keywords = function.keywords
    found = {**keywords, **options}
    if len(found) != len(keywords):
        _unknown.refuse(function.called, [name for name in options if name not in keywords], keywords)
    found.update(arrays)
    return found
