"""Gradients of the mod_buffers of onepass.torch.attention and onepass.jax.attention, beside float64."""

import math

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import flex_mods  # noqa: E402
import onepass.torch  # noqa: E402
from onepass._flex.read import expression  # noqa: E402

attention = onepass.torch.attention
BATCH, HEADS, HEADS_KV, ROWS, KEYS, DIM = 2, 4, 2, 37, 53, 16
generator = torch.Generator().manual_seed(1)


def random(*shape):
    return torch.randn(shape, generator=generator)


SHAPES = {"slope": (HEADS,), "table": (HEADS, ROWS + KEYS), "one": (), "gate": (BATCH, HEADS), "rows": (ROWS,)}
BUFFERS = {name: random(*shape) * 0.5 + 0.75 for name, shape in SHAPES.items()}
PLACE = torch.randint(0, ROWS, (KEYS,), generator=generator)
BIAS, SLOPES, SINKS = random(1, HEADS, ROWS, KEYS), random(BATCH, HEADS), random(HEADS)
SEEN = torch.rand(BATCH, 1, ROWS, KEYS, generator=generator) < 0.6
TILES = torch.randint(0, 3, (1, HEADS, 3, 4), generator=generator, dtype=torch.int32)
DISTANCE = torch.arange(ROWS)[:, None] - torch.arange(KEYS)

# text -> the same of scores, and buffers by name
MODS = {
    "score - slope[head] * abs(q_index - k_index)": lambda s, t: s - t["slope"][:, None, None] * DISTANCE.abs(),
    "score + table(head, q_index - k_index + 53)": lambda s, t: s + t["table"][:, DISTANCE + KEYS],
    "one * tanh(score / one) + one": lambda s, t: t["one"] * torch.tanh(s / t["one"]) + t["one"],
    "score * gate[batch, head] * gate[0, head]": lambda s, t: s * (t["gate"] * t["gate"][0])[:, :, None, None],
    "k_index % 3 == 1 ? score : rows[place[k_index]] * exp2(score * 0.25f)": lambda s, t: torch.where(
        torch.arange(KEYS) % 3 == 1, s, t["rows"][PLACE] * torch.exp2(s / 4)
    ),
    "rows[q_index + 30] * score - min(one, rows[q_index])": lambda s, t: (
        t["rows"][(torch.arange(ROWS) + 30).clamp(max=ROWS - 1)][:, None] * s
        - torch.minimum(t["one"], t["rows"])[:, None]
    ),
}
OPTIONS = {
    "plain": {},
    "causal": dict(mask="causal_bottom_right"),
    "top_left": dict(mask="causal_top_left", window=(9, -1)),
    "offset": dict(mask="causal_offset", align_offset=7),
    "window": dict(window=(5, 11)),
    "bool_mask": dict(bool_mask=SEEN),
    "bias": dict(bias=BIAS[0, 0], scale=0.4),
    "alibi": dict(alibi_slopes=SLOPES, softcap=1.5, bias=BIAS),
    "sinks": dict(sinks=SINKS),
    "mask_mod": dict(mask_mod="k_index < 9 || q_index >= k_index"),
    "block_mask": dict(block_mask=TILES, mask_tile_q=16, mask_tile_k=16, mask_mod="q_index >= k_index"),
    "tiles": dict(block_mask=TILES[:, :1], mask_tile_q=16, mask_tile_k=16),
    "bshd": dict(layout="bshd", mask="causal_top_left"),
}


def visible(o):
    band = o.get("mask") or ""
    shift = 0 if "top_left" in band else o.get("align_offset") or 0 if "offset" in band else KEYS - ROWS
    left, right = o.get("window", (-1, -1))
    right = 0 if band.startswith("causal") else right
    behind = DISTANCE + shift  # a(i) - j
    seen = o.get("bool_mask", torch.ones(1, 1, ROWS, KEYS, dtype=torch.bool))
    if left >= 0:
        seen = seen & (behind <= left)
    if right >= 0:
        seen = seen & (-behind <= right)
    inside = torch.ones(ROWS, KEYS, dtype=torch.bool)
    if "mask_mod" in o:
        inside = DISTANCE >= 0 if "<" not in o["mask_mod"] else (torch.arange(KEYS) < 9) | (DISTANCE >= 0)
    if "block_mask" in o:
        tile = o["block_mask"].repeat_interleave(16, 2)[:, :, :ROWS].repeat_interleave(16, 3)[..., :KEYS]
        inside = (tile == 2) | (tile == 1) & inside
    return seen & inside, shift


