"""The image and the hosts' scripts: checkers of others pass them, and every package of theirs is pinned."""

import configparser
import importlib.metadata
import shlex

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from rococo_jax.training.config import read_config
from tests.support.launchers import LAUNCH, check_by, read_run_command
from tests.support.paths import CHECKOUT


def test_shell_scripts_pass_shellcheck():
    scripts = sorted(LAUNCH.glob("*.sh"))
    assert [script.name for script in scripts] == ["until_stopped.sh"]
    for script in scripts:
        check_by("shellcheck", script)


def test_files_of_cluster_engines_start_a_run_that_the_command_accepts(tmp_path):
    """Their words after `rococo` are those of a config that comes with the project, and its keys exist."""
    (job,) = yaml.safe_load((LAUNCH / "jobset.yaml").read_text())["spec"]["replicatedJobs"]
    pods = job["template"]["spec"]
    (container,) = pods["template"]["spec"]["containers"]
    assert container["command"] == ["until_stopped", "rococo"] and pods["parallelism"] == pods["completions"]
    sky = yaml.safe_load((LAUNCH / "skypilot.yaml").read_text())
    (tmp_path / "run.sh").write_text(f"#!/bin/bash\n{sky['run']}")
    check_by("shellcheck", tmp_path / "run.sh")
    last_line = sky["run"].replace("\\\n", " ").strip().splitlines()[-1]
    for words in (container["args"], shlex.split(last_line.partition(" rococo ")[2])):
        command = read_run_command(words)
        assert command.workdir.startswith("/mnt/rococo/")
        assert read_config(command.config, command.overrides).data.order == "shards"


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
