"""onepass.vllm without a GPU: which backend vLLM gets by which name, what is refused, and the decoding of MLA."""

import importlib.metadata
import pathlib
import sys
import types

import pytest

vllm = pytest.importorskip("vllm", reason="vllm is not installed")
import onepass  # noqa: E402
import onepass.torch  # noqa: E402
import onepass.vllm  # noqa: E402
import torch  # noqa: E402
from onepass.vllm import mla  # noqa: E402
from vllm.v1.attention.backends.registry import AttentionBackendEnum  # noqa: E402
from vllm.v1.attention.selector import AttentionSelectorConfig  # noqa: E402

CUSTOM, CPU_ATTN = AttentionBackendEnum.CUSTOM, AttentionBackendEnum.CPU_ATTN


@pytest.fixture
def register(monkeypatch):
    yield onepass.vllm.register
    CUSTOM.clear_override()
    CPU_ATTN.clear_override()


@pytest.fixture
def chosen(register, monkeypatch):
    """chosen(capability, mla=False, **config): the class that vLLM's CUDA platform makes of CUSTOM."""
    monkeypatch.setitem(sys.modules, "vllm._C_stable_libtorch", types.ModuleType("operators that a CPU wheel lacks"))
    cuda, interface = pytest.importorskip("vllm.platforms.cuda"), vllm.platforms.interface
    register()

    def choose(capability=(9, 0), mla=False, **config):
        class Platform(cuda.NonNvmlCudaPlatform):
            @classmethod
            def get_device_capability(cls, device_id=0):
                return interface.DeviceCapability(*capability)

        model = types.SimpleNamespace(model_config=types.SimpleNamespace(use_mla=mla))
        monkeypatch.setattr("vllm.config.vllm._current_vllm_config", model)
        config = dict(head_size=128, dtype=torch.bfloat16, kv_cache_dtype="auto", block_size=16, use_mla=mla) | config
        return Platform.get_attn_backend_cls(CUSTOM, AttentionSelectorConfig(**config))

    return choose


def test_cuda_gets_the_backend_of_the_model(chosen):
    assert chosen() == "onepass.vllm.backend.DenseBackend"
    assert chosen((8, 0), has_sink=True, has_sliding_window=True) == "onepass.vllm.backend.DenseBackend"
    assert chosen(kv_cache_dtype="fp8") == "onepass.vllm.backend.DenseBackend"
    assert chosen((8, 0), kv_cache_dtype="fp8") == "onepass.vllm.backend.DenseBackend"
    assert chosen(use_batch_invariant=True) == "onepass.vllm.backend.DenseBackend"
    assert chosen(mla=True, head_size=576) == "onepass.vllm.mla.MlaBackend"


@pytest.mark.parametrize(
    "reason, config",
    [
        ("head_size not supported", dict(head_size=520)),
        ("kv_cache_dtype not supported", dict(kv_cache_dtype="fp8_e5m2")),
        ("compute capability not supported", dict(capability=(7, 5))),
        ("an FP8 cache requires a model in float16 or", dict(dtype=torch.float32, kv_cache_dtype="fp8")),
        ("partial multimodal token full attention not", dict(use_mm_prefix=True)),
        ("compute capability not supported", dict(mla=True, head_size=576, capability=(8, 0))),
        ("kv_cache_dtype not supported", dict(mla=True, head_size=576, kv_cache_dtype="fp8")),
        ("batch invariance not supported", dict(mla=True, head_size=576, use_batch_invariant=True)),
    ],
)
def test_cuda_refuses_with_a_reason(chosen, reason, config):
    with pytest.raises(ValueError, match=reason):
        chosen(**config)


def test_the_cpu_backend_is_replaced_on_request(register, monkeypatch):
    theirs = CPU_ATTN.get_path()
    register()
    assert CPU_ATTN.get_path() == theirs
    monkeypatch.setenv("ONEPASS_VLLM_CPU", "1")
    register()
    assert CPU_ATTN.get_class() is onepass.vllm.Cpu
    assert AttentionBackendEnum[onepass.vllm.Cpu.get_name()] is CPU_ATTN
    monkeypatch.setenv("ONEPASS_VLLM_CPU", "yes")
    with pytest.raises(ValueError, match="ONEPASS_VLLM_CPU must be 0 or 1"):
        register()


def test_another_plugin_keeps_the_name(register):
    from vllm.v1.attention.backends.registry import register_backend

    register_backend(CUSTOM, "another.Backend")
    register()
    assert CUSTOM.get_path() == "another.Backend"


def test_other_versions_are_refused_when_a_backend_is_asked_for(register, monkeypatch):
    monkeypatch.setattr(vllm, "__version__", "0.33.0+cu130")
    register()  # vLLM calls it whether onepass is used or not
    with pytest.raises(RuntimeError, match=r"onepass.vllm requires vLLM 0.26.0 \(got 0.33.0\)"):
        CUSTOM.get_class()


def test_the_entry_point_is_declared():
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((pathlib.Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    points = project["entry-points"]["vllm.general_plugins"]
    entry = importlib.metadata.EntryPoint("onepass", points["onepass"], "vllm.general_plugins")
    assert entry.load() is onepass.vllm.register


@pytest.mark.parametrize("lse", [False, True])
@pytest.mark.parametrize("rows", [1, 3])
def test_decoding_of_mla_is_dense_attention(rows, lse):
    g = torch.Generator().manual_seed(rows)
    heads, size, lengths = 16, 16, [70, 3, 33, 0]  # the last is padding
    cache = torch.full((20, size, 576), torch.nan)
    table = torch.randperm(20, generator=g)[: 4 * 5].int().view(4, 5)
    keys = [torch.randn(n, 576, generator=g) for n in lengths]
    for row, x in zip(table, keys):
        for j, key in enumerate(x):
            cache[row[j // size], j % size] = key
    q = torch.randn(4 * rows, heads, 576, generator=g)
    impl = object.__new__(mla.MlaAttention)
    impl.scale, impl.kv_lora_rank, impl.need_to_return_lse_for_decode = 192**-0.5, 512, lse
    decode = mla.MlaMetadataBuilder._build_decode(
        None,
        block_table_tensor=table,
        seq_lens_device=torch.tensor(lengths, dtype=torch.int32),
        max_seq_len=80,
        query_start_loc_cpu=None,
        query_start_loc_device=None,
        num_decode_tokens=4 * rows,
        dcp_tot_seq_lens_device=None,
    )
    metadata = types.SimpleNamespace(decode=decode, num_decodes=4)
    out, got = impl.forward_mqa((q[..., :512], q[..., 512:]), cache, metadata, None)
    assert (got is not None) == lse
    for i, x in enumerate(keys):
        rows_of_i, k = q[i * rows : (i + 1) * rows].transpose(0, 1)[None], x[None, None]
        want, want_lse = onepass.torch.attention(
            rows_of_i, k, k[..., :512], mask="causal_bottom_right", scale=192**-0.5, return_lse=True
        )
        part = slice(i * rows, (i + 1) * rows)
        torch.testing.assert_close(out[part], want[0].transpose(0, 1), rtol=0, atol=3e-6)
        if lse:
            torch.testing.assert_close(got[part], want_lse[0].T, rtol=0, atol=1e-5)
