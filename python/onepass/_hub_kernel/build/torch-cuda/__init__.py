"""flash-attn 2's functions by onepass, as a kernel of Hugging Face's ``kernels``."""

from onepass.flash_attn import *  # noqa: F403
