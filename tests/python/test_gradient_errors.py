"""bench/studies/gradient_errors.py without a GPU: its cells, its float64 gradients beside autograd's, its numbers."""

import pathlib
import sys
import types

import onepass
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from bench.problem import Problem  # noqa: E402
from bench.studies import gradient_errors as errors  # noqa: E402


def test_the_cells_are_the_suites_18():
    problems = [Problem.parse(line) for line in errors.cells()]
    assert len(set(errors.cells())) == 18 and all(p.backward and not p.extras for p in problems)
    assert {(p.dim, p.rows, p.causal) for p in problems} == {
        (d, s, mask) for d in (64, 128, 256) for s in (1024, 4096, 16384) for mask in ("", "causal_bottom_right")
    }


@pytest.mark.parametrize("mask", ["", "causal_bottom_right"])
def test_the_reference_is_the_gradient(torch, monkeypatch, mask):
    monkeypatch.setattr(errors, "CHUNK", 16)
    problem = Problem.parse(f"bwd b1 h1 s50 d32 fp32 {mask}")
    q, k, v, dout = (torch.randn(50, 32, dtype=torch.float64, requires_grad=True) for _ in range(4))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=bool(mask))
    expected = torch.autograd.grad(out, (q, k, v), dout)
    made = errors.reference(torch, problem, *(x.detach() for x in (q, k, v, dout)))
    for ours, theirs in zip(made, expected):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_a_row(torch):
    line = "bwd b2 h3 s70 d32 bf16 causal_bottom_right layout=bshd"
    functions = {"onepass": errors.of_onepass(onepass)}
    functions["double"] = lambda *given: [2 * g for g in functions["onepass"](*given)]
    row = errors.measured(torch, line, functions)
    assert row["problem"] == line and list(row["contenders"]) == ["onepass", "double"]
    for which in ("dq", "dk", "dv"):
        ours, wrong = (row["contenders"][name][which] for name in row["contenders"])
        assert 5e-4 < ours["rms"] < 6e-3 and ours["max"] < 2e-2
        assert abs(wrong["rms"] - 1) < 0.02 and abs(wrong["max"] - 1) < 0.05
    cell = "bwd b1 h16 s16384 d128 bf16 causal_bottom_right layout=bshd cuda"
    title, _, numbers = errors.table([row | {"problem": cell}]).splitlines()
    rms = [row["contenders"][name]["dq"]["rms"] for name in row["contenders"]]
    assert title == "| onepass / double | dq | dk | dv |"
    assert numbers.startswith(f"| d128 causal, 16k | {1e3 * rms[0]:.2f} / {1e3 * rms[1]:.2f} |")
    text = errors.said(row).splitlines()
    assert text[0] == line and text[1].split()[0] == "onepass" and text[1].split()[1::3] == ["dq", "dk", "dv"]


def test_autograd_is_asked(torch):
    square = types.SimpleNamespace(scale=0.0, dim=4, causal="")
    gradients = errors.of_autograd(torch, lambda _, q, k, v: q * k + v)
    q, k, v, dout = torch.arange(4.0), torch.ones(4), torch.zeros(4), torch.full((4,), 2.0)
    assert [g.tolist() for g in gradients(square, q, k, v, dout)] == [[2] * 4, [0, 2, 4, 6], [2] * 4]
