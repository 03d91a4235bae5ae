"""PyTorch's attention on CUDA: one peer for each backend of SDPA, and nothing but that backend.

Timed as onepass times itself: warm-up, L2 flushed before every run, a pair of CUDA events around it, the median.
`onepass bench` pauses before each question, so that every contender finds the card equally cool. SDPA cannot pass some
problems to a backend (windows and packed sequences for flash). Then PyTorch's operator under SDPA is timed, and `note`
says so.
"""

import contextlib
import statistics
import warnings

from bench.peers.base import Asked, Peer
from bench.problem import Refused
from bench.timing import Timer

EXPANDED = "K and V expanded to the query heads beforehand"


def reason_of(error, said):
    """PyTorch's own reason why a backend refused a problem: its first warning about that backend."""
    for warning in said:
        text = str(warning.message).partition(" (Triggered")[0].strip()
        if not text.endswith("because:") and "runtime disabled" not in text and "kernel not used" not in text:
            return text[:300]
    return (str(error) or type(error).__name__).splitlines()[0][:300]


def settle(torch, problem):
    """Makes the problem's device the current one, with its memory free."""
    if problem.device == "cpu":
        raise Refused("is timed on CUDA only (got cpu)")
    if not torch.cuda.is_available():
        raise Refused("PyTorch sees no CUDA device here")
    torch.cuda.set_device(problem.device)
    torch.cuda.empty_cache()  # onepass, in another process, needs room too


