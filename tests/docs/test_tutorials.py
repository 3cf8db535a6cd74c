"""Every command and Python block of the tutorials runs as written, and so do the Python blocks of the README.

One process runs them all in one folder, so that tutorials share their practice folders. `rococo` is called in the
process, other commands in a shell.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from rococo_jax.cli.main import build_parser
from rococo_jax.options import parse
from rococo_jax.training.config import read_config
from tests.support.paths import CHECKOUT
from tests.support.programs import one_device

TUTORIALS = sorted((CHECKOUT / "docs" / "tutorials").glob("*.md"))
ANY_BLOCK = re.compile(r"^```\w*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.DOTALL | re.MULTILINE)

# Scenes in all, and those of them that are for the test: as many as show that the commands fit together.
FEWER = (("24", "12"), ("16", "4"))

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
        "your-data",
    ]
    for page in TUTORIALS:
        text = page.read_text(encoding="utf-8")
        assert text.count("```") == 2 * len(BLOCK.findall(text)), f"{page.name}: a block that no test runs"


def test_every_command_of_the_documentation_is_one_that_rococo_takes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    pages = [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").rglob("*.md"))]
    blocks = [(page, block) for page in pages for block in ANY_BLOCK.findall(page.read_text(encoding="utf-8"))]
    steps = [(page, step) for page, block in blocks for step in commands_of(block) if step.startswith("rococo ")]
    # Dots stand for what a reader fills in.
    steps, parser = [(page, step) for page, step in steps if "..." not in step], build_parser()
    assert len(steps) > 40
    for page, step in steps:
        words = shlex.split(step, comments=True)[1:]
        try:
            parsed, left = parser.parse_known_args(words)
        except SystemExit:
            pytest.fail(f"{page.name}: {step}\n{capsys.readouterr().err}")
        assert all(word.startswith("--config.") for word in left), f"{page.name}: {step}: {left}"
        parse(parsed.module.Options, vars(parsed))
        config = getattr(parsed, "config", None)
        if config is not None and (CHECKOUT / config).is_file():
            read_config(CHECKOUT / config, [word.removeprefix("--") for word in left])


@pytest.mark.slow
# The Start pages always; the notebook's page is the notebook in another form, which a test runs, too.
@pytest.mark.parametrize("only", [("one-checkpoint", "your-data"), pytest.param((), marks=pytest.mark.thorough)])
def test_every_command_of_the_tutorials_runs(only, tmp_path):
    for name in ("configs", "launch"):
        (tmp_path / name).symlink_to(CHECKOUT / name)
    steps = [step for page in TUTORIALS if not only or page.stem in only for step in steps_of(page)]
    steps += steps_of(CHECKOUT / "README.md", ("python",))
    for asked, enough in FEWER if only else ():
        steps = [(page, kind, text.replace(asked, enough)) for page, kind, text in steps]
    assert len(steps) > (15 if only else 25)
    # This Python's programs first.
    environment = one_device()
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
    for written in ("out/mine/report.html", "out/own/results.json", "mine.npz", "DATA/photos/README.md",
                    "out/photos.html", "out/photos_long.json"):  # fmt: skip
        assert (tmp_path / written).is_file(), written
    if only:
        return
    for written in ("out/night/report.html", "out/compared.html"):
        assert (tmp_path / written).is_file(), written
    # The results of the listed models, each under its own name.
    for folder, names in (
        ("night", {"plain", "sc-vc", "trained-long"}),
        ("defence", {"plain", "sc-vc", "from-shards"}),
    ):
        assert names <= {path.parent.name for path in tmp_path.glob(f"out/{folder}/*/results.json")}
