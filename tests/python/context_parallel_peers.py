"""Cases of other libraries' tests of context parallelism, computed by onepass.torch.context_parallel on some ranks."""

import itertools
import random
from typing import Any, NamedTuple

import torch
from context_parallel_cases import together
from onepass.context_parallel import Layout, attention, sdpa
from rank_processes import device, gathered


class Case(NamedTuple):
    layout: Layout
    scheme: str
    tensors: tuple[torch.Tensor, ...]  # q, k, v and dout
    options: dict[str, Any]
    alone: dict[str, Any]  # the options by which one device computes the same
    packed: bool = False  # q, k and v are views of [batch, rows, 3, heads, dim], which gets one gradient
    block: bool = False  # PyTorch's function inside a block
    near: tuple[float, float] | None = None  # the tolerance beside one device: absolute, in proportion
    near_of_keys: tuple[float, float] | None = None  # that of dk and dv, if it is another one


def dealt(cuts, owners, ranks):
    """A layout by the rank that owns each unit."""
    order = sorted(range(len(owners)), key=lambda unit: owners[unit])
    return Layout(cuts, order, [sum(owner < r for owner in owners) for r in range(ranks + 1)])


def striped(length, ranks):
    return dealt(range(length + 1), [i % ranks for i in range(length)], ranks)


