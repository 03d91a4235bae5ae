"""onepass.jax.context_parallel_attention on 2, 3 and 8 devices of one CPU, and what it refuses."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from conftest import jax_or_skip

jax = jax_or_skip()

import onepass.jax  # noqa: E402
from onepass.jax import Layout, context_parallel_attention  # noqa: E402


def compared(cases, most):
    """Runs cases in a process of their own, because the number of devices is set before JAX starts."""
    script = pathlib.Path(__file__).with_name(f"jax_ranks_{cases}.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env={**os.environ}, timeout=1800)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["wrong"] == []
    assert found["compared"] > most


@pytest.mark.parametrize("cases, most", [("cases", 220), ("maxima", 80), ("fp8", 12), ("meshes", 50)])
def test_every_feature_is_as_exact_as_on_one_device(cases, most):
    compared(cases, most)


def test_only_what_is_seen_travels():
    compared("traffic", 50)


def call(layout=None, **options):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("seq",))
    x = np.zeros((1, 2, 8, 16), np.float32)
    words = {"mesh": mesh, "axis": "seq", "layout": layout or Layout.zigzag(8, 1), "q": x, "k": x, "v": x}
    return context_parallel_attention(**{**words, **options})


EIGHT = {name: jax.numpy.zeros((1, 2, 8, 16), "float8_e4m3fn") for name in "qkv"}


def test_fp8_has_no_gradients():
    def loss(scale, sinks):
        return (scale * call(**EIGHT, sinks=sinks)).sum()

    sinks = np.zeros(2, np.float32)
    assert jax.jit(jax.grad(loss))(1.0, sinks) == 0
    with pytest.raises(ValueError, match="does not support gradients of q, k and v in float8_e4m3fn"):
        jax.grad(loss, 1)(1.0, sinks)


def test_one_device_is_a_plain_call(rng):
    q, k, v = (rng.standard_normal((2, 2, 8, 16)).astype(np.float32) for _ in range(3))
    np.testing.assert_array_equal(
        call(q=q, k=k, v=v, causal=True), onepass.jax.attention(q, k, v, mask="causal_top_left")
    )


@pytest.mark.parametrize(
    "options, sentence",
    [
        ({"scheme": "ring"}, r"scheme must be 'mesh' or 'auto' with a pair of axes \(got 'ring'\)"),
        ({"head_groups": 2}, r"scheme must be 'mesh' or 'auto' with a pair of axes \(got head_groups=2\)"),
        ({"reproducible": True}, r"scheme must be 'mesh' or 'auto' with a pair of axes \(got reproducible=True\)"),
        ({"bias": np.zeros((1, 1, 8, 8))}, "scheme 'mesh' does not support a bias with rows; give .*1, length"),
        ({"layout": Layout.zigzag(8, 2)}, r"layout must be for 1 ranks, as the mesh's axes have \(got 2\)"),
    ],
)
def test_refusals_on_a_mesh(options, sentence):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("nodes", "within"))
    with pytest.raises(ValueError, match=sentence):
        call(mesh=mesh, axis=("nodes", "within"), **options)


@pytest.mark.parametrize(
    "options, sentence",
    [
        ({"layout": 3}, r"layout must be an onepass.jax.Layout \(got int\)"),
        ({"layout": Layout.zigzag(8, 2)}, r"layout must be for 1 ranks, as the mesh's axis has \(got 2\)"),
        ({"axis": "rows"}, r"axis must be one of the mesh's axes \['seq'\], or a pair of them \(got 'rows'\)"),
        ({"axis": ()}, r"axis must be one of the mesh's axes \['seq'\], or a pair of them \(got \(\)\)"),
        ({"axis": ("seq", "seq")}, r"axis must be .*, or a pair of them \(got \('seq', 'seq'\)\)"),
        ({"batch_axis": "rows"}, r"batch_axis must be one of the mesh's axes \['seq'\] \(got 'rows'\)"),
        ({"scheme": "mesh"}, r"scheme must be one of 'gather', 'ring', 'ulysses' or 'auto' \(got 'mesh'\)"),
        ({"scheme": "star"}, r"scheme must be one of 'gather', 'ring', 'ulysses' or 'auto' \(got 'star'\)"),
        ({"causal": True, "window": (3, 2)}, r"window's right side must be -1 or 0 with causal=True \(got 2\)"),
        ({"documents": (0, 9)}, r"documents must ascend from 0 to 8, the length of the layout \(got \[0, 9\]\)"),
        ({"layout": Layout.zigzag(9, 1)}, r"q must have 9 rows, 9 for each rank, as layout.shard gives \(got 8\)"),
        ({"dropout_p": 0.5}, r"seed must be an integer from 0 to 2\^64 - 1 \(got None\)"),
        ({"softcap": -1.0}, r"softcap must be 0 \(none\) or positive \(got -1\)"),
        ({"scheme": "ring", "reproducible": True}, r"reproducible=True needs scheme='gather' \(got 'ring'\)"),
        ({"return_max": "rows"}, r"return_max must be False, True or 'head' \(got 'rows'\)"),
        ({"head_groups": 0}, r"head_groups must be a positive integer \(got 0\)"),
        ({"head_groups": 2, "scheme": "ulysses"}, r"head_groups=2 needs scheme='gather' \(got 'ulysses'\)"),
        ({"groups": 2}, r"onepass.jax.context_parallel_attention does not accept 'groups'"),
        (EIGHT | {"q_descale": np.ones((1, 2, 2))}, r"q_descale must not have blocks; .* \(got \[1, 2, 2\]\)"),
        (
            {"k": EIGHT["k"]},
            r"q, k and v must have one dtype of float32, float16, bfloat16 and float8_e4m3fn \(got k float8_e4m3fn\)",
        ),
        (
            {"bias": np.zeros((1, 1, 8, 7))},
            r"bias must have shape \[1, 2, 8, 8\] or 1 in some dimensions \(got \[1, 1, 8, 7\]\)",
        ),
        ({"bool_mask": np.zeros((1, 1, 1, 8))}, r"bool_mask must be bool \(got float"),
        ({"bias": np.zeros((1, 1, 8, 8)), "scheme": "ulysses"}, "scheme 'ulysses' does not support a bias with rows"),
        ({"batch_axis": "seq", "dropout_p": 0.5, "seed": 1}, "batch_axis does not support dropout"),
    ],
)
def test_refusals(options, sentence):
    with pytest.raises((ValueError, TypeError), match=sentence):
        call(**options)
