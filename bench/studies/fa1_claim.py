"""The claim of FlashAttention-1 (Dao et al. 2022, arXiv 2205.14135) measured: standard attention beside onepass.

    study fa1_claim --json fa1.json                       time, bytes moved to and from HBM, memory beside the tensors
    study fa1_claim --backward --json fa1_backward.json   the same for forward and backward together
    study fa1_claim --table fa1.json                      prints these results as the table of docs/derivation.md

16k tokens, h * d = 2048, bf16, N from 512 to 16k. With --backward also the paper's first figure: GPT-2 medium's
attention, 64 sequences of 1024 tokens. Standard attention is PyTorch's SDPA with the math backend, which keeps the
N x N scores in fp32, and the same with scores in bf16. onepass returns the LSE too. Needs PyTorch and, for the bytes,
NVIDIA's ncu, which runs this study once more (hbm_bytes.py).
"""

import argparse
import itertools
import pathlib

from bench import hbm_bytes
from bench.peers.torch_cuda import CudaTorch, Ways
from bench.problem import Problem, Refused
from bench.tables.gpu import GPT2_MEDIUM
from bench.tables.gpu import fa1_table as table
from bench.timing import Timer, in_turn, summary

NEEDS = "torch", "onepass"
BENCH = pathlib.Path(__file__).parents[1]
TOKENS, WIDTH, SIZES, DIMS = 16384, 2048, (512, 1024, 2048, 4096, 8192, 16384), (64, 128)
SCORE_BYTES = {"math": 4, "math-bf16": 2}
CONTENDERS = ("onepass", *SCORE_BYTES)
# Limits of ||onepass - math|| / ||math||: weights rounded to bf16 make about 0.003; gradients round dS as well.
TOLERANCE = {"fwd": 0.01, "bwd": 0.02}


def problem_lines(sizes, op="fwd"):
    shapes = [f"b{TOKENS // n} h{WIDTH // d} s{n} d{d}" for n in sizes for d in DIMS]
    if op == "bwd" and 1024 in sizes:
        shapes = [GPT2_MEDIUM, *shapes]
    return [f"{op} {shape} bf16{mask} layout=bshd cuda:0" for shape in shapes for mask in ("", " causal_bottom_right")]


def model(problem, contender, shared_bytes):
    """(bytes moved, extra bytes) of all heads as the paper counts them, its Theta(N^2 d^2 / M) with the factor 1.

    Standard attention (Algorithm 0) reads Q, K, V, writes O, and writes and reads S and P, their hidden half too. One
    pass (Theorem 2) reads Q, K, V and writes O. An SM with shared_bytes for M reads N^2 d^2 / M again; causal halves
    that. Extra: S and P; one fp32 value for each row.

    Backward adds eight trips over tensors like Q to both. Standard attention (Algorithm 3) reads P, writes dP, reads
    both, writes dS and reads it twice; one pass (Theorem 5) reads N^2 d^2 / M once more. Extra: P, dP and dS; two fp32
    values for each row, and dQ in fp32.
    """
    heads, n, d = problem.batch * problem.heads, problem.rows, problem.dim
    tensors = heads * (12 if problem.backward else 4) * n * d * 2
    if contender in SCORE_BYTES:
        scores = heads * n * n * SCORE_BYTES[contender]
        return tensors + (11 if problem.backward else 4) * scores, (3 if problem.backward else 2) * scores
    again = (2 if problem.backward else 1) * heads * n * n * d * d / (shared_bytes / 2) * 2
    extra = heads * n * 4 * (2 + d if problem.backward else 1)
    return tensors + (again / 2 if problem.causal else again), extra


def calls(torch, onepass, problem):
    """{contender: function that computes the problem once}, all on the same random tensors.

    It returns [O], or [O, dQ, dK, dV] for a backward, which includes its forward.
    """
    inputs = Ways(torch, problem, "math").inputs()
    q, k, v = (x.detach() for x in inputs)
    dout = torch.randn_like(q)
    math, mask = CudaTorch(torch), problem.causal or None

    def standard(in_bf16):
        def run():
            torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(in_bf16)
            with math.alone(problem.backward):
                out = torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=bool(mask))
                return [out.detach(), *(torch.autograd.grad(out, inputs, dout) if problem.backward else ())]

        return run

    def one_pass():
        out, lse = onepass.attention(q, k, v, mask=mask, return_lse=True)
        if not problem.backward:
            return [out]
        return [out, *onepass.attention_backward(dout, q, k, v, out, lse, mask=mask)]

    return dict(zip(CONTENDERS, (one_pass, standard(False), standard(True))))


