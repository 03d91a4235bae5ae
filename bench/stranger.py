"""onepass beside the attention libraries of this machine, in one file: it needs PyTorch, NumPy and the wheel.

python3 stranger.py            the cells of the README on a GPU, smaller ones on a CPU; a table and stranger.json
python3 stranger.py --quick    tiny cells: whether everything runs

Each cell is a problem of PyTorch's tensors. The contenders take turns, so clocks and heat are the same for all, and
the median of each is reported. A contender whose result differs from onepass's is named and not timed. What could not
run is listed with the reason. See docs/guides/reporting.md for how to send the result.
"""

import argparse
import dataclasses
import importlib
import json
import platform
import statistics
import time
import warnings

import onepass
import onepass.torch
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel


@dataclasses.dataclass(frozen=True)
class Cell:
    group: str
    batch: int
    heads: int
    heads_kv: int
    rows: int
    keys: int
    dim: int
    causal: bool
    dtype: str

    def name(self):
        heads = f"{self.heads}" if self.heads == self.heads_kv else f"{self.heads}/{self.heads_kv}"
        size = f"{self.rows}" if self.rows == self.keys else f"{self.rows}x{self.keys}"
        return f"{self.dtype} d{self.dim} b{self.batch} h{heads} s{size}{' causal' if self.causal else ''}"

    def work(self):
        """Operations of visible pairs; in decoding, bytes of K and V."""
        if self.group in ("decoding", "mixed"):
            return (
                2 * self.batch * self.heads_kv * self.keys * self.dim * torch.finfo(getattr(torch, self.dtype)).bits / 8
            )
        pairs = self.rows * self.keys - (self.rows * (self.rows - 1) / 2 if self.causal else 0)
        return 4 * self.batch * self.heads * pairs * self.dim * (2.5 if self.group == "backward" else 1)


