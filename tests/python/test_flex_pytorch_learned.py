"""The cases of PyTorch's tests of learnable biases: gradients of tensors that a score_mod captures.

Source of the cases: TestLearnableBiases and the tests of captured tensors in test/inductor/test_flex_attention.py of
PyTorch 2.15 (BSD-3-Clause); the code is written anew. `_gold_check` compares root mean square errors: one may be 1.35^2
times that of the eager function in 16 bits, and (10 * 1.35)^2 times in float32.
"""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import onepass.torch  # noqa: E402
from flex_like_pytorch import DTYPES, causal_mask, draw, masks  # noqa: E402
from test_flex_attention import eager  # noqa: E402
from torch.nn.attention import flex_attention as theirs  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:flex_attention called without torch.compile")
flex = onepass.torch.flex_attention
BATCH, HEADS, WINDOW = 2, 4, 8
LENGTHS = [37, 256, 277]

# (dimensions of the biases, what makes a score_mod of them); n is the length. An f behind a name: always float32.
BIASES = {
    "relative_1d": ([("2n",)], lambda t: lambda s, b, h, q, k: s + t[torch.abs(q - k)]),
    "absolute_2d": ([("n", "n")], lambda t: lambda s, b, h, q, k: s + t[q, k]),
    "by_head": ([(HEADS, "n", "n")], lambda t: lambda s, b, h, q, k: s + t[h, q, k]),
    "by_batch_and_head": ([(BATCH, HEADS, "n", "n")], lambda t: lambda s, b, h, q, k: s + t[b, h, q, k]),
    "multiplicative": ([("n",)], lambda t: lambda s, b, h, q, k: s * t[q]),
    "local_window": (
        [(2 * WINDOW + 1, "f")],
        lambda t: lambda s, b, h, q, k: s + t[torch.clamp(q - k + WINDOW, 0, 2 * WINDOW)],
    ),
    "global_tokens": ([("n", "f")], lambda t: lambda s, b, h, q, k: s + t[k]),
    "at_a_tensor": ([(BATCH, HEADS, 4, "n")], lambda t: lambda s, b, h, q, k: s + t[b, h, WHICH, q]),
    "indirect": ([("n",)], lambda t: lambda s, b, h, q, k: s + t[PLACES[q] % t.shape[0]]),
    "symmetric": ([("n",)], lambda t: lambda s, b, h, q, k: s + t[q] + t[k]),  # PyTorch's kernels refuse two loads
    "flipped": ([("n", "n")], lambda t: lambda s, b, h, q, k: s + t[k, q]),
    "two_brackets": ([("n", "n")], lambda t: lambda s, b, h, q, k: s + t[q][k] if is_symbol(q) else s + t[q, k]),
    "gate": ([(HEADS, "f")], lambda t: lambda s, b, h, q, k: s * torch.sigmoid(t[h])),
    "head": ([(HEADS,)], lambda t: lambda s, b, h, q, k: s + t[h]),
    "distinct": ([("n",), ("n", "f")], lambda t, u: lambda s, b, h, q, k: s + t[q] + u[k]),
    "scalar": ([("f",)], lambda t: lambda s, b, h, q, k: s * t + t),
    "one_element": ([(1,)], lambda t: lambda s, b, h, q, k: s + t[0]),
    "flipped_by_head": ([(HEADS, "n", "n")], lambda t: lambda s, b, h, q, k: s + t[h, k, q]),
    "sum_of_places": ([("2n",)], lambda t: lambda s, b, h, q, k: s + t[q + k]),
}
WHICH = torch.tensor(0)
PLACES = torch.randint(0, max(LENGTHS), (max(LENGTHS),), generator=torch.Generator().manual_seed(2))


def is_symbol(index):
    """PyTorch's eager function on a CPU has no gradient of a tensor with two pairs of brackets."""
    return not isinstance(index, torch.Tensor)


def biases(name, n, dtype):
    generator = torch.Generator().manual_seed(4)
    for shape in BIASES[name][0]:
        kind = torch.float32 if "f" in shape else dtype
        sizes = [{"n": n, "2n": 2 * n}.get(x, x) for x in shape if x != "f"]
        yield torch.randn(sizes, generator=generator).to(kind)


