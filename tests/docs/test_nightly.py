"""The workflow of the page on nightly jobs, step by step: it passes for the same model, and fails for a worse one."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rococo_jax.cli.main import main
from tests.support.nouns import MODELS, numbered_nouns
from tests.support.paths import CHECKOUT
from tests.support.programs import one_device

PAGE = CHECKOUT / "docs" / "how-to" / "nightly.md"


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


@pytest.mark.thorough
@pytest.mark.parametrize("nights", [{"first": "Worse"}, {"first": "Good", "second": "Worse"}])
def test_the_workflow_passes_for_the_same_model_and_fails_for_a_worse_one(nights, tmp_path):
    images, captions = numbered_nouns(tmp_path)
    make = ["make-benchmark", "--images", images, "--captions", captions, "--name", "photos"]
    assert main([*map(str, make), "--out", str(tmp_path / "first" / "data")]) == 0
    (tmp_path / "first" / "models.py").write_text(MODELS)
    good = f"model={tmp_path / 'first' / 'models.py'}:Good"
    data = ["--data", str(tmp_path / "first" / "data"), "--quiet"]
    assert main(["evaluate", good, *data, "--out", str(tmp_path / "first" / "baseline")]) == 0
    git = ["git", "-c", "init.defaultBranch=main"]
    subprocess.run([*git, "init", "-q", "--bare", str(tmp_path / "remote")], check=True)
    for name, model in nights.items():
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
        ran = run_steps(folder, f"models.py:{model}")
        codes = {step: code for step, (code, _) in ran.items()}
        wanted = dict.fromkeys(("Evaluate", "Compare with the baseline", "Chart and badge", "Keep the results"), 0)
        assert codes == wanted | ({"Compare with the baseline": 3} if model == "Worse" else {}), ran
        assert (folder / "badge.svg").read_text().startswith("<svg")
        assert "| Verdict |" in (folder / "summary.md").read_text()
    assert "rococo compare: worse: model (" in ran["Compare with the baseline"][1]
    log = subprocess.run(
        [*git, "log", "--oneline"], cwd=tmp_path / "remote", capture_output=True, text=True, check=True
    )
    assert log.stdout.count("Nightly results") == len(nights)
