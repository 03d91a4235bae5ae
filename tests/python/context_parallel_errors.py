"""The rule by which results of ranks are right, beside one device's."""

import torch


def rms(a, exact):
    a, exact, finite = a.double(), exact.double(), torch.isfinite(exact)
    assert torch.equal(torch.isfinite(a), finite)
    return (a - exact)[finite].square().mean().sqrt().item() if finite.any() else 0.0


def beyond_one_device(name, mine, one, exact):
    """The results of a case whose error is too large beside one device's, both against float64. At most 1.05 in 16
    bits. A case has too few fp32 results for that (sums in another order are another draw of errors): at most 2, or
    4e-7 of the size; dsinks has a number for each head only, so 1e-6."""
    assert mine.keys() == exact.keys()
    ratio = 2.0 if one["out"].dtype == torch.float32 else 1.05
    for key, x in mine.items():
        size = torch.nan_to_num(exact[key], neginf=0.0).square().mean().sqrt().item() if x.numel() else 0.0
        floor = (1e-6 if key == "dsinks" else 4e-7) * size
        error, bound = rms(x, exact[key]), max(ratio * rms(one[key], exact[key]), floor)
        if not error <= bound:
            yield f"{name} {key}: {error:.2e} of at most {bound:.2e}"
