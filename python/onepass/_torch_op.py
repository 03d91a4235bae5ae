"""onepass as operators of PyTorch's dispatcher: ``torch.ops.onepass.attention`` and ``attention_backward``.

Whatever works through the dispatcher works with them: autograd, torch.compile and torch.export (fake tensors),
autocast, vmap and torch.func, CUDA graphs. Both take every tensor and option of a call in one flat list, which the
tables below define once.
"""

import collections

import torch

import onepass

# Inputs by the names of onepass.attention's arguments; gradients flow to the first six.
DIFFERENTIABLE = ("q", "k", "v", "bias", "alibi_slopes", "sinks")
_PLAIN = ("bool_mask", "cu_seqlens_q", "cu_seqlens_k", "seqused_k", "page_table")
# random_seed: int64 on the CPU, drawn by PyTorch's generator; in its absence `seed` counts.
INPUTS = (*DIFFERENTIABLE, *_PLAIN, "random_seed")
_OPTIONS = (  # type in a schema, name, default
    ("Tensor[]?", "mod_buffers", None),
    ("str?", "mod_names", None),  # joined by commas
    ("str?", "mask", None),
    ("SymInt?", "align_offset", None),
    ("SymInt", "window_left", -1),
    ("SymInt", "window_right", -1),
    ("float?", "scale", None),
    ("float", "softcap", 0.0),
    ("float", "dropout_p", 0.0),
    ("int", "seed", 0),
    ("SymInt?", "max_seqlen_q", None),
    ("SymInt?", "max_seqlen_k", None),
    ("bool", "batch_invariant", False),
    ("bool", "deterministic", False),
    ("str?", "score_mod", None),
    ("str?", "mask_mod", None),
    ("str?", "implementation", None),
    ("int?", "threads", None),
    ("ScalarType?", "out_dtype", None),
    ("bool", "return_lse", True),
)
_NAMES = (*INPUTS, *(name for _, name, _ in _OPTIONS))
Call = collections.namedtuple("Call", _NAMES, defaults=(None,) * (len(INPUTS) - 3) + tuple(d for *_, d in _OPTIONS))


def _schema():
    inputs = [f"Tensor {x}" if x in "qkv" else f"Tensor? {x}=None" for x in INPUTS]
    return ", ".join(inputs + [f"{kind} {name}={value}" for kind, name, value in _OPTIONS])


_library = torch.library.Library("onepass", "DEF")
_library.define(f"attention({_schema()}) -> (Tensor out, Tensor lse)", tags=torch.Tag.pt2_compliant_tag)
_library.define(
    f"attention_backward(Tensor dout, Tensor? dlse, Tensor out, Tensor lse, bool[] wanted, {_schema()}) -> "
    "(Tensor dq, Tensor dk, Tensor dv, Tensor dbias, Tensor dalibi_slopes, Tensor dsinks)",
    tags=torch.Tag.pt2_compliant_tag,
)
_library.define(
    "append_kv(Tensor k_new, Tensor v_new, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor seqused_k, "
    "Tensor? page_table=None, Tensor? cu_seqlens_q=None, Tensor? cos=None, Tensor? sin=None, Tensor? q=None, "
    "bool interleaved=False, int? threads=None) -> Tensor",
    tags=torch.Tag.pt2_compliant_tag,
)
attention = torch.ops.onepass.attention.default
attention_backward = torch.ops.onepass.attention_backward.default
append_kv = torch.ops.onepass.append_kv.default


# ------------------------------------------------------------------------------------------------- the kernels
def _readable(x):
    """`x` as onepass reads it: the last dimension's stride is 1. (A gradient of a sum is one number, repeated.)"""
    if x is None or x.dim() == 0 or x.stride(-1) == 1 or x.size(-1) <= 1:
        return x
    return x.contiguous()


def _arguments(c):
    """Call -> the keyword arguments that onepass.attention and attention_backward share, without q, k and v."""
    window = None if c.window_left == -1 and c.window_right == -1 else (c.window_left, c.window_right)
    seed = c.seed
    if c.random_seed is not None:
        if c.q.is_cuda and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "dropout_p draws a seed on the host, which every replay of this CUDA graph would repeat: capture "
                "without dropout, or give onepass.torch.attention a seed of your own"
            )
        seed = int(c.random_seed)
    return {
        **{name: _readable(getattr(c, name)) for name in ("bias", "alibi_slopes", "sinks", "bool_mask")},
        **{
            name: getattr(c, name)
            for name in ("cu_seqlens_q", "cu_seqlens_k", "mask", "align_offset", "scale", "softcap", "dropout_p")
            + ("max_seqlen_q", "max_seqlen_k", "score_mod", "mask_mod", "implementation", "threads")
        },
        "window": window,
        "seed": seed % 2**64,
        "mod_buffers": dict(zip(c.mod_names.split(","), c.mod_buffers)) if c.mod_buffers else None,
    }


