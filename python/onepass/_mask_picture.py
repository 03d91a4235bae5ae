"""Pictures of masks: ``python -m onepass mask "q_index >= k_index" --seq 256 --png causal.png``."""

import argparse
import struct
import sys
import zlib
from typing import Any

import numpy

from . import _block_mask

# Colours of elements, by the state of their tile (empty, mixed, full) and by what the mask says (hidden, visible).
COLOURS = numpy.array(
    [[[232, 232, 232], [255, 0, 0]], [[250, 214, 165], [66, 133, 196]], [[255, 0, 0], [18, 62, 120]]], numpy.uint8
)
LINE = (255, 255, 255)  # between tiles


def pixels(
    mask: Any,
    seq_q: int,
    seq_k: int,
    *,
    tile: tuple[int, int] = (32, 32),
    batch: int = 0,
    head: int = 0,
    mod_buffers: Any = None,
    size: int = 1,
) -> Any:
    """uint8 ``[height, width, 3]``: every element of one entry and head is a square of `size` pixels.

    Elements of empty tiles are grey. In mixed tiles hidden elements are orange and visible ones blue. Full tiles are
    dark blue. Red would be a tile that is called empty or full and is not.
    """
    entries: dict[str, Any] = {"batch": batch + 1, "heads": head + 1, "mod_buffers": mod_buffers}
    seen, states = (
        _block_mask.block_mask(mask, seq_q, seq_k, tile=t, exact=True, **entries).states()[batch, head]
        for t in ((1, 1), tile)
    )
    of_tile = states.repeat(tile[0], 0).repeat(tile[1], 1)[:seq_q, :seq_k]
    image = COLOURS[of_tile, (seen > 0).astype(int)].repeat(size, 0).repeat(size, 1)
    image[tile[0] * size :: tile[0] * size] = LINE
    image[:, tile[1] * size :: tile[1] * size] = LINE
    return image


def png(image: Any) -> bytes:
    """uint8 ``[height, width, 3]`` as a file."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    height, width, _ = image.shape
    rows = numpy.zeros((height, 1 + width * 3), numpy.uint8)  # each begins with its filter: none
    rows[:, 1:] = image.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows.tobytes(), 9)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def _pair(text: str) -> tuple[int, int]:
    first, _, second = text.partition("x")
    return int(first), int(second or first)


def _buffer(text: str) -> tuple[str, Any]:
    name, equals, file = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"must be NAME=FILE.npy (got {text!r})")
    return name, numpy.load(file)


def main(arguments: Any) -> int:
    parser = argparse.ArgumentParser(prog="onepass mask", description="Draws the tiles and elements of a mask_mod.")
    parser.add_argument("mask", help='its text, such as "q_index >= k_index"')
    parser.add_argument("--seq", type=_pair, default=(256, 256), help="rows and keys: 256 or 128x256 (default 256)")
    parser.add_argument("--tile", type=_pair, default=(32, 32), help="rows and keys of a tile (default 32)")
    parser.add_argument("--buffer", type=_buffer, action="append", default=[], help="NAME=FILE.npy, for each array")
    parser.add_argument("--batch", type=int, default=0, help="the entry of the batch (default 0)")
    parser.add_argument("--head", type=int, default=0, help="the head (default 0)")
    parser.add_argument("--size", type=int, default=2, help="pixels of an element (default 2)")
    parser.add_argument("--png", help="the file to write; without it the tiles are printed")
    given = parser.parse_args(arguments)
    words: dict[str, Any] = {"mod_buffers": dict(given.buffer) or None, "tile": given.tile}
    try:
        entries: dict[str, Any] = {"batch": given.batch + 1, "heads": given.head + 1}
        rows, keys = given.seq
        states = _block_mask.block_mask(given.mask, rows, keys, exact=True, **words, **entries).states()
        states = states[given.batch, given.head]
        if given.png:
            image = pixels(given.mask, rows, keys, batch=given.batch, head=given.head, size=given.size, **words)
            with open(given.png, "wb") as file:
                file.write(png(image))
    except (OSError, TypeError, ValueError) as error:
        print(f"onepass mask: {error}", file=sys.stderr)
        return 2
    if not given.png:
        print("\n".join("".join(".+#"[state] for state in row) for row in states))
    empty, mixed, full = (int((states == n).sum()) for n in range(3))
    print(f"{states.size} tiles: {empty} empty, {mixed} mixed, {full} full")
    return 0