def textbook(mod, t, q, k, v, **o):
    """(out, lse) with all scores in memory."""
    if o.get("layout") == "bshd":
        q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
    groups = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(groups, 1) for x in (k, v))
    s = q @ k.mT * o.get("scale", 1 / math.sqrt(q.shape[-1]))
    s = o["softcap"] * torch.tanh(s / o["softcap"]) if o.get("softcap") else s
    s = s + o.get("bias", 0)
    seen, shift = visible(o)
    if "alibi_slopes" in o:
        s = s - o["alibi_slopes"].view(-1, HEADS, 1, 1) * (DISTANCE + shift).abs()
    s = torch.where(seen, mod(s, t), -math.inf)
    sinks = o["sinks"].view(1, -1, 1, 1).expand(*s.shape[:3], 1) if "sinks" in o else s[..., :0]
    lse = torch.cat([s, sinks], -1).logsumexp(-1)
    out = torch.where(lse[..., None] == -math.inf, 0, (s - lse[..., None]).exp()) @ v
    return (out.swapaxes(1, 2), lse.swapaxes(1, 2)) if o.get("layout") == "bshd" else (out, lse)


def draw(layout="bhsd", dtype=torch.float32):
    g = torch.Generator().manual_seed(3)
    shapes = (BATCH, HEADS, ROWS, DIM), (BATCH, HEADS_KV, KEYS, DIM), (BATCH, HEADS_KV, KEYS, 24)
    made = [torch.randn(shape, generator=g).to(dtype) for shape in shapes]
    return [x.swapaxes(1, 2).contiguous() for x in made] if layout == "bshd" else made


def losses(out, lse):
    weights = torch.linspace(-1, 1, out.shape[-1], dtype=out.dtype)
    return (out * weights).sum() + 0.5 * lse[torch.isfinite(lse)].sum()


def compare(text, options, dtype=torch.float32, inputs=("q", "k", "v")):
    names = [name for name in BUFFERS if name in text]
    found = []
    for exact in (False, True):
        kind = torch.float64 if exact else dtype
        qkv = [x.to(kind).requires_grad_() for x in draw(options.get("layout", "bhsd"), dtype)]
        t = {name: BUFFERS[name].to(torch.float64 if exact else torch.float32).requires_grad_() for name in names}
        if exact:
            wide = {
                n: x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
                for n, x in options.items()
            }
            out, lse = textbook(MODS[text], t, *qkv, **wide)
        else:
            given = {**t, "place": PLACE} if "place" in text else t
            out, lse = attention(*qkv, score_mod=text, mod_buffers=given, return_lse=True, **options)
        found.append([out, lse, *torch.autograd.grad(losses(out, lse), [*t.values(), *qkv])])
    for name, mine, exact in zip(("out", "lse", *names, "q", "k", "v"), *found, strict=True):
        finite = torch.isfinite(exact)
        assert torch.equal(mine[~finite].double(), exact[~finite])
        worst = (mine.double() - exact)[finite].abs().max()
        unit = 2e-5 if dtype == torch.float32 else 3e-2
        assert worst <= unit * exact[finite].abs().max().clamp(min=1), f"{name} is off by {worst:.3g}"


@pytest.mark.parametrize("text", MODS)
def test_texts(text):
    compare(text, {})
    compare(text, OPTIONS["causal"], torch.bfloat16)


@pytest.mark.parametrize("name", OPTIONS)
def test_options(name):
    for text in list(MODS)[:3]:
        compare(text, OPTIONS[name])