def _run_forward(*args):
    c = Call(*args)
    q, k, v = _readable(c.q), _readable(c.k), _readable(c.v)
    result = onepass.attention(
        q,
        k,
        v,
        **_arguments(c),
        seqused_k=c.seqused_k,
        page_table=c.page_table,
        batch_invariant=c.batch_invariant,
        return_lse=c.return_lse,
        out=None if c.out_dtype in (None, q.dtype) else _new_out(q, v, c.out_dtype, _packed(c)),
    )
    return result if c.return_lse else (result, q.new_empty(0, dtype=torch.float32))


_GRADIENTS = tuple("d" + name for name in DIFFERENTIABLE)  # in the order of the operator's results


def _run_backward(dout, dlse, out, lse, wanted, *args):
    c = Call(*args)
    names = [name for name, wants in zip(_GRADIENTS, wanted) if wants]
    dout, dlse, out, lse, q, k, v = map(_readable, (dout, dlse, out, lse, c.q, c.k, c.v))
    grads = onepass.attention_backward(
        dout, q, k, v, out, lse, dlse=dlse, grads=names, deterministic=c.deterministic, **_arguments(c)
    )
    grads = dict(zip(names, grads))
    return tuple(grads[name] if name in grads else q.new_empty(0) for name in _GRADIENTS)


def _run_append(
    k_new, v_new, k_cache, v_cache, seqused_k, page_table=None, cu_seqlens_q=None, cos=None, sin=None, q=None, *options
):
    interleaved, threads = (*options, *(False, None)[len(options) :])
    q = onepass.append_kv(
        _readable(k_new),
        _readable(v_new),
        k_cache,
        v_cache,
        seqused_k=seqused_k,
        page_table=page_table,
        cu_seqlens_q=cu_seqlens_q,
        cos=cos,
        sin=sin,
        q=_readable(q),
        interleaved=interleaved,
        threads=threads,
    )
    return k_new.new_empty(0) if q is None else q


for _device in ("CPU", "CUDA"):
    _library.impl("attention", _run_forward, _device)
    _library.impl("attention_backward", _run_backward, _device)
    _library.impl("append_kv", _run_append, _device)


# ------------------------------------------------------------------------------------- shapes without values
def _packed(c):
    return c.cu_seqlens_q is not None or c.cu_seqlens_k is not None


def _like(x, shape, dtype):
    """Of the memory order of `x`, as onepass makes its results."""
    return onepass._arrays.new(x, shape, str(dtype).rpartition(".")[2])


def _new_out(q, v, dtype, packed):
    out = _like(q, (*q.shape[:-1], v.shape[-1]), dtype)
    return out.zero_() if packed else out


@torch.library.register_fake("onepass::attention", lib=_library)
def _fake_forward(*args):
    c = Call(*args)
    q = _readable(c.q)
    out = _like(q, (*q.shape[:-1], c.v.shape[-1]), c.out_dtype or q.dtype)
    lse = (0,) if not c.return_lse else (q.shape[1], q.shape[0]) if _packed(c) else tuple(q.shape[:-1])
    return out, q.new_empty(lse, dtype=torch.float32)


@torch.library.register_fake("onepass::attention_backward", lib=_library)
def _fake_backward(dout, dlse, out, lse, wanted, *args):
    c = Call(*args)
    results = []
    for name, wants in zip(DIFFERENTIABLE, wanted):
        x = getattr(c, name)
        if not wants:
            results.append(c.q.new_empty(0))
        elif name in "qkv":
            results.append(_like(_readable(x), tuple(x.shape), x.dtype))
        else:
            results.append(torch.empty(x.shape, dtype=torch.float32, device=x.device))
    return tuple(results)


@torch.library.register_fake("onepass::append_kv", lib=_library)
def _fake_append(k_new, *args, **kwargs):
    q = args[8] if len(args) > 8 else None
    return k_new.new_empty(0) if q is None else _like(_readable(q), tuple(q.shape), q.dtype)


# ---------------------------------------------------------------------------------------------------- autograd
class Differentiable(torch.autograd.Function):
    """`call` is the operator, or what stands for it below autograd; the rest are its arguments."""

    @staticmethod
    def forward(call, *args):
        return call(*args)

    @staticmethod
    def setup_context(ctx, inputs, output):
        c = Call(*inputs[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*c[: len(INPUTS)], *(c.mod_buffers or ()), *output)
        ctx.options = c[len(INPUTS) + 1 :]

    @staticmethod
    def backward(ctx, dout, dlse):
        saved, grads = ctx.saved_tensors, [None] * len(DIFFERENTIABLE)
        inputs, (*mod_buffers, out, lse) = saved[: len(INPUTS)], saved[len(INPUTS) :]
        wanted = list(ctx.needs_input_grad[1 : 1 + len(DIFFERENTIABLE)])
        if (dout is not None or dlse is not None) and any(wanted):
            c = Call(*inputs, mod_buffers or None, *ctx.options)
            if c.seqused_k is not None or c.page_table is not None:
                raise RuntimeError("attention to a cache (seqused_k, page_table) has no gradients")
            c = c._replace(deterministic=c.deterministic or torch.are_deterministic_algorithms_enabled())
            dout = torch.zeros_like(out) if dout is None else dout
            ready = backward(dout, dlse, out, lse, wanted, *c)
            grads = [g.to(x.dtype) if wants else None for g, x, wants in zip(ready, inputs, wanted)]
        return None, *grads, *(None,) * (len(Call._fields) - len(grads))

    @staticmethod
    def vmap(info, in_dims, call, *args):
        return _vmap_forward(info, in_dims[1:], *args)


class _Once(torch.autograd.Function):
    """The backward, which cannot be differentiated again."""

    @staticmethod
    def forward(call, *args):
        return call(*args)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, *grads):
        raise RuntimeError("onepass's attention is differentiable once: its gradients have no gradients")

    @staticmethod
    def vmap(info, in_dims, call, *args):
        return _vmap_backward(info, in_dims[1:], *args)


