"""The part of flash-attn's layers that belongs to attention: rotary embeddings."""