class Ways:
    """A problem as a user of PyTorch would write it for one backend: (note, function) pairs, best first."""

    ACCEPTED = ("window", "bias", "mask", "dropout", "seed", "varlen", "aligned_top_left", "grads", "precision")

    def __init__(self, torch, problem, backend):
        self.torch, self.p, self.backend = torch, problem, backend
        problem.refuse_extras(self.ACCEPTED)
        self.dtype = problem.torch_dtype(torch)
        self.dropout = float(problem.extra("dropout") or 0)
        self.scale = {"scale": problem.scale} if problem.scale else {}
        self.square = problem.rows == problem.keys
        self.leaves = []  # the inputs of a backward's gradients
        if not set(problem.grads()) <= {"dq", "dk", "dv", "dbias"}:
            raise Refused("only the gradients of q, k, v and bias are timed")

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
        for gradient, (heads, tokens, dim) in zip(("dq", "dk", "dv"), p.sizes()):
            shape = (tokens, heads, dim) if p.bshd else (heads, tokens, dim)
            x = self.normal(p.batch, *shape, gradient=gradient)
            made.append(x.transpose(1, 2) if p.bshd else x)
        return made

    def band(self):
        """[rows, keys] bools of causal mask and window, or None if every key is visible."""
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
        """The shape of a bias or mask over these letters of b, h, q, k."""
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
        wide = self.widened(k, v)
        expanded = "; ".join(filter(None, (note, EXPANDED)))
        return [
            (note, lambda: sdpa(q, k, v, enable_gqa=True, **options)),
            (expanded, lambda: sdpa(q, *wide, **options)),
        ]

    def widened(self, k, v):
        """K and V with the number of heads of Q."""
        return [x.repeat_interleave(self.p.heads // self.p.heads_kv, 1) for x in (k, v)]

    def flash_operator(self):
        p = self.p
        if p.extra("mask") or p.extra("bias"):
            raise Refused("the flash backend does not support masks and biases")
        if not self.square and (p.causal == "causal_top_left" or "aligned_top_left" in p.extras):
            raise Refused("the flash backend supports bottom-right alignment only")
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
        p, ops, dropout, causal = self.p, self.torch.ops.aten, self.dropout, bool(self.p.causal)
        q, k, v, (cu_q, cu_k), (most_q, most_k) = self.packed_inputs()
        sizes, note = (cu_q, cu_k, most_q, most_k), f"through aten._{self.backend}_attention_forward"
        if self.backend == "flash":
            call, window, options = ops._flash_attention_forward, p.extra("window"), dict(self.scale)
            if window:
                options["window_size_left"], options["window_size_right"] = p.window()
            return [(note, lambda: call(q, k, v, *sizes, dropout, causal and not window, False, **options)[0])]
        if p.extra("window"):
            raise Refused("windows of packed sequences are timed with flash only")
        if self.backend == "efficient":
            call, mask = ops._efficient_attention_forward, 2 if causal else 0  # 2: bottom right
            batched = [x[None] for x in (q, *self.widened(k, v))]
            note += "" if p.heads == p.heads_kv else f"; {EXPANDED}"
            return [(note, lambda: call(*batched, None, *sizes, dropout, mask, False, **self.scale)[0][0])]
        if self.backend != "cudnn":
            raise Refused("the math backend does not support packed sequences")
        if p.backward:  # the failed read makes the device's context unusable for the next peer
            raise Refused("PyTorch's backward of packed sequences through cuDNN reads unmapped memory (2.11)")
        if causal and not cu_q.equal(cu_k):
            raise Refused("cuDNN's causal mask of packed sequences needs equal lengths of q and k")
        call = ops._cudnn_attention_forward
        return [(note, lambda: call(q, k, v, None, *sizes, True, dropout, causal, False, **self.scale)[0])]


def backward_of(torch, run, leaves):
    """The backward alone, after one forward whose graph is kept."""
    out = run()
    dout = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True)


def double_backward_of(torch, run, leaves):
    """The gradient of a backward's results along tangents, after one backward whose graph is kept.

    It yields what bwd_jvp and jvp yield together.
    """
    out = run()
    dout = torch.randn_like(out).requires_grad_()
    gradients = torch.autograd.grad(out, leaves, dout, create_graph=True)
    tangents = [torch.randn_like(x) for x in leaves]
    return lambda: torch.autograd.grad(gradients, [*leaves, dout], tangents, retain_graph=True)


class CudaTorch(Peer):
    """A peer with several ways of asking: it is timed by the first one that runs."""

    timer = Timer
    backend = "math"

    @contextlib.contextmanager
    def alone(self, backward=False):
        torch, backends = self.torch, self.torch.nn.attention
        mode = torch.enable_grad() if backward else torch.inference_mode()
        name = "MATH" if self.backend == "math" else f"{self.backend.upper()}_ATTENTION"
        with mode, backends.sdpa_kernel([getattr(backends.SDPBackend, name)]):
            yield

    def ways(self, problem):
        """(note, function) pairs, best first, and the leaves of a backward through autograd."""
        ways = Ways(self.torch, problem, self.backend)
        return ways.all(), ways.leaves

    def prepare(self, problem, threads):
        settle(self.torch, problem)
        self.torch.backends.cuda.matmul.allow_tf32 = problem.extra("precision") == "tf32"
        with self.alone(problem.backward):
            make = double_backward_of if problem.op == "bwd_jvp" else backward_of
            note, run = self.first_that_runs(*self.ways(problem), make)
        about = {"extra_bytes": self.extra_bytes(run, problem.backward)} | ({"note": note} if note else {})
        return Asked(run, self.timer(self.torch, problem.device), about, lambda: self.alone(problem.backward))

    def extra_bytes(self, run, backward=False):
        """Peak device memory of a run beside inputs and results."""
        cuda = self.torch.cuda
        cuda.synchronize()
        cuda.reset_peak_memory_stats()
        before = cuda.memory_allocated()
        with self.alone(backward):
            results = run()
        cuda.synchronize()
        results = results if isinstance(results, (list, tuple)) else [results]
        return cuda.max_memory_allocated() - before - sum(x.numel() * x.element_size() for x in results)

    def first_that_runs(self, ways, leaves=(), gradient_of=backward_of):
        refusal = ""
        for note, run in ways:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                try:
                    if leaves:
                        run = gradient_of(self.torch, run, leaves)
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
    backend = "cudnn"


class TorchFlash(CudaTorch):
    backend = "flash"


class TorchEfficient(CudaTorch):
    backend = "efficient"


PEERS = {
    "torch-cudnn": TorchCudnn,
    "torch-flash": TorchFlash,
    "torch-efficient": TorchEfficient,
    "torch-math": CudaTorch,
}


class Ceilings:
    """The device's best rates: a bf16 matrix product 8192^3 in FLOP/s, a copy in bytes read and written."""

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
