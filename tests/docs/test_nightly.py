"""The workflow of the page on nightly jobs, step by step: it passes for the same model, and fails for a worse one."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from PIL import Image

from rococo_jax.cli.main import main
from tests.support.paths import CHECKOUT
from tests.support.programs import one_device

PAGE = CHECKOUT / "docs" / "how-to" / "nightly.md"
NOUNS = (
    "dog cat horse cow sheep bird pizza banana car bus train boat chair couch bed table phone book clock vase".split()
)
# `Good` knows the caption of each image; the embeddings of `Worse` have nothing to do with image or text.
MODELS = """
import zlib

import numpy as np


class Good:
    name = "model"

    def encode_image(self, images):
        return np.stack([draw(b"%d" % np.asarray(image)[0, 0, 0]) for image in images])

    def encode_text(self, texts):
        return np.stack([draw(text.rpartition(" ")[2].encode()) for text in texts])


class Worse(Good):
    def encode_image(self, images):
        return -super().encode_image(images)


def draw(content):
    return np.random.default_rng(zlib.crc32(content)).normal(size=8).astype(np.float32)
"""


def workflow() -> dict:
    (text,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return yaml.safe_load(text)


def run_steps(folder: Path, model: str) -> dict[str, tuple[int, str]]:
    """Run the steps as GitHub does, all but the installation; return exit code and output of each that ran."""
    job = workflow()["jobs"]["evaluate"]
    steps = {step["name"]: step for step in job["steps"] if "run" in step}
    assert "pip install" in steps.pop("Install")["run"]
    environment = {**one_device(), **workflow()["env"], "MODEL": model, "GITHUB_STEP_SUMMARY": "summary.md"}
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    ran: dict[str, tuple[int, str]] = {}
    for name, step in steps.items():
        if any(code for code, _ in ran.values()) and step.get("if") != "${{ !cancelled() }}":
            continue
        shell = ["bash", "-e", *(["-o", "pipefail"] if step.get("shell") == "bash" else []), "-c", step["run"]]
        done = subprocess.run(shell, cwd=folder, env=environment, capture_output=True, text=True)
        ran[name] = done.returncode, done.stdout + done.stderr
    return ran


@pytest.mark.slow
def test_the_workflow_passes_for_the_same_model_and_fails_for_a_worse_one(tmp_path):
    images = tmp_path / "images"
    images.mkdir()
    rows = ["image,caption"]
    for number, noun in enumerate(NOUNS):
        Image.new("RGB", (16, 16), (number, 0, 0)).save(images / f"{number}.png")
        rows.append(f"{number}.png,a photo of a {noun} number {number}")
    (tmp_path / "captions.csv").write_text("\n".join(rows))
    make = ["make-benchmark", "--images", images, "--captions", tmp_path / "captions.csv", "--name", "photos"]
    assert main([*map(str, make), "--out", str(tmp_path / "first" / "data")]) == 0
    (tmp_path / "first" / "models.py").write_text(MODELS)
    good = f"model={tmp_path / 'first' / 'models.py'}:Good"
    data = ["--data", str(tmp_path / "first" / "data"), "--quiet"]
    assert main(["evaluate", good, *data, "--out", str(tmp_path / "first" / "baseline")]) == 0
    git = ["git", "-c", "init.defaultBranch=main"]
    subprocess.run([*git, "init", "-q", "--bare", str(tmp_path / "remote")], check=True)
    for name in ("first", "second"):
        folder = tmp_path / name
        if name == "second":
            subprocess.run([*git, "clone", "-q", str(tmp_path / "remote"), str(folder)], check=True)
            # Another night.
            (folder / "nightly").rename(folder / "earlier")
        else:
            subprocess.run([*git, "init", "-q"], cwd=folder, check=True)
            subprocess.run([*git, "remote", "add", "origin", str(tmp_path / "remote")], cwd=folder, check=True)
            subprocess.run([*git, "config", "push.autoSetupRemote", "true"], cwd=folder, check=True)
            subprocess.run([*git, "add", "data", "baseline", "models.py"], cwd=folder, check=True)
        ran = run_steps(folder, {"first": "models.py:Good", "second": "models.py:Worse"}[name])
        codes = {step: code for step, (code, _) in ran.items()}
        wanted = dict.fromkeys(("Evaluate", "Compare with the baseline", "Chart and badge", "Keep the results"), 0)
        assert codes == wanted | ({"Compare with the baseline": 3} if name == "second" else {}), ran
        assert (folder / "badge.svg").read_text().startswith("<svg")
        assert "| Verdict |" in (folder / "summary.md").read_text()
    assert "rococo compare: worse: model (" in ran["Compare with the baseline"][1]
    log = subprocess.run(
        [*git, "log", "--oneline"], cwd=tmp_path / "remote", capture_output=True, text=True, check=True
    )
    assert log.stdout.count("Nightly results") == 2
