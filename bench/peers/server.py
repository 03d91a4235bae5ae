"""Times peers for `onepass bench`, which starts this program and asks line by line.

    hello                                   -> {"peers": {"torch": "2.11.0", "onnxruntime": null}}
    <peer> <threads> <seconds> <problem>    -> {"peer", "version", "median_s", "min_s", "runs"}
                                               {"peer", "missing": why} or {"peer", "refused": why}
    ceiling matmul|copy <device> <seconds>  -> {"flops_per_s"} or {"bytes_per_s"}

timing.py tells how CPU and CUDA peers are timed; CUDA peers ignore the threads. A peer is not asked for the LSE. A
problem that a peer cannot compute is refused and never replaced; `note` tells how the peer was asked.
"""

import gc
import importlib
import json
import os
import sys

import bench
from bench.peers import PEERS
from bench.peers.torch_cuda import Ceilings
from bench.problem import Problem, Refused


class Server:
    """Keeps the last problem of each peer: a benchmark asks for the same problem in several rounds."""

    def __init__(self):
        self.modules, self.ready, self.ceilings = {}, {}, {}

    def module(self, peer):
        name = PEERS[peer].module
        if name not in self.modules:
            try:
                self.modules[name] = importlib.import_module(name)
            except ImportError:
                self.modules[name] = None
        return self.modules[name]

    def version(self, peer):
        module = self.module(peer)
        return module and PEERS[peer].version(module)

    def prepared(self, peer, threads, line):
        key, asked = self.ready.get(peer, (None, None))
        if key != (threads, line):
            if any(other != (threads, line) for other, _ in self.ready.values()):
                self.ready.clear()
                gc.collect()  # frees the last problem's arrays before the next ones are made
            asked = PEERS[peer](self.module(peer)).prepare(Problem.parse(line), threads)
            self.ready[peer] = (threads, line), asked
        return asked

    def ceiling(self, words):
        """The ceilings of a CUDA device through PyTorch; their tensors stay on the device."""
        torch = self.module("torch-math")
        if torch is None:
            return {"missing": "PyTorch is not installed"}
        if len(words) != 4 or words[1] not in ("matmul", "copy"):
            raise Refused(f"must be ceiling matmul|copy <device> <seconds> (got {' '.join(words)!r})")
        if words[2] not in self.ceilings:
            self.ceilings[words[2]] = Ceilings(torch, words[2])
        return self.ceilings[words[2]].answer(words[1], float(words[3]))

    def answer(self, line):
        words = line.strip().split(maxsplit=3)
        peer = words[0] if words else ""
        try:
            if words == ["hello"]:
                return {"peers": {peer: self.version(peer) for peer in PEERS}}
            if peer == "ceiling":
                return self.ceiling(words)
            if peer not in PEERS:
                return {"peer": peer, "missing": f"unknown peer; known: {', '.join(PEERS)}"}
            if self.module(peer) is None:
                return {"peer": peer, "missing": "not installed"}
            if len(words) < 4:
                raise Refused(f"must be <peer> <threads> <seconds> <problem> (got {line.strip()!r})")
            asked = self.prepared(peer, int(words[1]), words[3])
            return {"peer": peer, "version": self.version(peer), **asked.answer(float(words[2]))}
        except Refused as e:
            return {"peer": peer, "refused": str(e)}
        except Exception as e:  # a peer's own refusal, in its own words
            return {"peer": peer, "refused": (str(e) or type(e).__name__).splitlines()[0][:200]}


def main(argv):
    bench.parser("peers", __doc__).parse_args(argv)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keeps the output of libraries away from the answers
    server = Server()
    for line in sys.stdin:
        print(json.dumps(server.answer(line)), file=answers, flush=True)
