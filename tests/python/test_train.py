"""The demo that trains: its gradients beside finite differences, its curve beside other attentions', its picture."""

import importlib.util
import pathlib
import struct
import sys
import zlib

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "demo"))
import picture  # noqa: E402
import train  # noqa: E402
from transformer import Adam, Onepass, Transformer, initial_weights, qk_clip  # noqa: E402

VOCABULARY, SEQ, WIDTH, HEADS = 11, 19, 24, 3
PEERS = ["standard", *(["torch"] if importlib.util.find_spec("torch") else [])]


@pytest.fixture(scope="module")
def task():
    """(weights in float64, all of a size that their gradients have too; tokens, targets as one-hot)"""
    rng = np.random.default_rng(5)
    weights = initial_weights(rng, VOCABULARY, SEQ, WIDTH, layers=2)
    weights = {name: x.astype(np.float64) + 0.1 * rng.standard_normal(x.shape) for name, x in weights.items()}
    ids = rng.integers(VOCABULARY, size=(3, SEQ + 1))
    eye = np.eye(VOCABULARY)
    return weights, eye[ids[:, :-1]], eye[ids[:, 1:]]


def gradients(task, attention, dtype):
    weights, tokens, targets = task
    model = Transformer(np, {n: x.astype(dtype) for n, x in weights.items()}, HEADS, attention(np))
    loss, given = model.loss(tokens.astype(dtype), targets.astype(dtype))
    assert set(given) == set(weights) and all(given[n].shape == weights[n].shape for n in weights)
    assert all(x.dtype == dtype for x in given.values())
    return loss, given


def slope(task, name, direction):
    """The derivative of the float64 loss by a weight along a direction: central differences without the h^2 error."""
    weights, tokens, targets = task

    def loss(step):
        moved = weights | {name: weights[name] + step * direction}
        return Transformer(np, moved, HEADS, train.Standard(np)).loss(tokens, targets)[0]

    wide, near = ((loss(h) - loss(-h)) / (2 * h) for h in (2e-4, 1e-4))
    return near + (near - wide) / 3


def test_every_gradient_is_a_slope(task):
    rng = np.random.default_rng(1)
    _, exact = gradients(task, train.Standard, np.float64)
    _, ours = gradients(task, Onepass, np.float32)
    for name, x in task[0].items():
        direction = rng.standard_normal(x.shape)
        size = np.linalg.norm(exact[name])  # of the slope along a direction that is drawn so
        assert size > 1e-3
        expected = slope(task, name, direction)
        assert np.vdot(exact[name], direction) == pytest.approx(expected, abs=1e-7 * size), name
        assert np.vdot(ours[name], direction) == pytest.approx(expected, abs=2e-5 * size), name


@pytest.mark.parametrize("peer", PEERS)
def test_gradients_are_those_of_another_attention(task, peer):
    loss, expected = gradients(task, {"standard": train.Standard, "torch": train.Torch}[peer], np.float32)
    ours_loss, ours = gradients(task, Onepass, np.float32)
    assert ours_loss == pytest.approx(loss, rel=1e-6)
    for name, x in expected.items():
        np.testing.assert_allclose(ours[name], x, rtol=0, atol=1e-5 * np.abs(x).max(), err_msg=name)


def test_the_same_code_trains_torch_tensors(task):
    torch = pytest.importorskip("torch")
    weights, *data = ([x.astype(np.float32) for x in part] for part in (task[0].values(), *task[1:]))
    for attention in (Onepass, train.Standard, train.Torch):
        trained = []
        for xp, put in ((np, np.array), (torch, torch.tensor)):
            w = {name: put(x) for name, x in zip(task[0], weights)}
            _, given = Transformer(xp, w, HEADS, attention(xp)).loss(*(put(np.stack(x)) for x in data))
            Adam(xp, w, rate=1e-2, warm_up=1).step({name: xp.sign(d) * 1e-3 + d for name, d in given.items()})
            trained.append(w)
        for name, x in trained[0].items():
            assert isinstance(trained[1][name], torch.Tensor)
            np.testing.assert_allclose(trained[1][name].numpy(), x, rtol=0, atol=1e-5, err_msg=name)


SMALL = ["--steps", "60", "--batch", "4", "--seq", "48", "--layers", "1", "--width", "48", "--write", "20"]


