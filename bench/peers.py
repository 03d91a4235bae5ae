"""Times peers for `onepass bench`, which starts this and asks line by line.

    hello                                   -> {"peers": {"torch": "2.11.0", "onnxruntime": null}}
    <peer> <threads> <seconds> <problem>    -> {"peer", "version", "median_s", "min_s", "wall_median_s", "runs"}
                                               {"peer", "missing": why} or {"peer", "refused": why}

One thread is timed by its CPU time, several by the wall clock; wall_median_s is always the wall's. What a peer does not
compute (the LSE) is not asked of it; what it cannot compute is refused, never replaced by something else.
"""

import gc
import importlib
import json
import os
import re
import statistics
import sys
import time
from dataclasses import dataclass, field

import numpy as np


class Refused(Exception):
    pass


@dataclass
class Problem:
    """The words of docs/problem.md that peers can be asked for."""

    batch: int = 1
    heads: int = 1
    heads_kv: int = 1
    rows: int = 0
    keys: int = 0
    dim: int = 64
    dim_v: int = 64
    dtype: str = "fp32"
    causal: str = ""
    bshd: bool = False
    scale: float = 0.0  # 0: the default
    extras: list = field(default_factory=list)  # words of which a peer may refuse one

    @classmethod
    def parse(cls, line):
        p = cls()

        def pair(text, separator):
            first, _, second = text.partition(separator)
            return int(first), int(second or first)

        for word in line.split():
            if word in ("fwd", "cpu", "lse", "layout=bhsd"):
                continue
            elif word in ("fp32", "fp16", "bf16"):
                p.dtype = word
            elif word in ("causal_top_left", "causal_bottom_right"):
                p.causal = word
            elif word == "layout=bshd":
                p.bshd = True
            elif word.startswith("scale="):
                p.scale = float(word[6:])
            elif re.fullmatch(r"b\d+", word):
                p.batch = int(word[1:])
            elif re.fullmatch(r"h\d+(/\d+)?", word):
                p.heads, p.heads_kv = pair(word[1:], "/")
            elif re.fullmatch(r"s\d+(x\d+)?", word):
                p.rows, p.keys = pair(word[1:], "x")
            elif re.fullmatch(r"d\d+(/\d+)?", word):
                p.dim, p.dim_v = pair(word[1:], "/")
            else:
                p.extras.append(word)
        if p.causal == "causal_bottom_right" and p.rows == 1:
            p.causal = ""  # the only query sees every key
        return p

    def refuse_extras(self, accepted=()):
        for word in self.extras:
            if word.partition("=")[0] not in accepted:
                raise Refused(f"{word} is not timed")

    def arrays(self):
        """q, k, v [batch, heads, seq, dim] in fp32, the same on every call."""
        rng = np.random.default_rng(1)
        shapes = (
            (self.heads, self.rows, self.dim),
            (self.heads_kv, self.keys, self.dim),
            (self.heads_kv, self.keys, self.dim_v),
        )
        return [rng.standard_normal((self.batch, *shape), np.float32) for shape in shapes]


class Torch:
    module = "torch"

    def __init__(self, torch):
        self.torch = torch

    def prepare(self, problem, threads):
        """A function without arguments that computes the problem, as a user of PyTorch would write it."""
        torch, p = self.torch, problem
        p.refuse_extras()
        torch.set_num_threads(threads)
        dtype = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[p.dtype]
        q, k, v = (torch.from_numpy(x).to(dtype) for x in p.arrays())
        if p.bshd:
            q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
        options = {"scale": p.scale} if p.scale else {}
        if p.heads != p.heads_kv:
            options["enable_gqa"] = True
        if p.causal == "causal_top_left" or (p.causal and p.rows == p.keys):
            options["is_causal"] = True
        elif p.causal:
            options["attn_mask"] = torch.ones(p.rows, p.keys, dtype=torch.bool).tril(p.keys - p.rows)

        def run():
            with torch.inference_mode():
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)

        return run


