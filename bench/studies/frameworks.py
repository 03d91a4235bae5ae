"""onepass inside PyTorch, beside PyTorch's own scaled_dot_product_attention.

    python3 -m bench study frameworks --json results.json            # on a GPU if there is one
    python3 -m bench study frameworks --device cpu --threads 2

It measures what a call costs the host, and the time of a whole Transformer block with attention: training, prefill and
decoding. The block has Llama's size at 8B (4096 wide, 32 heads on 8, random weights), on a CPU BERT's. Contenders take
turns within a round, with equal pauses; times are medians over the rounds.
"""

import contextlib
import importlib.util

from bench import tables
from bench.timing import Timer, graphed, in_turn, medians

NEEDS, CUDA = ("torch", "onepass.torch"), False


@contextlib.contextmanager
def flash_attn_4(functional):
    """Puts flash-attn-4 in the place of PyTorch's function."""
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


def contenders(torch, onepass_torch, device):
    """{name: function that makes the context in which PyTorch's function is the contender}."""
    found = {"onepass": onepass_torch.sdpa, "torch": contextlib.nullcontext}
    if device == "cuda":
        attention = torch.nn.attention
        found["torch-cudnn"] = lambda: attention.sdpa_kernel(attention.SDPBackend.CUDNN_ATTENTION)
        found["torch-flash"] = lambda: attention.sdpa_kernel(attention.SDPBackend.FLASH_ATTENTION)
        if importlib.util.find_spec("flash_attn"):
            found["flash-attn-4"] = lambda: flash_attn_4(torch.nn.functional)
    return found


def block_of(torch, width, heads, heads_kv, hidden, causal):
    """Attention with grouped heads and a gated MLP, each after a norm and with a residual."""
    nn, dim = torch.nn, width // heads

    def linear(m, n):
        return nn.Linear(m, n, bias=False)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = linear(width, (heads + 2 * heads_kv) * dim)
            self.out, self.up, self.down = linear(width, width), linear(width, 2 * hidden), linear(hidden, width)
            self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))

        def forward(self, x, cache=None):
            batch, seq, _ = x.shape
            qkv = self.qkv(self.norms[0](x)).view(batch, seq, -1, dim).transpose(1, 2)
            q, k, v = qkv.split([heads, heads_kv, heads_kv], 1)
            if cache is not None:  # the new token is the last one of a full cache
                cache[0][:, :, -seq:], cache[1][:, :, -seq:] = k, v
                k, v = cache
            attend = nn.functional.scaled_dot_product_attention
            a = attend(q, k, v, is_causal=causal and seq > 1, enable_gqa=heads != heads_kv)
            x = x + self.out(a.transpose(1, 2).flatten(2))
            gate, up = self.up(self.norms[1](x)).chunk(2, -1)
            return x + self.down(nn.functional.silu(gate) * up)

    return Block()


def host_calls(torch, device, dtype):
    """(name, function) of calls so small that only the host's time counts."""
    shape = (1, 8, 128, 64) if device == "cuda" else (1, 1, 1, 16)
    q, k, v = (torch.randn(shape, device=device, dtype=dtype) for _ in "qkv")
    with_grad = [x.clone().requires_grad_() for x in (q, k, v)]

    def attend(*x):
        return torch.nn.functional.scaled_dot_product_attention(*x, is_causal=True)

    yield "call", lambda: attend(q, k, v)
    yield "call that records a gradient", lambda: attend(*with_grad)
    yield "call and its backward", lambda: torch.autograd.grad(attend(*with_grad), with_grad, q)


def blocks(torch, device, dtype, quick):
    """(name, function) of whole blocks."""

    def step(x):
        block.zero_grad(set_to_none=True)
        block(x).square().mean().backward()

    def forward(x, cache=None):
        with torch.no_grad():
            return block(x, cache)

    if device == "cpu":
        block = block_of(torch, 768, 12, 12, 3072, causal=False).to(dtype)
        x = torch.randn(4, 512, 768, dtype=dtype)
        yield "BERT-size forward 4 x 512", lambda: forward(x)
        yield "BERT-size training step 4 x 512", lambda: step(x)
        return
    block = block_of(torch, 4096, 32, 8, 14336, causal=True).to(device, dtype)
    for length in (4096,) if quick else (4096, 16384):
        x = torch.randn(1, length, 4096, device=device, dtype=dtype)
        yield f"prefill {length}", lambda x=x: forward(x)
        yield f"training step {length}", lambda x=x: step(x)
    for batch in (1, 32):
        x = torch.randn(batch, 1, 4096, device=device, dtype=dtype)
        cache = torch.randn(2, batch, 8, 4096, 128, device=device, dtype=dtype)
        yield f"decoding, batch {batch}, 4096 keys", lambda x=x, cache=cache: forward(x, cache)
        yield f"decoding, batch {batch}, 4096 keys, in a graph", lambda x=x, cache=cache: forward(x, cache)


def compare(torch, contexts, run, clock, in_graph, options):
    """{contender: median seconds, or None if it refuses}; `clock` takes a function and a number of calls."""
    clocks = {}
    for name, context in contexts.items():
        try:
            with context():
                call = graphed(torch, run) if in_graph else run
                for _ in range(3):
                    call()
                calls = max(1, min(1000, int(options.seconds / max(clock(call, 3), 1e-7))))
        except (ImportError, RuntimeError, ValueError) as e:
            print(f"  {name} refuses: {str(e).splitlines()[0][:100]}")
            continue

        def timed(context=context, call=call, calls=calls):
            with context():
                return [clock(call, calls)]

        clocks[name] = timed
    return dict.fromkeys(contexts) | medians(in_turn(clocks, options.rounds, options.pause))


def arguments(parser):
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda if there is one")
    parser.add_argument("--threads", type=int, help="CPU threads of PyTorch and onepass; default: PyTorch's choice")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--pause", type=float, default=0.05, help="seconds before every turn")
    parser.add_argument("--seconds", type=float, default=0.05, help="seconds of a turn")
    parser.add_argument("--quick", action="store_true", help="leave out the block of 16384 tokens")
    parser.add_argument("--only", default="", help="only measurements whose names contain this text")


def rows(torch, onepass_torch, options):
    """(name, medians of the contenders)."""
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if options.threads:
        torch.set_num_threads(options.threads)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    torch.manual_seed(0)
    timer, contexts = Timer(torch, device), contenders(torch, onepass_torch, device)
    kinds = {"host time": host_calls(torch, device, dtype), "block": blocks(torch, device, dtype, options.quick)}
    for kind, measurements in kinds.items():
        for name, run in measurements:
            if options.only in f"{kind}: {name}":
                clock = timer.host if kind == "host time" else lambda run, n: timer.spans(run, 1, n, cold=False)[0]
                in_graph = name.endswith("in a graph")
                yield f"{kind}: {name}", compare(torch, contexts, run, clock, in_graph, options)


def said(row):
    name, seconds = row
    factor, unit = (1e6, "us") if name.startswith("host") else (1e3, "ms")
    ours = seconds["onepass"]
    shown = (
        f"{peer} {s * factor:.1f} {unit}" + ("" if peer == "onepass" or not ours else f" ({s / ours:.2f})")
        for peer, s in seconds.items()
        if s
    )
    return f"{name}: {', '.join(shown)}"


def document(rows, torch, onepass_torch, options):
    return {"torch": torch.__version__, "seconds": dict(rows)}


def table(document):
    peers = {peer: None for seconds in document["seconds"].values() for peer in seconds if peer != "onepass"}
    return "\n".join(tables.frameworks(document["seconds"], *peers))
