"""Trains a small Llama of Hugging Face's transformers twice: with onepass's attention, and with the eager one.

    pip install torch transformers
    python3 demo/train_transformers.py

The task is that of train_torch.py: a random word, repeated, whose next letter only attention can know. Afterwards the
model writes on, from a cache, by the attention it was trained with.
"""

import argparse

import onepass.transformers
import torch
import transformers

LETTERS, WORD = 16, 12
Trained = tuple[list[float], list[int], list[int]]


def train(attention: str, steps: int, device: str) -> Trained:
    """(the loss of each step, in nats a letter; what the model writes behind a word and its first 3 letters again)."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=LETTERS,
    )
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention).to(device)
    draw = torch.Generator().manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(steps):
        text = torch.randint(LETTERS, (16, WORD), generator=draw).repeat(1, 3).to(device)
        known = text.clone()
        known[:, :WORD] = -100  # the word itself is chance
        loss = model(text, labels=known).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    word = torch.randint(LETTERS, (1, WORD), generator=draw).to(device)
    prompt = torch.cat([word, word[:, :3]], 1)
    written = model.eval().generate(prompt, max_new_tokens=WORD - 3, do_sample=False, pad_token_id=0)
    return losses, written[0, WORD:].tolist(), word[0].tolist()


def main(arguments: list[str] | None = None) -> tuple[Trained, Trained]:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args(arguments)
    onepass.transformers.register()
    mine, theirs = (train(attention, options.steps, options.device) for attention in ("onepass", "eager"))
    for step in [*range(0, options.steps, max(1, options.steps // 10)), options.steps - 1]:
        print(f"step {step:4}: loss {mine[0][step]:.4f} with onepass, {theirs[0][step]:.4f} eager")
    print(f"the word {mine[2]}\nonepass  {mine[1]}\neager    {theirs[1]}")
    return mine, theirs


if __name__ == "__main__":
    main()
