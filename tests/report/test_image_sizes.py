"""Several image sizes in one command: one result each, those of single commands."""

import json
from pathlib import Path

import numpy as np
import pandas
import pytest

import rococo_jax
from rococo_jax.benchmarks.readers.cue_conflict import CLASSES
from rococo_jax.checkpoints import save_model
from rococo_jax.cli.main import main
from rococo_jax.encoders import load_model
from rococo_jax.report.collection import group_by_fingerprint, load_results
from rococo_jax.report.facts import one_size_each, runs_by_size
from tests.support.tiny import tiny_encoder
from tests.support.world import noise, write_pictures

SIZES = (24, 32, 48)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    """Stimuli of cue conflict, two models, and both at three sizes in `out`."""
    folder = tmp_path_factory.mktemp("world")
    pairs = [(shape, CLASSES[(place + step) % 16]) for place, shape in enumerate(CLASSES) for step in (0, 3, 7)]
    names = [f"cue_conflict/{shape}{number}-{texture}1.png" for number, (shape, texture) in enumerate(pairs)]
    write_pictures(folder / "cue_conflict", names, noise(4, 4, 12))
    for seed, name in enumerate(("one", "two")):
        save_model(folder / name, tiny_encoder(seed=seed, name=name))
    assert main(f"{command(folder, 'one', 'two')} --image-size 24,32,48 --out {folder}/out".split()) == 0
    return folder


def command(folder: Path, *models: str) -> str:
    sources = " ".join(f"{folder}/{name}" for name in models)
    return f"evaluate {sources} --data {folder} --templates 1 --quiet --cache {folder}/cache"


def read(folder: Path) -> dict:
    return json.loads((folder / "results.json").read_text())


def test_each_image_size_has_the_results_of_a_separate_command(world, tmp_path):
    fingerprints = set()
    for size in SIZES:
        together = read(world / "out" / f"one@{size}px")
        assert main(f"{command(world, 'one')} --no-cache --image-size {size} --out {tmp_path}/{size}".split()) == 0
        alone = read(tmp_path / str(size))
        for part in ("tasks", "intervals", "sizes", "fingerprint", "data"):
            assert together[part] == alone[part]
        assert together["model"] == f"one@{size}px" and alone["model"] == "one"
        assert together["about"]["image_size"] == size
        fingerprints.add(json.dumps(together["fingerprint"]["model"]))
        # The tower reads images of this size.
        encoder = load_model(world / "one", image_size=size)
        assert encoder.preprocessing is not None and encoder.preprocessing.image_size == (size, size)
    assert len(fingerprints) == len(SIZES)
    assert len({read(world / "out" / f"one@{size}px")["fingerprint"]["comparable"] for size in SIZES}) == 1


def test_each_image_size_has_a_row_in_the_leaderboard_with_its_shape_bias(world):
    frame = rococo_jax.leaderboard(world / "out").set_index("model")
    assert set(frame.index) == {f"{name}@{size}px" for name in ("one", "two") for size in SIZES}
    for name, shape_bias in frame["cue_conflict/clean/shape_bias"].items():
        table = pandas.read_parquet(world / "out" / name / "per_query.parquet")
        table = table[(table.task == "cue_conflict") & (table.label != table.texture)]
        shape, texture = ((table.predicted == table[answer]).sum() for answer in ("label", "texture"))
        assert shape_bias == pytest.approx(100 * shape / (shape + texture))


def test_the_same_command_resumes_and_new_sizes_reuse_cached_texts(world, capsys):
    before = {path: path.stat().st_mtime_ns for path in (world / "out").glob("*/results.json")}
    loud = command(world, "one", "two").replace(" --quiet", "")
    assert main(f"{loud} --image-size 48,24,32,24 --no-report --out {world}/out".split()) == 0
    printed = capsys.readouterr()
    assert printed.err.count(" kept, ") == 6 and "two@48px" in printed.out
    assert {path: path.stat().st_mtime_ns for path in (world / "out").glob("*/results.json")} == before
    assert main(f"{loud} --image-size 24,40 --no-report --out {world}/out".split()) == 0
    assert "one@40px: 48 images and texts embedded, 16 read from the cache" in capsys.readouterr().err


