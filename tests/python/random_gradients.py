"""Random problems of onepass.attention_backward, every option in any combination, beside the float64 formula in NumPy.

random_gradients.py [--seconds 60] [--seed N]      exit status 1 at the first difference beyond the rule

The rule of docs/reference/conventions.md for gradients, with 8 rounding units of bfloat16 where P and dS may
be rounded to it. The reference differentiates a score_mod by differences of its NumPy twin.
"""

import argparse
import time

import numpy as np
import onepass

import reference

try:
    from ml_dtypes import bfloat16
except ImportError:
    bfloat16 = None

DTYPES = {"float32": np.float32, "float16": np.float16} | ({"bfloat16": bfloat16} if bfloat16 else {})
UNIT = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
DIMS = (1, 2, 3, 8, 16, 17, 33, 40, 64, 65, 96, 128, 129, 192, 256)
SCORE_MODS = (
    "score * 0.5",
    "score - 0.1 * abs(q_index - k_index)",
    "3.0 * tanh(score / 3.0)",
    "score + table(head, q_index - k_index + 5)",
    "max(score, 0.3 * score) - 0.05 * k_index",
    "min(score * score, 2.0) + score * (k_index % 2 == 0)",
    "sqrt(1.0 + score * score) - log(2.0 + abs(score)) + row(q_index)",
    "abs(score) * row(k_index) + exp(-abs(score)) + floor(0.3 * score)",
    "(score + batch) / (1.0 + 0.2 * head) + (score > 0.47) * score",
)
MASK_MODS = (
    "k_index % 3 != 1",
    "(q_index >= k_index - 2) & (head != 1)",
    "k_index < limit(batch)",
    "abs(q_index - k_index) < 4 + head",
)


def laid(rng, x, writable=False):
    """x by other strides: another order of memory, gaps that hold NaN, reversed dimensions; the last has stride 1."""
    x = np.asarray(x)
    if x.ndim < 2 or rng.random() < 0.4:
        return x.copy() if writable else x
    order = [*rng.permutation(x.ndim - 1), x.ndim - 1]
    step = [int(rng.integers(1, 3)) for _ in x.shape[:-1]]
    pad = int(rng.integers(0, 4))
    wide = [n * s for n, s in zip(x.shape, step, strict=False)] + [x.shape[-1] + pad]
    fill = np.nan if x.dtype.kind not in "biu" else 1
    memory = np.full([wide[i] for i in order], fill).astype(x.dtype).transpose(np.argsort(order))
    turned = [slice(None, None, int(s * rng.choice([1, 1, -1]))) for s in step]
    view = memory[(*turned, slice(0, x.shape[-1]))][tuple(slice(0, n) for n in x.shape)]
    view[...] = x
    return view


def repeated(rng, x):
    """x, some of its dimensions but the last of stride 0."""
    if x.size == 0 or rng.random() < 0.8:
        return x
    first = tuple(slice(0, 1) if rng.random() < 0.4 else slice(None) for _ in x.shape[:-1])
    return np.broadcast_to(x[first], x.shape)


# Those that take every problem of this machine.
IMPLEMENTATIONS = [
    line.split(":")[0].split()[-1]
    for line in onepass.explain("bwd s3 fp32").splitlines()[1:]
    if "backward" in line and ": no, " not in line
]


