"""The claim of FlashAttention-1 (Dao et al. 2022, arXiv 2205.14135) measured: standard attention beside onepass.

    fa1_claim.py --json fa1.json        measures: time, bytes moved to and from HBM, memory beside the tensors
    fa1_claim.py --backward --json fa1_backward.json    the same of forward and backward together
    fa1_claim.py --table fa1.json       prints these results as the table of docs/derivation.md

16k tokens, h * d = 2048, bf16, N from 512 to 16k, and with --backward the paper's first figure: GPT-2 medium's
attention, 64 sequences of 1024 tokens. Standard attention is PyTorch's SDPA with the math backend, which keeps the
N x N scores in fp32, and the same allowed to keep them in bf16; onepass is asked for the LSE too. Needs PyTorch, the
onepass package and, for the bytes, NVIDIA's ncu, under which this file runs once more (hbm_bytes.py).
"""

import argparse
import importlib
import itertools
import json
import pathlib
import statistics
import time

from bench import hbm_bytes
from bench.peers import torch_cuda as cuda_peers
from bench.problem import Problem, Refused
from bench.tables.gpu import GPT2_MEDIUM
from bench.tables.gpu import fa1_table as table

PROGRAM = pathlib.Path(__file__).parents[1]  # `python bench study fa1_claim`
TOKENS, WIDTH, SIZES, DIMS = 16384, 2048, (512, 1024, 2048, 4096, 8192, 16384), (64, 128)
SCORE_BYTES = {"math": 4, "math-bf16": 2}
CONTENDERS = ("onepass", *SCORE_BYTES)
# Of ||onepass - math|| / ||math||; weights rounded to bf16 make about 0.003, in gradients dS is rounded as well.
TOLERANCE = {"fwd": 0.01, "bwd": 0.02}


def problem_lines(sizes, op="fwd"):
    shapes = [f"b{TOKENS // n} h{WIDTH // d} s{n} d{d}" for n in sizes for d in DIMS]
    if op == "bwd" and 1024 in sizes:
        shapes = [GPT2_MEDIUM, *shapes]
    return [f"{op} {shape} bf16{mask} layout=bshd cuda:0" for shape in shapes for mask in ("", " causal_bottom_right")]


def model(problem, contender, shared_bytes):
    """(bytes moved, extra bytes) of all heads as the paper counts them, its Theta(N^2 d^2 / M) with the factor 1.

    Standard attention (Algorithm 0) reads Q, K, V, writes O, and writes and reads S and P, their hidden half too. One
    pass (Theorem 2) reads Q, K, V and writes O, and N^2 d^2 / M is what an SM with shared_bytes for M reads again;
    causal halves that. Extra: S and P; an fp32 number a row.

    Backward adds eight trips over tensors like Q to both. Standard attention (Algorithm 3) reads P, writes dP, reads
    both, writes dS and reads it twice; one pass (Theorem 5) reads N^2 d^2 / M once more. Extra: P, dP and dS; two fp32
    numbers a row, and dQ in fp32.
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

    It returns [O], or of a backward's problem, which is computed from its forward on, [O, dQ, dK, dV].
    """
    inputs = cuda_peers.Ways(torch, problem, "math").inputs()
    q, k, v = (x.detach() for x in inputs)
    dout = torch.randn_like(q)
    math, mask = cuda_peers.TorchMath(torch), problem.causal or None

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
    """What ncu watches: every contender that fits into memory, once.

    onepass first, then from the longest to the shortest, so that no memory goes back to the driver: right after
    gigabytes did, 2 GB of writes were counted for onepass instead of 0.09, as if freed memory were wiped beside it.
    """
    for name, line in itertools.product(CONTENDERS, reversed(lines)):
        problem = Problem.parse(line)
        flush, run = cuda_peers.Timer(torch, problem.device).flush, calls(torch, onepass, problem)[name]
        try:
            hbm_bytes.count(torch, {"problem": line, "contender": name}, run, flush)
        except torch.OutOfMemoryError:  # measure() says so; it comes from the warm-up, before the range
            continue


def difference(torch, ours, theirs):
    """||ours - theirs|| / ||theirs||, a batch entry at a time."""
    far = sum((a.float() - b.float()).square().sum().item() for a, b in zip(ours, theirs))
    return (far / sum(b.float().square().sum().item() for b in theirs)) ** 0.5


def measure(torch, onepass, line, options):
    """{contender: {"median_s", "min_s", "runs", "extra_bytes"} or {"refused"}}: in turn, each after the same pause.

    extra_bytes is the peak of PyTorch's allocator during a call, less what it held before and the results; onepass
    takes its workspace and its LSE from there too.
    """
    torch.cuda.empty_cache()
    problem, entries, times = Problem.parse(line), {}, {}
    timer, peer = cuda_peers.Timer(torch, problem.device), cuda_peers.TorchMath(torch)
    runs = calls(torch, onepass, problem)
    for name, run in runs.items():
        try:
            peer.first_that_runs([("", run)])
            entries[name], times[name] = {"extra_bytes": peer.extra_bytes(run, problem.backward)}, []
        except Refused as refusal:
            entries[name] = {"refused": str(refusal)}
    accepted = TOLERANCE[line[:3]]
    for ours, theirs in zip(runs["onepass"](), runs["math"]()) if "math" in times else ():
        if not (apart := difference(torch, ours, theirs)) <= accepted:
            raise SystemExit(f"{line}: onepass is {apart:.2g} from PyTorch's math backend; {accepted} is accepted")
    torch.cuda.empty_cache()
    for _ in range(options.rounds):
        for name in times:
            time.sleep(options.pause)
            times[name] += timer.times(runs[name], options.seconds)
    for name, taken in times.items():
        entries[name] |= {"median_s": statistics.median(taken), "min_s": min(taken), "runs": len(taken)}
    return entries


def measured(torch, onepass, options):
    """The rows of the JSON, one after the other: a problem, its contenders, and what the model says of each."""
    program = [str(PROGRAM), "study", "fa1_claim", "--count-once", "--sizes", *map(str, options.sizes)]
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


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", help="where the results are written")
    parser.add_argument("--table", metavar="JSON", help="print the table of these results; nothing is measured")
    parser.add_argument("--backward", action="store_const", const="bwd", default="fwd", dest="op",
                        help="forward and backward together")  # fmt: skip
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="N; divisors of 16384")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each contender")
    parser.add_argument("--pause", type=float, default=0.3, help="seconds before every turn")
    parser.add_argument("--seconds", type=float, default=0.05, help="seconds of a turn, after a warm-up")
    parser.add_argument("--ncu", default="ncu", help="command; an empty one leaves out the bytes moved")
    parser.add_argument("--count-once", action="store_true", help=argparse.SUPPRESS)  # by measured(), under ncu
    options = parser.parse_args(argv)
    if options.table:
        with open(options.table) as file:
            return print(table(json.load(file)))
    torch, onepass = importlib.import_module("torch"), importlib.import_module("onepass")
    if not torch.cuda.is_available():
        raise SystemExit("PyTorch sees no CUDA device here")
    if options.count_once:
        return count_once(torch, onepass, problem_lines(options.sizes, options.op))
    rows = []
    for row in measured(torch, onepass, options):
        rows.append(row)
        print(table([row]).splitlines()[-1], flush=True)
        if options.json:  # after every row: a run may be cut short
            with open(options.json, "w") as file:
                json.dump(rows, file, indent=2)
                file.write("\n")
