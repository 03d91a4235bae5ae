"""libonepass_torch.so and the package in one process.

python torch_library_beside.py LIBRARY first|last: the library is loaded before or after the package.
"""

import sys

import torch

library, order = sys.argv[1:]
if order == "first":
    torch.ops.load_library(library)

import onepass.torch  # noqa: E402
from onepass import _torch_op  # noqa: E402

if order == "last":
    torch.ops.load_library(library)
assert _torch_op.LOADED == (order == "first")
operators, close = torch.ops.onepass, torch.testing.assert_close


def causal(*qkv):
    return operators.attention(*qkv, mask="causal_top_left")[0]


def gradients(out, of):
    return torch.autograd.grad(out.cos().sum(), of)


def tensors(rows):
    return [torch.randn(2, 2, rows, 16, requires_grad=True) for _ in "qkv"]


qkv = tensors(9)
expected = gradients(torch.nn.functional.scaled_dot_product_attention(*qkv, is_causal=True), qkv)
for out in onepass.torch.attention(*qkv, mask="causal_top_left"), causal(*qkv):
    close(gradients(out, qkv), expected, rtol=1e-4, atol=1e-5)

compiled = torch.compile(causal, fullgraph=True, dynamic=True, backend="aot_eager")
for rows in 9, 11, 14:
    x = tensors(rows)
    close(gradients(compiled(*x), x), gradients(causal(*x), x))
torch.library.opcheck(
    operators.attention.default,
    tuple(qkv),
    dict(mask="causal_top_left", bias=torch.randn(9, 9)),
    test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_dynamic"),
)
q, k, v = qkv
close(torch.vmap(lambda q: onepass.torch.attention(q, k, v))(torch.stack((q, q)))[0], onepass.torch.attention(q, k, v))

# The first to come computes: errors of the package's own kernels are of several types.
with torch.no_grad():
    try:
        operators.attention(q, k, v[:, :1])
        print("no error")
    except (RuntimeError, ValueError) as e:
        assert type(e) is (RuntimeError if order == "first" else ValueError)

# Autograd sees what an append writes.
cache, new = torch.zeros(1, 1, 8, 16), torch.randn(1, 1, 1, 16)
saved = (cache * torch.ones((), requires_grad=True)).sum()
with torch.no_grad():
    operators.append_kv(new, new, cache, cache.clone(), cache_seqlens=torch.tensor([0]))
try:
    saved.backward()
    print("a backward does not see the append")
except RuntimeError as e:
    assert "modified by an inplace operation" in str(e)
