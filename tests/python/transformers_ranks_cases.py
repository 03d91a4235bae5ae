"""Small models of transformers whose sequence is sharded between the processes of a group."""

import copy

import onepass.transformers
import torch
import torch.distributed as dist
import transformers
from onepass.context_parallel import Layout
from rank_processes import all_gathered, device, sentence

LENGTH = 45
SIZES = dict(
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    vocab_size=97,
    max_position_embeddings=128,
)
# name: (the class of its configuration and model, sizes, options of the block, the layout)
MODELS = {
    "Llama": ("Llama", {}, {}, "zigzag"),
    "Llama over a ring": ("Llama", {}, {"scheme": "ring"}, "contiguous"),
    "Llama by heads": ("Llama", {}, {"scheme": "ulysses"}, "zigzag"),
    "Qwen 3 with documents": ("Qwen3", {}, {"documents": (0, 7, 30, LENGTH)}, "zigzag"),
    # One layer has a window, the next has none.
    "Gemma 2": ("Gemma2", dict(sliding_window=9, attn_logit_softcapping=2.0, query_pre_attn_scalar=16), {}, "zigzag"),
    "gpt-oss": ("GptOss", dict(sliding_window=9, num_local_experts=2, num_experts_per_tok=1), {}, "contiguous"),
    # An encoder: every position sees all positions.
    "Bert": ("Bert", {}, {}, "zigzag"),
}


def model_of(name, attention, **more):
    """The same random weights on every rank."""
    kind, sizes, _, _ = MODELS[name]
    config = getattr(transformers, f"{kind}Config")(**(SIZES | sizes | more))
    config.attention_dropout = config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    config.bos_token_id = config.eos_token_id = config.pad_token_id = None
    config._attn_implementation = attention
    model = getattr(transformers, kind + ("ForMaskedLM" if kind == "Bert" else "ForCausalLM"))(config)
    draw = torch.Generator().manual_seed(0)
    for parameter in model.parameters():  # scores that are far from flat
        parameter.data.normal_(0, 0.2, generator=draw)
    return model.to(device())


def tokens():
    ids = torch.randint(97, (2, LENGTH + 1), generator=torch.Generator().manual_seed(1))
    return ids[:, :-1], ids[:, 1:]


def positions(name):
    """Those of all tokens. Documents count from 0 each, which tells eager attention of them."""
    starts = torch.tensor(MODELS[name][2].get("documents", (0, LENGTH)))
    return torch.cat([torch.arange(n) for n in starts.diff().tolist()])


def step(model, ids, labels, **words):
    """The logits of a training step, and the gradients of a sum over these tokens. Shifted labels need no neighbour."""
    logits = model(input_ids=ids, use_cache=False, **words).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="sum")
    loss.backward()
    return logits.detach(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def alone(name):
    ids, labels = tokens()
    where = positions(name).expand(2, -1)
    return step(model_of(name, "eager").cpu(), ids, labels, position_ids=where)


def layout_of(name, ranks):
    return getattr(Layout, MODELS[name][3])(LENGTH, ranks)


def trained(rank, ranks, folder):
    """By model: the logits of all positions and the gradients, summed over the ranks."""
    onepass.transformers.register()
    found = {}
    for name, (_, _, options, _) in MODELS.items():
        layout = layout_of(name, ranks)
        ids, labels = (layout.shard(x, rank, dim=1).to(device()) for x in tokens())
        where = layout.shard(positions(name)[None], rank, dim=1).to(device())
        model = model_of(name, "onepass")
        if name == "Gemma 2":
            model.gradient_checkpointing_enable()
        with onepass.transformers.context_parallel(layout, **options):
            logits, grads = step(model, ids, labels, position_ids=where)
        for grad in grads.values():
            dist.all_reduce(grad)
        found[name] = layout.whole(all_gathered(logits.cpu()), dim=1), {n: x.cpu() for n, x in grads.items()}
    return found


def largest(rank, ranks, folder):
    """The maxima of every rank, and those of one process."""
    onepass.transformers.register()
    layout, model, ids = Layout.zigzag(LENGTH, ranks), model_of("Gemma 2", "onepass"), tokens()[0].to(device())
    with onepass.transformers.record_max(model) as whole, torch.no_grad():
        model(ids, use_cache=False)
    mine = layout.shard(ids, rank, dim=1), layout.positions(rank, device())[None]
    with onepass.transformers.record_max(model) as found, onepass.transformers.context_parallel(layout):
        model(mine[0], position_ids=mine[1], use_cache=False).logits.sum().backward()
    found, whole = ({name: x.tolist() for name, x in of.items()} for of in (found, whole))
    return all_gathered(found), whole


def compiled(rank, ranks, folder):
    """The largest difference of logits and gradients by torch.compile from those without, and the graph breaks."""
    onepass.transformers.register()
    layout, model = Layout.zigzag(LENGTH, ranks), model_of("Llama", "onepass")
    ids, labels = (layout.shard(x, rank, dim=1).to(device()) for x in tokens())
    where, found = layout.positions(rank, device())[None], []
    fast = torch.compile(model, backend="aot_eager")
    fast(
        input_ids=ids, position_ids=where, use_cache=False
    )  # a graph of this rank alone, which the block must not take
    torch._dynamo.utils.counters.clear()
    with onepass.transformers.context_parallel(layout):
        for each in (model, fast):
            model.zero_grad()
            logits = each(input_ids=ids, position_ids=where, use_cache=False).logits
            torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()).backward()
            found.append([logits.detach(), *(p.grad for p in model.parameters())])
    breaks = sum(torch._dynamo.utils.counters["graph_break"].values())
    return max((a - b).abs().max().item() for a, b in zip(*found)), breaks


def refused(rank, ranks, folder):
    """The sentences that every rank hears, also where one rank alone is wrong."""
    onepass.transformers.register()
    model, layout = model_of("Llama", "onepass"), Layout.zigzag(LENGTH, ranks)
    ids = layout.shard(tokens()[0], rank, dim=1)
    right = layout.positions(rank)[None]
    padding = torch.ones_like(ids)
    padding[0, :3] = rank != ranks - 1
    cache = transformers.DynamicCache(config=model.config)

    def call(**words):
        return model(**({"input_ids": ids, "position_ids": right, "use_cache": False} | words))

    def twice():
        for _ in range(2):
            call(use_cache=True, past_key_values=cache)

    chunked = copy.deepcopy(model)
    chunked.config.sliding_window = 4

    inputs = torch.zeros(2, ids.shape[1], 64), None, None, right

    def windowed():
        transformers.masking_utils.create_sliding_window_causal_mask(chunked.config, *inputs)

    def overlaid():
        blocks = torch.zeros_like(ids)
        transformers.masking_utils.create_causal_mask(model.config, *inputs, block_sequence_ids=blocks)

    with onepass.transformers.context_parallel(layout):
        calls = {
            "positions": lambda: call(position_ids=right + (rank == 1)),
            "padding": lambda: call(attention_mask=padding),
            "attentions": lambda: call(output_attentions=True),
            "cache": twice,
            "window": windowed,
            "blocks": overlaid,
            "rows": lambda: call(input_ids=ids[:, 1:], position_ids=None),
            "right": lambda: call(attention_mask=torch.ones_like(ids)),
        }
        heard = {name: sentence(x) for name, x in calls.items()}
    return all_gathered(heard)
