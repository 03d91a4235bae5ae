"""Calls of onepass.torch.context_parallel, each computed by one rank's library, in float64, and by several ranks."""

import os
import pathlib
import sys

import numpy as np
import onepass.torch
import ranks_textbook
import torch
import torch.distributed as dist
from onepass.context_parallel import Layout, attention
from rank_processes import (  # noqa: F401  tests call them by this name
    all_gathered,
    device,
    gathered,
    sentence,
    spawned,
    those_that_fit,
)
from ranks_textbook import SIDE

LENGTH = 75
DOCUMENTS = (0, 1, 17, 17, 50, 75)
MASKS = {
    "full": {},
    "causal": {"causal": True},
    "window": {"causal": True, "window": (11, 0)},
    "both_sides": {"window": (13, 5)},
}


def layouts(length, ranks):
    cuts = (0, length // 5, length // 5, length // 2, length - length // 7, length)
    shares = [0, *(min(5, 2 * r) for r in range(1, ranks)), 5]  # with many ranks the last ones hold nothing
    return {
        "contiguous": Layout.contiguous(length, ranks),
        "zigzag": Layout.zigzag(length, ranks),
        "any": Layout(cuts, (3, 1, 0, 4, 2), shares),
    }


def inputs(length, heads=4, heads_kv=2, dtype=torch.float32, dim=16, dim_v=16, batch=1):
    draw = torch.Generator().manual_seed(length + heads)

    def new(h, d, spread=1.0):
        return (spread * torch.randn(batch, h, length, d, generator=draw)).to(dtype)

    return new(heads, dim, 2.0), new(heads_kv, dim), new(heads_kv, dim_v), new(heads, dim_v)


def side_inputs(length, heads=4):
    """Every feature by itself."""
    draw = torch.Generator().manual_seed(5)

    def new(*shape):
        return torch.randn(*shape, generator=draw)

    visible = new(1, 1, length, length) > -0.5
    visible[:, :, 7] = False  # a row that sees no key
    return {
        "sinks": {"sinks": new(heads), "causal": True},
        "alibi": {"alibi_slopes": 0.2 * new(heads).abs(), "causal": True, "window": (30, 0)},
        "alibi_full": {"alibi_slopes": 0.2 * new(heads).abs()},
        "softcap": {"softcap": 2.0, "scale": 0.3, "causal": True},
        "bias": {"bias": new(1, heads, length, length)},
        "bias_of_keys": {"bias": new(1, 1, 1, length), "causal": True},
        "mask_of_keys": {"bool_mask": new(1, 1, 1, length) > 0, "sinks": new(heads)},
        "mask": {"bool_mask": visible, "causal": True},
        "score_mod": {"score_mod": "score - 0.05 * (head + 1) * abs(q_index - k_index)", "causal": True},
        "mask_mod": {"mask_mod": "((q_index + k_index) % 3 != 0) | (q_index == k_index)"},
        "dropout": {"dropout_p": 0.3, "seed": 11, "causal": True, "sinks": new(heads)},
        "dropout_window": {"dropout_p": 0.5, "seed": 2**63 + 5, "window": (13, 5)},
    }


def textbook(q, k, v, dout, dlse, **o):
    """out, lse, maxima and gradients in float64."""

    def array(x):
        return x.double().numpy() if isinstance(x, torch.Tensor) and x.is_floating_point() else x

    options = {name: x.numpy() if name == "bool_mask" else array(x) for name, x in o.items()}
    found = ranks_textbook.textbook(*map(array, (q, k, v, dout, dlse)), **options)
    return {name: torch.from_numpy(np.ascontiguousarray(x)) for name, (x, _) in found.items()}


def named(values, side):
    return dict(zip(["out", "lse", "most", "dq", "dk", "dv", *(f"d{name}" for name in side)], values))


def one_device(q, k, v, dout, dlse, causal=False, window=(-1, -1), documents=None, **o):
    """The same by one call of the library, documents packed; with a bias, whose columns are positions, a call each."""
    if documents and "bias" in o:
        return of_each_document(q, k, v, dout, dlse, documents, causal=causal, window=window, **o)
    q, k, v, dout, dlse, o = on_device(q, k, v, dout, dlse, o)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    side = {name: o.pop(name).clone().requires_grad_() for name in SIDE if name in o}
    words = {"mask": "aligned_top_left", "window": (window[0], 0 if causal else window[1]), "threads": 1, **o, **side}
    if documents:
        cu = torch.tensor(documents, dtype=torch.int32, device=q.device)
        q, k, v = (x[0].transpose(0, 1) for x in leaves)
        words |= {"cu_seqlens_q": cu, "cu_seqlens_k": cu}
        out, lse, most = onepass.torch.attention(q, k, v, return_lse=True, return_max=True, **words)
        out, lse, most = out.transpose(0, 1)[None], lse[None], most[None]
    else:
        out, lse, most = onepass.torch.attention(*leaves, return_lse=True, return_max=True, **words)
    loss = (out.float() * dout.float()).sum() + (0 if dlse is None else (lse.masked_fill(lse.isinf(), 0) * dlse).sum())
    loss.backward()
    found = [out, lse, most, *(x.grad for x in leaves), *(x.grad for x in side.values())]
    return named([x.detach().cpu() for x in found], side)


def on_device(*tensors_and_options):
    """The same where this process computes: tensors, None, and dicts of options."""

    def moved(x):
        return x.to(device()) if isinstance(x, torch.Tensor) else x

    return [{k: moved(y) for k, y in x.items()} if isinstance(x, dict) else moved(x) for x in tensors_and_options]


def of_each_document(q, k, v, dout, dlse, documents, bias, **o):
    found = []
    for a, b in zip(documents, documents[1:]):
        rows = (x[:, :, a:b] for x in (q, k, v, dout, dlse))
        found.append(one_device(*rows, bias=bias[..., a:b], **o))
    return {name: torch.cat([x[name] for x in found], 3 if name == "dbias" else 2) for name in found[0]}


def sharded(layout, rank, q, k, v, dout, dlse, **o):
    """This rank's tensors, and its parts of the gradients that are sums over ranks."""
    q, k, v, dout, dlse, o = on_device(q, k, v, dout, dlse, o)
    leaves = [layout.shard(x, rank).requires_grad_() for x in (q, k, v)]
    side = {}
    for name in SIDE:
        if name in o:
            x = o.pop(name)
            x = layout.shard(x, rank) if name == "bias" and x.shape[2] > 1 else x.clone()
            side[name] = x.requires_grad_()
    if "bool_mask" in o and o["bool_mask"].shape[2] > 1:
        o["bool_mask"] = layout.shard(o["bool_mask"], rank)
    out, lse, most = attention(*leaves, layout=layout, return_lse=True, return_max=True, threads=1, **side, **o)
    loss = (out.float() * layout.shard(dout, rank).float()).sum()
    if dlse is not None:
        loss = loss + (lse.masked_fill(lse.isinf(), 0) * layout.shard(dlse, rank)).sum()
    loss.backward()
    found = [out, lse, most, *(x.grad for x in leaves), *(x.grad for x in side.values())]
    return named([x.detach().cpu() for x in found], side)


def together(layout, by_rank, length):
    """The whole tensors from those of all ranks."""

    def whole(name):
        parts = [mine[name] for mine in by_rank]
        of_rows = name in ("out", "lse", "most", "dq", "dk", "dv") or (
            name == "dbias"
            and parts[0].dim() == 4
            and any(x.shape[2] != 1 or layout.count(r) == 1 for r, x in enumerate(parts))
            and sum(x.shape[2] for x in parts) == length
        )
        return layout.whole(parts) if of_rows else sum(parts)

    return {name: whole(name) for name in by_rank[0]}


def cases(ranks):
    """name -> (layout, scheme, tensors, dlse is given, options)"""
    found = {}
    schemes = "gather", "ring", "ulysses"
    for scheme in schemes:
        few = {"zigzag"} if ranks in (1, 4) else set(layouts(LENGTH, ranks))  # others take minutes on two cores
        for name, layout in layouts(LENGTH, ranks).items():
            if name not in few:
                continue
            for mask, options in MASKS.items():
                found[f"{scheme} {name} {mask}"] = layout, scheme, inputs(LENGTH), False, options
                if name != "contiguous":
                    more = {**options, "documents": DOCUMENTS}
                    found[f"{scheme} {name} {mask} documents"] = layout, scheme, inputs(LENGTH), False, more
        zigzag, fours = layouts(LENGTH, ranks)["zigzag"], Layout.zigzag(LENGTH, ranks, multiple=4)
        for feature, options in side_inputs(LENGTH).items():
            rows = any(name in options and options[name].shape[2] > 1 for name in ("bias", "bool_mask"))
            if not (rows and scheme == "ulysses"):
                layout = fours if scheme == "ring" and "dropout_p" in options else zigzag
                found[f"{scheme} {feature}"] = layout, scheme, inputs(LENGTH), True, options
        for feature in ("sinks", "alibi", "score_mod", "bias_of_keys", "dropout", "dropout_window"):
            if scheme == "ring" and feature.startswith("dropout"):
                continue
            more = {**side_inputs(LENGTH)[feature], "documents": DOCUMENTS}
            found[f"{scheme} {feature} documents"] = zigzag, scheme, inputs(LENGTH), True, more
        for dtype in (torch.bfloat16, torch.float16):
            big = inputs(160, 8, 2, dtype, 32, 24, 2)
            found[f"{scheme} {str(dtype)[6:]}"] = Layout.zigzag(160, ranks), scheme, big, True, {"causal": True}
        for heads, heads_kv in ((7, 7), (10, 5), (2, 1), (6, 1)):
            few = inputs(33, heads, heads_kv)
            found[f"{scheme} heads {heads}/{heads_kv}"] = Layout.zigzag(33, ranks), scheme, few, False, {"causal": True}
        for length in {0, 1, ranks - 1, ranks, 2 * ranks + 1}:
            layout = Layout.zigzag(length, ranks)
            found[f"{scheme} length {length}"] = layout, scheme, inputs(length), False, {"causal": True}
        packed = Layout.documents(DOCUMENTS, ranks)
        more = {"causal": True, "documents": DOCUMENTS}
        found[f"{scheme} layout of documents"] = packed, scheme, inputs(LENGTH), False, more
    more = {"causal": True, "head_groups": 3}
    found["gather head_groups"] = layouts(LENGTH, ranks)["zigzag"], "gather", inputs(LENGTH, 8, 4), False, more
    more = {"dropout_p": 0.25, "seed": 1, "causal": True}
    found["dropout in a batch"] = (
        Layout.zigzag(160, ranks),
        "auto",
        inputs(160, 8, 2, torch.bfloat16, batch=2),
        True,
        more,
    )
    found["auto"] = layouts(LENGTH, ranks)["zigzag"], "auto", inputs(LENGTH), False, {"causal": True}
    return found


def of_rows(q, given):
    return 0.1 * torch.randn(q.shape[:3], generator=torch.Generator().manual_seed(9)) if given else None


def compared(rank, ranks, folder):
    """On rank 0: for each case the whole tensors of the ranks."""
    found = {}
    for name, (layout, scheme, (q, k, v, dout), given, options) in cases(ranks).items():
        mine = sharded(layout, rank, q, k, v, dout, of_rows(q, given), scheme=scheme, **options)
        by_rank = gathered(mine)
        if rank == 0:
            found[name] = together(layout, by_rank, layout.length)
    return found


def reproduced(rank, ranks, folder):
    """On rank 0: results that must have the same bits for any number of ranks."""
    found = {}
    for kind in (Layout.zigzag, Layout.contiguous):
        for dtype in (torch.float32, torch.bfloat16):
            more = {"documents": {"documents": (0, 5, 60, 61, 150), "window": (-1, 9)}}
            more["dropout"] = {"dropout_p": 0.2, "seed": 3, "window": (21, 3)}
            for mask, options in {**MASKS, **more}.items():
                layout, (q, k, v, dout) = kind(150, ranks, units=8), inputs(150, dtype=dtype)
                o = {**options, "reproducible": True}
                mine = sharded(layout, rank, q, k, v, dout, of_rows(q, True), **o)
                by_rank = gathered(mine)
                if rank == 0:
                    found[f"{kind.__name__} {str(dtype)[6:]} {mask}"] = together(layout, by_rank, 150)
    return found


def disagreeing(rank, ranks, folder):
    """The sentences that every rank hears where one of them makes another call; the group can be used afterwards."""
    layout, q = Layout.contiguous(8 * ranks, ranks), torch.zeros(1, 2, 8, 16)
    last = rank == ranks - 1

    def call(q=q, layout=layout, **options):
        return attention(q, q, q, layout=layout, **options)

    heard = {
        "shape": sentence(lambda: call(torch.zeros(1, 4, 8, 16) if last else q)),
        "dtype": sentence(lambda: call(q.bfloat16() if last else q)),
        "rows": sentence(lambda: call(q[:, :, :7] if last else q)),
        "layout": sentence(lambda: call(layout=Layout.zigzag(8 * ranks, ranks) if last else layout)),
        "mask": sentence(lambda: call(causal=last)),
        "option": sentence(lambda: call(softcap=2.0 if last else 0.0)),
        "maximum": sentence(lambda: call(return_max="rows")),
        "value": sentence(lambda: call(softcap=-1.0 if last else 1.0)),
        "gradient": sentence(lambda: call(q.clone().requires_grad_() if last else q)),
        "dropout": sentence(lambda: call(dropout_p=0.5, seed=rank)),
        "drawn": sentence(lambda: call(dropout_p=0.5)),
        "right": sentence(call),
    }
    return all_gathered(heard)


def dropped(rank, ranks, folder):
    """On rank 0: the weights that dropout leaves, by scheme; and with a seed that rank 0 draws."""
    found = {}
    q, k, _, _ = inputs(48)
    v = torch.eye(48).expand(1, 2, 48, 48)
    layout = Layout.zigzag(48, ranks, multiple=4)
    mine = [layout.shard(x, rank) for x in on_device(q, k, v)]
    torch.manual_seed(rank)
    for scheme, seed in (("gather", 7), ("ring", 7), ("ulysses", 7), ("gather", None)):
        out = attention(*mine, layout=layout, scheme=scheme, causal=True, dropout_p=0.4, seed=seed)
        by_rank = gathered((out != 0).cpu())
        if rank == 0:
            found[scheme, seed] = layout.whole(by_rank)
    return found


def grouped(rank, ranks, folder):
    """Two groups at once, of other members and sizes than the default one; expanded, strided and turned inputs."""
    groups = [dist.new_group([0, 2, 3]), dist.new_group([1, 0])]
    members = [[0, 2, 3], [1, 0]]
    q, k, v, _ = inputs(40)
    turned = q.transpose(1, 2).contiguous().transpose(1, 2)
    gaps = torch.cat([k, k.new_full(k.shape, float("nan"))], 3)[..., :16]
    expanded = v[:, :1].expand(-1, 2, -1, -1)
    whole = onepass.torch.attention(turned, gaps, expanded, mask="causal_top_left")
    right = True
    for group, of in zip(groups, members):
        if rank not in of:
            continue
        me, layout = dist.get_rank(group), Layout.zigzag(40, len(of))
        mine = [layout.shard(x, me) for x in (turned, gaps, expanded)]
        views = [torch.cat([x, x], 2)[:, :, : x.shape[2]] for x in mine]
        for scheme in ("gather", "ring", "ulysses"):
            out = attention(*views, layout=layout, group=group, scheme=scheme, causal=True)
            right = right and bool((out - layout.shard(whole, me)).abs().max() < 1e-5)
    return all_gathered("right" if right else "wrong")


STEPS = 12


def trained(rank, ranks, folder):
    """The losses of demo/train_ranks.py."""
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "demo"))
    import train_ranks

    return train_ranks.train(rank, ranks, STEPS)


