"""The pictures of masks: the gallery of docs/features/masks.md, and the command.

python3 tests/python/test_mask_gallery.py draws docs/images/masks.png anew.
"""

import pathlib
import re
import struct
import subprocess
import sys
import zlib

import numpy as np
import onepass
import pytest
from onepass import _mask_picture

ROOT = pathlib.Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "images" / "masks.png"


def gallery():
    """The masks of the page, and its arrays."""
    page = (ROOT / "docs" / "features" / "masks.md").read_text()
    code = next(x for x in re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S) if "def causal" in x)
    names = {"__name__": "gallery"}
    exec(compile(code.partition("rng = ")[0], "gallery", "exec"), names)
    return names["masks"]


def drawn():
    gap = np.full((128, 6, 3), 255, np.uint8)
    rows = []
    masks = gallery()
    for first in range(0, len(masks), 4):
        images = [_mask_picture.pixels(x, 128, 128, tile=(16, 16), batch=0) for x in masks[first : first + 4]]
        row = np.concatenate([x for image in images for x in (image, gap)][:-1], 1)
        rows += [row, np.full((6, *row.shape[1:]), 255, np.uint8)]
    return np.concatenate(rows[:-1]).repeat(2, 0).repeat(2, 1)


def read(data):
    """The pixels of a file that the picture's code wrote."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, parts = 8, {}
    while at < len(data):
        size, name = struct.unpack(">I4s", data[at : at + 8])
        parts[name] = data[at + 8 : at + 8 + size]
        assert struct.unpack(">I", data[at + 8 + size : at + 12 + size])[0] == zlib.crc32(name + parts[name])
        at += 12 + size
    width, height = struct.unpack(">II", parts[b"IHDR"][:8])
    rows = np.frombuffer(zlib.decompress(parts[b"IDAT"]), np.uint8).reshape(height, 1 + 3 * width)
    assert (rows[:, 0] == 0).all()
    return rows[:, 1:].reshape(height, width, 3)


def test_the_picture_is_of_the_pages_masks():
    np.testing.assert_array_equal(read(PICTURE.read_bytes()), drawn())


def test_no_tile_is_called_what_it_is_not():
    for mask in gallery():
        image = _mask_picture.pixels(mask, 128, 128, tile=(16, 16), batch=1)
        assert not (image == (255, 0, 0)).all(-1).any(), mask.__name__


def timed():
    """The masks of the study that times them, at 1024 queries and keys."""
    sys.path.insert(0, str(ROOT))
    from bench.studies import mask_gallery

    return mask_gallery, mask_gallery.gallery(np, 1024)


def test_the_pages_masks_are_timed():
    assert list(timed()[1]) == [mask.__name__ for mask in gallery()]


@pytest.mark.parametrize("name", [mask.__name__ for mask in gallery()])
def test_masks_that_are_timed_are_right_by_tiles_and_as_arrays(name):
    study, masks = timed()
    seen, tiles = study.dense_of(np, masks[name], 1024), onepass.block_mask(masks[name], 1024, 1024)
    blocks = seen.reshape(8, 128, 8, 128).swapaxes(1, 2).reshape(8, 8, -1)
    states = tiles.states()[0, 0]
    assert not blocks[states == 0].any() and blocks[states == 2].all() and 0 < seen.mean() < 1
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 1, 1024, 16), dtype=np.float32) for _ in range(3))
    out = onepass.attention(q, k, v, block_mask=tiles)
    np.testing.assert_allclose(out, onepass.attention(q, k, v, bool_mask=seen), atol=1e-5)


def test_ends_of_a_tree():
    """Preorder: a root, its left subtree, its right one."""
    study, _ = timed()
    assert study.ends_of_tree(np, 3).tolist() == [7, 4, 3, 4, 7, 6, 7]


def test_elements_are_the_masks():
    image = _mask_picture.pixels("q_index >= k_index", 5, 7, tile=(8, 8), size=2)
    assert image.shape == (10, 14, 3)
    blue = (image[::2, ::2] == _mask_picture.COLOURS[1, 1]).all(-1)
    np.testing.assert_array_equal(blue, np.tri(5, 7, dtype=bool))


def command(*arguments):
    call = [sys.executable, "-m", "onepass", "mask", *map(str, arguments)]
    return subprocess.run(call, capture_output=True, text=True, timeout=120)


def test_command(tmp_path):
    np.save(tmp_path / "doc.npy", np.repeat(np.arange(4), 16))
    given = "doc[q_index] == doc[k_index]", "--buffer", f"doc={tmp_path / 'doc.npy'}", "--seq", "64", "--tile", "16x32"
    done = command(*given)
    assert done.stdout == "+.\n+.\n.+\n.+\n8 tiles: 4 empty, 4 mixed, 0 full\n", done.stderr
    done = command(*given, "--png", tmp_path / "a.png", "--size", "3")
    assert done.returncode == 0 and read((tmp_path / "a.png").read_bytes()).shape == (192, 192, 3)


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (("q_index",), "a mask_mod must be a bool"),
        (("doc[q_index] > 3",), "the known names are"),
        (("true", "--png", "/nowhere/a.png"), "No such file"),
        (("true", "--tile", "0"), "two positive numbers"),
    ],
)
def test_refusals(arguments, sentence):
    done = command(*arguments)
    assert done.returncode == 2 and sentence in done.stderr


if __name__ == "__main__":
    PICTURE.write_bytes(_mask_picture.png(drawn()))