class OnnxRuntime:
    """com.microsoft MultiHeadAttention (its flash kernel) where heads are not grouped, else ONNX 23's Attention."""

    module = "onnxruntime"

    def __init__(self, onnxruntime):
        self.ort = onnxruntime
        try:
            self.helper = importlib.import_module("onnx.helper")
        except ImportError:
            raise Refused("the package onnx, which builds the model, is not installed") from None

    def prepare(self, problem, threads):
        p = problem
        p.refuse_extras()
        if p.dtype == "bf16":
            raise Refused("it has no bf16 attention on the CPU")
        if p.causal and p.rows != p.keys:
            raise Refused("its causal masks are for square problems")
        element = np.float32 if p.dtype == "fp32" else np.float16
        q, k, v = (x.astype(element) for x in p.arrays())
        multi_head = p.heads == p.heads_kv and p.dtype == "fp32"
        if multi_head:  # [batch, seq, heads * dim]
            q, k, v = (
                np.ascontiguousarray(x.transpose(0, 2, 1, 3)).reshape(p.batch, x.shape[2], -1) for x in (q, k, v)
            )
        out_shape = (p.batch, p.rows, p.heads * p.dim_v) if multi_head else (p.batch, p.heads, p.rows, p.dim_v)
        session = self.session(p, threads, multi_head, [("q", q), ("k", k), ("v", v)], out_shape)
        binding = session.io_binding()
        inputs = {name: self.ort.OrtValue.ortvalue_from_numpy(x) for name, x in (("q", q), ("k", k), ("v", v))}
        out = self.ort.OrtValue.ortvalue_from_numpy(np.empty(out_shape, element))
        for name, value in inputs.items():
            binding.bind_ortvalue_input(name, value)
        binding.bind_ortvalue_output("out", out)

        def run():
            session.run_with_iobinding(binding)
            return out, inputs  # the inputs stay alive with the function

        return run

    def session(self, p, threads, multi_head, inputs, out_shape):
        helper = self.helper
        element = 1 if p.dtype == "fp32" else 10  # onnx.TensorProto.FLOAT, FLOAT16
        attributes = {"scale": p.scale} if p.scale else {}
        if multi_head:
            attributes |= {"num_heads": p.heads, "domain": "com.microsoft"} | (
                {"unidirectional": 1} if p.causal else {}
            )
        elif p.causal:
            attributes["is_causal"] = 1
        node = helper.make_node(
            "MultiHeadAttention" if multi_head else "Attention", ["q", "k", "v"], ["out"], **attributes
        )
        values = [helper.make_tensor_value_info(name, element, x.shape) for name, x in inputs]
        result = helper.make_tensor_value_info("out", element, out_shape)
        opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(
            helper.make_graph([node], "attention", values, [result]), opset_imports=opsets, ir_version=11
        )
        options = self.ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 4
        return self.ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


PEERS = {"torch": Torch, "onnxruntime": OnnxRuntime}


class Server:
    """Keeps what was prepared last for each peer: a benchmark asks for the same problem in several rounds."""

    def __init__(self):
        self.modules, self.ready = {}, {}

    def module(self, peer):
        if peer not in self.modules:
            try:
                self.modules[peer] = importlib.import_module(PEERS[peer].module)
            except ImportError:
                self.modules[peer] = None
        return self.modules[peer]

    def prepared(self, peer, threads, line):
        key, run = self.ready.get(peer, (None, None))
        if key != (threads, line):
            self.ready.pop(peer, None)
            gc.collect()  # the last problem's arrays go before the next one's come
            run = PEERS[peer](self.module(peer)).prepare(Problem.parse(line), threads)
            run()  # warm-up: pages, caches, thread pools
            self.ready[peer] = (threads, line), run
        return run

    def answer(self, line):
        if line.strip() == "hello":
            found = {peer: self.module(peer) for peer in PEERS}
            return {"peers": {peer: m and m.__version__ for peer, m in found.items()}}
        words = line.split(maxsplit=3)
        peer = words[0] if words else ""
        if peer not in PEERS:
            return {"peer": peer, "missing": f"unknown; {' and '.join(PEERS)} are known"}
        if self.module(peer) is None:
            return {"peer": peer, "missing": "not installed"}
        if len(words) < 4:
            return {
                "peer": peer,
                "refused": f"cannot read {line.strip()!r}: <peer> <threads> <seconds> <problem> is expected",
            }
        try:
            threads, seconds = int(words[1]), float(words[2])
            run = self.prepared(peer, threads, words[3])
        except Refused as e:
            return {"peer": peer, "refused": str(e)}
        except Exception as e:  # a peer's own refusal, in its own words
            return {"peer": peer, "refused": (str(e) or type(e).__name__).splitlines()[0][:200]}
        return {"peer": peer, "version": self.module(peer).__version__, **measured(run, threads, seconds)}


def measured(run, threads, seconds):
    cpu, wall = [], []
    until = time.perf_counter() + seconds
    while not wall or time.perf_counter() < until:
        cpu_start, wall_start = time.thread_time(), time.perf_counter()
        run()
        wall.append(time.perf_counter() - wall_start)
        cpu.append(time.thread_time() - cpu_start)
    if threads > 1:
        time.sleep(0.05)  # thread pools spin for a while after a run; they shall not while somebody else is timed
    times = cpu if threads == 1 else wall
    return {
        "median_s": statistics.median(times),
        "min_s": min(times),
        "wall_median_s": statistics.median(wall),
        "runs": len(times),
    }


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints must not stand between the answers
    server = Server()
    for line in sys.stdin:
        print(json.dumps(server.answer(line)), file=answers, flush=True)


if __name__ == "__main__":
    main()
