"""onepass inside of PyTorch, beside PyTorch's own scaled_dot_product_attention.

    python3 -m bench study frameworks --json results.json            # on a GPU if there is one
    python3 -m bench study frameworks --device cpu --threads 2

Three questions: what a call costs the host; how long a Transformer block with attention takes as a whole (Llama's at
8B: 4096 wide, 32 heads on 8, random weights; on a CPU BERT's) in training, prefill and decoding; what is the same in
both. Contenders take turns within a round, with equal pauses; medians over the rounds, and the ratio of medians.
"""

import argparse
import contextlib
import importlib.util
import json
import statistics
import time

import onepass.torch
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel


@contextlib.contextmanager
def flash_attn_4():
    """flash-attn-4 in the place of PyTorch's function."""
    from flash_attn.cute import flash_attn_func

    def attend(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        out = flash_attn_func(q, k, v, softmax_scale=scale, causal=is_causal)
        return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)

    theirs = functional.scaled_dot_product_attention
    functional.scaled_dot_product_attention = attend
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = theirs


CONTENDERS = {
    "onepass": onepass.torch.sdpa,
    "torch": contextlib.nullcontext,
    "torch-cudnn": lambda: sdpa_kernel(SDPBackend.CUDNN_ATTENTION),
    "torch-flash": lambda: sdpa_kernel(SDPBackend.FLASH_ATTENTION),
    "flash-attn-4": flash_attn_4,  # where it is installed
}


class Block(torch.nn.Module):
    """Attention with grouped heads and a gated MLP, each behind a norm and a residual."""

    def __init__(self, width, heads, heads_kv, hidden, causal):
        super().__init__()
        self.heads, self.heads_kv, self.dim, self.causal = heads, heads_kv, width // heads, causal
        linear = lambda m, n: torch.nn.Linear(m, n, bias=False)  # noqa: E731
        self.qkv = linear(width, (heads + 2 * heads_kv) * self.dim)
        self.out, self.up, self.down = linear(width, width), linear(width, 2 * hidden), linear(hidden, width)
        self.norms = torch.nn.ModuleList(torch.nn.RMSNorm(width) for _ in range(2))

    def forward(self, x, cache=None):
        batch, seq, _ = x.shape
        qkv = self.qkv(self.norms[0](x)).view(batch, seq, -1, self.dim).transpose(1, 2)
        q, k, v = qkv.split([self.heads, self.heads_kv, self.heads_kv], 1)
        if cache is not None:  # the new token is the last one of a full cache
            cache[0][:, :, -seq:], cache[1][:, :, -seq:] = k, v
            k, v = cache
        attend = functional.scaled_dot_product_attention
        a = attend(q, k, v, is_causal=self.causal and seq > 1, enable_gqa=self.heads != self.heads_kv)
        x = x + self.out(a.transpose(1, 2).flatten(2))
        gate, up = self.up(self.norms[1](x)).chunk(2, -1)
        return x + self.down(functional.silu(gate) * up)


class Timer:
    def __init__(self, device, rounds, pause, seconds):
        self.cuda, self.rounds, self.pause, self.seconds = device == "cuda", rounds, pause, seconds

    def once(self, run, repeats):
        """Seconds of a run."""
        if self.cuda:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            start.record()
            for _ in range(repeats):
                run()
            end.record()
            torch.cuda.synchronize()
            return start.elapsed_time(end) / 1e3 / repeats
        begin = time.perf_counter()
        for _ in range(repeats):
            run()
        return (time.perf_counter() - begin) / repeats

    def host(self, run, repeats):
        """Seconds until a run has returned, with an empty queue ahead of it."""
        if self.cuda:
            torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(repeats):
            run()
        return (time.perf_counter() - begin) / repeats

    def compare(self, runs, clock):
        """Medians by contender; None: refused. `runs`: functions by contender, each within its context."""
        times, repeats = {name: [] for name in runs}, {}
        for name, run in runs.items():
            try:
                with CONTENDERS[name]():
                    for _ in range(3):
                        run()
                    repeats[name] = max(1, min(1000, int(self.seconds / max(clock(run, 3), 1e-7))))
            except (ImportError, RuntimeError, ValueError) as e:
                print(f"  {name} refuses: {str(e).splitlines()[0][:100]}")
                times[name] = None
        for _ in range(self.rounds):
            for name, run in runs.items():
                if times[name] is None:
                    continue
                with CONTENDERS[name]():
                    times[name].append(clock(run, repeats[name]))
                time.sleep(self.pause)
        return {name: statistics.median(x) if x else None for name, x in times.items()}


