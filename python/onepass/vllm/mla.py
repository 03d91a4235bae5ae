"""Decoding of MLA models by ``cuda.mla``; prompts are computed by vLLM's own prefill backend."""

from dataclasses import dataclass
from typing import Any

import torch
import vllm.envs
from torch import Tensor
from vllm.model_executor.layers.attention.mla_attention import (
    MLACommonBackend,
    MLACommonDecodeMetadata,
    MLACommonImpl,
    MLACommonMetadata,
    MLACommonMetadataBuilder,
    QueryLenSupport,
)
from vllm.v1.attention.backend import AttentionCGSupport, AttentionType, MultipleOf

import onepass.torch


class MlaBackend(MLACommonBackend):
    supported_dtypes = [torch.float16, torch.bfloat16]
    supported_kv_cache_dtypes = ["auto", "float16", "bfloat16"]

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type["MlaAttention"]:
        return MlaAttention

    @staticmethod
    def get_builder_cls() -> type["MlaMetadataBuilder"]:
        return MlaMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes() -> list[Any]:
        return [MultipleOf(1)]

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return [576]

    @staticmethod
    def get_kv_cache_stride_order(include_num_layers_dimension: bool = False) -> tuple[int, ...]:
        return (1, 0, 2, 3) if include_num_layers_dimension else (0, 1, 2)

    @classmethod
    def supports_compute_capability(cls, capability: Any) -> bool:
        return capability.major == 9


@dataclass
class MlaDecodeMetadata(MLACommonDecodeMetadata):
    max_seq_len: int = 0


class MlaMetadataBuilder(MLACommonMetadataBuilder):
    _cudagraph_support = AttentionCGSupport.UNIFORM_BATCH
    query_len_support = QueryLenSupport.UNIFORM  # cuda.mla does not support packed sequences

    def _build_decode(
        self, *, block_table_tensor: Tensor, seq_lens_device: Tensor, max_seq_len: int, **rest: Any
    ) -> MlaDecodeMetadata:
        return MlaDecodeMetadata(
            block_table=block_table_tensor,
            seq_lens=seq_lens_device,
            dcp_tot_seq_lens=rest["dcp_tot_seq_lens_device"],
            max_seq_len=max_seq_len,
        )


class MlaAttention(MLACommonImpl):
    can_return_lse_for_decode = True
    lse_base_on_e = True

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int,
        alibi_slopes: list[float] | None,
        sliding_window: int | None,
        kv_cache_dtype: str,
        logits_soft_cap: float | None,
        attn_type: str,
        kv_sharing_target_layer_name: str | None,
        **of_mla: Any,
    ) -> None:
        given = dict(alibi_slopes=alibi_slopes, sliding_window=sliding_window, logits_soft_cap=logits_soft_cap)
        for name, value in given.items():
            if value:
                raise NotImplementedError(f"onepass.vllm does not support {name} in MLA models")
        if attn_type != AttentionType.DECODER:
            raise NotImplementedError(f"onepass.vllm does not support {attn_type} attention in MLA models")
        super().__init__(
            num_heads,
            head_size,
            scale,
            num_kv_heads,
            alibi_slopes,
            sliding_window,
            kv_cache_dtype,
            logits_soft_cap,
            attn_type,
            kv_sharing_target_layer_name,
            **of_mla,
        )

    def forward_mqa(
        self,
        q: Tensor | tuple[Tensor, Tensor],
        kv_c_and_k_pe_cache: Tensor,
        attn_metadata: MLACommonMetadata,
        layer: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """(out ``[tokens, heads, 512]``, LSE ``[tokens, heads]`` or None), of q ``[tokens, heads, 576]``.

        All sequences have the same number of rows. A key is a row of the cache, and its value the first 512 columns.
        """
        whole = torch.cat(q, dim=-1) if isinstance(q, tuple) else q
        decode = attn_metadata.decode
        k = kv_c_and_k_pe_cache.unsqueeze(2)  # one K/V head
        result = onepass.torch.attention(
            whole.unflatten(0, (attn_metadata.num_decodes, -1)),
            k,
            k[..., : self.kv_lora_rank],
            mask="causal_bottom_right",
            scale=self.scale,
            seqused_k=decode.seq_lens,
            page_table=decode.block_table,
            max_seqlen_k=decode.max_seq_len,
            batch_invariant=vllm.envs.VLLM_BATCH_INVARIANT,
            layout="bshd",
            return_lse=self.need_to_return_lse_for_decode,
        )
        out, lse = result if self.need_to_return_lse_for_decode else (result, None)
        return out.flatten(0, 1), None if lse is None else lse.flatten(0, 1)
