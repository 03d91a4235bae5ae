"""onepass.vllm without an engine: steps by hand, over caches as vLLM lays them out, beside dense attention."""

import types

import pytest

pytest.importorskip("vllm", reason="vllm is not installed")
import onepass  # noqa: E402
import onepass.vllm  # noqa: E402
import torch  # noqa: E402
from vllm.model_executor.layers.attention.cross_attention import create_cross_attention_backend  # noqa: E402
from vllm.v1.attention.backend import AttentionType, CommonAttentionMetadata  # noqa: E402
from vllm.v1.attention.backends.utils import set_kv_cache_layout  # noqa: E402

HEADS, HEADS_KV, DIM, PAGES = 4, 2, 32, 120
# rows of each request and its keys, new ones included: a prompt, a chunk, single tokens, drafts, padded requests
STEP = [(70, 70), (33, 90), (1, 1), (1, 100), (4, 64), (0, 0), (0, 0)]


@pytest.fixture(params=["NHD", "HND"])
def order(request):
    set_kv_cache_layout(request.param)
    yield request.param
    set_kv_cache_layout(None)


def layer_of(k_scale=1.0, v_scale=1.0):
    return types.SimpleNamespace(_k_scale=torch.tensor(k_scale), _v_scale=torch.tensor(v_scale))


def empty_cache(backend, block_size, dtype):
    """NaN in every slot, with the dimensions in memory as the backend wants them."""
    shape = backend.get_kv_cache_shape(PAGES, block_size, HEADS_KV, DIM)
    stride_order = backend.get_kv_cache_stride_order()
    memory = torch.full([shape[i] for i in stride_order], 127, dtype=torch.uint8)
    if dtype is not torch.uint8:  # 127 is a NaN of float8_e4m3fn
        memory = torch.full(memory.shape, torch.nan, dtype=dtype)
    return memory.permute([stride_order.index(i) for i in range(4)])


