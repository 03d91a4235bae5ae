"""A heat map or curves as a PNG, with Python's standard library alone: an image, a 5 x 7 font, colours."""

import math
import pathlib
import struct
import zlib

Colour = tuple[int, ...]  # red, green, blue

# Rows of five pixels from the top, a base-32 digit each; two more below the line where a letter reaches there.
FONT = {
    " ": "0000000", "a": "00e1fhf", "b": "gguhhhu", "c": "00egghe", "d": "11fhhhf", "e": "00ehvge", "f": "698s888",
    "g": "00fhhhf1e", "h": "ggmphhh", "i": "40c444e", "j": "20622ic", "k": "ggikoki", "l": "c44444e", "m": "00qllll",
    "n": "00mphhh", "o": "00ehhhe", "p": "00uhhhugg", "q": "00fhhhf11", "r": "00mpggg", "s": "00fge1u", "t": "88s8896",
    "u": "00hhhjd", "v": "00hhha4", "w": "00hllla", "x": "00ha4ah", "y": "00hhhhf1e", "z": "00v248v", "0": "ehjlphe",
    "1": "4c4444e", "2": "eh168gv", "3": "v2421he", "4": "26aiv22", "5": "vgu11he", "6": "68guhhe", "7": "v124888",
    "8": "ehhehhe", "9": "ehhf12c", ".": "00000cc", ",": "0000c48", '"': "aaa0000", "'": "4480000", "?": "eh12404",
    "!": "4444404", ":": "0cc0cc0", "-": "000v000", "[": "e88888e", "]": "e22222e", "(": "2488842", ")": "8422248",
    "#": "aavavaa", "=": "00v0v00", "/": "01248g0",
}  # fmt: skip

SCALE = [
    (0.0, (252, 252, 250)),
    (0.15, (253, 224, 174)),
    (0.4, (240, 140, 75)),
    (0.7, (178, 44, 82)),
    (1.0, (48, 8, 62)),
]
INK, PALE = (30, 30, 40), (205, 205, 205)


def colour(x: float) -> Colour:
    x = min(max(x, 0.0), 1.0)
    for (a, low), (b, high) in zip(SCALE, SCALE[1:]):
        if x <= b:
            return tuple(round(u + (w - u) * (x - a) / (b - a)) for u, w in zip(low, high))
    return SCALE[-1][1]


class Picture:
    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.rows = [bytearray(b"\xff" * (3 * width)) for _ in range(height)]

    def fill(self, x: int, y: int, width: int, height: int, ink: Colour) -> None:
        for row in self.rows[y : y + height]:
            row[3 * x : 3 * (x + width)] = bytes(ink) * width

    def text(self, x: int, y: int, words: str, size: int = 1, upward: bool = False, ink: Colour = INK) -> None:
        """Letters 6 x 8 pixels times size; upward: turned by a quarter, from (x, y) towards the top."""
        for n, letter in enumerate(words.lower()):
            for line, digit in enumerate(FONT.get(letter, FONT["?"])):
                for column in range(5):
                    if int(digit, 32) >> (4 - column) & 1:
                        along, across = (6 * n + column) * size, line * size
                        at = (x + across, y - along - size) if upward else (x + along, y + across)
                        self.fill(*at, size, size, ink)

    def save(self, path: pathlib.Path) -> None:
        def chunk(kind: bytes, data: bytes) -> bytes:
            return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

        header = struct.pack(">IIBBBBB", self.width, self.height, 8, 2, 0, 0, 0)
        pixels = zlib.compress(b"".join(b"\0" + row for row in self.rows), 9)
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b""))


def heat(picture: Picture, x: int, y: int, cell: int, matrix: list[list[float]]) -> None:
    """Darkness grows with the square root of the weight, so that small ones are seen."""
    for i, row in enumerate(matrix):
        for j, p in enumerate(row):
            picture.fill(x + j * cell, y + i * cell, cell, cell, colour(p**0.5))


def legend(picture: Picture, x: int, y: int) -> None:
    picture.text(x - 42, y + 1, "weight")
    for i in range(200):
        picture.fill(x + i, y, 1, 9, colour((i / 200) ** 0.5))
    for percent in (0, 25, 50, 75, 100):
        picture.text(x + 2 * percent - 3 * len(f"{percent / 100:g}"), y + 12, f"{percent / 100:g}")