def compared(name, mine, reference, exact, dtype):
    errors = [(x.double() - exact).square().mean().sqrt() for x in (mine, reference)]
    factor = 1.35 * (10 if dtype == torch.float32 else 1)
    rest = 1e-5  # of sums in float32 whose exact value is 0: a bias of a whole row changes no weight
    assert errors[0] <= factor**2 * errors[1] + rest, f"{name}: {errors[0]:.3g}, the reference {errors[1]:.3g}"


def learn(name, n, dtype, mask_mod=None, of=(True, True, True)):
    """Gradients of q, k and v, those that `of` names, and of the biases keep to the rule."""
    inputs, tables = draw(dtype, BATCH, HEADS, n), list(biases(name, n, dtype))
    ours, others = masks(mask_mod, None, None, n, n)
    dout = torch.randn(BATCH, HEADS, n, 16, generator=torch.Generator().manual_seed(6))
    results = []
    for call, exact in ((flex, False), (eager, False), (eager, True)):
        q, k, v = (x.to(torch.float64 if exact else x.dtype).detach().requires_grad_(w) for x, w in zip(inputs, of))
        learned = [x.to(torch.float64 if exact else x.dtype).detach().requires_grad_() for x in tables]
        result = call(q, k, v, BIASES[name][1](*learned), ours if call is flex else others)
        out = result if call is flex else result[0]
        leaves = [x for x in (q, k, v, *learned) if x.requires_grad]
        grads = torch.autograd.grad(out, leaves, dout.to(out.dtype))
        assert all(x.dtype == leaf.dtype and x.shape == leaf.shape for x, leaf in zip(grads, leaves))
        results.append([out.detach(), *grads])
    names = ["out", *(x for x, w in zip(("dq", "dk", "dv"), of) if w), *(f"bias {i}" for i in range(len(tables)))]
    for what, *three in zip(names, *results, strict=True):
        compared(what, *three, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("name", BIASES)
def test_biases(name, n, dtype):
    learn(name, n, dtype)


@pytest.mark.parametrize("name", BIASES)
def test_biases_with_a_mask(name):
    learn(name, 150, torch.float32, causal_mask)


@pytest.mark.parametrize("name", ["relative_1d", "scalar"])
@pytest.mark.parametrize("of", [(False, False, False), (True, False, False), (False, False, True)], ids=str)
def test_only_some_tensors_learn(name, of):
    learn(name, 37, torch.float32, of=of)


def test_a_tensor_that_is_read_and_not_used_has_no_gradient():
    inputs, unused = [x.requires_grad_() for x in draw(rows=16)], torch.zeros(HEADS, 2, requires_grad=True)

    def score_mod(score, b, h, q, kv):
        _ = unused[h]
        return score

    flex(*inputs, score_mod).sum().backward()
    assert unused.grad is None and all(x.grad is not None for x in inputs)


def test_nan_in_hidden_keys_reaches_no_bias():
    q, k, v = draw(rows=40)
    mask = onepass.torch.create_block_mask(lambda b, h, i, j: j < 30, None, None, 40, 40, "cpu")
    grads, t = [], torch.linspace(0, 1, 40).requires_grad_()
    for hidden in (0.0, float("nan")):
        k[:, :, 30:], v[:, :, 30:] = hidden, hidden
        out = flex(q, k, v, lambda s, b, h, i, j: s + t[j] * t[i], mask)
        grads.append(torch.autograd.grad(out.square().sum(), t)[0])
    assert torch.equal(*grads) and grads[0].abs().max() > 0


def test_a_detached_tensor_has_no_gradient():
    temperature = torch.nn.Parameter(torch.tensor(0.7))
    inputs = [x.requires_grad_() for x in draw(rows=16)]
    flex(*inputs, lambda score, b, h, q, kv: score + temperature.detach()).sum().backward()
    assert temperature.grad is None and inputs[0].grad is not None


@pytest.mark.parametrize("compiled", [False, True])
def test_a_projection_learns_through_a_bias(compiled):
    """Biases of a linear layer in bfloat16: its weight has a gradient of its dtype."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    n, dim = 32, 64
    layer = torch.nn.Linear(dim, HEADS * n, bias=False, dtype=torch.bfloat16)
    x = torch.randn(BATCH, n, dim, dtype=torch.bfloat16)
    q = x.view(BATCH, n, HEADS, dim // HEADS).transpose(1, 2)

    def forward(call, q, x):
        bias = torch.nn.functional.linear(x, layer.weight).view(BATCH, n, HEADS, n).permute(0, 2, 1, 3)
        return call(q, q, q, lambda score, b, h, q_idx, kv_idx: score + bias[b, h, q_idx, kv_idx])

    step = torch.compile(forward, backend="aot_eager") if compiled else forward
    dout = torch.randn(BATCH, HEADS, n, dim // HEADS, dtype=torch.bfloat16)
    mine = torch.autograd.grad(step(flex, q, x), layer.weight, dout)[0]
    other = torch.autograd.grad(forward(lambda *a: eager(*a)[0], q, x), layer.weight, dout)[0]
    assert mine.dtype == torch.bfloat16
    torch.testing.assert_close(mine, other, atol=1e-1, rtol=1e-1)
    exact = other.double().norm()
    assert (mine.double() - other.double()).norm() < 0.02 * exact


def test_a_bias_of_two_reads_of_one_tensor():
    """A matrix that is made of y[b, q] + y[b, kv] before the call, in one compiled function."""
    torch._dynamo.reset()
    n = 16

    def step(x, y):
        table = y[:, :, None] + y[:, None, :]
        heads = x[:, :, None].repeat(1, 1, n, 1)
        return flex(heads, heads, heads, lambda s, b, h, q, kv: s + table[b, q, kv])

    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(shape, generator=generator, requires_grad=True) for shape in ((2, n, 64), (2, n)))
    grads = [
        torch.autograd.grad(call(x, y).square().mean(), (x, y))
        for call in (step, torch.compile(step, backend="aot_eager"))
    ]
    for a, b in zip(*grads):
        torch.testing.assert_close(a, b)
    assert all(x.norm() > 0 for x in grads[0])


@pytest.mark.parametrize("shape", [(512,), (256, 256)])
def test_uniform_weights_beside_sdpa(shape):
    """q, k and v of ones: weights come from the bias alone."""
    n = 256
    bias = torch.randn(shape, generator=torch.Generator().manual_seed(8))
    at = torch.arange(n)[:, None] + torch.arange(n)

    def of_onepass(q, k, v, t):
        return flex(q, k, v, lambda s, b, h, i, j: s + (t[i + j] if t.dim() == 1 else t[i, j]))

    def of_sdpa(q, k, v, t):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=t[at] if t.dim() == 1 else t)

    results = []
    for call in (of_onepass, of_sdpa):
        inputs = [*(torch.ones(1, 1, n, 64, requires_grad=True) for _ in range(3)), bias.clone().requires_grad_()]
        out = call(*inputs)
        results.append([out, *torch.autograd.grad((out * torch.linspace(-1, 1, n)[:, None]).sum(), inputs)])
    for x, y in zip(*results):
        assert (x - y).abs().max() <= 1e-5 * max(64, y.abs().max())  # dO times V is a sum of 64 elements


@pytest.mark.parametrize("heads", [4, 8, 16])
def test_head_counts_of_one_compiled_function(heads):
    if heads == 4:
        torch._dynamo.reset()
    q, k, v = (x.requires_grad_() for x in draw(heads=heads, rows=40))
    scale = torch.linspace(0.5, 1.5, heads, requires_grad=True)
    mask = onepass.torch.create_block_mask(theirs.noop_mask, 2, 1, 40, 40, "cpu")

    def step(q, k, v, scale):
        return flex(q, k, v, lambda s, b, h, i, j: s * scale[h], mask)

    outs = torch.compile(step, backend="aot_eager", dynamic=True)(q, k, v, scale), step(q, k, v, scale)
    for x, y in zip(*(torch.autograd.grad(out.square().sum(), (q, k, v, scale)) for out in outs)):
        torch.testing.assert_close(x, y)
