"""What is built is whole: a wheel runs without the checkout, and is installed as it was tested."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from tests.conftest import CONF, PROJECT

UV = shutil.which("uv")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel, unpacked."""
    if UV is None:
        pytest.skip("needs uv, which builds the wheel")
    folder = tmp_path_factory.mktemp("wheel")
    line = [UV, "build", "--quiet", "--wheel", "--out-dir", folder, PROJECT]
    subprocess.run(line, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        archive.extractall(folder / "unpacked")
    return folder / "unpacked"


def test_a_wheel_holds_everything_and_nothing_else(wheel):
    inside = wheel / "linear_transformers/conf"
    for file in CONF.rglob("*.yaml"):
        assert (inside / file.relative_to(CONF)).read_text() == file.read_text()
    for name in (
        "py.typed", "data/digits.npz", "kernels/cpp_step.cpp",
        "export/page/engine.js", "pretrained/digits/model.safetensors",
    ):  # fmt: skip
        assert (wheel / "linear_transformers" / name).is_file()
    assert {path.name.partition("-")[0] for path in wheel.iterdir()} == {"linear_transformers"}


def test_a_wheel_trains_samples_and_loads_away_from_the_checkout(wheel, tmp_path):
    environment = os.environ | {"PYTHONPATH": str(wheel)}

    def said(*words: str) -> str:
        outcome = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert outcome.returncode == 0, outcome.stderr
        return outcome.stdout

    small = ("model.num_layers=1", "model.num_heads=1", "model.model_dim=8", "debug=step")
    module = ("-m", "linear_transformers")
    said(*module, "train", *small, "trainer=cpu", "logger=none", "run_id=a", "test=false")
    for ckpt in ("a", "pretrained/digits"):
        assert "grid" in said(*module, "sample", f"ckpt={ckpt}", "images=1", "gif=false")
    assert "a.html" in said(*module, "export", "ckpt=a", "html=a.html")
    code = "import linear_transformers as lt; print(lt.__file__, type(lt.load('a')).__name__)"
    assert said("-c", code).split() == [
        str(wheel / "linear_transformers/__init__.py"),
        "ImageModel",
    ]


def test_what_is_installed_is_what_was_pinned():
    settings = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    pins = settings["tool"]["uv"]["constraint-dependencies"]
    pinned: dict[str, set[str]] = {}
    for pin in pins:
        name, _, rest = pin.partition("==")
        pinned.setdefault(name, set()).add(rest.partition(";")[0].strip())
    direct = settings["project"]["dependencies"] + [
        package
        for package in settings["dependency-groups"]["dev"]
        if not package.startswith("linear-transformers")
    ]
    names = [re.split(r"[\[><=!; ]", package)[0] for package in direct]
    assert len(names) > 20
    for name in names:
        assert name in pinned, f"{name} has no tested version"
        try:
            installed = version(name).partition("+")[0]
        except PackageNotFoundError:
            continue  # of another platform
        if "UV" in os.environ:  # whoever runs the tests by uv has what was tested
            assert installed in pinned[name], name
