"""Peers: other libraries, timed beside onepass. A plug-in is a file with PEERS, a dict of classes of base.Peer."""

from bench.peers import cpu, flash_attention_3, flash_attention_4, flash_mla, rows, torch_cuda

PEERS = (
    cpu.PEERS
    | torch_cuda.PEERS
    | flash_attention_3.PEERS
    | flash_attention_4.PEERS
    | flash_mla.PEERS
    | rows.PEERS
)  # fmt: skip
