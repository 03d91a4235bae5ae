"""Names: keywords of other libraries are answered with ours, and the package shows what it has."""

import importlib
import subprocess
import sys

import numpy as np
import onepass
import pytest
from conftest import inputs

Q, K, V = inputs(np.random.default_rng(0))
CAUSAL = (
    "does not accept 'causal': causal=True of flash-attn is mask='causal_bottom_right'; "
    "is_causal=True of PyTorch is mask='causal_top_left'"
)
THEIRS = {
    "causal": "mask='causal_bottom_right'",
    "is_causal": "mask='causal_top_left'",
    "attn_mask": "a boolean attn_mask of PyTorch is bool_mask; an additive attn_mask of PyTorch is bias",
    "softmax_scale": "softmax_scale of flash-attn is scale",
    "window_size": "window_size of flash-attn is window=(left, right)",
    "dropout": "dropout is dropout_p with a seed",
    "cache_seqlens": "cache_seqlens of flash-attn is seqused_k",
    "block_table": "block_table of flash-attn is page_table",
    "enable_gqa": "heads_q may be a multiple of heads_kv",
    "sofcap": "did you mean 'softcap'?",
    "qqq": "it accepts mask, align_offset, window",
}


@pytest.mark.parametrize("name", THEIRS)
def test_keywords_of_other_libraries_are_answered_with_ours(name):
    for function in (onepass.attention, onepass.explain):
        with pytest.raises(TypeError) as error:
            function(Q, K, V, **{name: 1})
        assert f"{function.__name__} does not accept {name!r}" in str(error.value) and THEIRS[name] in str(error.value)


def test_all_functions_answer():
    out, lse = onepass.attention(Q, K, V, return_lse=True)
    with pytest.raises(TypeError, match="attention_backward does not accept 'softmax_scale': softmax_scale"):
        onepass.attention_backward(out, Q, K, V, out, lse, softmax_scale=1.0)
    with pytest.raises(TypeError, match="attention does not accept 'cache_seqlens': .* is seqused_k"):
        onepass.attention(Q, K, V, cache_seqlens=None)
    with pytest.raises(TypeError, match="'is_neox': is_neox=True of vLLM is interleaved=False of append_kv"):
        onepass.append_kv(K, V, K, V, is_neox=True)
    with pytest.raises(TypeError, match="append_kv does not accept 'block_table'"):
        onepass.append_kv(K, V, K, V, cache_seqlens=None, block_table=None)
    with pytest.raises(
        TypeError, match="append_kv does not accept 'seqused_k': .* is cache_seqlens of append_kv, which"
    ):
        onepass.append_kv(K, V, K, V, seqused_k=[1])


def test_torch_answers():
    torch = pytest.importorskip("torch")
    q, k, v = (torch.from_numpy(x) for x in (Q, K, V))
    with pytest.raises(TypeError) as error:
        onepass.torch.attention(q, k, v, causal=True)
    assert CAUSAL in str(error.value)
    with pytest.raises(ValueError, match="is_causal=True of PyTorch is mask='causal_top_left'"):
        onepass.torch.attention(q, k, v, mask="is_causal")
    with pytest.raises(TypeError, match="append_kv does not accept 'block_table'"):
        onepass.torch.append_kv(k, v, k, v, cache_seqlens=None, block_table=None)


def test_jax_answers():
    pytest.importorskip("jax")
    with pytest.raises(TypeError) as error:
        onepass.jax.attention(Q, K, V, causal=True)
    assert CAUSAL in str(error.value)
    with pytest.raises(ValueError, match="causal_lower_right of PyTorch is mask='causal_bottom_right'"):
        onepass.jax.attention(Q, K, V, mask="causal_lower_right")
    with pytest.raises(TypeError, match="append_kv does not accept 'block_table'"):
        onepass.jax.append_kv(K, V, K, V, cache_seqlens=None, block_table=None)


def test_dir_shows_public_names():
    assert set(onepass.__all__) < set(dir(onepass))
    assert all(name == "__version__" or not name.startswith("_") for name in dir(onepass))


@pytest.mark.parametrize(
    "name, framework", [("flash_attn", "torch"), ("transformers", "transformers"), ("vllm", "vllm")]
)
def test_dir_of_an_interface_shows_its_public_names(name, framework):
    pytest.importorskip(framework)
    module = importlib.import_module(f"onepass.{name}")
    assert set(dir(module)) - {"__version__"} == set(module.__all__)
    assert all(hasattr(module, shown) for shown in dir(module))


def fresh(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_interfaces_are_attributes():
    """Attributes in a process that has imported onepass alone; without the framework the error says what is missing."""
    code = """if True:
        import onepass
        for name in ("torch", "jax"):
            try:
                print(name, callable(getattr(onepass, name).attention))
            except AttributeError as error:
                print(name, f"onepass.{name} cannot be imported: No module named '{name}'" == str(error))
        try:
            onepass.flash
        except AttributeError as error:
            print(error)
    """
    lines = fresh(code).splitlines()
    assert lines[:2] == ["torch True", "jax True"]
    assert lines[2].startswith("module 'onepass' has no attribute 'flash'; it has BlockMask, Quantized, append_kv")