def host_calls(device, dtype):
    """(name, function) of calls too small for anything but the host to count."""
    shape = (1, 8, 128, 64) if device == "cuda" else (1, 1, 1, 16)
    q, k, v = (torch.randn(shape, device=device, dtype=dtype) for _ in "qkv")
    with_grad = [x.clone().requires_grad_() for x in (q, k, v)]

    def attend(*x):
        return functional.scaled_dot_product_attention(*x, is_causal=True)

    yield "call", lambda: attend(q, k, v)
    yield "call that records a gradient", lambda: attend(*with_grad)
    yield "call and its backward", lambda: torch.autograd.grad(attend(*with_grad), with_grad, q)


def blocks(device, dtype, quick):
    """(name, function) of whole blocks."""
    if device == "cpu":
        block = Block(768, 12, 12, 3072, causal=False).to(dtype)
        x = torch.randn(4, 512, 768, dtype=dtype)
        yield "BERT-size forward 4 x 512", lambda: forward(block, x)
        yield "BERT-size training step 4 x 512", lambda: step(block, x)
        return
    block = Block(4096, 32, 8, 14336, causal=True).to(device, dtype)
    for length in (4096,) if quick else (4096, 16384):
        x = torch.randn(1, length, 4096, device=device, dtype=dtype)
        yield f"prefill {length}", lambda x=x: forward(block, x)
        yield f"training step {length}", lambda x=x: step(block, x)
    for batch in (1, 32):
        x = torch.randn(batch, 1, 4096, device=device, dtype=dtype)
        cache = torch.randn(2, batch, 8, 4096, 128, device=device, dtype=dtype)
        yield f"decoding, batch {batch}, 4096 keys", lambda x=x, cache=cache: forward(block, x, cache)
        yield (
            f"decoding, batch {batch}, 4096 keys, in a graph",
            Graphed(lambda x=x, cache=cache: forward(block, x, cache)),
        )


class Graphed:
    """A run captured once in each contender's context, then replayed."""

    def __init__(self, run):
        self.run, self.graphs = run, {}

    def __call__(self):
        key = (
            functional.scaled_dot_product_attention,
            torch._C._get_flash_sdp_enabled(),
            torch._C._get_cudnn_sdp_enabled(),
        )
        if key not in self.graphs:
            self.run()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.run()
            self.graphs[key] = graph
        self.graphs[key].replay()


@torch.no_grad()
def forward(block, x, cache=None):
    return block(x, cache)


def step(block, x):
    block.zero_grad(set_to_none=True)
    block(x).square().mean().backward()


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, help="of CPU work, PyTorch's and onepass's; default: PyTorch's choice")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--pause", type=float, default=0.05, help="seconds between measurements")
    parser.add_argument("--seconds", type=float, default=0.05, help="of a measurement")
    parser.add_argument("--quick", action="store_true", help="no block of 16384 tokens")
    parser.add_argument("--only", help="of the measurements, those whose names contain this")
    parser.add_argument("--json")
    options = parser.parse_args(argv)
    if options.threads:
        torch.set_num_threads(options.threads)
    dtype = torch.bfloat16 if options.device == "cuda" else torch.float32
    timer = Timer(options.device, options.rounds, options.pause, options.seconds)
    contenders = list(CONTENDERS) if options.device == "cuda" else ["onepass", "torch"]
    if importlib.util.find_spec("flash_attn") is None:
        contenders = [name for name in contenders if name != "flash-attn-4"]
    torch.manual_seed(0)
    results = {}

    def report(kind, name, run, clock, unit, factor):
        if options.only and options.only not in f"{kind}: {name}":
            return
        medians = timer.compare(dict.fromkeys(contenders, run), clock)
        results[f"{kind}: {name}"] = medians
        mine = medians["onepass"]
        shown = ", ".join(
            f"{n} {t * factor:.1f} {unit}" + ("" if n == "onepass" or not mine else f" ({t / mine:.2f})")
            for n, t in medians.items()
            if t
        )
        print(f"{kind}: {name}: {shown}", flush=True)

    for name, run in host_calls(options.device, dtype):
        report("host time", name, run, timer.host if options.device == "cuda" else timer.once, "us", 1e6)
    for name, run in blocks(options.device, dtype, options.quick):
        report("block", name, run, timer.once, "ms", 1e3)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"torch": torch.__version__, "seconds": results}, file, indent=1)
