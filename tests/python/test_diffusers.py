"""Models of diffusers inside ``with onepass.torch.sdpa()``: an image model and a transformer of flow matching."""

import pytest
from flash_textbook import near

pytest.importorskip("diffusers", reason="diffusers is not installed")


def image_model(torch):
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(16, 32),
        layers_per_block=1,
        norm_num_groups=8,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=24,
        attention_head_dim=2,
    )
    return model, {
        "sample": torch.randn(2, 4, 8, 8),
        "timestep": torch.tensor([3, 40]),
        "encoder_hidden_states": torch.randn(2, 7, 24),
        "encoder_attention_mask": torch.arange(7) < torch.tensor([[7], [4]]),
    }


def flow_model(torch):
    from diffusers import FluxTransformer2DModel

    model = FluxTransformer2DModel(
        in_channels=8,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=24,
        pooled_projection_dim=12,
        axes_dims_rope=(4, 6, 6),
    )
    return model, {
        "hidden_states": torch.randn(2, 20, 8),
        "encoder_hidden_states": torch.randn(2, 7, 24),
        "pooled_projections": torch.randn(2, 12),
        "timestep": torch.tensor([0.1, 0.8]),
        "img_ids": torch.randint(0, 5, (20, 3)),
        "txt_ids": torch.zeros(7, 3),
    }


@pytest.mark.parametrize("build", [image_model, flow_model])
def test_a_model_and_its_gradients(torch, build, monkeypatch):
    import onepass.torch

    torch.manual_seed(0)
    model, inputs = build(torch)
    weights = [p for p in model.parameters() if p.requires_grad]
    theirs = onepass.torch.scaled_dot_product_attention
    calls = []

    def counted(*args, **words):
        calls.append(words)
        return theirs(*args, **words)

    def run():
        out = model(**inputs).sample
        return out.detach(), torch.autograd.grad(out.square().mean(), weights, allow_unused=True)

    monkeypatch.setattr(onepass.torch, "scaled_dot_product_attention", counted)
    expected, gradients = run()
    assert not calls
    with onepass.torch.sdpa():
        out, mine = run()
    assert len(calls) >= 2
    near(out, expected.double(), "float32")
    for x, y in zip(mine, gradients):
        assert (x is None) == (y is None)
        if x is not None:
            near(x, y.double(), "float32")
