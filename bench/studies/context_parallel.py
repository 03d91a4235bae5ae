"""Context parallelism (docs/features/context_parallel.md) on the GPUs of one machine beside one GPU, and PyTorch's own.

Causal, batch 1, 32 heads on 8, dim 128, bf16. A time is that of the slowest rank, of a call in a row of calls without a
wait in between. The share of linear is the time of one GPU by the number of ranks and the time. Errors are the largest
difference from onepass on one GPU, by the largest number there.

--documents packs documents of other lengths into one sequence: 128 to 32k tokens in 64k. One GPU then takes the packed
call with cu_seqlens.
"""

import datetime
import itertools
import os
import queue
import statistics
import tempfile

NEEDS = "torch", "onepass"
SECONDS = 0.3  # of a row of calls
DOCUMENTS = 4096, 512, 32768, 128, 8192, 1024, 16384, 256, 2048, 128


def arguments(parser):
    parser.add_argument("--device", default="cuda", help="cpu: gloo and small sizes, to see that it runs")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--lengths", default="16384,32768,65536,131072")
    parser.add_argument(
        "--documents", action="store_true", help=f"{len(DOCUMENTS)} documents in {sum(DOCUMENTS)} tokens"
    )
    parser.add_argument("--shorter", type=int, default=1, help="divides the documents' lengths")


def cells(layout_of, length, ranks):
    """name -> (layout, options); None: one GPU."""
    zigzag, contiguous = layout_of.zigzag(length, ranks), layout_of.contiguous(length, ranks)
    units = layout_of.zigzag(length, ranks, units=max(8, 2 * ranks))
    return {
        "one GPU": None,
        "gather zigzag": (zigzag, {"scheme": "gather"}),
        "gather zigzag, 2 groups of heads": (zigzag, {"scheme": "gather", "head_groups": 2}),
        "gather zigzag, reproducible, 8 units": (units, {"reproducible": True}),
        "gather contiguous": (contiguous, {"scheme": "gather"}),
        "ring zigzag": (zigzag, {"scheme": "ring"}),
        "ulysses contiguous": (contiguous, {"scheme": "ulysses"}),
        "torch context_parallel": "torch",
    }


def document_cells(layout_of, documents, ranks):
    """As cells(), for packed documents."""
    documents_each, zigzag = layout_of.documents(documents, ranks), layout_of.zigzag(documents[-1], ranks)
    return {
        "one GPU": None,
        "gather documents": (documents_each, {"scheme": "gather"}),
        "gather zigzag": (zigzag, {"scheme": "gather"}),
        "ring documents": (documents_each, {"scheme": "ring"}),
        "ulysses contiguous": (layout_of.contiguous(documents[-1], ranks), {"scheme": "ulysses"}),
    }


class Rank:
    """One process."""

    documents = None  # where they begin, and the length

    def __init__(self, torch, rank, ranks, device):
        self.torch, self.rank, self.ranks, self.dist = torch, rank, ranks, torch.distributed
        self.device = torch.device("cuda", rank) if device == "cuda" else torch.device("cpu")
        self.heads, self.heads_kv, self.dim = (32, 8, 128) if device == "cuda" else (4, 2, 32)

    def slowest(self, x):
        x = self.torch.tensor([x], dtype=self.torch.float64, device=self.device)
        self.dist.all_reduce(x, op=self.dist.ReduceOp.MAX)
        return x.item()

    def wait(self):
        if self.device.type == "cuda":
            self.torch.cuda.synchronize()

    def seconds(self, run):
        """The median of three rows of calls."""
        import time

        def row(n):
            self.wait()
            self.dist.barrier()
            start = time.perf_counter()
            for _ in range(n):
                run()
            self.wait()
            return self.slowest((time.perf_counter() - start) / n)

        run()
        n = max(1, min(10, int(SECONDS / row(1))))
        return statistics.median(row(n) for _ in range(3))

    def inputs(self, length):
        draw = self.torch.Generator(self.device).manual_seed(length)

        def new(heads):
            shape = 1, heads, length, self.dim
            return self.torch.randn(shape, generator=draw, device=self.device, dtype=self.torch.bfloat16)

        return new(self.heads), new(self.heads_kv), new(self.heads_kv), new(self.heads)

    def timed(self, call, given, dout):
        """(seconds of a forward, of both, (out, dq, dk, dv))"""
        plain = [x.detach() for x in given]
        forward = self.seconds(lambda: call(*plain))
        both = self.seconds(lambda: self.torch.autograd.grad(call(*given), given, dout))
        out = call(*given)
        return forward, both, [out.detach(), *self.torch.autograd.grad(out, given, dout)]

    def torch_call(self, length, given, layout):
        """PyTorch's context_parallel with all-gathers, and this rank's rows of the inputs."""
        import torch.nn.functional as F
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.experimental import context_parallel

        mesh = init_device_mesh(self.device.type, (self.ranks,))
        buffers = [x.clone() for x in given]
        with context_parallel(mesh, buffers=buffers, buffer_seq_dims=[2] * 4, no_restore_buffers=set(buffers)):
            q, k, v, dout = buffers
            leaves = [x.detach().requires_grad_() for x in (q, k, v)]

            def call(q, k, v):
                return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

            return self.timed(call, leaves, dout.contiguous())

    def one_gpu(self, q, k, v):
        import onepass.torch

        if not self.documents:
            return onepass.torch.attention(q, k, v, mask="causal_top_left")
        starts = self.torch.tensor(self.documents, dtype=self.torch.int32, device=self.device)
        longest = max(b - a for a, b in itertools.pairwise(self.documents))
        packed = {"cu_seqlens_q": starts, "cu_seqlens_k": starts, "max_seqlen_q": longest, "max_seqlen_k": longest}
        tokens_first = (x[0].transpose(0, 1) for x in (q, k, v))
        return onepass.torch.attention(*tokens_first, mask="causal_top_left", **packed).transpose(0, 1)[None]

    def measured(self, length):
        from onepass.context_parallel import Layout, attention

        q, k, v, dout = self.inputs(length)
        one = whole = None
        of = document_cells(Layout, self.documents, self.ranks) if self.documents else cells(Layout, length, self.ranks)
        more = {"documents": self.documents} if self.documents else {}
        for name, cell in of.items():
            layout = cell[0] if isinstance(cell, tuple) else Layout.zigzag(length, self.ranks) if cell else None
            row = {"length": length, "ranks": self.ranks, "name": name}
            sdpa = self.torch.nn.functional.scaled_dot_product_attention
            try:
                if cell == "torch":
                    forward, both, found = self.torch_call(length, (q, k, v, dout), layout)
                elif cell is None:
                    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
                    forward, both, found = self.timed(self.one_gpu, leaves, dout)
                    one, whole = (forward, both), found
                else:
                    leaves = [layout.shard(x, self.rank).requires_grad_() for x in (q, k, v)]
                    options = {"layout": layout, "causal": True, **more, **cell[1]}
                    forward, both, found = self.timed(
                        lambda q, k, v, o=options: attention(q, k, v, **o), leaves, layout.shard(dout, self.rank)
                    )
            except Exception as error:  # every rank comes here, or the group's timeout ends all
                self.torch.nn.functional.scaled_dot_product_attention = sdpa  # PyTorch leaves its own in place
                yield row | {"error": f"{type(error).__name__}: {str(error).splitlines()[:1]}"}
                continue
            share = [a / ((self.ranks if layout else 1) * b) for a, b in zip(one, (forward, both))]
            expected = whole if layout is None else [layout.shard(x, self.rank) for x in whole]
            errors = [
                self.slowest((a.float() - b.float()).abs().max().item()) / b.abs().max().item()
                for a, b in zip(found, expected)
            ]
            yield row | {"forward_s": forward, "both_s": both, "share": share, "errors": errors}


