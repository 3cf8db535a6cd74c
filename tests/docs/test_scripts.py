"""The scripts of perf/ and experiments/ run: all of them print their options, and measure something tiny.

Those that build a tower of a published size or train one are thorough.
"""

import json
import runpy
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from PIL import Image

from rococo_jax.checkpoints import save_model
from tests.support.made_runs import make_run
from tests.support.paths import CHECKOUT
from tests.support.tiny import random_captions, tiny_encoder

SCRIPTS = [*sorted((CHECKOUT / "perf").glob("*.py")), *sorted((CHECKOUT / "experiments").glob("*.py"))]
WITH_OPTIONS = [path for path in SCRIPTS if "parse_args()" in path.read_text()]


@pytest.fixture(autouse=True)
def compilation_cache_as_before():
    """Scripts turn JAX's cache of programs on."""
    before = jax.config.jax_compilation_cache_dir
    yield
    jax.config.update("jax_compilation_cache_dir", before)


def run(monkeypatch, path: Path, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", [str(path), *map(str, arguments)])
    monkeypatch.setattr(sys, "path", [str(path.parent), *sys.path])
    runpy.run_path(str(path), run_name="__main__")


@pytest.mark.parametrize("path", WITH_OPTIONS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_script_prints_its_options(path, monkeypatch, capsys):
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, path, "--help")
    assert ended.value.code == 0 and "usage:" in capsys.readouterr().out


def test_the_page_of_performance_has_the_tables_of_its_figures(monkeypatch):
    run(monkeypatch, CHECKOUT / "perf" / "tables.py", "--check")


_PROGRAM = """
%body (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %r = (f32[8]{0}, f32[2,4]{1,0}) all-reduce(%a, %b), replica_groups={{0,1},{2,3}}, to_apply=%add
}
%condition (p: (s32[], f32[8])) -> pred[] {
  %limit = s32[] constant(6)
}
ENTRY %main (x: f32[8]) -> f32[8] {
  %w = (s32[], f32[8]) while(%t), condition=%condition, body=%body
  %g = (bf16[4]{0}, bf16[16]{0}) all-gather-start(%y), replica_groups=[1,4]<=[4], dimensions={0}
}
"""


def test_collectives_in_loops_count_as_often_as_they_run(monkeypatch):
    monkeypatch.syspath_prepend(str(CHECKOUT / "experiments"))
    from hlo_cost import Collective, bytes_sent, collectives

    found = collectives(_PROGRAM, 4)
    assert found == [Collective("all-reduce", 6, 64, 2, False), Collective("all-gather", 1, 32, 4, True)]
    assert bytes_sent(_PROGRAM, 4) == {"all-gather": 24, "all-reduce": 6 * 64}


@pytest.mark.thorough
def test_gradients_leave_a_device_once_a_step(monkeypatch, capsys):
    run(monkeypatch, CHECKOUT / "experiments" / "collectives.py", "--layers", 2, "--pairs", 16, "--parts", "1")
    (step,) = json.loads(capsys.readouterr().out)["steps"]
    reduced = step["collectives"]["all-reduce"]
    assert step["devices"] == 8 and reduced["mb"] == pytest.approx(step["parameters_mb"], rel=0.01)


@pytest.mark.parametrize("arguments", [
    pytest.param("perf/mixing.py --images 64 --repeats 1", marks=pytest.mark.thorough),
    "perf/loss.py --pairs 16 --width 8 --repeats 1 --strategies ring,dense",
    "perf/corruptions.py --side 32 --batch 2 --severities 1 --repeats 1 --kinds contrast",
    pytest.param("perf/influence.py --captions CAPTIONS --count 8 --reference-count 2 --parts 1",
                 marks=pytest.mark.thorough),
    pytest.param("perf/text_tower.py --captions CAPTIONS --count 8 --reference-count 2 --rounds 1",
                 marks=pytest.mark.thorough),
    pytest.param("perf/image_tower.py --count 8 --batch 4 --rounds 1", marks=pytest.mark.thorough),
    pytest.param("perf/ranking.py --images 8 --captions 50 --width 8 --repeats 1", marks=pytest.mark.thorough),
    pytest.param("perf/train.py --batch 2 --rounds 1 --steps 1", marks=pytest.mark.thorough),
])  # fmt: skip
def test_a_measurement_runs_on_eight_captions(arguments, files, monkeypatch, capsys):
    name, *options = arguments.replace("CAPTIONS", str(files / "captions.json")).split()
    run(monkeypatch, CHECKOUT / name, *options)
    assert any(character.isdecimal() for character in capsys.readouterr().out)


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """A tiny model, four images with two captions each, and the results of two evaluations."""
    folder, rng = tmp_path_factory.mktemp("files"), np.random.default_rng(0)
    save_model(folder / "tiny", tiny_encoder())
    (folder / "images").mkdir()
    items = []
    for number in range(4):
        Image.fromarray(rng.integers(0, 256, (40, 40, 3), np.uint8)).save(folder / "images" / f"{number}.png")
        items.append({"image": f"{number}.png", "caption": random_captions(2, seed=number)})
    (folder / "captions.json").write_text(json.dumps(items))
    for name, noise in (("one", 1.0), ("two", 1.5)):
        make_run(folder / name, name, noise)
    return folder


def test_experiments_run_on_eight_captions(files, monkeypatch, tmp_path, capsys):
    captions = ["--captions", files / "captions.json"]
    folder = CHECKOUT / "experiments"
    run(monkeypatch, folder / "build_benchmark.py", files / "tiny", *captions, "--out", tmp_path / "built")
    assert len(list((tmp_path / "built").glob("*.json"))) == 4
    options = ["--images", files / "images", "--variants", "danger", "--seeds", "0"]
    run(monkeypatch, folder / "sensitivity.py", files / "tiny", *captions, *options)
    run(monkeypatch, folder / "defence.py", f"plain={files / 'one'}", f"sc={files / 'two'}")
    printed = capsys.readouterr().out
    assert '"lowest less highest"' in printed and "| plain | image_to_text | clean |" in printed
