"""attention-gym's masks and score mods through onepass.torch.flex_attention, beside PyTorch's eager function."""

import pathlib
import re

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("attn_gym", reason="attn-gym is not installed")
import onepass.torch  # noqa: E402
from attn_gym import masks, mods  # noqa: E402
from attn_gym.masks.document_mask import length_to_offsets  # noqa: E402
from flex_mods import HEADS, ROWS  # noqa: E402
from test_flex_attention import DTYPES, agree, draw  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:flex_attention called without torch.compile")

generator = torch.Generator().manual_seed(3)
OFFSETS = length_to_offsets([10, 1, 23, 30], "cpu")
IS_GLOBAL = torch.arange(ROWS) % 17 == 3
TREE = masks.build_tree_ancestor_matrix([-1, *(n // 2 for n in range(ROWS - 1))], "cpu")
GRAPH = torch.rand(2, ROWS, ROWS, generator=generator) < 0.04
DISTANCES = mods.shortest_path_distances(GRAPH, 5)
EDGES = mods.shortest_path_edge_types(GRAPH, torch.randint(0, 3, GRAPH.shape, generator=generator), 3)
ROPE = [torch.randn(2, heads, ROWS, 4, generator=generator) for heads in (HEADS, 1)]
TOPK = torch.randint(0, 8, (2, HEADS, 8, 3), generator=generator)

MASKS = {
    "batchify": masks.batchify_mask_mod(masks.causal_mask, 16),
    "block_diffusion": masks.generate_block_diffusion_mask(ROWS // 2, 8),
    "causal": masks.causal_mask,
    "dilated_sliding_window": masks.generate_dilated_sliding_window(4, 3),
    "documents": masks.generate_doc_mask_mod(masks.causal_mask, OFFSETS),
    "packed_causal_documents": masks.generate_packed_causal_doc_mask_mod(OFFSETS),
    "flamingo": masks.generate_vision_cross_attention_mask_mod(torch.tensor([[0, 20], [10, 50], [50, 64], [3, 5]]), 16),
    "global_sliding_window": masks.generate_global_sliding_window(6, IS_GLOBAL),
    "jetspec_training": masks.generate_jetspec_training_mask_mod(24, 8),
    "jetspec_tree": masks.generate_jetspec_tree_causal_mask_mod(0, TREE),
    "natten": masks.generate_natten(8, 8, 3, 5),
    "tiled_natten": masks.generate_tiled_natten(8, 8, 3, 5, 4, 4),
    "morton_natten": masks.generate_morton_natten(8, 8, 3, 3),
    "prefix_lm": masks.generate_prefix_lm_mask(20),
    "shared_prefix": masks.generate_shared_prefix_mask_mod(OFFSETS, torch.tensor([0, 0, 2, 2])),
    "sliding_window": masks.generate_sliding_window(11),
    "sta_2d": masks.generate_sta_mask_mod_2d((8, 8), (6, 6), (2, 2)),
    "sta_3d": masks.generate_sta_mask_mod_3d((4, 4, 4), (6, 6, 6), (2, 2, 2)),
    "svg_spatial": masks.generate_spatial_head_mask_mod(8, 7, 8, 2, attn_sink=True, round_width=8),
    "svg_temporal": masks.generate_temporal_head_mask_mod(8, 7, 8, 2),
    "vsa": masks.generate_vsa_mask_mod(TOPK, 8),
    "vsa_edges": masks.generate_vsa_mask_mod(TOPK, 8, torch.tensor([8, 8, 5, 8, 8, 8, 8, 2])),
}
SCORES = {
    "gelu": mods.generate_activation_score_mod(offset=2.0),
    "relu": mods.generate_activation_score_mod(torch.nn.functional.relu),
    "silu": mods.generate_activation_score_mod(torch.nn.functional.silu, 2.0),
    "alibi": mods.generate_alibi_bias(HEADS),
    "graphormer_edges": mods.generate_graphormer_edge_bias(torch.randn(HEADS, 3, 3, generator=generator), *EDGES),
    "graphormer_spatial": mods.generate_graphormer_spatial_bias(torch.randn(HEADS, 7, generator=generator), DISTANCES),
    "mla_rope": mods.generate_mla_rope_score_mod(*ROPE, HEADS),
    "sandwich": mods.generate_sandwich_bias(HEADS, ROWS),
    "softcap": mods.generate_tanh_softcap(20),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", MASKS)
def test_masks(name, dtype):
    agree(None, MASKS[name], dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", SCORES)
def test_score_mods(name, dtype):
    agree(SCORES[name], None, dtype)


@pytest.mark.parametrize("module", [masks, mods], ids=["masks", "mods"])
def test_every_function_of_the_package_is_here(module):
    """A new version of the package may bring more."""
    source = pathlib.Path(__file__).read_text()
    made = [name for name in dir(module) if re.fullmatch("generate_.*|(?!create_).*_mask(_mod)?", name)]
    made = [name for name in made if callable(getattr(module, name))]
    called = [name for name in made if re.search(rf"\b{name}\b", source)]
    assert made and made == called


def test_rows_are_refused_where_they_do_not_fit():
    table, long = torch.zeros(ROWS, 3), torch.zeros(ROWS, 65)
    for mod, sentence in (
        (lambda s, b, h, q, k: s + table[q], "do not support a row of 3 elements as a result"),
        (lambda s, b, h, q, k: s + long[q].sum(), r"an array of shape \[65\] as an operand; a row has at most 64"),
        (lambda s, b, h, q, k: s + (table[q] + table[:, :2][k]).sum(), "rows of 3 and 2 elements in one operation"),
        (lambda s, b, h, q, k: s + table[q].cumsum(0), "do not support .cumsum of an array"),
    ):
        with pytest.raises((TypeError, AttributeError), match=sentence):
            onepass.torch.flex_attention(*draw(), mod)


def test_rows_have_gradients():
    """The positions that mla_rope multiplies get gradients, which PyTorch's own function refuses."""
    rope, exact = ([x.to(dtype, copy=True).requires_grad_() for x in ROPE] for dtype in (torch.float32, torch.float64))
    out = onepass.torch.flex_attention(*draw(), mods.generate_mla_rope_score_mod(*rope, HEADS))
    q, k, v = (x.double() for x in draw())
    textbook = (q @ k.mT / 4 + exact[0] @ exact[1].mT).softmax(-1) @ v
    mine = torch.autograd.grad(out.square().sum(), rope)
    for x, y in zip(mine, torch.autograd.grad(textbook.square().sum(), exact)):
        torch.testing.assert_close(x.double(), y, rtol=1e-4, atol=1e-4)
