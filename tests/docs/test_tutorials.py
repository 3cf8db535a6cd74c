"""Every `sh` and `python` block of the documentation runs as written; blocks of other kinds need data or show output.

One process runs them all in one folder, so that pages share their practice folders. `rococo` is called in the
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
from rococo_jax.config_files import config_names
from rococo_jax.options import parse
from rococo_jax.training.config import read_config
from tests.support.paths import CHECKOUT
from tests.support.programs import one_device

DOCS, README = CHECKOUT / "docs", CHECKOUT / "README.md"
ANY_BLOCK = re.compile(r"^```\w*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
START = sorted((DOCS / "start").glob("*.md"))
# The start pages first: others use their practice folders. A test of training runs the page on SigLIP.
OTHERS = [*sorted((DOCS / "how-to").glob("*.md")), *sorted((DOCS / "explanation").glob("*.md"))]
RUNNABLE = [*START, *(page for page in OTHERS if page.stem != "train-siglip")]

# Scenes in all, and those of them that are for the test: as many as show that the commands fit together.
FEWER = (("24", "12"), ("16", "4"))

RUN_ALL = """
import gc, json, shlex, subprocess, sys
from rococo_jax.cli.main import main

gc.set_threshold(50_000, 20, 10)
spaces = {}
for page, kind, text in json.load(sys.stdin):
    print("RUNS", page, text, flush=True)
    gc.freeze()  # an evaluation's collection of garbage, 0.3 s after each model, leaves the modules out
    if kind == "python":
        exec(text, spaces.setdefault(page, {"__name__": page}))
    elif text.startswith("rococo "):
        if main(shlex.split(text)[1:]):
            sys.exit(f"{page}: {text}")
    else:
        subprocess.run(text, shell=True, check=True)
