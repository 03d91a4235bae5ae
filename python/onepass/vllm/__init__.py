"""onepass as an attention backend of vLLM: ``--attention-backend CUSTOM``.

vLLM finds ``register`` by the entry point group ``vllm.general_plugins`` and calls it in each of its processes. The
backends themselves are imported when vLLM asks for one.
"""

import os
from typing import Any

__all__ = ["register"]

TESTED = ("0.26.0",)  # vLLM has no stable interface for attention backends, so other versions are refused


def __dir__() -> Any:
    return sorted(__all__)


def register() -> None:
    """Gives vLLM's name CUSTOM to onepass, unless another plugin has taken it.

    vLLM's CPU platform has one backend, CPU_ATTN, and ignores ``--attention-backend``. With ``ONEPASS_VLLM_CPU=1`` in
    the environment onepass takes its place.
    """
    on_cpu = os.environ.get("ONEPASS_VLLM_CPU", "0")
    if on_cpu not in ("0", "1"):
        raise ValueError(f"ONEPASS_VLLM_CPU must be 0 or 1 (got {on_cpu!r})")
    try:
        from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
    except ImportError:  # a version without names for other backends, so none can be asked for
        return
    if not AttentionBackendEnum.CUSTOM.is_overridden():
        register_backend(AttentionBackendEnum.CUSTOM, "onepass.vllm.Custom")
    if on_cpu == "1":
        register_backend(AttentionBackendEnum.CPU_ATTN, "onepass.vllm.Cpu")


def __getattr__(name: str) -> Any:
    """The class that vLLM asks for by a name of `register`: MLA models have a backend of their own."""
    if name not in ("Custom", "Cpu"):
        raise AttributeError(f"module 'onepass.vllm' has no attribute {name!r}; it has {', '.join(__all__)}")
    _refuse_other_versions()
    from . import backend

    if name == "Cpu":
        return backend.CpuBackend
    from vllm.config import get_current_vllm_config_or_none

    config = get_current_vllm_config_or_none()
    if config is not None and config.model_config is not None and config.model_config.use_mla:
        from . import mla

        return mla.MlaBackend
    return backend.DenseBackend


def _refuse_other_versions() -> None:
    import vllm

    version = vllm.__version__.partition("+")[0]
    if version not in TESTED:
        raise RuntimeError(f"onepass.vllm requires vLLM {' or '.join(TESTED)} (got {version})")
