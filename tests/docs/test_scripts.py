"""The scripts of perf/ and experiments/ run: all of them print their options, and measure something tiny.

Those that build a tower of a published size or train one are thorough.
"""

import json
import subprocess

import jax
import pytest

from rococo_jax.cli.main import build_parser
from rococo_jax.metrics.published import published_values
from tests.support.engines import stand_in
from tests.support.launchers import check_by
from tests.support.paths import CHECKOUT
from tests.support.scripts import run_script
from tests.support.tiny import random_captions

SCRIPTS = [*sorted((CHECKOUT / "perf").glob("*.py")), *sorted((CHECKOUT / "experiments").glob("*.py"))]
WITH_OPTIONS = [path for path in SCRIPTS if "parse_args()" in path.read_text()]


@pytest.fixture(autouse=True)
def compilation_cache_as_before():
    """Scripts turn JAX's cache of programs on."""
    before = jax.config.jax_compilation_cache_dir
    yield
    jax.config.update("jax_compilation_cache_dir", before)


@pytest.mark.parametrize("path", WITH_OPTIONS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_script_prints_its_options(path, monkeypatch, capsys):
    with pytest.raises(SystemExit) as ended:
        run_script(monkeypatch, path, "--help")
    assert ended.value.code == 0 and "usage:" in capsys.readouterr().out


@pytest.mark.parametrize("script", ["perf/tables.py", "tools/draw_findings.py"])
def test_tables_and_pictures_of_pages_match_their_data(script, monkeypatch):
    run_script(monkeypatch, CHECKOUT / script, "--check")


@pytest.mark.parametrize("arguments", [
    pytest.param("perf/mixing.py --images 64 --repeats 1", marks=pytest.mark.thorough),
    "perf/loss.py --pairs 16 --width 8 --repeats 1 --strategies all_gather,dense",
    "perf/corruptions.py --side 32 --batch 2 --severities 1 --repeats 1 --kinds contrast",
    pytest.param("perf/influence.py --captions CAPTIONS --count 8 --reference-count 2 --parts 1",
                 marks=pytest.mark.thorough),
    pytest.param("perf/towers.py captions --captions CAPTIONS --count 8 --reference-count 2 --rounds 1",
                 marks=pytest.mark.thorough),
    pytest.param("perf/towers.py images --count 8 --batch 4 --rounds 1", marks=pytest.mark.thorough),
    pytest.param("perf/ranking.py --images 8 --captions 50 --width 8 --repeats 1", marks=pytest.mark.thorough),
])  # fmt: skip
def test_the_measurement_script_runs_on_eight_captions(arguments, tmp_path, monkeypatch, capsys):
    items = [{"image": f"{number}.png", "caption": random_captions(2, seed=number)} for number in range(4)]
    (tmp_path / "captions.json").write_text(json.dumps(items))
    name, *options = arguments.replace("CAPTIONS", str(tmp_path / "captions.json")).split()
    run_script(monkeypatch, CHECKOUT / name, *options)
    assert any(character.isdecimal() for character in capsys.readouterr().out)


@pytest.mark.parametrize(("evaluated", "tables"), [(0, True), (1, True), (2, False)])
def test_the_script_of_published_models_resumes_and_ends_with_the_code_of_the_evaluation(tmp_path, evaluated, tables):
    """A stand-in for `rococo` records the calls; exit code 1 means that some models could not be loaded."""
    environment = stand_in(tmp_path / "bin", "rococo", f'echo "$*" >> calls; [ "$1" != evaluate ] || exit {evaluated}')
    script = CHECKOUT / "tools" / "evaluate_published.sh"
    check_by("shellcheck", script)
    words = ["sh", script, "DATA", "--device", "cpu"]
    assert subprocess.run(words, cwd=tmp_path, env=environment).returncode == evaluated
    calls = [line.split() for line in (tmp_path / "calls").read_text().splitlines()]
    parsed = [build_parser().parse_args(call) for call in calls]
    assert len(parsed) == (3 if tables else 1)
    assert (parsed[0].data, parsed[0].out, parsed[0].device) == ("DATA", "results", "cpu")
    # COCO's recalls of each are published.
    assert len(set(parsed[0].models)) == 8
    for model in parsed[0].models:
        about = {"provenance": {"source": model, "format": "huggingface"}}
        assert "clean" in {line["variant"] for line in published_values(about)}, model