class Step:
    """The tensors of a step, by hand, of requests [(rows, keys)], and the keys and values of each request."""

    def __init__(self, requests, block_size, dtype=torch.float32, causal=True, seed=0):
        g = torch.Generator().manual_seed(seed)

        def normal(*shape):
            return torch.randn(shape, generator=g).to(dtype)

        self.requests = requests
        self.k, self.v = ([normal(keys, HEADS_KV, DIM) for _, keys in requests] for _ in range(2))
        self.q = [normal(rows, HEADS, DIM) * 3 for rows, _ in requests]
        free = torch.randperm(PAGES - 1, generator=g) + 1  # page 0 is vLLM's page of padding
        width = max(-(-keys // block_size) for _, keys in requests) + 1
        table = torch.zeros(len(requests), width, dtype=torch.int32)
        for row, (_, keys) in zip(table, requests):
            needed = -(-keys // block_size)
            row[:needed], free = free[:needed].int(), free[needed:]
        self.slots = [
            table[i, torch.arange(keys) // block_size].long() * block_size + torch.arange(keys) % block_size
            for i, (_, keys) in enumerate(requests)
        ]
        rows = torch.tensor([rows for rows, _ in requests])
        starts = torch.cat([torch.zeros(1, dtype=torch.long), rows.cumsum(0)]).int()
        self.common = CommonAttentionMetadata(
            query_start_loc=starts,
            query_start_loc_cpu=starts,
            seq_lens=torch.tensor([keys for _, keys in requests], dtype=torch.int32),
            num_reqs=len(requests),
            num_actual_tokens=int(starts[-1]),
            max_query_len=int(rows.max()),
            max_seq_len=max(keys for _, keys in requests),
            block_table_tensor=table,
            slot_mapping=torch.cat([s[keys - rows :] for s, (rows, keys) in zip(self.slots, requests)]),
            causal=causal,
        )

    def new(self, of):
        return torch.cat([x[keys - rows :] for x, (rows, keys) in zip(of, self.requests)])

    def run(self, impl, cache, layer, builder, padding=0):
        """The cached keys are written in front of the step, as earlier steps would; then the step itself."""
        for k, v, slots, (rows, keys) in zip(self.k, self.v, self.slots, self.requests):
            old = keys - rows
            impl.do_kv_cache_update(layer, k[:old], v[:old], cache, slots[:old])
        metadata = builder.build(0, self.common)
        q, k, v = torch.cat(self.q), self.new(self.k), self.new(self.v)
        if padding:  # rows of a CUDA graph: their slots are negative
            q, k, v = (torch.cat([x, x.new_full((padding, *x.shape[1:]), torch.nan)]) for x in (q, k, v))
            self.common.slot_mapping = torch.cat([self.common.slot_mapping, torch.full((padding,), -1)])
        out = torch.full_like(q, torch.nan)
        impl.do_kv_cache_update(layer, k, v, cache, self.common.slot_mapping)
        assert impl.forward(layer, q, k, v, cache, metadata, out) is out
        return out[: int(self.common.num_actual_tokens)]

    def expected(self, **options):
        """Dense attention, request by request, in float64's place in fp32 inputs."""
        out = []
        for q, k, v in zip(self.q, self.k, self.v):
            q, k, v = (x.float().transpose(0, 1)[None] for x in (q, k, v))
            if q.shape[2]:
                out.append(onepass.torch.attention(q, k, v, **options)[0].transpose(0, 1))
        return torch.cat(out)


def impl_of(backend, **options):
    impl = backend.get_impl_cls()(HEADS, DIM, DIM**-0.5, HEADS_KV, **options)
    impl.process_weights_after_loading(torch.float32)
    return impl


def builder_of(backend):
    return backend.get_builder_cls()(None, ["layer"], None, torch.device("cpu"))


SLOPES = [0.5, 0.25, 0.125, 0.0625]
SINKS = torch.tensor([1.0, -1.0, 0.0, 3.0])
CALLS = {
    "plain": ({}, {}),
    "window": (dict(sliding_window=20), dict(window=(19, 0))),
    "softcap": (dict(logits_soft_cap=5.0), dict(softcap=5.0)),
    "sinks": (dict(sinks=SINKS.bfloat16()), dict(sinks=SINKS)),
    "alibi": (dict(alibi_slopes=SLOPES), dict(alibi_slopes=torch.tensor(SLOPES))),
}


@pytest.mark.parametrize("block_size", [16, 32, 48])
@pytest.mark.parametrize("name", CALLS)
def test_a_step_is_dense_attention(order, name, block_size):
    theirs, ours = CALLS[name]
    backend, step = onepass.vllm.Cpu, Step(STEP, block_size)
    cache = empty_cache(backend, block_size, torch.float32)
    assert (cache.stride(1) < cache.stride(2)) == (order == "NHD")
    out = step.run(impl_of(backend, **theirs), cache, layer_of(), builder_of(backend), padding=3)
    torch.testing.assert_close(out, step.expected(mask="causal_bottom_right", **ours), rtol=0, atol=3e-6)


def test_only_the_slots_of_tokens_are_written(order):
    backend, step = onepass.vllm.Cpu, Step(STEP, 16)
    cache = empty_cache(backend, 16, torch.float32)
    step.run(impl_of(backend), cache, layer_of(), builder_of(backend), padding=3)
    written = ~cache.isnan().any(3)
    assert int(written.sum()) == HEADS_KV * sum(keys for _, keys in STEP)


def test_an_fp8_cache(order):
    backend, step = onepass.vllm.Cpu, Step(STEP, 16)
    k_scale, v_scale = 0.5, 0.25
    impl, cache = impl_of(backend, kv_cache_dtype="fp8"), empty_cache(backend, 16, torch.uint8)
    out = step.run(impl, cache, layer_of(k_scale, v_scale), builder_of(backend))
    for rows, scale in (step.k, k_scale), (step.v, v_scale):  # what the cache holds of them
        rows[:] = [(x / scale).to(torch.float8_e4m3fn).float() * scale for x in rows]
    torch.testing.assert_close(out, step.expected(mask="causal_bottom_right"), rtol=0, atol=1e-5)


def test_attention_without_a_causal_mask(order):
    backend, step = onepass.vllm.Cpu, Step(STEP, 16, causal=False)
    out = step.run(impl_of(backend), empty_cache(backend, 16, torch.float32), layer_of(), builder_of(backend))
    torch.testing.assert_close(out, step.expected(), rtol=0, atol=3e-6)


@pytest.mark.parametrize("window", [None, 8])
def test_an_encoder_reads_no_cache(window):
    backend, step = onepass.vllm.Cpu, Step([(70, 70), (1, 1), (33, 33)], 16, causal=False)
    impl = impl_of(backend, attn_type=AttentionType.ENCODER_ONLY, sliding_window=window)
    out = step.run(impl, None, layer_of(), builder_of(backend))
    options = {} if window is None else dict(window=(window - 1, window - 1))
    torch.testing.assert_close(out, step.expected(**options), rtol=0, atol=3e-6)


def test_cross_attention(order):
    """Rows of a decoder see the keys of an encoder: new ones of the first request, cached ones of the second."""
    backend, step = create_cross_attention_backend(onepass.vllm.Cpu), Step([(5, 33), (1, 50)], 16)
    cache, impl, lengths = empty_cache(backend, 16, torch.float32), impl_of(backend), torch.tensor([33, 50])
    impl.do_kv_cache_update(layer_of(), step.k[1], step.v[1], cache, step.slots[1])
    builder = backend.get_builder_cls()(types.SimpleNamespace(block_size=16), ["layer"], None, torch.device("cpu"))
    common = step.common.replace(
        seq_lens=torch.tensor([5, 9], dtype=torch.int32),  # of the decoder
        seq_lens_cpu_upper_bound=torch.tensor([5, 9]),
        encoder_seq_lens=lengths.int(),
        encoder_seq_lens_cpu=lengths.numpy(),
    )
    layer, q = layer_of(), torch.cat(step.q)
    layer.kv_sharing_target_layer_name = None
    out = impl.forward(layer, q, step.k[0], step.v[0], cache, builder.build(0, common), torch.full_like(q, torch.nan))
    torch.testing.assert_close(out, step.expected(), rtol=0, atol=3e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_batch_invariance(order, dtype, monkeypatch):
    """A request's rows have the same bits alone and beside others, whole and in chunks, in pages of 16 and of 48."""
    keys_in_all = 1200  # more than the 1056 of a cut
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    backend = onepass.vllm.Cpu
    assert backend.supports_batch_invariance()

    def rows_of(requests, block_size, seed):
        step, one = Step(requests, block_size, dtype, seed=seed), Step([(keys_in_all,) * 2], 16, dtype, seed=7)
        rows, keys = requests[-1]
        step.q[-1], step.k[-1], step.v[-1] = one.q[0][keys - rows : keys], one.k[0][:keys], one.v[0][:keys]
        cache = empty_cache(backend, block_size, dtype)
        return step.run(impl_of(backend), cache, layer_of(), builder_of(backend))[-rows:]

    whole = rows_of([(keys_in_all, keys_in_all)], 16, 0)
    for before in ([], [(1, 50)], [(70, 70), (1, 1)]):
        for block_size in 16, 48:
            for rows, keys in (600, 600), (33, 1100), (5, 1080), (1, 1200):
                part = rows_of([*before, (rows, keys)], block_size, 1)
                assert torch.equal(part, whole[keys - rows : keys]), (before, block_size, rows)


def test_what_is_not_supported_is_refused():
    backend = onepass.vllm.Cpu
    with pytest.raises(ValueError, match=r"does not support head dims above 512 \(got 520\)"):
        backend.get_impl_cls()(4, 520, 1.0, 2)
    with pytest.raises(ValueError, match=r"kv_cache_dtype must be one of .* \(got fp8_e5m2\)"):
        impl_of(backend, kv_cache_dtype="fp8_e5m2")
    with pytest.raises(NotImplementedError, match="does not support quantized outputs"):
        impl_of(backend).forward(layer_of(), None, None, None, None, None, None, output_scale=torch.ones(1))
    builder, common = builder_of(backend), Step([(1, 1)], 16).common
    for name, value, sentence in (
        ("causal", torch.ones(1, dtype=torch.bool), "a causal flag for each request"),
        ("mm_req_doc_ranges", {0: [(0, 1)]}, "ranges of tokens that see each other"),
        ("rswa_prefix_lens", torch.ones(1), "windows that begin behind a prefix"),
    ):
        with pytest.raises(NotImplementedError, match=f"does not support {sentence}"):
            builder.build(0, common.replace(**{name: value}))
