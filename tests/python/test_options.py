"""The tables of attention's options and tensors, and what the interfaces of Python show of them."""

import inspect
import pathlib
import re

import onepass
import pytest
from onepass import _onepass

ROWS = _onepass.attention_options()
INPUTS = [row for row in _onepass.attention_tensors() if row[-1] and row[0] != "dropout_seed"]  # which `seed` may be
DEFAULTS = {"switch": False, "number": 0.0, "text": None, "integer": None, "optional number": None}
CHOICES = {name: words[0] for name, words in _onepass.attention_choices().items()}
BAND = ("mask", "align_offset", "window")


def names(forward, backward):
    for name, kind, of_forward, of_backward in ROWS:
        if (forward and of_forward) or (backward and of_backward):
            yield from ((x, None) for x in BAND) if kind == "band" else ((name, CHOICES.get(name, DEFAULTS.get(kind))),)


def check(function, forward, backward):
    parameters = inspect.signature(function).parameters
    for name, _, of_forward, of_backward, _ in INPUTS:
        if of_forward if forward else of_backward:
            assert name in parameters, f"{function.__module__}.{function.__name__} lacks {name}"
    for name, default in names(forward, backward):
        assert name in parameters, f"{function.__module__}.{function.__name__} lacks {name}"
        assert parameters[name].default == default, name


def test_signatures_have_every_input_and_every_option_at_its_default():
    check(onepass.attention, True, False)
    check(onepass.attention_backward, False, True)


def test_docstrings_name_every_input_and_option():
    inputs = [name for name, _, of_forward, *_ in INPUTS if of_forward]
    for name in (*inputs, *(name for name, _ in names(True, False))):
        assert re.search(rf"^  [\w, ]*\b{name}\b[\w, ]*:", inspect.getdoc(onepass.attention), re.MULTILINE), name


def test_stubs_have_every_option():
    package = pathlib.Path(onepass.__file__).parent
    stubs = (package / "_signatures.pyi").read_text() + (package / "__init__.pyi").read_text()
    for name, _ in names(True, True):
        assert re.search(rf"^    {name}: ", stubs, re.MULTILINE), name


def test_torch_has_every_input_and_option():
    pytest.importorskip("torch")
    check(onepass.torch.attention, True, True)
    known = onepass.torch._torch_op.NAMES
    for name, kind, *_ in ROWS:
        assert kind == "band" or name in known, name
    assert [name for name, _, of_forward, *_ in INPUTS if of_forward and name not in known] == []


def test_jax_has_every_input_and_option():
    pytest.importorskip("jax")
    check(onepass.jax.attention, True, True)
