"""onepass.torch.flex_attention beside PyTorch's compiled FlexAttention and onepass's own options, forward and backward.

    python3 -m bench study flex_speed --json results.json            # on a GPU
    python3 -m bench study flex_speed --seq 4096 --mode max-autotune
    python3 -m bench study flex_speed --device cpu --threads 1 --seq 2048 --heads 2

The masks and scores are those of FlexAttention's own benchmark, and a dilated window: [1, heads, seq, dim] in bf16.
On a CPU, where FlexAttention has no backward, only the forward is timed. A case compiles FlexAttention anew.
`option` is the same call with onepass's option in place of the functions: mask, window, alibi_slopes, softcap or
cu_seqlens. A backward is timed alone. Contenders take turns within a round; times are medians of the rounds' medians.
"""

import random

from bench.timing import CpuTimer, Timer, in_turn, medians

NEEDS, CUDA = ("torch", "torch.nn.attention.flex_attention", "onepass.torch"), True
WINDOW, PREFIX, DOCUMENTS, CAP = 1024, 2048, 8, 20.0


class Cases:
    """name: (score_mod, mask_mod, the same as options of onepass.torch.attention or None)."""

    def __init__(self, torch, options, device):
        ends = sorted(random.Random(0).sample(range(1, options.seq), DOCUMENTS - 1)) + [options.seq]
        lengths = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
        self.document = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)).int().to(device)
        self.starts = torch.tensor([0, *ends], dtype=torch.int32, device=device)
        self.longest = max(lengths)
        self.slopes = (2.0 ** -torch.linspace(0.5, 8, options.heads)).to(device)
        self.torch = torch

    def all(self):
        torch, document, slopes = self.torch, self.document, self.slopes

        def causal(b, h, i, j):
            return i >= j

        def alibi(score, b, h, i, j):
            return score - slopes[h] * (i - j)

        def capped(score, b, h, i, j):
            return CAP * torch.tanh(score / CAP)

        packed = {"cu_seqlens_q": self.starts, "cu_seqlens_k": self.starts}
        packed |= {"max_seqlen_q": self.longest, "max_seqlen_k": self.longest}
        return {
            "causal": (None, causal, {"mask": "causal_top_left"}),
            "causal, ALiBi": (alibi, causal, {"mask": "causal_top_left", "alibi_slopes": slopes}),
            "causal, softcap": (capped, causal, {"mask": "causal_top_left", "softcap": CAP}),
            "window": (
                None,
                lambda b, h, i, j: (i >= j) & (i - j <= WINDOW),
                {"window": (WINDOW, 0)},
            ),
            "prefix": (None, lambda b, h, i, j: (i >= j) | (j < PREFIX), None),
            "documents": (None, lambda b, h, i, j: document[i] == document[j], packed),
            "causal documents": (
                None,
                lambda b, h, i, j: (i >= j) & (document[i] == document[j]),
                packed | {"mask": "causal_top_left"},
            ),
            "dilated": (None, lambda b, h, i, j: (i >= j) & (i - j <= 4 * WINDOW) & ((i - j) % 4 == 0), None),
        }


def contenders(torch, flex, onepass, case, inputs, options):
    """{name: function of no arguments that returns O}."""
    score, mask, option = case
    q, k, v = inputs
    size = (None, None, options.seq, options.seq)
    theirs = flex.create_block_mask(mask, *size, device=q.device, _compile=q.is_cuda)
    ours = onepass.create_block_mask(mask, *size, device=q.device)
    mode = {} if options.mode == "default" else {"mode": options.mode}
    compiled = torch.compile(flex.flex_attention, dynamic=False, **mode)
    found = {
        "onepass": lambda: onepass.flex_attention(q, k, v, score, ours),
        "flex": lambda: compiled(q, k, v, score, theirs),
    }
    if option and "cu_seqlens_q" in option:

        def packed():
            tokens_first = (x[0].transpose(0, 1) for x in (q, k, v))
            return onepass.attention(*tokens_first, **option).transpose(0, 1)[None]

        found["option"] = packed
    elif option:
        found["option"] = lambda: onepass.attention(q, k, v, **option)
    return found


def measured(torch, flex, onepass, name, case, options):
    device = options.device
    shape = (1, options.heads, options.seq, options.dim)
    learns = device != "cpu"  # FlexAttention has no backward there
    inputs = [torch.randn(shape, dtype=torch.bfloat16, device=device, requires_grad=learns) for _ in range(3)]
    dout = torch.randn(shape, dtype=torch.bfloat16, device=device)
    timer = Timer(torch, device) if learns else CpuTimer(torch.get_num_threads())
    torch._dynamo.reset()
    calls, first = contenders(torch, flex, onepass, case, inputs, options), {}
    for what in ("forward", "backward") if learns else ("forward",):
        clocks = {}
        for contender, call in calls.items():
            run = call
            if what == "forward":
                first[contender] = call()  # compiles
            else:
                out = call()
                run = lambda out=out: torch.autograd.grad(out, inputs, dout, retain_graph=True)  # noqa: E731
                run()

            def clock(run=run, backward=what == "backward"):
                with torch.set_grad_enabled(backward):
                    return [timer.answer(run, options.seconds)["median_s"]]

            clocks[contender] = clock
        if what == "forward":
            ours = first.pop("onepass").detach()
            far = {x: float((y.detach() - ours).float().abs().max()) for x, y in first.items()}
            print(f"{name}: largest differences of results {far}", flush=True)
        yield f"{name}, {what}", medians(in_turn(clocks, options.rounds, options.pause))


def arguments(parser):
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seq", type=int, default=16384)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--mode", default="default", help="of torch.compile for FlexAttention")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.1, help="of a contender's turn")
    parser.add_argument("--pause", type=float, default=0.2)
    parser.add_argument("--threads", type=int, default=0, help="CPU threads of PyTorch and onepass")
    parser.add_argument("--cases", default="", help="names, separated by semicolons; all by default")


def rows(torch, flex, onepass, options):
    if options.threads:
        torch.set_num_threads(options.threads)
    cases = Cases(torch, options, options.device).all()
    for name, case in cases.items():
        if not options.cases or name in options.cases.split(";"):
            yield from measured(torch, flex, onepass, name, case, options)


def said(row):
    return f"{row[0]}: " + ", ".join(f"{name} {1e3 * s:.3f} ms" for name, s in row[1].items())


def document(rows, torch, flex, onepass, options):
    about = {key: getattr(options, key) for key in ("seq", "heads", "dim", "mode")}
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return {"device": name, "torch": torch.__version__, **about, "seconds": dict(rows)}


def table(document):
    from bench.tables import frameworks  # which imports this file

    seconds = {what: {"option": None} | s for what, s in document["seconds"].items()}
    return "\n".join(frameworks(seconds, "flex", "option"))