class Case:
    """A random problem: the arrays and options of attention, of attention_backward, and of the reference."""

    def __init__(self, rng, packed=None):
        self.rng = rng
        self.dtype = str(rng.choice(list(DTYPES)))
        self.packed = rng.random() < 0.3 if packed is None else packed
        heads_kv = int(rng.choice([1, 2, 3]))
        heads = heads_kv * int(rng.choice([0, 1, 1, 2, 3, 4], p=[0.03, 0.37, 0.2, 0.2, 0.1, 0.1]))
        dim = int(rng.choice(DIMS))
        dim_v = dim if rng.random() < 0.5 else int(rng.choice(DIMS))
        batch = int(rng.choice([0, 1, 2, 3], p=[0.03, 0.37, 0.4, 0.2]))
        longest = rng.choice([3, 12, 40, 120], size=2, p=[0.2, 0.45, 0.25, 0.1])
        if rng.random() < 0.02:  # several tasks to a head
            longest, dim, dim_v, heads_kv, heads, batch = (700, 900), min(dim, 17), min(dim_v, 17), 1, min(heads, 1), 1
        if self.packed:
            lengths = [[int(x) for x in rng.integers(0, n + 1, batch)] for n in longest]
            self.cu = [np.cumsum([0, *x]).astype(np.int32) for x in lengths]
            tokens = [int(cu[-1] + rng.integers(0, 3)) for cu in self.cu]
            rows, keys = (max([1, *x]) for x in lengths)
            q, k = (tokens[0], heads, dim), (tokens[1], heads_kv, dim)
            self.shape, self.lse_shape = (tokens[0], heads, dim_v), (heads, tokens[0])
        else:
            rows, keys = (int(rng.integers(0 if rng.random() < 0.1 else 1, n + 1)) for n in longest)
            q, k = (batch, heads, rows, dim), (batch, heads_kv, keys, dim)
            self.shape, self.lse_shape = (batch, heads, rows, dim_v), (batch, heads, rows)
        self.arrays = [self.numbers(shape) for shape in (q, k, (*k[:-1], dim_v))]
        self.options = {}
        self.draw(batch, heads, rows, keys)
        if rng.random() < 0.4:
            self.hide_faults()
        if rng.random() < 0.1:
            # a score_mod's derivative at infinity is not the reference's to say
            self.show_fault(self.arrays[2 if "score_mod" in self.options else int(rng.integers(3))])
        self.arrays = [laid(rng, x) for x in self.arrays]

    def numbers(self, shape):
        return repeated(self.rng, self.rng.standard_normal(shape).astype(DTYPES[self.dtype]))

    def hide_faults(self):
        """NaN and infinities in what no row sees, and in rows that see nothing."""
        q, k, v = (np.array(x, order="C") for x in self.arrays)
        for rows, keys, own in self.sequences():
            one = [reference.alone(x) if self.packed else x for x in (q[rows], k[keys])]
            heads_kv = max(one[1].shape[1], 1)
            one[1] = np.repeat(one[1], one[0].shape[1] // heads_kv, axis=1)
            seen = reference.Scores(*(x.astype(np.float64) for x in one), **own).seen
            of_keys = seen.any(2).reshape(seen.shape[0], heads_kv, seen.shape[1] // heads_kv, seen.shape[3]).any(2)
            for x, where, at in ((q, seen.any(3), rows), (k, of_keys, keys), (v, of_keys, keys)):
                where = where[0].T if self.packed else where
                x[at][~where] = self.rng.choice([np.nan, np.inf, -np.inf])
        self.arrays = q, k, v

    def sequences(self):
        own = self.reference_options()
        for name in ("sinks", "dropout_p", "seed"):
            own.pop(name, None)
        return reference.sequences(*self.cu, own) if self.packed else [(slice(None), slice(None), own)]

    def show_fault(self, x):
        if x.size and x.flags.writeable:
            x[tuple(self.rng.integers(0, n) for n in x.shape)] = self.rng.choice([np.nan, np.inf, -np.inf])

    def draw(self, batch, heads, rows, keys):
        rng, o, score_mods = self.rng, self.options, True

        def chance(p):
            return rng.random() < p

        def spread():
            shape = [n if chance(0.6) else 1 for n in (batch, heads, rows, keys)]
            while len(shape) > 1 and shape[0] == 1 and chance(0.5):
                shape = shape[1:]
            return shape

        if chance(0.6):
            causal = ("causal_bottom_right", "causal_top_left", "causal_offset")
            o["mask"] = str(rng.choice([*causal, "aligned_top_left", "aligned_offset"]))
            if o["mask"].endswith("offset"):
                o["align_offset"] = int(rng.integers(-10, 20))
        if chance(0.3):
            left, right = (int(x) for x in rng.integers(-1, 9, 2))
            o["window"] = (left, min(right, 0) if o.get("mask", "").startswith("causal") else right)
        if chance(0.25):
            o["bool_mask"] = laid(rng, rng.random(spread()) < 0.7)
        if chance(0.35):
            o["bias"] = laid(rng, rng.standard_normal(spread()).astype(DTYPES[str(rng.choice(list(DTYPES)))]))
            if chance(0.2):  # what a score_mod makes of them is its own affair
                score_mods = False
                o["bias"] = np.where(rng.random(o["bias"].shape) < 0.2, -np.inf, o["bias"]).astype(o["bias"].dtype)
        if chance(0.3):
            o["alibi_slopes"] = np.abs(rng.standard_normal((batch, heads) if chance(0.4) else heads)).astype(np.float32)
        if chance(0.3):
            o["sinks"] = rng.standard_normal(heads).astype(np.float32)
        if chance(0.3):
            o["scale"] = float(rng.choice([0.0, -0.2, 0.3, 1.0]))
        if chance(0.25):
            o["softcap"] = float(rng.choice([0.5, 2.0, 30.0]))
        if chance(0.3):
            o |= {"dropout_p": float(rng.choice([0.1, 0.5, 1.0])), "seed": int(rng.integers(0, 2**64, dtype=np.uint64))}
        if chance(0.3 * score_mods):
            o["score_mod"] = str(rng.choice(SCORE_MODS))
        if chance(0.2):
            o["mask_mod"] = str(rng.choice(MASK_MODS))
        text = o.get("score_mod", "") + o.get("mask_mod", "")
        sizes = {"table": (max(heads, 1), 9), "row": (7,), "limit": (max(batch, 1),)}
        for name, shape in sizes.items():
            if name in text:
                kind = np.int32 if name == "limit" else DTYPES[str(rng.choice(list(DTYPES)))]
                x = rng.integers(0, 20, shape) if name == "limit" else rng.standard_normal(shape)
                o.setdefault("mod_buffers", {})[name] = x.astype(kind)
        if self.packed and chance(0.3):
            o |= {"max_seqlen_q": rows, "max_seqlen_k": keys}

    def call_options(self):
        lengths = dict(zip(("cu_seqlens_q", "cu_seqlens_k"), self.cu, strict=True)) if self.packed else {}
        return self.options | lengths

    def reference_options(self):
        return {name: x for name, x in self.options.items() if not name.startswith("max_")}

    def forward(self):
        """The inputs of the backward: out, lse, dout and, at times, dlse, with NaN where no row sees a key."""
        rng = self.rng
        out_dtype = "float32" if rng.random() < 0.15 else self.dtype
        out = np.zeros(self.shape, DTYPES[out_dtype])
        self.out, self.lse = onepass.attention(*self.arrays, out=out, return_lse=True, **self.call_options())
        self.dout = repeated(rng, rng.standard_normal(self.shape).astype(DTYPES[out_dtype]))
        self.dlse = rng.standard_normal(self.lse_shape).astype(np.float32) if rng.random() < 0.3 else None
        empty = self.lse == -np.inf
        if rng.random() < 0.5:
            self.dout = np.array(self.dout, order="C")
            self.dout[empty.T if self.packed else empty] = np.nan
            if self.dlse is not None:
                self.dlse[empty] = np.nan
        for x in (self.dout, self.out, self.lse):
            if rng.random() < 0.04:
                self.show_fault(x)
        self.dout, self.out = laid(rng, self.dout), laid(rng, self.out)
        self.lse = laid(rng, self.lse)

    def backward(self, **more):
        given = (self.dout, *self.arrays, self.out, self.lse)
        return onepass.attention_backward(*given, dlse=self.dlse, **self.call_options(), **more)

    def expected(self):
        given = (self.dout, *self.arrays, self.out, self.lse)
        lengths = self.cu if self.packed else ()
        of = reference.packed_gradients if self.packed else reference.gradients
        return of(*given, *lengths, dlse=self.dlse, **self.reference_options())

    def __str__(self):
        shapes = " ".join(str(list(x.shape)) for x in self.arrays)
        shown = {n: f"{x.dtype}{list(x.shape)}" if hasattr(x, "shape") else x for n, x in self.options.items()}
        lengths = f", lengths {[np.diff(x).tolist() for x in self.cu]}" if self.packed else ""
        return f"{self.dtype} {shapes}{lengths}, out {self.out.dtype}, dlse {self.dlse is not None}, {shown}"


def complaint(name, given, value, terms, t, dtype, inner):
    """A sentence if a gradient is beyond the rule. inner: the dtype of q, k and v."""
    if given.shape != value.shape:
        return f"{name} has shape {given.shape}, {value.shape} is expected"
    given = given.astype(np.float64)
    finite = np.isfinite(value)
    if (np.isfinite(given) != finite).any():
        return f"{name} is finite at {np.isfinite(given).sum()} places, {finite.sum()} are expected"
    if (given[finite & (terms == 0)] != 0).any():
        return f"{name} is not 0 where nothing reaches"
    most = np.abs(value[finite]).max(initial=0)
    tiny = {"float16": 2.0**-25}.get(dtype, 2.0**-126)  # a CPU flushes smaller numbers to 0
    slack = 2.0**-24 * (2 * t + 16) + (8 * UNIT["bfloat16"] if inner == "bfloat16" else 0)
    allowed = 2 * UNIT[dtype] * most + tiny + slack * terms[finite & np.isfinite(terms)].max(initial=0)
    worst = np.abs(given[finite] - value[finite]).max(initial=0)
    return "" if worst <= allowed else f"{name} is off by {worst:.3g}, {allowed:.3g} is accepted, of {most:.3g}"


def check(rng):
    """Draws a problem; a sentence if something is wrong with it, and what it is."""
    case = Case(rng)
    case.forward()
    expected = case.expected()
    t = expected.pop("t")
    names = [name for name in expected if rng.random() < 0.8] or ["dq"]
    names = [str(name) for name in rng.permutation(names)]
    wide = rng.random() < 0.3
    shapes = {name: expected[name][0].shape for name in names}
    kinds = {name: "float32" if wide or name not in ("dq", "dk", "dv") else case.dtype for name in names}
    into = {
        name: laid(rng, np.full(shapes[name], 7, DTYPES[kinds[name]]), True) for name in names if rng.random() < 0.4
    }
    threads = int(rng.integers(1, 4))
    which = str(rng.choice(["", *IMPLEMENTATIONS])) or None
    more = {"grads": names, "grad_dtype": "float32" if wide else None, "implementation": which}
    results = dict(zip(names, case.backward(into=into, threads=threads, **more), strict=True))
    if case.packed:  # tokens beyond the last sequence are left alone
        for name, cu in (("dq", case.cu[0]), ("dk", case.cu[1]), ("dv", case.cu[1])):
            if name in results:
                rest = results[name][cu[-1] :]
                if (rest != (7 if name in into else 0)).any():
                    return f"{name} was written beyond the last sequence", case
                results[name] = results[name][: cu[-1]]
                expected[name] = tuple(x[: cu[-1]] for x in expected[name])
    for name in names:
        if results[name].dtype != DTYPES[kinds[name]]:
            return f"{name} is {results[name].dtype}", case
        said = complaint(name, results[name], *expected[name], t, kinds[name], case.dtype)
        if said:
            return said, case
    again = case.backward(threads=4 - threads, **more)
    for name, x in zip(names, again, strict=True):
        x = x[: len(results[name])] if case.packed and name in ("dq", "dk", "dv") else x
        if np.ascontiguousarray(x).tobytes() != np.ascontiguousarray(results[name]).tobytes():
            return f"{name} has other bits with {4 - threads} threads than with {threads}", case
    for name, x in into.items():  # what lies between its elements is as it was
        x[...] = np.nan
        if x.base is not None and not np.isnan(x.base).all():
            return f"{name} was written beside its elements", case
    return "", case


def of_keys(options, rows, keys, part, first):
    """The options of a call with the keys of a slice alone."""
    own = dict(options)
    align = int(reference.aligned(1, 1 + keys - rows, options.get("mask"), options.get("align_offset"))[0, 0])
    causal = (options.get("mask") or "").startswith("causal")
    own |= {"mask": "causal_offset" if causal else "aligned_offset", "align_offset": align - part.start}
    for name in ("bool_mask", "bias"):
        if name in own and own[name].shape[-1] > 1:
            own[name] = own[name][..., part]
    if not first:
        own.pop("sinks", None)
    return own


def check_merged(rng):
    """The same of a forward that was made of two over disjoint keys: their backwards from the merged out and lse."""
    case = Case(rng, packed=False)
    for name in ("dropout_p", "seed", "score_mod", "mask_mod", "mod_buffers"):  # which count keys
        case.options.pop(name, None)
    q, k, v = case.arrays
    rows, keys = q.shape[2], k.shape[2]
    cut = int(rng.integers(0, keys + 1))
    parts = [slice(0, cut), slice(cut, keys)]
    options = [of_keys(case.options, rows, keys, part, n == 0) for n, part in enumerate(parts)]
    forwards = []
    for part, own in zip(parts, options, strict=True):
        out = np.empty(case.shape, np.float32)
        forwards.append(onepass.attention(q, k[:, :, part], v[:, :, part], out=out, return_lse=True, **own))
    out, lse = onepass.merge(*zip(*forwards, strict=True))
    dout = rng.standard_normal(case.shape, dtype=np.float32)
    expected = reference.gradients(dout, q, k, v, out, lse, **case.options)
    t = expected.pop("t")
    given = {name: np.zeros(value.shape, np.float32) for name, (value, _) in expected.items()}
    for part, own in zip(parts, options, strict=True):
        names = [name for name in expected if name != "dsinks" or "sinks" in own]
        arrays = dout, q, k[:, :, part], v[:, :, part], out, lse
        made = onepass.attention_backward(*arrays, grads=names, grad_dtype="float32", **own)
        for name, x in zip(names, made, strict=True):
            whole = given[name][:, :, part] if name in ("dk", "dv") else given[name]
            whole = whole[..., part] if name == "dbias" and whole.shape[-1] > 1 else whole
            whole += x
    for name, two in expected.items():
        said = complaint(name, given[name], *two, t, "float32", case.dtype)
        if said:
            return f"merged: {said}", case
    return "", case


def drawn(seed):
    """The result of check() for the problem of this number."""
    try:
        with np.errstate(all="ignore"):
            return (check_merged if seed % 10 == 0 else check)(np.random.default_rng(seed))
    except reference.Corner:
        return "", "a corner of its score_mod"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, help="default: the time")
    options = parser.parse_args()
    seed = time.time_ns() % 2**32 if options.seed is None else options.seed
    end, count = time.monotonic() + options.seconds, 0
    while time.monotonic() < end:
        said, case = drawn(seed)
        if said:
            raise SystemExit(f"--seed {seed}: {said}\n{case}")
        seed, count = seed + 1, count + 1
    print(f"{count} problems, no difference")


if __name__ == "__main__":
    main()