def test_a_note_reports_an_image_size_with_a_border_outside_of_the_patches(world, tmp_path):
    """As in the source libraries, the pixels are cut: a curve against the size compares crops."""
    assert main(f"{command(world, 'one')} --image-size 24,29 --no-report --out {tmp_path}/out".split()) == 0
    notes = {size: " ".join(read(tmp_path / "out" / f"one@{size}px")["notes"]) for size in (24, 29)}
    assert "5 of 29 pixels at the right and at the bottom fill no patch and are cut" in notes[29]
    assert "images of 24 have no such border" in notes[29] and "fill no patch" not in notes[24]


def test_an_encoder_of_the_user_cannot_change_its_image_size(world, refusal, tmp_path):
    (tmp_path / "mine.py").write_text(
        "class Enc:\n    def encode_image(self, images): ...\n    encode_text = encode_image\n"
    )
    words = command(world, "one").replace(str(world / "one"), f"{tmp_path}/mine.py:Enc")
    assert f"{tmp_path}/mine.py:Enc: image_size: found 24; wanted none" in refusal(
        *words.split(), "--image-size", "24", "--out", tmp_path / "out"
    )


def test_image_sizes_of_a_model_do_not_count_as_models(world, tmp_path):
    paths = [world / "out" / f"{name}@{size}px" for name in ("one", "two") for size in SIZES]
    (group,) = group_by_fingerprint(load_results(paths))
    assert {name: list(sizes) for name, sizes in runs_by_size(group.runs).items()} == {
        "one": [*SIZES],
        "two": [*SIZES],
    }
    assert [run.label for run in one_size_each(group.runs)] == ["one@24px", "two@24px"]
    # Two models of one size each are no sizes of one model.
    (group,) = group_by_fingerprint(load_results([paths[0], paths[4]]))
    assert len(one_size_each(group.runs)) == 2


def test_a_study_over_models_refuses_two_image_sizes_of_one_model(world, tmp_path, expect_refusal):
    (tmp_path / "factors.csv").write_text("file_name,dark\na.png,1\n")
    runs = " ".join(f"{world}/out/{name}@{size}px" for name in ("one", "two") for size in SIZES)
    problem = "image size: found one at 24, 32, 48 pixels; wanted one size for each model"
    expect_refusal(f"correlate {runs} --out {tmp_path}/correlations", problem)
    expect_refusal(f"select {runs} --out {tmp_path}/selection.json", problem)
    expect_refusal(f"factors {runs} --factors {tmp_path}/factors.csv --out {tmp_path}/factors.html", problem)
    assert [path.name for path in tmp_path.iterdir()] == ["factors.csv"]


class Library:
    """A user's encoder."""

    encode_image = encode_text = staticmethod(np.asarray)


@pytest.mark.slow
def test_models_that_cannot_change_their_size_are_refused_in_one_line(world, tmp_path, expect_refusal):
    start = command(world, "one")
    expect_refusal(f"{start} --image-size 24,4 --out {tmp_path}/a", "image size: pixels: found 4; wanted at least 8")
    expect_refusal(f"{start} --image-size 24,x --out {tmp_path}/b", "--image-size: numbers: found 24,x")
    expect_refusal(f"{start} --image-size 0 --out {tmp_path}/c", "--image-size: numbers: found 0")
    foreign = start.replace(str(world / "one"), "tests.report.test_image_sizes:Library")
    expect_refusal(
        f"{foreign} --image-size 24,32 --out {tmp_path}/d", "image_size: found 24", "own library decides the size"
    )
    stored = start.replace(str(world / "one"), "embeddings:vectors.npz")
    expect_refusal(
        f"{stored} --image-size 24,32 --out {tmp_path}/e", "image_size: found 24", "size that they were computed"
    )