def test_strips(monkeypatch):
    monkeypatch.setattr("onepass._flex.torch_gradients._ELEMENTS", 5 * BATCH * HEADS * KEYS)
    for name in ("alibi", "block_mask", "bool_mask"):
        compare("score + table(head, q_index - k_index + 53)", OPTIONS[name])


# ------------------------------------------------------------------------------------- the reader of texts in Python
TEXTS = [
    "score + 1.5f - 2 * 3 % 4 / 2",
    "score - (q_index - k_index) / 3 + (q_index - 2 * k_index) % 5",
    "score / (q_index / 0 + 2) + k_index % 0",
    "k_index > 3 && q_index < 9 || head == 1 ? score : -score * 0.5f",
    "k_index > 3 ? q_index > 5 ? score : 2.0f * score : score + batch",
    "score + (k_index & 3 | 8 ^ q_index << 1 >> 2) - ~head + +2",
    "score + (k_index > 2 | q_index > 3) - (k_index > 2 & q_index > 3 ^ true)",
    "score + float(k_index) / 7 + (float)q_index * .5 + (int)(score * 3) + int(-score * 2.5f)",
    "score + bool(k_index & 1) + (bool)head + !k_index - -1e-2f + 0x1F * 1E-3",
    "fmin(score, k_index) + fmaxf(2, fabs(score)) + min(k_index, 3) - max(-2, q_index - k_index)",
    "score + abs(q_index - k_index) - abs(k_index > 3) * fabsf(-2)",
    "sinf(score) * cos(k_index) + expf(-score * score) + log2(2 + abs(score)) + logf(3.0f) + sqrt(abs(score) + 1)",
    "floor(score) + ceilf(score * 2) + tanh(exp2(-abs(score))) + (true ? 1 : 0.5f) + (score > INFINITY ? 1 : 0)",
    "score + table[head, q_index - k_index] + table(head % 2, 1000) - slope[-4] * one + number + flags[k_index]",
    "k_index >= 1 and q_index != 3 or head <= 2 ? score : 0",
    "score + numbers[k_index] * (numbers[q_index] - 3) / 2",
]


@pytest.mark.parametrize("text", TEXTS)
def test_the_reader_reads_as_kernels_do(text):
    from onepass._flex.scores import Steps, floats, scores

    buffers = {"table": BUFFERS["table"], "slope": BUFFERS["slope"], "one": BUFFERS["one"], "number": torch.tensor([7])}
    buffers |= {"flags": torch.arange(KEYS) % 4 == 1, "numbers": torch.arange(KEYS, dtype=torch.int32) - 9}
    buffers = {name: x for name, x in buffers.items() if name in text}
    q, k, v = draw()
    _, lse = attention(q, k, v, score_mod=text, mod_buffers=buffers or None, return_lse=True)
    read = expression(text, buffers)
    found, _ = scores(torch, Steps(0.25, read), floats(torch, q), floats(torch, k), 0, lambda x: x)
    torch.testing.assert_close(found.float().logsumexp(-1), lse, atol=1e-4, rtol=1e-5)


def test_the_reader_reads_what_functions_become():
    """Scores by the symbols of a function, and by the text that they become."""
    from onepass._flex import trace
    from onepass._flex.arithmetic import number
    from onepass._flex.scores import Steps, scores
    from onepass._flex.text import Buffers, text

    q, k = random(2, HEADS, 64, DIM), random(2, HEADS, 64, DIM)
    for role, mods in (("score", flex_mods.SCORE_MODS), ("seen", flex_mods.MASK_MODS)):
        for name, mod in mods.items():
            if mod is None:
                continue
            symbols, buffers = trace.inputs((2, HEADS, 64, 64)), Buffers()
            made = number(trace.call_with(mod, [trace.score(), *symbols])) if role == "score" else None
            made = trace.call_with(mod, symbols) if made is None else made
            words = text(made, buffers)
            read = expression(words, buffers.given() or {})
            found = [scores(torch, Steps(0.25, **{role: x}), q, k, 0, lambda x: x)[0] for x in (made, read)]
            torch.testing.assert_close(*found, msg=name)


