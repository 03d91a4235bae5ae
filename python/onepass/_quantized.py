"""The result of quantize: numbers in float8_e4m3fn with everything that attention needs to know about them."""

NAMES = ("q", "k", "v", "q_descale", "k_descale", "v_descale", "v_mean")


class Quantized(tuple):
    """``(data, descale)``, or ``(data, descale, mean)``, that attention takes as q, k or v.

    Attention reads the scales and the mean from it, and refuses q and k that were rotated differently.

    Attributes:
      data: the array of float8_e4m3fn.
      descale: float32, the scales.
      mean: float32, the mean that was taken out of each column, or None.
      hadamard: True if the rows were rotated; seed: the seed of the rotation's signs.
    """

    def __new__(cls, data, descale, mean=None, *, hadamard=False, seed=0):
        self = super().__new__(cls, (data, descale) if mean is None else (data, descale, mean))
        self.hadamard, self.seed = bool(hadamard), seed
        return self

    data = property(lambda self: self[0])
    descale = property(lambda self: self[1])
    mean = property(lambda self: self[2] if len(self) > 2 else None)
    how = property(lambda self: (self.hadamard, self.seed))
    shape = property(lambda self: self[0].shape)
    dtype = property(lambda self: self[0].dtype)

    def with_data(self, data):
        """The same with other data: a view of it, or a copy in another layout."""
        return Quantized(data, *self[1:], hadamard=self.hadamard, seed=self.seed)

    def __getnewargs_ex__(self):
        return tuple(self), {"hadamard": self.hadamard, "seed": self.seed}

    def __repr__(self):
        how = f"hadamard, seed {self.seed}" if self.hadamard else "not rotated"
        mean = "" if self.mean is None else ", mean"
        return f"Quantized(shape {list(self.shape)}, descale {list(self.descale.shape)}{mean}, {how})"


def _rotation(x):
    return x.seed if isinstance(x, Quantized) and x.hadamard else None


def _rotated(x):
    return "is not rotated" if _rotation(x) is None else f"is rotated with seed {x.seed}"


def carried(q, k, v, q_descale, k_descale, v_descale, v_mean, fp8):
    """The values of NAMES, where some of q, k and v are Quantized."""
    if fp8 is not False:
        raise ValueError("fp8 must be False, because q, k or v is quantized already")
    if _rotation(q) != _rotation(k):
        raise ValueError(
            f"q and k must be rotated with the same seed, or not at all (q {_rotated(q)}, k {_rotated(k)})"
        )
    if _rotation(v) is not None:
        raise ValueError("v must not be rotated: quantize it with hadamard=False")
    found = []
    for name, x, descale in (("q", q, q_descale), ("k", k, k_descale), ("v", v, v_descale)):
        if not isinstance(x, Quantized):
            found.append((x, descale))
            continue
        if descale is not None:
            raise ValueError(f"{name}_descale must be None, because {name} is Quantized and has its own scales")
        if x.mean is not None and name != "v":
            raise ValueError(f"{name} must be quantized with mean=False: attention restores the mean of v only")
        if x.mean is not None and v_mean is not None:
            raise ValueError("v_mean must be None, because v is Quantized and has its own mean")
        found.append((x.data, x.descale))
    mean = v.mean if isinstance(v, Quantized) and v.mean is not None else v_mean
    return *(x for x, _ in found), *(descale for _, descale in found), mean
