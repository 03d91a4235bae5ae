"""Context parallelism without a framework: layouts, plans, and the words of a part's call."""

from . import call, layout, plan

__all__ = ["call", "layout", "plan"]