def heat_map(words: list[str], heads: list[list[list[float]]], chosen: int, title: str, path: pathlib.Path) -> None:
    """heads: [head][row][key] weights. The chosen head large with its words, all of them small below."""
    n, cell, small = len(words), 14, 3
    left = 6 * max(map(len, words)) + 20
    top = left + 10
    across = max(1, (n * cell + left) // (n * small + 12))
    down = -(-len(heads) // across)
    grid = top + 30 + n * cell + 30
    picture = Picture(left + n * cell + 20, grid + down * (n * small + 24) + 10)
    picture.text(left, 10, title, size=2)
    picture.text(left, 34, "row: the word that looks.  column: the word it looks at.")
    legend(picture, picture.width - 230, 10)
    for i, word in enumerate(words):
        picture.text(left - 6 * len(word) - 5, top + 30 + i * cell + 4, word)
        picture.text(left + i * cell + 4, top + 25, word, upward=True)
    heat(picture, left, top + 30, cell, heads[chosen])
    for h, matrix in enumerate(heads):
        x, y = left + h % across * (n * small + 12), grid + h // across * (n * small + 24)
        picture.text(x, y, f"head {h}", ink=INK if h == chosen else (120, 120, 120))
        picture.fill(x - 1, y + 11, n * small + 2, n * small + 2, PALE)
        heat(picture, x, y + 12, small, matrix)
    picture.save(path)


COLOURS = [(178, 44, 82), (44, 111, 187), (120, 120, 120)]


def stroke(picture: Picture, x: int, y: int, to_x: int, to_y: int, ink: Colour, size: int) -> None:
    """Size x size pixels, a column or a row at a time, whichever are more."""
    steps = max(abs(to_x - x), abs(to_y - y), 1)
    for i in range(steps + 1):
        at = round(x + (to_x - x) * i / steps), round(y + (to_y - y) * i / steps)
        picture.fill(at[0] - size // 2, at[1] - size // 2, size, size, ink)


def ticks(low: float, high: float) -> list[float]:
    """Some five round numbers from low to high."""
    rough = (high - low) / 5 or 1
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next(n for n in (1, 2, 5, 10) if n * power >= rough)
    return [i * step for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def curves(lines: dict[str, list[float]], title: str, x_name: str, y_name: str, path: pathlib.Path) -> None:
    """lines: {name: values at 1, 2, ...}. The first is drawn last and thin, so that one that it hides is seen too."""
    width, height, left, top = 640, 360, 60, 50
    picture = Picture(left + width + 20, top + height + 50)
    longest = max(map(len, lines.values()))
    values = [y for ys in lines.values() for y in ys if math.isfinite(y)] or [0.0]
    low, high = min(0.0, *values), max(values) if max(values) > min(0.0, *values) else 1.0

    def at(x: int, y: float) -> tuple[int, int]:
        return left + round(width * (x - 1) / max(1, longest - 1)), top + round(height * (high - y) / (high - low))

    picture.text(left, 10, title, size=2)
    for y in ticks(low, high):
        picture.fill(left, at(1, y)[1], width, 1, PALE)
        picture.text(left - 6 * len(f"{y:g}") - 6, at(1, y)[1] - 3, f"{y:g}")
    for x in (1, *(round(x) for x in ticks(1, longest) if x >= 2 and x == round(x))):
        picture.fill(at(x, 0)[0], top + height, 1, 4, INK)
        picture.text(at(x, 0)[0] - 3 * len(str(x)), top + height + 8, str(x))
    picture.text(left + width // 2 - 3 * len(x_name), top + height + 26, x_name)
    picture.text(8, top + height // 2 + 3 * len(y_name), y_name, upward=True)
    for n, (name, ys) in reversed(list(enumerate(lines.items()))):
        ink, size = COLOURS[n % len(COLOURS)], 1 + 4 * min(n, 1)
        points = [at(x, y) for x, y in enumerate(ys, 1) if math.isfinite(y)]
        for a, b in zip(points, points[1:] or points):
            stroke(picture, *a, *b, ink, size)
        y = top + 12 + 16 * n
        stroke(picture, left + width - 150, y, left + width - 126, y, ink, size)
        picture.text(left + width - 118, y - 3, name)
    picture.save(path)
