"""The backends of dense attention, as vLLM describes a backend: what it supports, and its classes."""

from typing import Any

import torch
from vllm.v1.attention.backend import AttentionBackend, AttentionType, MultipleOf
from vllm.v1.attention.backends.utils import get_kv_cache_layout

from .attention import DenseAttention
from .metadata import MetadataBuilder

FP8 = ("fp8", "fp8_e4m3")


class DenseBackend(AttentionBackend):
    """Attention of all models without MLA, on CUDA."""

    supported_dtypes = [torch.float16, torch.bfloat16, torch.float32]
    supported_kv_cache_dtypes = ["auto", "float16", "bfloat16", *FP8]
    forward_includes_kv_cache_update = False

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[DenseAttention]:
        return DenseAttention

    @staticmethod
    def get_builder_cls() -> type[MetadataBuilder]:
        return MetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes() -> list[Any]:
        return [MultipleOf(1)]

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int, cache_dtype_str: str = "auto"
    ) -> tuple[int, ...]:
        return num_blocks, num_kv_heads, block_size, 2 * head_size  # K and V are the halves of a row

    @staticmethod
    def get_kv_cache_stride_order(include_num_layers_dimension: bool = False) -> tuple[int, ...]:
        """The dimensions in the order of memory; with layers, they are dimension 0."""
        tokens_first = get_kv_cache_layout() == "NHD"
        if include_num_layers_dimension:
            return (1, 0, 3, 2, 4) if tokens_first else (1, 2, 0, 3, 4)
        return (0, 2, 1, 3) if tokens_first else (0, 1, 2, 3)

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        return 1 <= head_size <= 512

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        return attn_type in list(AttentionType)

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_non_causal(cls) -> bool:
        return True

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        return True

    @classmethod
    def supports_compute_capability(cls, capability: Any) -> bool:
        return capability.major >= 8

    @classmethod
    def supports_combination(
        cls, head_size: int, dtype: torch.dtype, kv_cache_dtype: Any, *args: Any, **kwargs: Any
    ) -> str | None:
        """The reason why these do not go together."""
        if kv_cache_dtype in FP8 and dtype == torch.float32:
            return "an FP8 cache requires a model in float16 or bfloat16"
        return None


class CpuBackend(DenseBackend):
    """All attention of vLLM's CPU platform, which asks no backend for its limits: `DenseAttention` refuses calls."""

    @staticmethod
    def get_name() -> str:
        return "CPU_ATTN"  # vLLM looks this name up
