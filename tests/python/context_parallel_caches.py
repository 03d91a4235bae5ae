"""Caches that are sharded, decoded from by several ranks and by one."""

import onepass.torch
import torch
from onepass.context_parallel import decode
from rank_processes import all_gathered, gathered, sentence

LENGTHS = 0, 1, 5, 37, 100
PAGE = 8


def inputs(rows, dtype, lengths=LENGTHS, heads=6, heads_kv=2):
    draw = torch.Generator().manual_seed(rows)

    def new(*shape):
        return torch.randn(*shape, generator=draw).to(dtype)

    n, batch = max(lengths), len(lengths)
    return new(batch, heads, rows, 16), new(batch, heads_kv, n, 16), new(batch, heads_kv, n, 8)


def part(k, v, rank, ranks, rows, paged):
    """This rank's cache: every ranks-th run of keys; the new tokens are on the rank of the sequence's number."""
    newest = torch.arange(len(LENGTHS), dtype=torch.int32) % ranks
    found = []
    for b, length in enumerate(LENGTHS):
        old = max(0, length - rows)
        here = [j for j in range(old) if j // 3 % ranks == rank]
        found.append(here + [j for j in range(old, length) if newest[b] == rank])
    used = torch.tensor([len(x) for x in found], dtype=torch.int32)
    most = max(1, *(len(x) for x in found))
    if not paged:
        caches = [x.new_full((len(found), x.shape[1], most, x.shape[3]), float("nan")) for x in (k, v)]
        for cache, x in zip(caches, (k, v)):
            for b, here in enumerate(found):
                cache[b, :, : len(here)] = x[b][:, here]
        return (*caches, {"seqused_k": used, "newest": newest})
    per = -(-most // PAGE)
    table = torch.randperm(per * len(found), generator=torch.Generator().manual_seed(3)).view(len(found), per).int()
    caches = [x.new_full((per * len(found), PAGE, x.shape[1], x.shape[3]), float("nan")) for x in (k, v)]
    for cache, x in zip(caches, (k, v)):
        for b, here in enumerate(found):
            for place, j in enumerate(here):
                cache[table[b, place // PAGE], place % PAGE] = x[b, :, j]
    return (*caches, {"seqused_k": used, "newest": newest, "page_table": table})


def options():
    sinks = torch.linspace(-1, 2, 6)
    return {"plain": {}, "sinks": {"sinks": sinks, "softcap": 3.0, "scale": 0.4}}


def cases():
    for paged in (False, True):
        for rows in (1, 3):
            for dtype in (torch.float32, torch.bfloat16):
                for name in options():
                    yield paged, rows, dtype, name


def decoded(rank, ranks, folder):
    """On rank 0: the results of all heads by case."""
    found = {}
    for paged, rows, dtype, name in cases():
        q, k, v = inputs(rows, dtype)
        *cache, words = part(k, v, rank, ranks, rows, paged)
        mine = decode(q, *cache, threads=1, **words, **options()[name])
        by_rank = gathered(mine)
        if rank == 0:
            found[paged, rows, dtype, name] = torch.cat(by_rank, 1)
    return found


def one_device(rows, dtype, name):
    q, k, v = inputs(rows, dtype)
    used = torch.tensor(LENGTHS, dtype=torch.int32)
    return onepass.attention(q, k, v, mask="causal_bottom_right", seqused_k=used, threads=1, **options()[name])


def textbook(rows, dtype, name):
    q, k, v = (x.double() for x in inputs(rows, dtype))
    o = options()[name]
    out = torch.zeros(*q.shape[:3], v.shape[3], dtype=torch.float64)
    for b, length in enumerate(LENGTHS):
        keys, values = (x[b, :, :length].repeat_interleave(3, 0) for x in (k, v))
        s = q[b] @ keys.mT * o.get("scale", 16**-0.5)
        s = o["softcap"] * (s / o["softcap"]).tanh() if "softcap" in o else s
        seen = torch.arange(length)[None, :] <= torch.arange(rows)[:, None] + length - rows
        s = s.masked_fill(~seen, -torch.inf)
        sink = o["sinks"].double()[:, None, None] if "sinks" in o else torch.full((6, 1, 1), -torch.inf).double()
        top = torch.maximum(s.amax(2, keepdim=True) if length else sink, sink).clamp(min=-1e30)
        weights = (s - top).exp()
        total = weights.sum(2, keepdim=True) + (sink - top).exp()
        out[b] = weights @ values / total.masked_fill(total == 0, 1)
    return out


def disagreeing(rank, ranks, folder):
    q, k, v = inputs(3, torch.float32)
    *cache, words = part(k, v, rank, ranks, 3, False)
    last = rank == ranks - 1
    heard = {
        "newest": sentence(lambda: decode(q, *cache, **{**words, "newest": None if last else words["newest"]})),
        "softcap": sentence(lambda: decode(q, *cache, **words, softcap=2.0 if last else 0.0)),
        "right": sentence(lambda: decode(q, *cache, **words)),
    }
    return all_gathered(heard)