def failing(rank, ranks, folder):
    """The sentences that the others hear if a rank raises in mid-call, and goes on."""
    from onepass.context_parallel import call

    layout, q = Layout.contiguous(8 * ranks, ranks), torch.zeros(1, 2, 8, 16)
    if rank == 1:

        def broken(*_):
            raise RuntimeError("out of something")

        call.Call.forward = broken
    heard = sentence(lambda: attention(q, q, q, layout=layout, scheme="ring"))
    again = sentence(lambda: attention(q, q, q, layout=layout))
    (folder / f"heard{rank}").write_text(heard + "\n" + again)
    dist.distributed_c10d._get_default_store().set(f"heard{rank}", "")
    dist.distributed_c10d._get_default_store().wait([f"heard{r}" for r in range(ranks)])
    os._exit(0)  # messages of the failed exchange are under way


def dying(rank, ranks, folder):
    """The sentences that the others hear if a rank's process ends in mid-call."""
    from onepass.context_parallel import call

    layout, q = Layout.contiguous(8 * ranks, ranks), torch.zeros(1, 2, 8, 16)
    if rank == 1:
        call.Call.forward = lambda *_: os._exit(7)
    heard = sentence(lambda: attention(q, q, q, layout=layout, scheme="ring"))
    (folder / f"heard{rank}").write_text(heard)
    os._exit(0)
