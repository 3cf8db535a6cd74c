"""The image and the hosts' scripts: checkers of others pass them, and every package of theirs is pinned."""

import configparser
import importlib.metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.launchers import LAUNCH, check_by
from tests.support.paths import CHECKOUT


def test_shell_scripts_pass_shellcheck():
    scripts = sorted(LAUNCH.glob("*.sh"))
    assert len(scripts) == 2
    for script in scripts:
        check_by("shellcheck", script)


def test_dockerfile_passes_hadolint_and_copies_what_is_there():
    check_by("hadolint", LAUNCH / "Dockerfile")
    lines = (LAUNCH / "Dockerfile").read_text().splitlines()
    ignored = (LAUNCH / "Dockerfile.dockerignore").read_text().splitlines()
    copied = [line.split()[1:-1] for line in lines if line.startswith("COPY ") and "--from=" not in line]
    for source in {source for sources in copied for source in sources}:
        assert (CHECKOUT / source).exists(), source
        assert any(f"!{path}" in ignored for path in (source, source.split("/")[0])), source
    assert all("--constraint launch/constraints.txt" in line for line in lines if "pip install" in line)
    assert {"cuda", "tpu"} <= {line.split()[-1] for line in lines if line.startswith("FROM ")}
    # The last user before the targets is no root.
    assert [line for line in lines if line.startswith("USER ")] == ["USER 1000"]


def test_constraints_pin_what_the_image_installs():
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
    assert "pip install --quiet --constraint launch/constraints.txt" in (LAUNCH / "tpu_host.sh").read_text()