"""


def commands_of(block: str) -> list[str]:
    """Return the commands of a block; a backslash at the end of a line joins it with the next."""
    return [line for line in re.sub(r"\\\n\s*", "", block).splitlines() if line.strip()]


def steps_of(page: Path, kinds: tuple[str, ...] = ("sh", "python")) -> list[tuple[str, str, str]]:
    """Return the steps of a page: its name, the kind of block, and a command or the code of a block."""
    blocks = [(kind, text) for kind, text in BLOCK.findall(page.read_text(encoding="utf-8")) if kind in kinds]
    return [
        (page.stem, kind, step) for kind, text in blocks for step in (commands_of(text) if kind == "sh" else [text])
    ]


def test_every_start_page_has_steps_that_run_and_every_block_has_a_language():
    assert {"first-model", "notebook", "your-data"} <= {page.stem for page in START}
    for page in START:
        assert steps_of(page) or page.stem == "install", f"{page.name}: nothing to run"
    for page in DOCS.rglob("*.md"):
        # A fence opens with its language and closes without one.
        fences = re.findall(r"^```(.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert "" not in fences[::2], f"{page.name}: a block without a language"


def test_every_documented_command_is_accepted(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    pages = [README, *sorted(DOCS.rglob("*.md"))]
    blocks = [(page, block) for page in pages for block in ANY_BLOCK.findall(page.read_text(encoding="utf-8"))]
    steps = [(page, step) for page, block in blocks for step in commands_of(block) if step.startswith("rococo ")]
    # Dots stand for what a reader fills in.
    steps, parser = [(page, step) for page, step in steps if "..." not in step], build_parser()
    assert len(steps) > 40
    for page, step in steps:
        words = shlex.split(step.partition(" > ")[0], comments=True)[1:]
        try:
            parsed, overrides = parser.parse_known_args(words)
        except SystemExit:
            pytest.fail(f"{page.name}: {step}\n{capsys.readouterr().err}")
        assert all(word.startswith("--config.") for word in overrides), f"{page.name}: {step}: {overrides}"
        parse(parsed.module.Options, vars(parsed))
        config = getattr(parsed, "config", None)
        if config in config_names():
            read_config(config, [word.removeprefix("--") for word in overrides])


def run_all(folder: Path, pages: list[Path], fewer: tuple[tuple[str, str], ...] = ()) -> Path:
    """Run every block of the pages in one process in a folder, and return the folder."""
    (folder / "launch").symlink_to(CHECKOUT / "launch")
    steps = [step for page in pages for step in steps_of(page)] + steps_of(README, ("python",))
    for number, fewer_scenes in fewer:
        steps = [(page, kind, text.replace(number, fewer_scenes)) for page, kind, text in steps]
    assert len(steps) > (15 if fewer else 25)
    # This Python's programs first.
    environment = one_device()
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    words, text = [sys.executable, "-c", RUN_ALL], json.dumps(steps)
    process = subprocess.run(words, input=text, cwd=folder, env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout[-1500:] + process.stderr[-3000:]
    (folder / "stdout.txt").write_text(process.stdout, encoding="utf-8")
    for output in ("out/mine/report.html", "out/own/results.json", "DATA/photos/README.md",
                    "out/photos.html", "out/photos.csv"):  # fmt: skip
        assert (folder / output).is_file(), output
    return folder


@pytest.fixture(scope="module")
def practised(tmp_path_factory) -> Path:
    """Run the start pages in a folder; the page of the notebook repeats the notebook, which another test runs."""
    pages = [page for page in START if page.stem in ("first-model", "your-data")]
    return run_all(tmp_path_factory.mktemp("practised"), pages, FEWER)


@pytest.mark.slow
def test_every_command_of_the_start_pages_runs(practised):
    config = json.loads((practised / "runs" / "defended" / "config.json").read_text(encoding="utf-8"))
    assert config["losses.vc.weight"] == 1 and config["steps"] == 2


@pytest.mark.slow
@pytest.mark.thorough
def test_every_command_of_every_page_runs(tmp_path):
    run_all(tmp_path, RUNNABLE)
    for output in ("out/night/report.html", "out/compared.html"):
        assert (tmp_path / output).is_file(), output
    # The results of the listed models, each under its own name.
    for folder, other in (("night", "trained-long"), ("defence", "from-shards")):
        assert {"plain", "sc-vc", other} <= {path.parent.name for path in tmp_path.glob(f"out/{folder}/*/results.json")}
    # The README shows the output of its Python.
    example = re.compile(r"^```python\n.*?^```\n\n```text\n(.*?)^```$", re.DOTALL | re.MULTILINE)
    (output,) = example.findall(README.read_text(encoding="utf-8"))
    assert output in (tmp_path / "stdout.txt").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def demo(practised) -> dict[str, dict]:
    """Return the results of each model that the demo of the first page wrote."""
    paths = (practised / "practice/12-scenes-seed-1/paper").glob("*/results.json")
    return {path.parent.name: json.loads(path.read_text(encoding="utf-8")) for path in paths}


@pytest.mark.slow
def test_the_demo_evaluates_mixed_galleries_of_three_seeds_the_control_choices_and_classes(demo):
    results = demo["plain"]
    variants, sizes = (results[key]["text_to_image"] for key in ("tasks", "sizes"))
    assert list(variants) == ["clean", "mix_0.9", "patch_0.9", "control"]
    for variant in ("mix_0.9", "patch_0.9"):
        assert {"r1", "r1_std", "fr1", "fr1_std", "drop"} <= set(variants[variant])
        assert sizes[variant]["seeds"] == [1, 10, 100] and sizes[variant]["gallery"] == 2 * 12
    assert sizes["clean"]["gallery"] == 12 and sizes["control"]["gallery"] == 2 * 12
    assert results["kinds"]["choices"] == "choice" and results["kinds"]["classes"] == "classify"
    assert set(results["tasks"]["choices"]) == {"same_concept", "danger", "mean", "all"}
    assert results["sizes"]["classes"]["clean"] | {"classes": 0} == {"images": 12, "classes": 0, "templates": 5}


@pytest.mark.slow
def test_the_report_of_the_demo_shows_all_results(practised):
    page = (practised / "practice/report.html").read_text(encoding="utf-8")
    expected_words = (
        "Mix 0.9",
        "Patch 0.9",
        "Control",
        "over mixing seeds 1, 10, 100",
        "Reliability",
        "Each image is assigned to one of the classes",
    )
    assert all(words in page for words in expected_words)


@pytest.mark.slow
def test_defended_demo_models_are_fooled_less_often_and_the_grounded_one_uses_the_image(demo):
    assert demo.keys() == {"plain", "sc-vc", "grounded"}
    fooled = {name: results["tasks"]["text_to_image"]["mix_0.9"]["fr1"] for name, results in demo.items()}
    # 36 and 2 % on 250 scenes; 3 x 60 captions of 12 scenes stand well apart still.
    assert fooled["sc-vc"] < fooled["plain"] / 2
    blind = {name: results["tasks"]["image_to_text"]["rand_voca"]["blind"] for name, results in demo.items()}
    # 50, 83 and 48 % on 250 scenes.
    assert blind["sc-vc"] > 70 and abs(blind["plain"] - 50) < 8 and abs(blind["grounded"] - 50) < 8
