"""A Llama block whose attention is onepass, compiled ahead of time: FOLDER/block.pt2, and calls of it as right.pt and
wrong.pt, which has another result.

python torch_library_export.py FOLDER
"""

import sys

import onepass.transformers
import torch
import transformers


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        config = transformers.LlamaConfig(
            vocab_size=50,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
            attn_implementation="onepass",
            use_cache=False,
        )
        self.model = transformers.LlamaModel(config).eval()

    def forward(self, ids):
        return self.model(input_ids=ids, use_cache=False).last_hidden_state


QUICK = {"aot_inductor.compile_wrapper_opt_level": "O0"}  # to compile
onepass.transformers.register()
torch.manual_seed(0)
block, folder = Block(), sys.argv[1]
with torch.no_grad():
    length = torch.export.Dim("length", min=2, max=64)
    program = torch.export.export(block, (torch.randint(50, (2, 19)),), dynamic_shapes=({1: length},))
    assert any("onepass.attention" in str(node.target) for node in program.graph.nodes)
    torch._inductor.aoti_compile_and_package(program, package_path=f"{folder}/block.pt2", inductor_configs=QUICK)
    ids = torch.randint(50, (2, 33))
    torch.save((ids, block(ids)), f"{folder}/right.pt")
    torch.save((ids, block(ids) + 0.01), f"{folder}/wrong.pt")