@pytest.mark.parametrize("peer", PEERS)
def test_training_lowers_the_loss_as_another_attention_does(tmp_path, capsys, peer):
    png = tmp_path / "folder" / "loss.png"
    ours, theirs = train.main([*SMALL, "--beside", peer, "--png", str(png)])
    assert len(ours.losses) == 60 and np.isfinite(ours.losses).all()
    assert np.mean(ours.losses[-10:]) < 0.7 * ours.losses[0]
    np.testing.assert_allclose(ours.losses, theirs.losses, atol=1e-3)
    printed = capsys.readouterr().out
    assert "median time of a step" in printed and theirs.attention.name in printed and "the model writes" in printed
    assert png.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_the_same_seed_trains_the_same_weights(tmp_path):
    small = [*SMALL, "--steps", "5", "--beside", "none", "--png", str(tmp_path / "loss.png")]
    (first,), (again,), (other,) = (train.main([*small, "--seed", seed]) for seed in "778")
    assert first.losses == again.losses != other.losses


def test_qk_clip_bounds_the_scores_of_the_heads_that_exceed_it(task):
    weights, tokens, targets = task
    weights = {name: x.astype(np.float32) for name, x in weights.items() if not name.startswith("1.")}
    model = Transformer(np, weights, HEADS, Onepass(np))

    def largest():
        model.attention.largest = []
        model.loss(tokens.astype(np.float32), targets.astype(np.float32))
        return model.attention.largest

    before = largest()
    assert len(before) == 1 and before[0].shape == (HEADS,)
    threshold = float(np.sort(before[0])[-2:].mean())  # one head is above it
    assert qk_clip(np, weights, before, threshold) == 1
    np.testing.assert_allclose(largest()[0], np.minimum(before[0], threshold), rtol=1e-4)


def test_a_clipped_training_keeps_scores_small(tmp_path, capsys):
    flags = [*SMALL, "--steps", "40", "--rate", "0.03", "--beside", "none", "--png", str(tmp_path / "loss.png")]
    (free,), (clipped,) = train.main([*flags, "--qk-clip", "1e9"]), train.main([*flags, "--qk-clip", "3"])
    assert free.clipped == 0 and clipped.clipped > 0 and clipped.largest[-1] < 0.3 * free.largest[-1]
    assert "QK-clip at 3: " in capsys.readouterr().out


@pytest.mark.parametrize(
    "flags, sentence",
    [
        (["--width", "50"], "--width must be a multiple of --heads (4), got 50"),
        (["--steps", "0"], "--steps, --batch, --seq, --layers, --heads and --width must be at least 1"),
        (["--heads", "0"], "--heads and --width must be at least 1"),
        (["--qk-clip", "0"], "--qk-clip must be a positive number (got 0.0)"),
        (["--seed", "-1"], "--seed must be at least 0 (got -1)"),
        (["--text", "none/such.txt"], "--text none/such.txt: [Errno 2] No such file"),
        (["--seq", "100000"], "--seq 100000 needs more"),
    ],
)
def test_wrong_options_are_said(capsys, flags, sentence):
    with pytest.raises(SystemExit) as caught:
        train.main(flags)
    assert sentence in capsys.readouterr().err + str(caught.value)


def pixels_of(path):
    data = path.read_bytes()
    width, height = struct.unpack(">II", data[16:24])
    (size,) = struct.unpack(">I", data[33:37])
    rows = np.frombuffer(zlib.decompress(data[41 : 41 + size]), np.uint8).reshape(height, 1 + 3 * width)
    return rows[:, 1:].reshape(height, width, 3)


def test_curves_are_where_their_values_are(tmp_path):
    path = tmp_path / "curves.png"
    picture.curves({"a": [4.0, 2.0, 1.0], "b": [4.0, 2.0, 1.0]}, "title", "step", "loss", path)
    pixels = pixels_of(path)
    ours, theirs = ((pixels == np.array(c)).all(-1) for c in picture.COLOURS[:2])
    last = 60 + 640  # the column of the last value, 1 of 4 above the axis
    assert ours[50 + 270, last - 1] and theirs[50 + 270 + 2, last - 2]
    for wanted in ({"a": [1.0]}, {"a": [0.0, 0.0]}, {"a": [float("nan"), 2.0, -3.0]}):
        picture.curves(wanted, "", "", "", path)
        assert pixels_of(path).shape == pixels.shape


@pytest.mark.parametrize(
    "low, high, expected", [(0, 4.4, [0, 1, 2, 3, 4]), (1, 300, [100, 200, 300]), (-3, 2, [-3, -2, -1, 0, 1, 2])]
)
def test_ticks_are_round(low, high, expected):
    assert picture.ticks(low, high) == expected
