"""flash-attn 2's functions, computed by onepass on CUDA and on CPUs, forward and backward.

``sys.modules["flash_attn"] = onepass.flash_attn`` lets code that imports flash_attn run unchanged. Layout, arguments
and meaning are those of flash-attn 2 (https://github.com/Dao-AILab/flash-attention); the few
differences are in docs/coming_from/flash_attn.md.
"""

from typing import Any

from onepass.flash_attn.flash_attn_interface import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
)

__version__ = "2.8.4"  # the flash-attn whose interface this is
__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]


def __dir__() -> Any:
    return sorted((*__all__, "__version__"))
