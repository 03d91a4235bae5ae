"""Stand-ins for PyTorch, JAX and TensorFlow: NumPy arrays that say of themselves what tensors of theirs would say."""

import types


class Exported:
    """Anything with DLPack, around a NumPy array."""

    def __init__(self, array, **said):
        self.array = array
        self.__dict__.update(said)

    shape = property(lambda self: self.array.shape)
    dtype = property(lambda self: self.array.dtype)

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class Tensor(Exported):
    """torch.Tensor: `said` overrides what it says, such as requires_grad=True."""

    requires_grad = is_cuda = is_nested = negative = False
    is_cpu, tangent = True, None

    def __torch_dispatch__(self):
        pass

    def is_neg(self):
        return self.negative

    def resolve_neg(self):
        return Tensor(-self.array)

    def detach(self):
        return Tensor(self.array, negative=self.negative)


class Wrapper(Tensor):
    """A subclass whose values are not in its memory, as torch's FakeTensor and MaskedTensor."""

    def __torch_dispatch__(self):
        pass


def torch_module(tensor=Tensor):
    torch = types.ModuleType("torch")
    torch.Tensor, torch.is_grad_enabled = tensor, lambda: True
    torch.jit = types.SimpleNamespace(is_tracing=lambda: False)
    torch._C = types.SimpleNamespace(_len_torch_dispatch_stack=lambda: 0)
    torch.autograd = types.SimpleNamespace(forward_ad=types.SimpleNamespace(_current_level=-1, unpack_dual=lambda x: x))
    torch.utils = types.SimpleNamespace(dlpack=types.SimpleNamespace(to_dlpack=lambda x: x.__dlpack__()))
    return torch


class JaxArray(Exported):
    def is_deleted(self):
        return False


class Tracer(JaxArray):
    __dlpack__ = property()


def jax_module():
    jax = types.ModuleType("jax")
    jax.Array, jax.core = JaxArray, types.SimpleNamespace(Tracer=Tracer)
    return jax


def tensorflow_module():
    tensorflow = types.ModuleType("tensorflow")
    tensorflow.Tensor = type("Tensor", (Exported,), {})
    return tensorflow
