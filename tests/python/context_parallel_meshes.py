"""Calls on a mesh of two dimensions: nodes, and ranks within a node."""

import context_parallel_cases as cases
import torch
import torch.distributed as dist
from onepass.context_parallel import Layout, attention
from rank_processes import all_gathered, gathered, sentence

WITHIN = {4: 2, 6: 3, 8: 4}  # ranks of a node


def groups(ranks):
    """(between nodes, within this node) of this rank."""
    within, me = WITHIN[ranks], dist.get_rank()
    between = [dist.new_group(list(range(i, ranks, within))) for i in range(within)]
    nodes = [dist.new_group(list(range(n * within, (n + 1) * within))) for n in range(ranks // within)]
    return between[me % within], nodes[me // within]


def calls(ranks):
    """name -> (layout, tensors, dlse is given, options)"""
    length, features = cases.LENGTH, cases.side_inputs(cases.LENGTH)
    zigzag, few = Layout.zigzag(length, ranks), cases.inputs(length)
    found = {
        f"{name} {kind}": (layout, few, False, o)
        for kind, layout in cases.layouts(length, ranks).items()
        for name, o in cases.MASKS.items()
        if kind != "contiguous" or name == "both_sides"
    }
    for name in ("sinks", "alibi", "softcap", "bias_of_keys", "mask_of_keys", "score_mod", "mask_mod", "dropout"):
        found[name] = zigzag, few, True, features[name]
    for name in ("sinks", "alibi", "score_mod", "dropout"):
        found[f"{name} documents"] = zigzag, few, True, {**features[name], "documents": cases.DOCUMENTS}
    found["documents"] = Layout.documents(cases.DOCUMENTS, ranks), few, False, {"documents": cases.DOCUMENTS}
    for heads in ((7, 7), (10, 5), (6, 1), (1, 1)):
        found[f"heads {heads}"] = Layout.zigzag(33, ranks), cases.inputs(33, *heads), True, {"causal": True}
    for n in (0, 1, ranks - 1):
        found[f"length {n}"] = Layout.zigzag(n, ranks), cases.inputs(n), False, {"causal": True}
    big = cases.inputs(160, 8, 2, torch.bfloat16, 32, 24, 2)
    found["bfloat16"] = Layout.zigzag(160, ranks), big, True, {"causal": True}
    return found


def compared(rank, ranks, folder):
    """On rank 0: for each call the whole tensors of the ranks."""
    found, pair = {}, groups(ranks)
    for name, (layout, (q, k, v, dout), given, options) in calls(ranks).items():
        mine = cases.sharded(layout, rank, q, k, v, dout, cases.of_rows(q, given), group=pair, **options)
        by_rank = gathered(mine)
        if rank == 0:
            found[name] = cases.together(layout, by_rank, layout.length)
    return found


def disagreeing(rank, ranks, folder):
    """The sentences that every rank hears where one of them makes another call, or a wrong one."""
    within = WITHIN[ranks]
    mesh = dist.device_mesh.init_device_mesh("cpu", (ranks // within, within), mesh_dim_names=("nodes", "within"))
    layout, q = Layout.contiguous(8 * ranks, ranks), torch.zeros(1, 2, 8, 16)
    last = rank == ranks - 1

    def call(q=q, **options):
        return attention(q, q, q, layout=layout, group=mesh, **options)

    heard = {
        "rows": sentence(lambda: call(q[:, :, :7] if last else q)),
        "option": sentence(lambda: call(softcap=2.0 if rank < 2 else 0.0)),
        "scheme": sentence(lambda: call(scheme="ring")),
        "heads": sentence(lambda: call(head_groups=2)),
        "groups": sentence(lambda: attention(q, q, q, layout=layout, group=(None, None, None))),
        "drawn": sentence(lambda: call(dropout_p=0.5)),
    }
    return all_gathered(heard)
