"""PyTorch's attention on CUDA: one peer for each backend of SDPA, and nothing but that backend.

Timed as onepass times itself: warm-up, L2 flushed before every run, a pair of CUDA events around it, the median. The
asker pauses before it asks, so that every contender meets the card equally cool; nothing runs here between questions.
Where SDPA itself cannot hand a problem to a backend but PyTorch's own operator under it can (windows and packed
sequences for flash), that operator is timed and `note` says so.
"""

import contextlib
import statistics
import time
import warnings

from bench.problem import Refused

WARM_UP_S = 0.015


def reason_of(error, said):
    """PyTorch's own words for why a backend did not take a problem: its first warning that is about that backend."""
    for warning in said:
        text = str(warning.message).partition(" (Triggered")[0].strip()
        if not text.endswith("because:") and "runtime disabled" not in text and "kernel not used" not in text:
            return text[:300]
    return (str(error) or type(error).__name__).splitlines()[0][:300]


def settle(torch, problem):
    """The problem's device, with its memory free."""
    if problem.device == "cpu":
        raise Refused("it is timed on CUDA; the problem says cpu")
    if not torch.cuda.is_available():
        raise Refused("PyTorch sees no CUDA device here")
    torch.cuda.set_device(problem.device)
    torch.cuda.empty_cache()  # onepass, in another process, needs room too


class Timer:
    """Seconds of one function on the device, L2 flushed before every run."""

    def __init__(self, torch, device):
        self.torch = torch
        l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
        self.flush = torch.empty(2 * l2_bytes, dtype=torch.uint8, device=device)

    def times(self, run, seconds):
        cuda, from_, runs = self.torch.cuda, time.perf_counter(), 0
        while runs == 0 or time.perf_counter() - from_ < WARM_UP_S:
            self.flush.zero_()
            run()
            cuda.synchronize()
            runs += 1
        count = max(3, min(1000, int(seconds * runs / (time.perf_counter() - from_))))
        pairs = [(cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)) for _ in range(count)]
        for begin, end in pairs:
            self.flush.zero_()
            begin.record()
            run()
            end.record()
        cuda.synchronize()
        return [1e-3 * begin.elapsed_time(end) for begin, end in pairs]


