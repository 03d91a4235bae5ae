"""What of flash-attn's layers belongs to attention: rotary embeddings."""
