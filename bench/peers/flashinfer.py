"""FlashInfer on a cache of pages, for the study serving_speed. PEERS has its kernels by name.

Each function returns a call that computes the step. Plans are made once, outside of the timed span. `step` has q
[tokens, heads, dim], pages of K and V [pages, page size, heads, dim], the page table, and the rows and keys of each
sequence.
"""

WORKSPACE_BYTES = 512 << 20


def pages_of(torch, step):
    """FlashInfer's form of the page table: where a sequence's pages begin, the pages, the keys in its last one."""
    size = step.page
    counts = [-(-n // size) for n in step.keys]
    begins = torch.tensor([0, *counts]).cumsum(0).int().cuda()
    indices = torch.cat([step.table[i, :n] for i, n in enumerate(counts)]).contiguous()
    last = torch.tensor([(n - 1) % size + 1 for n in step.keys], dtype=torch.int32, device="cuda")
    return begins, indices, last


def workspace(torch):
    return torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")


def decode(torch, step, tensor_cores):
    import flashinfer

    if set(step.rows) != {1}:
        raise ValueError("it computes one row of each sequence")
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace(torch), "NHD", use_tensor_cores=tensor_cores)
    types = {"q_data_type": step.q.dtype, "kv_data_type": step.q.dtype}
    wrapper.plan(*pages_of(torch, step), step.heads, step.heads_kv, step.dim, step.page, **types)
    out = torch.empty_like(step.q)
    return out, lambda: wrapper.run(step.q, (step.k, step.v), out=out)


def prefill(torch, step, backend):
    import flashinfer

    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace(torch), "NHD", backend=backend)
    types = {"q_data_type": step.q.dtype, "kv_data_type": step.q.dtype, "causal": True}
    shape = step.heads, step.heads_kv, step.dim, step.page
    wrapper.plan(step.cu_rows, *pages_of(torch, step), *shape, **types)
    out = torch.empty_like(step.q)
    return out, lambda: wrapper.run(step.q, (step.k, step.v), out=out)


def holistic(torch, step):
    import flashinfer

    wrapper = flashinfer.BatchAttention("NHD")
    begins, indices, _ = pages_of(torch, step)
    types = {"q_data_type": step.q.dtype, "kv_data_type": step.q.dtype, "causal": True}
    shape = step.heads, step.heads_kv, step.dim, step.dim, step.page
    wrapper.plan(step.cu_rows, begins, indices, step.used, *shape, **types)
    out, lse = torch.empty_like(step.q), torch.empty(step.q.shape[:2], dtype=torch.float32, device="cuda")
    return out, lambda: wrapper.run(step.q, (step.k, step.v), out=out, lse=lse)


PEERS = {
    "flashinfer decode": lambda torch, step: decode(torch, step, False),
    "flashinfer decode, tensor cores": lambda torch, step: decode(torch, step, True),
    "flashinfer fa2": lambda torch, step: prefill(torch, step, "fa2"),
    "flashinfer fa3": lambda torch, step: prefill(torch, step, "fa3"),
    "flashinfer holistic": holistic,
}