def count_once(torch, onepass, lines):
    """Runs every contender that fits into memory once, for ncu.

    onepass runs first, then the longest problem down to the shortest, so that no memory is given back to the driver.
    Right after gigabytes were given back, ncu counted 2 GB of writes for onepass instead of 0.09.
    """
    for name, line in itertools.product(CONTENDERS, reversed(lines)):
        problem = Problem.parse(line)
        flush, run = Timer(torch, problem.device).flush, calls(torch, onepass, problem)[name]
        try:
            hbm_bytes.count(torch, {"problem": line, "contender": name}, run, flush)
        except torch.OutOfMemoryError:  # comes from the warm-up, before the range; measure() reports it
            continue


def difference(torch, ours, theirs):
    """||ours - theirs|| / ||theirs||, computed tensor by tensor."""
    far = sum((a.float() - b.float()).square().sum().item() for a, b in zip(ours, theirs))
    return (far / sum(b.float().square().sum().item() for b in theirs)) ** 0.5


def measure(torch, onepass, line, options):
    """{contender: {"median_s", "min_s", "runs", "extra_bytes"} or {"refused"}}: in turn, each after the same pause.

    extra_bytes is the peak of PyTorch's allocator during a call without the inputs and results. It includes onepass's
    workspace and LSE.
    """
    torch.cuda.empty_cache()
    problem, entries, clocks = Problem.parse(line), {}, {}
    timer, peer = Timer(torch, problem.device), CudaTorch(torch)
    runs = calls(torch, onepass, problem)
    for name, run in runs.items():
        try:
            peer.first_that_runs([("", run)])
            entries[name] = {"extra_bytes": peer.extra_bytes(run, problem.backward)}
            clocks[name] = lambda run=run: timer.times(run, options.seconds)
        except Refused as refusal:
            entries[name] = {"refused": str(refusal)}
    accepted = TOLERANCE[line[:3]]
    for ours, theirs in zip(runs["onepass"](), runs["math"]()) if "math" in clocks else ():
        if not (apart := difference(torch, ours, theirs)) <= accepted:
            raise SystemExit(f"{line}: onepass differs by {apart:.2g} from PyTorch's math backend; limit {accepted}")
    torch.cuda.empty_cache()
    for name, taken in in_turn(clocks, options.rounds, options.pause).items():
        entries[name] |= summary(taken)
    return entries


def rows(torch, onepass, options):
    """A problem, its contenders, and the model's numbers for each."""
    if options.count_once:
        return count_once(torch, onepass, problem_lines(options.sizes, options.op))
    program = [str(BENCH), "study", "fa1_claim", "--count-once", "--sizes", *map(str, options.sizes)]
    program += ["--backward"] * (options.op == "bwd")
    moved = {(name["problem"], name["contender"]): n for name, n in hbm_bytes.counted(options.ncu, program)}
    device = torch.cuda.get_device_properties(0)
    machine = {"device": device.name, "shared_bytes": device.shared_memory_per_multiprocessor}
    machine |= {"l2_bytes": device.L2_cache_size, "onepass": onepass.__version__, "torch": torch.__version__}
    for line in problem_lines(options.sizes, options.op):
        entries = measure(torch, onepass, line, options)
        for name, entry in entries.items():
            bytes_moved, extra = model(Problem.parse(line), name, machine["shared_bytes"])
            entry |= moved.get((line, name), {}) | {"model_bytes": bytes_moved, "model_extra_bytes": extra}
        yield {"problem": line, "contenders": entries, **machine}


def said(row):
    return table([row]).splitlines()[-1]


def arguments(parser):
    parser.add_argument("--backward", action="store_const", const="bwd", default="fwd", dest="op",
                        help="forward and backward together")  # fmt: skip
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="N; divisors of 16384")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each contender")
    parser.add_argument("--pause", type=float, default=0.3, help="seconds before every turn")
    parser.add_argument("--seconds", type=float, default=0.05, help="seconds of a turn, after a warm-up")
    parser.add_argument("--ncu", default="ncu", help="command; an empty one leaves out the bytes moved")
    parser.add_argument("--count-once", action="store_true", help=argparse.SUPPRESS)  # by rows(), under ncu