def cells(on_cuda, quick):
    dtypes, tokens, width = (["bfloat16"], 16384, 2048) if on_cuda else (["float32", "bfloat16"], 1024, 256)
    lengths = [1024, 4096, 16384] if on_cuda else [256, 512, 1024]
    caches = [(1, 8192), (16, 8192), (64, 4096)] if on_cuda else [(1, 2048), (4, 2048)]
    dims = [64, 128, 256]
    if quick:
        dtypes, tokens, width, lengths, caches, dims = dtypes[:1], 64, 64, [32], [(2, 48)], [32]
    for group in ("forward", "backward"):
        for dtype in dtypes:
            for dim in dims:
                for causal in (False, True):
                    for n in lengths:
                        yield Cell(
                            group,
                            max(1, tokens // n),
                            max(1, width // dim),
                            max(1, width // dim),
                            n,
                            n,
                            dim,
                            causal,
                            dtype,
                        )
    heads = (8, 2) if quick or not on_cuda else (32, 8)
    for dtype in dtypes:
        for batch, keys in caches:
            yield Cell("decoding", batch, *heads, 1, keys, dims[-1] if quick else 128, True, dtype)
    for dtype in dtypes:
        for batch, keys in caches[-1:]:  # one sequence of the batch is a prompt, the others have one new token
            yield Cell("mixed", batch, *heads, keys // 4, keys, dims[-1] if quick else 128, True, dtype)


def tensors(cell, device):
    """q, k and v of [batch, seq, heads, dim]; of a mixed step packed rows, pages of 16 keys and their lengths."""
    torch.manual_seed(0)
    made = {"dtype": getattr(torch, cell.dtype), "device": device, "requires_grad": cell.group == "backward"}
    kv = cell.batch, cell.keys, cell.heads_kv, cell.dim
    if cell.group != "mixed":
        q = torch.randn(cell.batch, cell.rows, cell.heads, cell.dim, **made)
        return {"q": q, "k": torch.randn(kv, **made), "v": torch.randn(kv, **made)}
    rows = [cell.rows] + [1] * (cell.batch - 1)
    pages = (cell.batch * cell.keys // 16, 16, cell.heads_kv, cell.dim)
    whole = {"dtype": torch.int32, "device": device}
    return {
        "q": torch.randn(sum(rows), cell.heads, cell.dim, **made),
        "k": torch.randn(pages, **made),
        "v": torch.randn(pages, **made),
        "cu_q": torch.tensor([0, *rows], device=device).cumsum(0).to(torch.int32),
        "used": torch.full((cell.batch,), cell.keys, **whole),
        "table": torch.randperm(pages[0], **whole).reshape(cell.batch, -1),
    }


class Unable(Exception):
    """This contender does not compute the cell; the reason is the text."""


def ours(cell, t):
    mask = "causal_bottom_right" if cell.causal else None
    if cell.group == "mixed":
        bounds = {"max_seqlen_q": cell.rows, "max_seqlen_k": cell.keys}
        place = {"cu_seqlens_q": t["cu_q"], "seqused_k": t["used"], "page_table": t["table"]}
        return lambda: onepass.torch.attention(t["q"], t["k"], t["v"], mask=mask, **place, **bounds)
    return lambda: onepass.torch.attention(t["q"], t["k"], t["v"], mask=mask, layout="bshd")


def sdpa(backend):
    def contender(cell, t):
        if cell.group == "mixed":
            raise Unable("no packed rows over pages")
        q, k, v = (x.transpose(1, 2) for x in (t["q"], t["k"], t["v"]))
        words = {"is_causal": cell.causal and cell.rows == cell.keys, "enable_gqa": cell.heads != cell.heads_kv}

        def run():
            with sdpa_kernel(backend):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, **words).transpose(1, 2)

        return run

    return contender


def flash(module):
    """flash-attn 2, FlashAttention-3 and -4 have the same two functions under three names."""

    def contender(cell, t):
        library = importlib.import_module(module)
        if cell.group == "mixed":
            if module == "flash_attn.cute":
                raise Unable("not called with pages here")
            if module == "flash_attn_interface":
                place = {"page_table": t["table"], "cache_seqlens": t["used"], "cu_seqlens_q": t["cu_q"]}
                place |= {"max_seqlen_q": cell.rows, "causal": True}
                return lambda: library.flash_attn_with_kvcache(t["q"], t["k"], t["v"], **place)
            sums = t["cu_q"], torch.nn.functional.pad(t["used"].cumsum(0), (1, 0)).to(torch.int32)
            words = {"causal": True, "block_table": t["table"]}
            return lambda: library.flash_attn_varlen_func(t["q"], t["k"], t["v"], *sums, cell.rows, cell.keys, **words)
        if cell.group == "decoding" and module != "flash_attn.cute":
            return lambda: library.flash_attn_with_kvcache(t["q"], t["k"], t["v"], causal=cell.causal)
        first = lambda x: x[0] if isinstance(x, tuple) else x  # noqa: E731
        return lambda: first(library.flash_attn_func(t["q"], t["k"], t["v"], causal=cell.causal))

    return contender


def flashinfer(cell, t):
    library = importlib.import_module("flashinfer")
    if cell.group == "backward":
        raise Unable("no gradients")
    heads = cell.heads, cell.heads_kv, cell.dim
    room = torch.empty(128 << 20, dtype=torch.uint8, device=t["q"].device)
    dtypes = {"q_data_type": t["q"].dtype, "kv_data_type": t["q"].dtype}
    if cell.group == "mixed":
        pages = cell.keys // 16
        ends = torch.arange(cell.batch + 1, dtype=torch.int32, device=room.device) * pages
        last = torch.full_like(t["used"], 16)
        wrapper = library.BatchPrefillWithPagedKVCacheWrapper(room, "NHD")
        wrapper.plan(t["cu_q"], ends, t["table"].flatten(), last, *heads, 16, causal=True, **dtypes)
        return lambda: wrapper.run(t["q"], (t["k"], t["v"]))
    step = torch.arange(cell.batch + 1, dtype=torch.int32, device=room.device)
    wrapper = library.BatchPrefillWithRaggedKVCacheWrapper(room, "NHD")
    wrapper.plan(step * cell.rows, step * cell.keys, *heads, causal=cell.causal, **dtypes)
    flat = [t[name].flatten(0, 1) for name in "qkv"]
    return lambda: wrapper.run(*flat).unflatten(0, (cell.batch, cell.rows))


CONTENDERS = {
    "onepass": (None, ours),
    "sdpa flash": (None, sdpa(SDPBackend.FLASH_ATTENTION)),
    "sdpa cuDNN": (None, sdpa(SDPBackend.CUDNN_ATTENTION)),
    "sdpa efficient": (None, sdpa(SDPBackend.EFFICIENT_ATTENTION)),
    "flash-attn 2": ("flash_attn", flash("flash_attn")),
    "FlashAttention-3": ("flash_attn_interface", flash("flash_attn_interface")),
    "FlashAttention-4": ("flash_attn.cute", flash("flash_attn.cute")),
    "FlashInfer": ("flashinfer", flashinfer),
}


def present(on_cuda):
    """(contenders whose packages are here, {name: the reason why not})."""
    able, missing = {}, {}
    for name, (package, make) in CONTENDERS.items():
        try:
            if package:
                importlib.import_module(package)
            if not on_cuda and name not in ("onepass", "sdpa flash"):
                raise Unable("needs a GPU")
        except Exception as error:  # a package that is broken must not end the others
            missing[name] = sentence(error)
        else:
            able[name] = make
    return able, missing


def sentence(error):
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:160]


def seconds(run, on_cuda):
    if not on_cuda:
        begin = time.perf_counter()
        run()
        return time.perf_counter() - begin
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in "be")
    begin.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3


def gradients(forward, t):
    """A run of the backward alone: the forward's graph is kept."""
    out = forward()
    dout, inputs = torch.ones_like(out), [t["q"], t["k"], t["v"]]
    return lambda: torch.autograd.grad(out, inputs, dout, retain_graph=True)[0]


def measure(cell, able, device, budget):
    """({contender: median seconds}, {contender: why not})."""
    on_cuda, t, runs, reasons, expected = device == "cuda", tensors(cell, device), {}, {}, None
    for name, make in able.items():
        try:
            run = make(cell, t)
            run = gradients(run, t) if cell.group == "backward" else run
            result = run().detach().float()
            expected = result if expected is None else expected
            if result.shape != expected.shape:
                raise Unable(f"result has shape {list(result.shape)}, not {list(expected.shape)}")
            error, size = (result - expected).abs().max().item(), expected.abs().max().item()
            if not error <= (1e-3 if cell.dtype == "float32" else 5e-2) * max(size, 1e-3):
                raise Unable(f"result differs by {error:.2g} of {size:.2g}")
            runs[name] = run
        except Exception as error:  # whatever it raises, the others go on
            reasons[name] = sentence(error)
    times, begin = {name: [] for name in runs}, time.perf_counter()
    while runs and (time.perf_counter() - begin < budget or len(next(iter(times.values()))) < 3):
        for name, run in runs.items():
            times[name].append(seconds(run, on_cuda))
    return {name: statistics.median(x[1:]) for name, x in times.items()}, reasons


def row(cell, medians, reasons):
    unit = (
        1e9 if cell.group in ("decoding", "mixed") else 1e12 if cell.work() / medians.get("onepass", 1) > 1e12 else 1e9
    )
    label = "GB/s" if cell.group in ("decoding", "mixed") else "TFLOP/s" if unit == 1e12 else "GFLOP/s"
    mine = medians.get("onepass")
    own = f"{cell.work() / mine / unit:.4g} {label}" if mine else reasons.get("onepass", "not run")
    others = [f"{name} {x / mine:.2f}x" for name, x in medians.items() if mine and name != "onepass"]
    return f"| {cell.group} | {cell.name()} | {own} | {', '.join(others) or '-'} |"


def machine(on_cuda):
    facts = {"python": platform.python_version(), "torch": torch.__version__, "onepass": onepass.__version__}
    facts |= {"system": platform.platform(), "threads": torch.get_num_threads()}
    if on_cuda:
        facts |= {
            "gpu": torch.cuda.get_device_name(),
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
        }
    return facts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny cells")
    parser.add_argument("--device", choices=["cpu", "cuda"], help="default: cuda if PyTorch has it")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each cell (default 1)")
    parser.add_argument("--json", default="stranger.json", help="where the numbers go (default stranger.json)")
    given = parser.parse_args()
    device = given.device or ("cuda" if torch.cuda.is_available() else "cpu")
    able, missing = present(device == "cuda")
    warnings.simplefilter("ignore", UserWarning)  # PyTorch's, of each cell that a backend does not take; listed below
    facts = machine(device == "cuda")
    print("\n".join(f"{name}: {value}" for name, value in facts.items()), flush=True)
    print("\n| | problem | onepass | how many times longer others take |\n|---|---|---|---|", flush=True)
    results, refused = [], {}
    for cell in cells(device == "cuda", given.quick):
        medians, reasons = measure(cell, able, device, 0.0 if given.quick else given.seconds)
        results.append({"cell": dataclasses.asdict(cell), "work": cell.work(), "seconds": medians, "not_run": reasons})
        print(row(cell, medians, reasons), flush=True)
        for name, reason in reasons.items():
            refused.setdefault((name, reason), []).append(cell.name())
    print("\nNot run:")
    for name, reason in missing.items():
        print(f"- {name}: {reason}")
    for (name, reason), names in refused.items():
        print(f"- {name}, {len(names)} cells ({names[0]}): {reason}")
    with open(given.json, "w") as file:
        json.dump({"machine": facts, "missing": missing, "results": results}, file, indent=1)


if __name__ == "__main__":
    main()
