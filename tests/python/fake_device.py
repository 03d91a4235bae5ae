"""Arrays that say they are on a CUDA device, for machines without one: real DLPack capsules around host memory that
nothing ever reads."""

import ctypes

_FLOAT, _BFLOAT, _BITS = 2, 4, 16


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_memory = ctypes.create_string_buffer(1 << 20)
_addresses = iter(range(ctypes.addressof(_memory) // 256 * 256 + 256, ctypes.addressof(_memory) + (1 << 20), 4096))


class FakeArray:
    """fp16 or bf16, row-major. `streams` are the streams it was asked to be ready on. With `read_only` (True or False)
    it knows DLPack's versions, in which memory can be marked so."""

    def __init__(self, *shape, device=0, kind=2, code=_FLOAT, read_only=None):
        self.read_only = read_only
        self.shape, self.dtype, self.device_type, self.index, self.code = shape, "float16", kind, device, code
        self.address, self.streams, self._kept = next(_addresses), [], []

    def __dlpack_device__(self):
        return self.device_type, self.index

    def __dlpack__(self, stream=None, **options):
        if self.read_only is None and "max_version" in options:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        self.streams.append(stream)
        strides, step = [], 1
        for n in reversed(self.shape):
            strides.insert(0, step)
            step *= n
        dims = ctypes.c_int64 * len(self.shape)
        shape, strides = dims(*self.shape), dims(*strides)
        tensor = _Tensor(
            self.address, self.device_type, self.index, len(self.shape), self.code, _BITS, 1, shape, strides, 0
        )
        versioned = "max_version" in options
        managed = _Versioned(1, 0, None, None, self.read_only, tensor) if versioned else _Managed(tensor, None, None)
        self._kept += [shape, strides, managed]
        return _new_capsule(ctypes.addressof(managed), b"dltensor_versioned" if versioned else b"dltensor", None)
