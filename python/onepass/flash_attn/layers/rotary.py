"""Rotary position embeddings of queries and keys (Su et al., RoFormer, arXiv:2104.09864), in PyTorch's operators."""

import torch


def apply_rotary_emb(x, cos, sin, interleaved=False, inplace=False, seqlen_offsets=0, cu_seqlens=None, max_seqlen=None):
    """Rotates the first ``2 * cos.shape[-1]`` elements of each head by the token's position.

    Args:
      x: ``[batch, seq, heads, dim]``; with cu_seqlens ``[total, heads, dim]``.
      cos, sin: ``[positions, rotary_dim / 2]``.
      interleaved: pairs are elements ``(2i, 2i + 1)``; else ``(i, i + rotary_dim / 2)``.
      inplace: write into x too.
      seqlen_offsets: the position of the first token, an int or ``[batch]``.
      cu_seqlens: ``[batch + 1]``, prefix sums of packed lengths.

    Returns:
      A tensor like x, computed in float32 and rounded once.
    """
    tokens = x.shape[-3]
    offsets = seqlen_offsets if isinstance(seqlen_offsets, int) else seqlen_offsets.long()
    place = torch.arange(tokens, device=x.device)
    if cu_seqlens is not None:
        sequence = torch.searchsorted(cu_seqlens, place, right=True, out_int32=True).long() - 1
        sequence = sequence.clamp(max=len(cu_seqlens) - 2)  # tokens behind the last sequence
        positions = place - cu_seqlens[sequence] + (offsets if isinstance(offsets, int) else offsets[sequence])
    else:
        positions = place + (offsets if isinstance(offsets, int) else offsets[:, None])
    positions = positions.clamp(max=len(cos) - 1)
    cos, sin = (table[positions].unsqueeze(-2).float() for table in (cos, sin))
    half = cos.shape[-1]
    head, rest = x[..., : 2 * half].float(), x[..., 2 * half :]
    a, b = (head[..., 0::2], head[..., 1::2]) if interleaved else (head[..., :half], head[..., half:])
    turned = (a * cos - b * sin, b * cos + a * sin)
    turned = torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)
    result = torch.cat([turned.to(x.dtype), rest], -1)
    return x.copy_(result) if inplace else result
