"""NVRTC out of pip's wheels is found without a framework that has loaded it."""

import importlib.util
import os
import subprocess
import sys
import textwrap

import onepass
import pytest
from onepass import _devices


def lay(root, *paths):
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(b"")


@pytest.fixture
def only(tmp_path, monkeypatch):
    """Nothing but tmp_path is searched for packages."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    importlib.invalidate_caches()
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    return tmp_path


def test_the_newest_wheel_comes_first(only):
    lay(
        only,
        "nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
        "nvidia/cuda_nvrtc/lib/libnvrtc-builtins.so.12.8",
        "nvidia/cu13/lib/libnvrtc.so.13",
        "nvidia/cu13/lib/libcublas.so.13",
    )
    found = [os.path.relpath(path, only) for path in _devices.nvrtc_wheels()]
    assert found == ["nvidia/cu13/lib/libnvrtc.so.13", "nvidia/cuda_nvrtc/lib/libnvrtc.so.12"]


def test_no_wheel_is_no_error(only):
    assert _devices.nvrtc_wheels() == []
    lay(only, "nvidia/cublas/lib/libcublas.so.12")
    importlib.invalidate_caches()
    assert _devices.nvrtc_wheels() == []
    lay(only, "nvidia.py")
    importlib.invalidate_caches()
    assert _devices.nvrtc_wheels() == []


def run(code, **environment):
    kept = {name: value for name, value in os.environ.items() if name != "ONEPASS_NVRTC"}
    call = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.run(call, check=True, capture_output=True, text=True, env={**kept, **environment}).stdout


def test_nothing_is_looked_for_before_a_cuda_array_comes():
    assert (
        run("""
        import sys
        import numpy as np
        import onepass
        from onepass import _devices

        x = np.ones((1, 1, 4, 8), np.float32)
        onepass.attention(x, x, x)
        print(_devices.find_nvrtc.cache_info().currsize, "nvidia" in sys.modules)
        """)
        == "0 False\n"
    )


def test_a_cuda_array_makes_it_known():
    if not _devices.nvrtc_wheels():
        pytest.skip("pip has installed no NVRTC here")
    tests = os.path.dirname(os.path.abspath(__file__))
    version = run(
        """
        import onepass
        from fake_device import FakeArray
        from onepass import _onepass

        q, k, v, out = (FakeArray(1, 2, 16, 64) for _ in range(4))
        onepass.explain(q, k, v, out=out)
        print(*_onepass.nvrtc())
        """,
        PYTHONPATH=os.pathsep.join([tests, os.path.dirname(os.path.dirname(onepass.__file__))]),
    )
    assert version.strip().split(".")[0] in ("12", "13"), version


def test_a_name_of_the_users_choice_goes_before():
    said = run(
        """
        from onepass import _devices, _onepass

        _devices.find_nvrtc()
        print(*_onepass.nvrtc())
        """,
        ONEPASS_NVRTC="/nowhere/libnvrtc.so",
    )
    assert said.strip() == refused("/nowhere/libnvrtc.so", "there is no such file")


def refused(name, why):
    return f"ONEPASS_NVRTC must name a library that defines nvrtcVersion (got {name}: {why})"


def test_a_file_of_another_kind_is_named(tmp_path):
    def said(path):
        line = run("from onepass import _onepass; print(*_onepass.nvrtc())", ONEPASS_NVRTC=str(path))
        assert line.count("\n") == 1
        return line.strip()

    text, fifo = tmp_path / "libnvrtc.so", tmp_path / "fifo"
    text.write_text("not a library\n" * 100)
    os.mkfifo(fifo)
    assert said(text) == refused(text, f"{text}: invalid ELF header")
    assert said(fifo) == refused(fifo, "it is not a regular file")
    assert said(tmp_path) == refused(tmp_path, "it is not a regular file")
    assert said("/dev/zero") == refused("/dev/zero", "it is not a regular file")
    assert said("libm.so.6") == refused("libm.so.6", "it does not define nvrtcVersion")
