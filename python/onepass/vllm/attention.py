"""Attention of a layer: new keys and values go to their slots, and one call computes whatever the scheduler made."""

from typing import Any

import torch
import vllm.envs
from torch import Tensor
from vllm import _custom_ops
from vllm.v1.attention.backend import AttentionImpl, AttentionType

import onepass.torch

from .metadata import Metadata

CACHES = ("auto", "float16", "bfloat16", "fp8", "fp8_e4m3")
WITHOUT_CACHE = (AttentionType.ENCODER, AttentionType.ENCODER_ONLY)


class DenseAttention(AttentionImpl):
    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: Tensor | None = None,
    ) -> None:
        if not 1 <= head_size <= 512:
            raise ValueError(f"onepass.vllm does not support head dims above 512 (got {head_size})")
        if kv_cache_dtype not in CACHES:
            raise ValueError(f"kv_cache_dtype must be one of {', '.join(CACHES)} (got {kv_cache_dtype})")
        if self.dcp_world_size > 1:
            raise ValueError("onepass.vllm does not support decode context parallelism without MLA")
        self.num_heads, self.head_size = num_heads, head_size
        self.num_kv_heads = num_kv_heads or num_heads
        self.kv_cache_dtype, self.attn_type = kv_cache_dtype, attn_type
        self.fp8 = kv_cache_dtype.startswith("fp8")
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        self.sinks = sinks
        slopes = None if alibi_slopes is None else torch.tensor(alibi_slopes, dtype=torch.float32)
        window = None
        if sliding_window is not None:  # it counts the row's own key; encoders look as far ahead as back
            window = (sliding_window - 1, sliding_window - 1 if attn_type in WITHOUT_CACHE else 0)
        self.scale = float(scale)
        self.options: dict[str, Any] = dict(
            scale=self.scale,
            softcap=logits_soft_cap or 0.0,
            window=window,
            alibi_slopes=slopes,
            batch_invariant=vllm.envs.VLLM_BATCH_INVARIANT,
        )

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        if self.sinks is not None:  # the weights of the model, in its dtype
            self.sinks = self.sinks.detach().float()

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: Metadata | None,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        """Writes `output` ``[tokens, heads, dim]``, of `query` with the same shape; rows of padding are not written."""
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError("onepass.vllm does not support quantized outputs")
        m = attn_metadata
        if m is None:  # vLLM measures memory
            return output.fill_(0)
        n = m.num_actual_tokens
        if self.attn_type in WITHOUT_CACHE:
            k, v = key[:n], value[:n]
            keys: dict[str, Any] = dict(cu_seqlens_k=m.query_start_loc, max_seqlen_k=m.max_query_len)
        else:
            k, v = self._pages(kv_cache)
            keys = dict(
                seqused_k=m.seq_lens, page_table=m.block_table, max_seqlen_k=m.max_seq_len, **self._scales(layer)
            )
        onepass.torch.attention(
            query[:n],
            k,
            v,
            mask="causal_bottom_right" if m.causal else None,
            sinks=self.sinks,
            cu_seqlens_q=m.query_start_loc,
            max_seqlen_q=m.max_query_len,
            out=output[:n],
            **keys,
            **self.options,
        )
        return output

    def do_kv_cache_update(
        self, layer: Any, key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor
    ) -> None:
        """Writes the new keys and values, in front of `forward`. vLLM leaves this out where a layer reads another's."""
        if self.attn_type in WITHOUT_CACHE:
            return
        n = slot_mapping.shape[0]  # key and value may be padded
        k, v = self._pages(kv_cache)
        if k.is_cuda:
            scales = layer._k_scale, layer._v_scale
            _custom_ops.reshape_and_cache_flash(key, value, k, v, slot_mapping, self.kv_cache_dtype, *scales)
            return
        onepass.torch.append_kv(key[:n], value[:n], k, v, slot_mapping=slot_mapping, **self._scales(layer))

    def _pages(self, kv_cache: Tensor) -> tuple[Tensor, Tensor]:
        """K and V ``[blocks, block_size, heads_kv, dim]``, views of ``[blocks, heads_kv, block_size, 2 dim]``."""
        if self.fp8:
            kv_cache = kv_cache.view(torch.float8_e4m3fn)
        k, v = kv_cache.transpose(1, 2).split(self.head_size, dim=-1)
        return k, v

    def _scales(self, layer: Any) -> dict[str, Tensor]:
        """One number each, which stays on its device."""
        return dict(k_descale=layer._k_scale.view(1), v_descale=layer._v_scale.view(1)) if self.fp8 else {}