def of_documents(documents, ranks, pieces):
    """Each document in pieces: one for each rank, or two, the first with the last."""
    cuts = [a + (b - a) * i // pieces for a, b in itertools.pairwise(documents) for i in range(pieces)]
    owners = [min(i, 2 * ranks - 1 - i) if pieces > ranks else i for i in range(pieces)]
    return dealt([*cuts, documents[-1]], owners * (len(documents) - 1), ranks)


def by_work(documents, ranks, block):
    """PyTorch's PTRR: blocks in the order of their work, dealt out to and fro."""
    length = documents[-1]
    starts = [a for a, b in itertools.pairwise(documents) for _ in range(a, b)]
    work = [sum(i - starts[i] + 1 for i in range(a, min(a + block, length))) for a in range(0, length, block)]
    owners = [0] * len(work)
    for n, unit in enumerate(sorted(range(len(work)), key=lambda u: -work[u])):
        owners[unit] = n % ranks if n // ranks % 2 == 0 else ranks - 1 - n % ranks
    return dealt([*range(0, length, block), length], owners, ranks)


def same_document(documents):
    """[1, 1, length, length]: position i sees j, which is not later, in its own document."""
    ids = torch.bucketize(torch.arange(documents[-1]), torch.tensor(documents), right=True)
    return ((ids[:, None] == ids) & torch.ones(len(ids), len(ids), dtype=torch.bool).tril())[None, None]


def random_documents(length, count, draw, chunk=1):
    """Where documents of random lengths begin, each of a multiple of chunk; and the length."""
    return [0, *sorted(chunk * x for x in draw.sample(range(1, length // chunk), count - 1)), length]


def ring_flash_attention(ranks):
    """Packed qkv in bf16, 5 heads. A quarter of the lengths: two ranks have the rows that eight have there, and on four
    ranks the rows are uneven, which is refused there."""

    def case(layout, scheme, dim, **options):
        draw = torch.Generator().manual_seed(42)
        q, k, v, dout = (torch.randn(1, layout.length, 5, dim, generator=draw).bfloat16() for _ in range(4))
        alone = {key: x for key, x in options.items() if key != "head_groups"}
        given = tuple(x.transpose(1, 2) for x in (q, k, v, dout))
        return Case(layout, scheme, given, options, alone, packed=True)

    documents, even = [x // 4 for x in (0, 120, 1248, 4232)], [x // 4 for x in (0, 128, 1248, 4240)]
    return {
        "ring": case(Layout.contiguous(3816 // 4, ranks), "ring", 128, causal=True),
        "zigzag": case(Layout.zigzag(3824 // 4, ranks), "ring", 128, causal=True),
        "stripe": case(striped(3824 // 64, ranks), "ring", 128, causal=True),  # a call for each row and shard
        "ring varlen": case(of_documents(documents, ranks, ranks), "ring", 128, causal=True, documents=documents),
        "zigzag varlen": case(of_documents(even, ranks, 2 * ranks), "ring", 128, causal=True, documents=even),
        "llama3 varlen": case(
            Layout.contiguous(documents[-1], ranks), "gather", 8, causal=True, documents=documents, head_groups=5
        ),
    }


def uniform(batch, heads, length, dim, dtype=torch.float32):
    """Inputs of PyTorch's tests, whose loss is the sum of the output."""
    draw = torch.Generator().manual_seed(10)
    q, k, v = (torch.rand(batch, heads, length, dim, generator=draw).to(dtype) for _ in range(3))
    return q, k, v, torch.ones_like(q)


def pytorch_sdpa(ranks):
    """RingAttentionTest. A rank has 64 rows, as in PyTorch 2.7, in place of 1024."""
    cases, length = {}, 64 * ranks
    for dtype, near in ((torch.bfloat16, (8e-3 * ranks, 1e-3 * ranks)), (torch.float32, (2e-6, 1e-5))):
        tensors = uniform(8, 8, length, 32, dtype)
        for causal, balanced in ((True, True), (True, False), (False, False)):
            layout = (Layout.zigzag if balanced else Layout.contiguous)(length, ranks)
            for scheme, block in itertools.product(("ring", "gather"), (False, True)):
                name = f"{dtype} causal={causal} balanced={balanced} {scheme} block={block}"
                o = {"causal": causal}
                cases[name] = Case(layout, scheme, tensors, o, o, block=block, near=near)
    return cases


def pytorch_flex(ranks):
    """CPFlexAttentionTest: masks by an expression, and the LSE. 2 entries of a batch, and not 2048 rows."""
    cases, o, near = {}, {"mask_mod": "q_index >= k_index"}, (2e-6, 1e-5)
    for length in (256 * ranks, 64 * ranks):  # it refuses 64 rows a rank
        layouts = {
            "None": Layout.contiguous(length, ranks),
            "HeadTail": Layout.zigzag(length, ranks),
            "PTRR": by_work([0, length], ranks, 128),
        }
        for name, layout in layouts.items():
            case = Case(layout, "gather", uniform(2, 8, length, 32), o, {"causal": True}, near=near)
            cases[f"causal {length} {name}"] = case
    length, draw = 256 * ranks, random.Random(10)
    tensors = uniform(2, 8, length, 32)
    entries = [random_documents(length, 28, draw) for _ in range(2)]
    seen = torch.cat([same_document(documents) for documents in entries])
    ids = torch.stack([torch.bucketize(torch.arange(length), torch.tensor(x), right=True) for x in entries])
    o = {"mask_mod": "doc[batch, q_index] == doc[batch, k_index] && q_index >= k_index", "mod_buffers": {"doc": ids}}
    for kind, scheme in itertools.product((Layout.contiguous, Layout.zigzag), ("gather", "ring")):
        case = Case(kind(length, ranks), scheme, tensors, o, {"bool_mask": seen}, near=near)
        cases[f"documents of each entry {kind.__name__} {scheme}"] = case
    for n in range(2):  # a layout for each entry: a call for each
        documents = random_documents(length, 28, draw, 2 * ranks)
        mine, o = tuple(x[n : n + 1] for x in tensors), {"causal": True, "documents": documents}
        layouts = {
            "PerDocumentHeadTail": of_documents(documents, ranks, 2 * ranks),
            "PTRR": by_work(documents, ranks, 128),
            "ours": Layout.documents(documents, ranks),
        }
        for name, layout in layouts.items():
            cases[f"entry {n} {name}"] = Case(layout, "gather", mine, o, o, near=near)
    return cases


def pytorch_varlen(ranks):
    """CPVarlenAttentionTest, and the length of 30 on four ranks that VarlenMetadata refuses."""
    cases = {}
    for batch, lengths in ((1, [128]), (2, [128]), (2, [40, 88]), (1, [40, 88]), (1, [30])):
        draw, length = torch.Generator().manual_seed(1234), sum(lengths)
        documents = [0, *itertools.accumulate(lengths)]
        q, k, v = (torch.randn(batch, 4, length, 32, generator=draw).bfloat16() for _ in range(3))
        layouts = {
            "None": Layout.contiguous(length, ranks),
            "HeadTail": Layout.zigzag(length, ranks),
            "PTRR": by_work(documents, ranks, 32),
        }
        alone = {"bool_mask": same_document(documents)}
        for name, layout in layouts.items():
            case = Case(
                layout, "gather", (q, k, v, torch.ones_like(q)), {"causal": True, "documents": documents}, alone
            )
            cases[f"{batch} x {lengths} {name}"] = case._replace(near=(5e-3, 5e-3), near_of_keys=(5e-2, 5e-2))
    return cases


FAMILIES = ring_flash_attention, pytorch_sdpa, pytorch_flex, pytorch_varlen


def shard_of(case, rank):
    """This rank's out, LSE and gradients."""
    layout, o = case.layout, dict(case.options)
    q, k, v, dout = (layout.shard(x, rank).to(device()) for x in case.tensors)
    if case.packed:
        leaves = [torch.stack([x.transpose(1, 2) for x in (q, k, v)], 2).requires_grad_()]
        q, k, v = (x.transpose(1, 2) for x in leaves[0].unbind(2))
    else:
        leaves = [q, k, v] = [x.clone().requires_grad_() for x in (q, k, v)]
    found = {}
    if case.block:
        with sdpa(layout, scheme=case.scheme, threads=1):
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=o["causal"])
    else:
        o |= {"layout": layout, "scheme": case.scheme, "threads": 1}
        if "mod_buffers" in o:
            o["mod_buffers"] = {name: x.to(device()) for name, x in o["mod_buffers"].items()}
        out, found["lse"] = attention(q, k, v, return_lse=True, **o)
        with torch.no_grad():
            assert torch.equal(attention(q, k, v, **o), out)  # a forward alone
    out.backward(dout)
    grads = [x.transpose(1, 2) for x in leaves[0].grad.unbind(2)] if case.packed else [x.grad for x in leaves]
    return {name: x.detach().cpu() for name, x in (found | dict(zip(("out", "dq", "dk", "dv"), (out, *grads)))).items()}


def computed(rank, ranks, folder):
    """On rank 0: for each case of each family the whole tensors of the ranks."""
    found = {}
    for family in FAMILIES:
        for name, case in family(ranks).items():
            by_rank = gathered(shard_of(case, rank))
            if rank == 0:
                found[family.__name__, name] = together(case.layout, by_rank, case.layout.length)
    return found