def _transformed():
    """Whether torch.func is at work, which sees an autograd.Function but none that hides inside of an operator."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


def forward(*args):
    if _transformed():
        return Differentiable.apply(attention, *Call(*args)._replace(return_lse=True))
    return attention(*args)


def backward(*args):
    return _Once.apply(attention_backward, *args) if _transformed() else attention_backward(*args)


def needs_gradient(args):
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in args[: len(DIFFERENTIABLE)])


def _below_autograd(op):
    def call(*args):
        with torch._C._AutoDispatchBelowAutograd():
            return op(*args)

    return call


_forward_below, _backward_below = _below_autograd(attention), _below_autograd(attention_backward)


def _with_autograd(*args):
    if _transformed() or not needs_gradient(args):
        return _forward_below(*args)
    return Differentiable.apply(_forward_below, *Call(*args)._replace(return_lse=True))


def _backward_with_autograd(*args):
    return _backward_below(*args) if _transformed() else _Once.apply(_backward_below, *args)


_library.impl("attention", _with_autograd, "Autograd")
_library.impl("attention_backward", _backward_with_autograd, "Autograd")


# ---------------------------------------------------------------------------------------------------- autocast
def _autocast(device):
    exclude = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, "Autocast" + device.upper()))

    def cast(*args):
        """q, k and v in autocast's dtype, as PyTorch's own; biases, slopes and sinks lose nothing."""
        dtype = torch.get_autocast_dtype(device)
        qkv = (x.to(dtype) if x.dtype in (torch.float32, torch.float16, torch.bfloat16) else x for x in args[:3])
        with torch._C._ExcludeDispatchKeyGuard(exclude):
            return attention(*qkv, *args[3:])

    return cast


_library.impl("attention", _autocast("cpu"), "AutocastCPU")
_library.impl("attention", _autocast("cuda"), "AutocastCUDA")


# -------------------------------------------------------------------------------------------------------- vmap
def _each(op, info, in_dims, args):
    """One call for each example, for what does not fold into the batch."""

    def pick(x, dim, i):
        if isinstance(dim, (list, tuple)):
            return [pick(y, d, i) for y, d in zip(x, dim)]
        return x if dim is None else x.select(dim, i)

    results = [op(*(pick(x, dim, i) for x, dim in zip(args, in_dims))) for i in range(info.batch_size)]
    return tuple(map(torch.stack, zip(*results))), (0,) * len(results[0])


def _folds(c, d):
    """Whether examples become entries of the batch: nothing in the call depends on where in it an entry stands."""
    alone = ("sinks", "cu_seqlens_q", "cu_seqlens_k", "seqused_k", "page_table", "random_seed")
    return (
        c.q.dim() - (d.q is not None) == 4
        and c.dropout_p == 0
        and not (c.score_mod or c.mask_mod)
        and all(getattr(c, name) is None for name in alone[1:])
        and d.sinks is None
    )


def _vmap_forward(info, in_dims, *args):
    c, d = Call(*args), Call(*in_dims)
    if not _folds(c, d):
        return _each(forward, info, in_dims, args)
    n, batch = info.batch_size, c.q.movedim(d.q, 0).shape[1] if d.q is not None else c.q.shape[0]

    def front(name):
        """Example first."""
        x, dim = getattr(c, name), getattr(d, name)
        return x.movedim(dim, 0) if dim is not None else x.expand(n, *x.shape)

    new = {name: front(name).flatten(0, 1) for name in "qkv"}
    for name, rank in (("bias", 4), ("bool_mask", 4), ("alibi_slopes", 2)):
        x = getattr(c, name)
        if x is None:
            continue
        own = x.dim() - (getattr(d, name) is not None)
        if getattr(d, name) is None and (own < rank or x.shape[0] == 1):
            continue  # the same for all
        x = front(name)
        x = x.reshape(n, *(1,) * (rank - own), *x.shape[1:])
        new[name] = x.expand(n, batch, *x.shape[2:]).flatten(0, 1)
    out, lse = forward(*c._replace(**new))
    return (out.unflatten(0, (n, batch)), lse.unflatten(0, (n, batch)) if c.return_lse else lse.expand(n, 0)), (0, 0)


def _vmap_backward(info, in_dims, *args):
    return _each(backward, info, in_dims, args)


torch.library.register_vmap("onepass::attention", _vmap_forward, lib=_library)
torch.library.register_vmap("onepass::attention_backward", _vmap_backward, lib=_library)