# ------------------------------------------------------------------------------------------------- calls in PyTorch
def test_functions_have_gradients_too():
    q, k, v = draw()
    t = BUFFERS["slope"].clone().requires_grad_()
    by_function = attention(q, k, v, score_mod=lambda s, b, h, i, j: s - t[h] * (i - j).abs())
    text = {"score_mod": "score - slope[head] * abs(q_index - k_index)", "mod_buffers": {"slope": t}}
    grads = [torch.autograd.grad(x.square().sum(), t)[0] for x in (by_function, attention(q, k, v, **text))]
    torch.testing.assert_close(*grads)
    assert grads[0].abs().min() > 0


def test_transformed_and_compiled():
    torch._dynamo.reset()
    q, k, v = draw()

    def loss(table, q):
        buffers = {"table": table}
        words = {"score_mod": "score + table(head, q_index - k_index + 53)", "mask": "causal_bottom_right"}
        return losses(*attention(q, k, v, mod_buffers=buffers, return_lse=True, **words))

    table = BUFFERS["table"].clone().requires_grad_()
    leaf = q.clone().requires_grad_()
    expected = torch.autograd.grad(loss(table, leaf), (table, leaf))
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    for found in (
        torch.autograd.grad(compiled(table, leaf), (table, leaf)),
        torch.func.grad(loss, (0, 1))(table.detach(), q),
    ):
        for x, y in zip(found, expected):
            torch.testing.assert_close(x, y)


def test_autocast():
    q, k, v = draw()
    t = BUFFERS["one"].clone().requires_grad_()
    words = {"score_mod": "score * one", "mod_buffers": {"one": t}}
    with torch.autocast("cpu", torch.bfloat16):
        out = attention(q, k, v, **words)
    assert out.dtype == torch.bfloat16
    expected = torch.autograd.grad(losses(attention(*(x.bfloat16() for x in (q, k, v)), **words), torch.zeros(1)), t)
    torch.testing.assert_close(torch.autograd.grad(losses(out, torch.zeros(1)), t), expected)


def test_other_results_are_beside():
    q, k, v = draw()
    t = BUFFERS["one"].clone().requires_grad_()
    words = {"score_mod": "score * one", "mod_buffers": {"one": t}}
    out, most = attention(q, k, v, return_max=True, **words)
    assert out.requires_grad and not most.requires_grad
    assert attention(q, k, v, **words, out_dtype=torch.float32).requires_grad
    with torch.no_grad():
        assert not attention(q, k, v, **words).requires_grad


def test_what_has_no_gradient_is_refused():
    q, k, v = draw()
    t = torch.ones(KEYS, requires_grad=True)
    lengths = torch.tensor([0, 9, ROWS], dtype=torch.int32)
    packed = [x[0].swapaxes(0, 1) for x in (q, k, v)]
    read = {"score_mod": "score + t[k_index]", "mod_buffers": {"t": t}}
    for call, sentence in (
        (lambda: attention(q, k, v, dropout_p=0.5, **read), "attention with dropout_p does not return the gradient"),
        (lambda: attention(q, k, v, return_entropy=True, **read), "with return_entropy does not return the gradient"),
        (
            lambda: attention(*packed, cu_seqlens_q=lengths, cu_seqlens_k=lengths, **read),
            r"with cu_seqlens_q does not return the gradient of mod_buffers\['t'\]",
        ),
        (
            lambda: attention(q, k, v, mask_mod="t[k_index] > 0", mod_buffers={"t": t}),
            r"mod_buffers\['t'\].requires_grad is set, but attention does not return its gradient",
        ),
        (
            lambda: attention(q, k, v, score_mod="score", mask_mod="t[k_index] > 0", mod_buffers={"t": t}),
            r"mod_buffers\['t'\].requires_grad is set, but attention does not return its gradient",
        ),
    ):
        with pytest.raises(RuntimeError, match=sentence):
            call()
