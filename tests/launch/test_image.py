"""The image: a checker passes it, it contains the package, and every package that it installs is pinned."""

import configparser
import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.launchers import LAUNCH, check_by
from tests.support.paths import CHECKOUT


def test_the_dockerfile_passes_hadolint_and_copies_only_existing_files():
    check_by("hadolint", LAUNCH / "Dockerfile")
    lines = (LAUNCH / "Dockerfile").read_text().splitlines()
    ignored = (LAUNCH / "Dockerfile.dockerignore").read_text().splitlines()
    kept = [line.removeprefix("!") for line in ignored if line.startswith("!")]
    assert all((CHECKOUT / path).exists() for path in kept)
    copied = [source for line in lines if line.startswith("COPY ") for source in line.split()[1:-1]]
    assert {*copied} - {"."} <= {*kept}
    # What `pip install` reads, and what the package consists of.
    options = configparser.ConfigParser()
    options.read(CHECKOUT / "setup.cfg")
    folders = {path.split("/")[0] for path in options["options"]["package_dir"].split() if path not in ("=",)}
    assert {"setup.cfg", "pyproject.toml", "rococo_jax", "configs"} <= {*kept} and "configs" in folders
    # The last user is no root.
    assert [line for line in lines if line.startswith("USER ")] == ["USER 1000"]


def test_the_image_installs_the_pinned_requirements_of_its_accelerator(tmp_path):
    """The line that prints the requirements, run as the image runs it."""
    text = (LAUNCH / "Dockerfile").read_text()
    (line,) = re.findall(r'^RUN (python -c "[^"]+") > requirements.txt', text.replace("\\\n", ""), re.MULTILINE)
    for extra, package in (("cuda", "jax[cuda12]"), ("tpu", "jax[tpu]")):
        environment = {**os.environ, "EXTRA": extra, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        printed = subprocess.check_output(["sh", "-c", line], cwd=CHECKOUT, env=environment, text=True).split()
        assert package in printed and "transformers>=5.0" in printed
    assert "--constraint constraints.txt --requirement requirements.txt" in text


def test_constraints_pin_every_package_that_the_image_installs():
    lines = (LAUNCH / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if "==" in line)
    pins = {canonicalize_name(name): version for name, version in pins.items()}
    options = configparser.ConfigParser()
    options.read(CHECKOUT / "setup.cfg")
    extras = options["options.extras_require"]
    required = (options["options"]["install_requires"] + extras["cuda"] + extras["tpu"]).split("\n")
    required = [Requirement(line) for line in required if line.strip()]
    if pins["jax"] == importlib.metadata.version("jax"):
        # What JAX's own extras ask for: every package of them, in a version that they take.
        of_jax = [each for each in map(Requirement, importlib.metadata.requires("jax")) if each.marker]
        extras = ({"extra": "cuda12"}, {"extra": "tpu"})
        required += [each for each in of_jax if any(map(each.marker.evaluate, extras))]
    for each in required:
        assert pins[canonicalize_name(each.name)] in each.specifier, each
    assert {"nvidia-nccl-cu12", "nvidia-cudnn-cu12", "libtpu"} <= pins.keys()