class Ways:
    """How a user of PyTorch would write a problem for one backend: (note, function) pairs, best first."""

    ACCEPTED = ("window", "bias", "mask", "dropout", "seed", "varlen", "aligned_top_left", "grads")

    def __init__(self, torch, problem, backend):
        self.torch, self.p, self.backend = torch, problem, backend
        problem.refuse_extras(self.ACCEPTED)
        self.dtype = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[problem.dtype]
        self.dropout = float(problem.extra("dropout") or 0)
        self.scale = {"scale": problem.scale} if problem.scale else {}
        self.square = problem.rows == problem.keys
        self.leaves = []  # what a backward is asked the gradients of
        if not set(problem.grads()) <= {"dq", "dk", "dv", "dbias"}:
            raise Refused("gradients but those of q, k, v and bias are not timed")

    def all(self):
        if self.p.lengths() is not None:
            return self.packed()
        if self.p.extra("window") is not None and self.backend == "flash":
            return self.flash_operator()
        return self.dense()

    def normal(self, *shape, gradient=None):
        x = self.torch.randn(shape, dtype=self.dtype, device=self.p.device)
        if gradient in self.p.grads():
            self.leaves.append(x.requires_grad_())
        return x

    def inputs(self):
        """q, k, v as [batch, heads, seq, dim] views in the problem's memory order."""
        p, made = self.p, []
        for gradient, heads, tokens, dim in (
            ("dq", p.heads, p.rows, p.dim),
            ("dk", p.heads_kv, p.keys, p.dim),
            ("dv", p.heads_kv, p.keys, p.dim_v),
        ):
            made.append(
                self.normal(p.batch, tokens, heads, dim, gradient=gradient).transpose(1, 2)
                if p.bshd
                else self.normal(p.batch, heads, tokens, dim, gradient=gradient)
            )
        return made

    def band(self):
        """[rows, keys] bools of causal mask and window, or None if they hide nothing."""
        torch, p = self.torch, self.p
        left, right = p.window()
        if left < 0 and right < 0:
            return None
        top_left = p.causal == "causal_top_left" or "aligned_top_left" in p.extras
        shift = 0 if top_left else p.keys - p.rows
        i = torch.arange(p.rows, device=p.device)[:, None] + shift
        j = torch.arange(p.keys, device=p.device)[None, :]
        seen = torch.ones(p.rows, p.keys, dtype=torch.bool, device=p.device)
        if left >= 0:
            seen &= j >= i - left
        if right >= 0:
            seen &= j <= i + right
        return seen

    def spread(self, letters):
        """The shape of a bias or mask that spans these of b, h, q, k."""
        sizes = zip(letters, (self.p.batch, self.p.heads, self.p.rows, self.p.keys))
        return [1 if letter == "1" else size for letter, size in sizes]

    def masking(self):
        """(note, attn_mask and is_causal of SDPA)."""
        torch, p = self.torch, self.p
        bias, mask = p.extra("bias"), p.extra("mask")
        if bias is None and mask is None and p.extra("window") is None and p.causal and self.square:
            return "", {"is_causal": True}
        seen, note = self.band(), ""
        if seen is not None and p.extra("window") is not None:
            note = "window as a boolean mask"
        if mask is not None:
            drawn = torch.rand(self.spread(mask), device=p.device) < 0.5
            seen = drawn if seen is None else drawn & seen
        if bias is None:
            return note, {} if seen is None else {"attn_mask": seen}
        dtype, _, letters = bias.partition(":")
        added = self.normal(*self.spread(letters), gradient="dbias")
        if seen is not None:
            added = torch.where(seen, added, -torch.inf)
        return ("" if dtype == p.dtype else f"bias in {p.dtype}"), {"attn_mask": added}

    def dense(self):
        torch, p = self.torch, self.p
        q, k, v = self.inputs()
        note, options = self.masking()
        options |= {"dropout_p": self.dropout, **self.scale}
        sdpa = torch.nn.functional.scaled_dot_product_attention
        if p.heads == p.heads_kv:
            return [(note, lambda: sdpa(q, k, v, **options))]
        wide = [x.repeat_interleave(p.heads // p.heads_kv, 1) for x in (k, v)]
        expanded = "; ".join(filter(None, (note, "K and V expanded to the query heads beforehand")))
        return [
            (note, lambda: sdpa(q, k, v, enable_gqa=True, **options)),
            (expanded, lambda: sdpa(q, *wide, **options)),
        ]

    def flash_operator(self):
        p = self.p
        if p.extra("mask") or p.extra("bias"):
            raise Refused("the flash backend takes neither masks nor biases")
        if not self.square and (p.causal == "causal_top_left" or "aligned_top_left" in p.extras):
            raise Refused("the flash backend aligns bottom right")
        q, k, v = (x.transpose(1, 2) for x in self.inputs())  # [batch, seq, heads, dim]
        left, right = p.window()
        call = self.torch.ops.aten._flash_attention_forward

        def run():
            return call(
                q, k, v, None, None, p.rows, p.keys, self.dropout, False, False,
                window_size_left=left, window_size_right=right, **self.scale,
            )[0].transpose(1, 2)  # fmt: skip

        return [("through aten._flash_attention_forward", run)]

    def packed_inputs(self):
        """q, k, v, their prefix sums, their longest lengths."""
        torch, p = self.torch, self.p
        if p.extra("mask") or p.extra("bias"):
            raise Refused("packed sequences with a mask or bias are not timed")
        if p.causal == "causal_top_left" or "aligned_top_left" in p.extras:
            raise Refused("packed sequences aligned top left are not timed")
        lengths = lengths_q, lengths_k = p.lengths()
        sums = [torch.tensor([0, *part], device=p.device).cumsum(0).to(torch.int32) for part in lengths]
        q = self.normal(sum(lengths_q), p.heads, p.dim, gradient="dq")
        k = self.normal(sum(lengths_k), p.heads_kv, p.dim, gradient="dk")
        v = self.normal(sum(lengths_k), p.heads_kv, p.dim_v, gradient="dv")
        return q, k, v, sums, [max(part) for part in lengths]

    def packed(self):
        p, ops = self.p, self.torch.ops.aten
        q, k, v, (cu_q, cu_k), (most_q, most_k) = self.packed_inputs()
        left, right = p.window()
        wide = [x.repeat_interleave(p.heads // p.heads_kv, 1) for x in (k, v)] if p.heads != p.heads_kv else [k, v]
        causal = bool(p.causal)
        note = "through aten._{}_attention_forward"
        if self.backend == "flash":
            window = {"window_size_left": left, "window_size_right": right} if p.extra("window") else {}
            flash_causal = causal and not window

            def flash():
                return ops._flash_attention_forward(
                    q, k, v, cu_q, cu_k, most_q, most_k, self.dropout, flash_causal, False, **window, **self.scale
                )[0]

            return [(note.format("flash"), flash)]
        if p.extra("window"):
            raise Refused("windows over packed sequences are timed with flash only")
        if self.backend == "efficient":
            batched = [x[None] for x in (q, *wide)]

            def efficient():
                bottom_right = 2 if causal else 0
                return ops._efficient_attention_forward(
                    *batched, None, cu_q, cu_k, most_q, most_k, self.dropout, bottom_right, False, **self.scale
                )[0][0]

            expanded = "" if p.heads == p.heads_kv else "; K and V expanded to the query heads beforehand"
            return [(note.format("efficient") + expanded, efficient)]
        if self.backend == "cudnn":
            if p.backward:  # and leaves the device's context unusable for whoever comes next
                raise Refused("PyTorch's backward of packed sequences through cuDNN reads where no memory is (2.11)")
            if causal and not cu_q.equal(cu_k):
                raise Refused("cuDNN's causal mask over packed sequences is for equal lengths of q and k")

            def cudnn():
                return ops._cudnn_attention_forward(
                    q, k, v, None, cu_q, cu_k, most_q, most_k, True, self.dropout, causal, False, **self.scale
                )[0]

            return [(note.format("cudnn"), cudnn)]
        raise Refused("the math backend has no packed sequences")


class CudaTorch:
    module = "torch"
    timer = Timer
    backend = enum = ""

    def __init__(self, torch):
        self.torch = torch

    @contextlib.contextmanager
    def alone(self, backward=False):
        torch, backends = self.torch, self.torch.nn.attention
        mode = torch.enable_grad() if backward else torch.inference_mode()
        with mode, backends.sdpa_kernel([getattr(backends.SDPBackend, self.enum)]):
            yield

    def ways(self, problem):
        return Ways(self.torch, problem, self.backend)

    def prepare(self, problem, threads):
        """A function (seconds) -> answer that times the first way of writing the problem that the backend takes."""
        torch = self.torch
        settle(torch, problem)
        with self.alone(problem.backward):
            ways = self.ways(problem)
            note, run = self.first_that_runs(ways.all(), ways.leaves)
        timer, extra = self.timer(torch, problem.device), self.extra_bytes(run, problem.backward)

        def measure(seconds):
            with self.alone(problem.backward):
                times = timer.times(run, seconds)
            answer = {"median_s": statistics.median(times), "min_s": min(times), "runs": len(times)}
            answer["extra_bytes"] = extra
            return answer | ({"note": note} if note else {})

        return measure

    def extra_bytes(self, run, backward=False):
        """Device memory that a run takes at its peak besides inputs and results."""
        cuda = self.torch.cuda
        cuda.synchronize()
        cuda.reset_peak_memory_stats()
        before = cuda.memory_allocated()
        with self.alone(backward):
            results = run()
        cuda.synchronize()
        results = results if isinstance(results, (list, tuple)) else [results]
        return cuda.max_memory_allocated() - before - sum(x.numel() * x.element_size() for x in results)

    def backward_of(self, run, leaves):
        """The backward alone, of one forward that is kept: what a step of training adds to it."""
        out = run()
        dout = self.torch.randn_like(out)
        return lambda: self.torch.autograd.grad(out, leaves, dout, retain_graph=True)

    def first_that_runs(self, ways, leaves=()):
        refusal = ""
        for note, run in ways:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                try:
                    if leaves:
                        run = self.backward_of(run, leaves)
                    run()
                    if self.torch.cuda.is_available():
                        self.torch.cuda.synchronize()
                    return note, run
                except self.torch.OutOfMemoryError:
                    refusal = "out of device memory"
                except RuntimeError as error:
                    refusal = refusal or reason_of(error, said)
        raise Refused(refusal)


class TorchCudnn(CudaTorch):
    backend, enum = "cudnn", "CUDNN_ATTENTION"


class TorchFlash(CudaTorch):
    backend, enum = "flash", "FLASH_ATTENTION"


class TorchEfficient(CudaTorch):
    backend, enum = "efficient", "EFFICIENT_ATTENTION"


class TorchMath(CudaTorch):
    backend, enum = "math", "MATH"


PEERS = {
    "torch-cudnn": TorchCudnn,
    "torch-flash": TorchFlash,
    "torch-efficient": TorchEfficient,
    "torch-math": TorchMath,
}


class Ceilings:
    """What the device reaches at best: a bf16 matrix product 8192^3 in FLOP/s, a copy in bytes read and written."""

    def __init__(self, torch, device):
        if not torch.cuda.is_available():
            raise Refused("PyTorch sees no CUDA device here")
        self.timer = Timer(torch, device)
        n, copied = 8192, 1 << 30
        a, b, c = (torch.randn(n, n, dtype=torch.bfloat16, device=device) for _ in range(3))
        source, target = (torch.empty(copied, dtype=torch.uint8, device=device) for _ in range(2))
        self.known = {
            "matmul": ("flops_per_s", 2 * n**3, lambda: torch.matmul(a, b, out=c)),
            "copy": ("bytes_per_s", 2 * copied, lambda: target.copy_(source)),
        }

    def answer(self, name, seconds):
        unit, work, run = self.known[name]
        return {unit: work / statistics.median(self.timer.times(run, seconds))}
