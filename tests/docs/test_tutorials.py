"""Every command and Python block of the tutorials runs as written, and so do the Python blocks of the README.

One process runs them all in one folder, so that tutorials share their practice folders. `rococo` is called in the
process, other commands in a shell.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import CHECKOUT

TUTORIALS = sorted((CHECKOUT / "docs" / "tutorials").glob("*.md"))
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.DOTALL | re.MULTILINE)

RUN_ALL = """
import json, shlex, subprocess, sys
from rococo_jax.cli.main import main

spaces = {}
for page, kind, text in json.load(sys.stdin):
    print("RUNS", page, text, flush=True)
    if kind == "python":
        exec(text, spaces.setdefault(page, {"__name__": page}))
    elif text.startswith("rococo "):
        if main(shlex.split(text)[1:]):
            sys.exit(f"{page}: {text}")
    else:
        subprocess.run(text, shell=True, check=True)
"""


def commands_of(block: str) -> list[str]:
    """The commands of a block; a backslash at the end of a line joins it with the next."""
    return [line for line in re.sub(r"\\\n\s*", "", block).splitlines() if line.strip()]


def steps_of(page: Path, kinds: tuple[str, ...] = ("sh", "python")) -> list[tuple[str, str, str]]:
    found = [(kind, text) for kind, text in BLOCK.findall(page.read_text(encoding="utf-8")) if kind in kinds]
    return [(page.stem, kind, step) for kind, text in found for step in (commands_of(text) if kind == "sh" else [text])]


def test_every_user_has_a_tutorial_and_every_block_a_language():
    assert [page.stem for page in TUTORIALS] == [
        "notebook",
        "one-checkpoint",
        "training-on-a-pod",
        "twenty-checkpoints",
    ]
    for page in TUTORIALS:
        text = page.read_text(encoding="utf-8")
        assert text.count("```") == 2 * len(BLOCK.findall(text)), f"{page.name}: a block that no test runs"


@pytest.mark.slow
# The notebook's page is the notebook in another form, which a test runs, too.
@pytest.mark.parametrize("left_out", ["notebook", pytest.param("", marks=pytest.mark.thorough)])
def test_every_command_of_the_tutorials_runs(left_out, tmp_path):
    for name in ("configs", "launch"):
        (tmp_path / name).symlink_to(CHECKOUT / name)
    steps = [step for page in TUTORIALS if page.stem != left_out for step in steps_of(page)] + steps_of(
        CHECKOUT / "README.md", ("python",)
    )
    assert len(steps) > 25
    # One device, as users have, and this Python's programs first.
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    done = subprocess.run(
        [sys.executable, "-c", RUN_ALL],
        input=json.dumps(steps),
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-3000:]
    for written in (
        "out/mine/report.html",
        "out/own/results.json",
        "mine.npz",
        "out/night/report.html",
        *(["out/compared.html"] if not left_out else []),
    ):
        assert (tmp_path / written).is_file(), written
    # The results of the listed models, each under its own name.
    assert {
        "plain",
        "sc-vc",
        "trained-long",
    } <= {path.parent.name for path in tmp_path.glob("out/night/*/results.json")}
    assert {
        "plain",
        "sc-vc",
        "from-shards",
    } <= {path.parent.name for path in tmp_path.glob("out/defence/*/results.json")}
