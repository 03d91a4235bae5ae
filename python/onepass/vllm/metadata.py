"""The step's tensors that the attention of each layer reads."""

import copy
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from vllm.v1.attention.backend import AttentionCGSupport, AttentionMetadata, AttentionMetadataBuilder


@dataclass
class Metadata(AttentionMetadata):
    """A step's sequences, packed. The tensors are vLLM's own, which keep their addresses: CUDA graphs replay them."""

    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int
    query_start_loc: Tensor
    seq_lens: Tensor
    block_table: Tensor
    slot_mapping: Tensor
    causal: bool


class MetadataBuilder(AttentionMetadataBuilder):
    # Graphs of equal query lengths: a graph of a mixed step would be planned for its captured lengths.
    _cudagraph_support = AttentionCGSupport.UNIFORM_BATCH
    supports_update_block_table = True

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: Any) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)  # abstract there

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Metadata:
        m = common_attn_metadata
        if isinstance(m.causal, Tensor):
            raise NotImplementedError("onepass.vllm does not support a causal flag for each request")
        if m.mm_req_doc_ranges is not None:
            raise NotImplementedError("onepass.vllm does not support ranges of tokens that see each other")
        if m.rswa_prefix_lens is not None:
            raise NotImplementedError("onepass.vllm does not support windows that begin behind a prefix")
        return Metadata(
            m.num_actual_tokens,
            m.max_query_len,
            m.max_seq_len,
            m.query_start_loc,
            m.seq_lens,
            m.block_table_tensor,
            m.slot_mapping,
            m.causal,
        )

    def update_block_table(self, metadata: Metadata, blk_table: Tensor, slot_mapping: Tensor) -> Metadata:
        new = copy.copy(metadata)
        new.block_table, new.slot_mapping = blk_table, slot_mapping
        return new
