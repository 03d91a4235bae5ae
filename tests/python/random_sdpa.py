"""Random problems, onepass.torch.scaled_dot_product_attention beside PyTorch's own: values and gradients.

random_sdpa.py [--seconds 60] [--seed N] [--device cuda]      a traceback at the first difference

Broadcast masks of both kinds, rows that see nothing, every order of memory, ranks from 3 to 5.
"""

import argparse
import random
import time

import onepass.torch

TOLERANCE = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}


def problem(torch, draw, device):
    """(tensors, options) of a random call."""
    dtype = getattr(torch, draw.choice(["float32", "float32", "float16", "bfloat16"]))
    lead = draw.choice([(), (1,), (2,), (3, 2), (2, 1, 2)])
    group, heads_kv = draw.choice([(1, 1), (1, 3), (2, 2), (4, 1)])
    rows, keys = draw.choice([1, 2, 7, 33, 70]), draw.choice([1, 5, 33, 64, 90])
    dim, dim_v = draw.choice([(8, 8), (16, 24), (64, 64), (80, 33)])

    def tensor(*shape, at=None):
        x = torch.randn(shape, device=device, dtype=at or dtype)
        if draw.random() < 0.3 and len(shape) >= 3:
            x = x.transpose(-3, -2).contiguous().transpose(-3, -2)
        if draw.random() < 0.1:
            x = x.mT.contiguous().mT  # the last dimension is not the fastest
        return x.requires_grad_()

    tensors = {
        "query": tensor(*lead, group * heads_kv, rows, dim),
        "key": tensor(*lead, heads_kv, keys, dim),
        "value": tensor(*lead, heads_kv, keys, dim_v),
    }
    options = {"enable_gqa": group > 1, "scale": draw.choice([None, None, 0.3])}
    kind = draw.choice(["none", "causal", "bool", "float"])
    if kind == "causal":
        options["is_causal"] = True
    elif kind != "none":
        full = [*lead, group * heads_kv, rows, keys]
        shape = [n if draw.random() < 0.6 else 1 for n in full]
        shape = shape[draw.randrange(len(shape) - 1) :] if draw.random() < 0.4 else shape
        if kind == "bool":
            options["attn_mask"] = torch.rand(shape, device=device) < 0.6
        else:
            tensors["attn_mask"] = tensor(*shape, at=draw.choice([dtype, torch.float32]))
            if draw.random() < 0.3:  # rows of nothing but -inf among them
                hidden = torch.rand(shape, device=device) < 0.5
                tensors["attn_mask"] = tensors["attn_mask"].detach().masked_fill(hidden, -torch.inf).requires_grad_()
    return tensors, options


def check(torch, draw, device):
    """Result and gradients of a random call, beside PyTorch's in float64; AssertionError if they differ."""
    theirs = torch.nn.functional.scaled_dot_product_attention
    tensors, options = problem(torch, draw, device)
    exact = {name: x.detach().double().requires_grad_() for name, x in tensors.items()}
    out = onepass.torch.scaled_dot_product_attention(**tensors, **options)
    expected = theirs(**exact, **options)
    keys = tensors["key"].shape[-2]
    shown = {name: (list(x.shape), x.dtype, x.stride()) for name, x in tensors.items()}, options
    near = TOLERANCE[str(out.dtype).rpartition(".")[2]]
    assert out.dtype == tensors["query"].dtype and out.shape == expected.shape, shown
    torch.testing.assert_close(out.double(), expected, atol=near, rtol=near, msg=lambda m: f"{shown}: {m}")
    weight = torch.randn_like(expected)
    grads = torch.autograd.grad((out * weight.to(out.dtype)).sum(), list(tensors.values()))
    wanted = torch.autograd.grad((expected * weight).sum(), list(exact.values()))
    for name, mine, other in zip(tensors, grads, wanted, strict=True):
        assert mine.dtype == tensors[name].dtype
        other = other.nan_to_num()  # of -inf in a mask
        summed = expected.shape[:-1].numel() * keys / mine.numel() if name == "attn_mask" else 1
        size = 3 * near * max(1, other.abs().max().item(), summed**0.5 / 4)  # of a sum's rounded terms
        torch.testing.assert_close(
            mine.double(), other, atol=size, rtol=size, msg=lambda m, n=name: f"d{n} of {shown}: {m}"
        )


def main():
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, help="default: the time")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    options = parser.parse_args()
    seed = time.time_ns() % 2**32 if options.seed is None else options.seed
    print(f"--seed {seed}", flush=True)
    torch.manual_seed(seed)
    draw, end, count = random.Random(seed), time.monotonic() + options.seconds, 0
    while time.monotonic() < end:
        check(torch, draw, options.device)
        count += 1
    print(f"{count} problems, no difference")


if __name__ == "__main__":
    main()