def work(rank, ranks, device, lengths, documents, file, answers):
    import torch

    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    if device == "cuda":
        torch.cuda.set_device(rank)
    store = torch.distributed.FileStore(file, ranks)
    limit = datetime.timedelta(seconds=120)
    torch.distributed.init_process_group(
        "nccl" if device == "cuda" else "gloo", store=store, rank=rank, world_size=ranks, timeout=limit
    )
    mine = Rank(torch, rank, ranks, device)
    mine.documents = documents
    for length in lengths:
        for row in mine.measured(length):
            if rank == 0:
                answers.put(row)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def rows(torch, onepass, options):
    lengths, documents = [int(x) for x in options.lengths.split(",")], None
    if options.documents:
        documents = [0, *itertools.accumulate(n // options.shorter for n in DOCUMENTS)]
        lengths = documents[-1:]
    with tempfile.TemporaryDirectory() as folder:
        answers = torch.multiprocessing.get_context("spawn").Queue()
        given = options.ranks, options.device, lengths, documents, os.path.join(folder, "store"), answers
        context = torch.multiprocessing.start_processes(
            work, given, nprocs=options.ranks, join=False, start_method="spawn"
        )
        over = False
        while not over:
            over = context.join(timeout=1)
            while True:
                try:
                    yield answers.get(timeout=0.2)
                except queue.Empty:
                    break


def said(row):
    head = f"{row['length']:7d} {row['name']:38s}"
    if "error" in row:
        return f"{head} {row['error']}"
    times = f"forward {1e3 * row['forward_s']:8.2f} ms {100 * row['share'][0]:5.1f} %"
    both = f"both {1e3 * row['both_s']:8.2f} ms {100 * row['share'][1]:5.1f} %"
    errors = " ".join(f"{name} {x:.1e}" for name, x in zip(("out", "dq", "dk", "dv"), row["errors"]))
    return f"{head} {times} | {both} | {errors}"


def table(document):
    """Shares of linear in percent, milliseconds of one GPU, and in the last row PyTorch's time over gather's."""
    lengths = sorted({row["length"] for row in document})
    cell = {(row["name"], row["length"]): row for row in document if "share" in row}

    def line(name, text):
        shown = (text(cell[name, n], n) if (name, n) in cell else "-" for n in lengths)
        return f"| {name} | " + " | ".join(shown) + " |"

    def times(row):
        return [row["forward_s"], row["both_s"]]

    def over_gather(row, n):
        gather = times(cell["gather zigzag", n])
        return ", ".join(f"{a / b:.2f}x" for a, b in zip(times(row), gather))

    lines = ["| | " + " | ".join(f"{n / 1024:g}k" for n in lengths) + " |", "|" + "---|" * (len(lengths) + 1)]
    for name in dict.fromkeys(row["name"] for row in document):
        if name == "one GPU":
            text = line(name, lambda row, _: ", ".join(f"{1e3 * x:.2f}" for x in times(row)))
            lines.append(text.replace(name, f"{name}, ms"))
        else:
            lines.append(line(name, lambda row, _: ", ".join(f"{100 * x:.1f}" for x in row["share"])))
    torch = "torch context_parallel"
    if any(name == torch for name, _ in cell):
        lines.append(line(torch, over_gather).replace(torch, "its time over gather's"))
    return "\n".join(lines)
