"""The demo that generates: every logit is that of a forward pass over the whole text."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "demo"))

import generate  # noqa: E402


@pytest.mark.parametrize("page_size, pages", [(1, 600), (16, 40), (100, 9)])
def test_logits_are_those_of_the_whole_texts(page_size, pages):
    said = []
    worst = generate.generate(sequences=5, tokens=12, page_size=page_size, pages=pages, seed=page_size, say=said.append)
    assert worst < 1e-4
    assert any("tokens in" in line for line in said)


def test_a_pool_that_holds_no_sequence_is_named():
    with pytest.raises(ValueError, match="2 pages of 4 keys do not hold one sequence"):
        generate.generate(sequences=1, tokens=30, page_size=4, pages=2, seed=0, say=lambda _: None)
