"""The interface of a peer: a library that is timed beside onepass."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Asked:
    """One problem in a peer's words."""

    run: Callable  # computes the problem once
    timer: object  # timing.Timer or timing.CpuTimer
    about: dict = field(default_factory=dict)  # the rest of the answer: note, extra_bytes
    context: Callable = contextlib.nullcontext  # makes the context in which `run` is timed

    def answer(self, seconds):
        with self.context():
            return self.timer.answer(self.run, seconds) | self.about


class Peer:
    """The base class of a plug-in; the dict PEERS of its file holds it by name."""

    module = "torch"  # import name; without it the peer is not installed

    def __init__(self, module):
        self.torch = module

    @staticmethod
    def version(module):
        return module.__version__

    def prepare(self, problem, threads):
        """The problem as Asked. Raises Refused if the peer does not compute it."""
        raise NotImplementedError
