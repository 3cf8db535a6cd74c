"""`rococo evaluate`, `embed` and `join` as users run them, on images, captions and models that the test makes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from rococo_jax.checkpoints import save_model
from rococo_jax.cli.main import main
from rococo_jax.encoders import Encoder, load_model
from tests.support.tiny import WORDS, tiny_encoder
from tests.support.world import noise, write_world

IMAGES, SEEDS = 12, 2


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory) -> Path:
    """Images and annotations in the published form: five originals and five altered captions an image, one has six."""
    rng = np.random.default_rng(0)
    # All of one length, since each is a program to compile.
    captions = [[" ".join(rng.choice(WORDS, 4)) for _ in range(6 if n == 4 else 5)] for n in range(IMAGES)]
    altered = dict.fromkeys(("same_concept", "danger"), "{}q".format)
    folder = tmp_path_factory.mktemp("benchmark")
    return write_world(folder, captions, name="val/{:03}.jpg", picture=noise(40, 56), altered=altered)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny"
    save_model(path, tiny_encoder(name="tiny"))
    return path


def words(model, benchmark, out, *more) -> list[str]:
    """The command line of an evaluation; `more` may say otherwise."""
    models = [model] if isinstance(model, Path) else model
    folders = ["--images", benchmark / "images", "--annotations", benchmark / "annotations", "--out", out]
    return [*map(str, ["evaluate", *models, *folders, "--seeds", "1,10", *more])]


def evaluate(model, benchmark, out, *more) -> int:
    return main(words(model, benchmark, out, *more))


@pytest.fixture(scope="module")
def evaluated(model, benchmark, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("out")
    assert evaluate(model, benchmark, out) == 0
    return out


def files_of(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in ("results.json", "per_query.parquet")}


def test_results_agree_with_similarities_sorted_by_numpy(model, benchmark, evaluated):
    results = json.loads((evaluated / "results.json").read_text())
    assert results["model"] == "tiny" and results["protocol"] == "paper"
    assert set(results["tasks"]["image_to_text"]) == {"clean", "same_concept", "danger"}
    encoder = load_model(model)
    items = json.loads((benchmark / "annotations" / "same_concept.json").read_text())
    images = encoder.encode_image([Image.open(benchmark / "images" / item["image"]) for item in items])
    texts = [text for item in items for text in item["caption"]]
    owner = np.repeat(range(IMAGES), [len(item["caption"]) for item in items])
    original = np.concatenate([np.arange(len(item["caption"])) < len(item["caption"]) - 5 for item in items])
    order = (images @ encoder.encode_text(texts).T).argsort(axis=1)[:, ::-1]
    own = (owner[order] == np.arange(IMAGES)[:, None]) & original[order]
    found = results["tasks"]["image_to_text"]["same_concept"]
    assert found["r1"] == pytest.approx(100 * own[:, 0].mean())
    assert found["r5"] == pytest.approx(100 * own[:, :5].any(axis=1).mean())
    assert found["fr1"] == pytest.approx(100 * (~original[order[:, 0]]).mean())
    split = [found[f"top1_{kind}"] for kind in ("own", "own_altered", "other_altered", "other")]
    assert sum(split) == pytest.approx(100)
    clean = results["tasks"]["image_to_text"]["clean"]
    assert found["drop_points"] == pytest.approx(clean["r1"] - found["r1"])
    low, high = results["intervals"]["image_to_text"]["same_concept"]["r1"]
    assert 0 <= low <= found["r1"] <= high <= 100


def test_every_query_is_in_the_parquet_file(evaluated):
    captions = 5 * IMAGES + 1
    rows = pq.read_table(evaluated / "per_query.parquet").to_pylist()
    counts = Counter((row["task"], row["variant"]) for row in rows)
    mixed = {("text_to_image", variant): SEEDS * captions for variant in ("mix_0.9", "patch_0.9")}
    assert counts == mixed | {
        ("image_to_text", "clean"): IMAGES,
        ("image_to_text", "same_concept"): IMAGES,
        ("image_to_text", "danger"): IMAGES,
        ("text_to_image", "clean"): captions,
        ("text_to_image", "control"): captions,
    }
    results = json.loads((evaluated / "results.json").read_text())
    ranks = [row["rank"] for row in rows if (row["task"], row["variant"]) == ("image_to_text", "danger")]
    assert 100 * ranks.count(1) / IMAGES == pytest.approx(results["tasks"]["image_to_text"]["danger"]["r1"])
    assert all(row["rank_optimistic"] <= row["rank"] <= row["rank_pessimistic"] for row in rows)


def test_every_pair_is_in_a_parquet_file_that_gives_the_figures(evaluated):
    captions = 5 * IMAGES + 1
    table = pq.read_table(evaluated / "pairs.parquet")
    rows, results = table.to_pylist(), json.loads((evaluated / "results.json").read_text())
    counts = Counter((row["task"], row["variant"]) for row in rows)
    assert counts == {
        ("image_to_text", "same_concept"): 5 * IMAGES,
        ("image_to_text", "danger"): 5 * IMAGES,
        ("text_to_image", "mix_0.9"): SEEDS * captions,
        ("text_to_image", "patch_0.9"): SEEDS * captions,
        ("text_to_image", "control"): captions,
    }
    for (task, variant), _ in counts.items():
        of_variant = [row for row in rows if (row["task"], row["variant"]) == (task, variant)]
        found, bounds = (results[part][task][variant] for part in ("tasks", "intervals"))
        for name in ("preference", "blind", "grounding"):
            by_seed = {}
            for row in of_variant:
                by_seed.setdefault(row["seed"], []).append(row[name])
            assert found[name] == pytest.approx(100 * np.mean([np.mean(each) for each in by_seed.values()]))
            assert bounds[name][0] <= found[name] <= bounds[name][1]
        assert found["difference_r1"] == pytest.approx(100 * np.mean([row["rank"] == 1 for row in of_variant]))
    assert not {"preference", "blind"} & set(results["tasks"]["image_to_text"]["clean"])


def test_a_finished_run_without_pairs_gets_them_from_the_cache(model, benchmark, evaluated, tmp_path, monkeypatch):
    def no_tower(*_):
        raise AssertionError("embedded again")

    (tmp_path / "results.json").write_bytes((evaluated / "results.json").read_bytes())
    (tmp_path / "per_query.parquet").write_bytes((evaluated / "per_query.parquet").read_bytes())
    monkeypatch.setattr(Encoder, "image_batches", no_tower)
    monkeypatch.setattr(Encoder, "text_batches", no_tower)
    assert evaluate(model, benchmark, tmp_path, "--no-report") == 0
    assert (tmp_path / "pairs.parquet").read_bytes() == (evaluated / "pairs.parquet").read_bytes()


def test_report_and_csv_are_written_beside_the_results(evaluated):
    assert "<html" in (evaluated / "report.html").read_text().lower()
    assert (evaluated / "report.csv").read_text().count("same_concept") >= 1


def test_the_same_bytes_without_the_cache(model, benchmark, evaluated, tmp_path):
    assert evaluate(model, benchmark, tmp_path, "--no-cache", "--no-report") == 0
    assert files_of(tmp_path) == files_of(evaluated)


def test_models_on_one_tower_share_its_work(model, benchmark, evaluated, tmp_path, monkeypatch):
    sibling = tiny_encoder(seed=1, name="sibling")
    sibling.model.vision, sibling.model.text = tiny_encoder().model.vision, tiny_encoder().model.text
    save_model(tmp_path / "sibling", sibling)

    def no_tower(*_):
        raise AssertionError("a tower was run that another model has run already")

    monkeypatch.setattr(Encoder, "image_batches", no_tower)
    monkeypatch.setattr(Encoder, "text_batches", no_tower)
    assert evaluate(tmp_path / "sibling", benchmark, tmp_path / "out", "--no-report") == 0
    assert files_of(tmp_path / "out") != files_of(evaluated)


def test_finished_results_are_kept_and_other_results_never_overwritten(model, benchmark, evaluated, capsys):
    before = (evaluated / "results.json").stat().st_mtime_ns
    assert evaluate(model, benchmark, evaluated, "--no-report") == 0
    assert (evaluated / "results.json").stat().st_mtime_ns == before
    assert evaluate(model, benchmark, evaluated, "--protocol", "strict") == 2
    assert "another output folder" in capsys.readouterr().err
    assert (evaluated / "results.json").stat().st_mtime_ns == before


def test_several_models_have_a_folder_each_and_a_broken_one_does_not_stop_the_rest(model, benchmark, tmp_path, capsys):
    other, broken = tmp_path / "other", tmp_path / "broken"
    save_model(other, tiny_encoder(seed=1, name="other"))
    save_model(broken, tiny_encoder(seed=2, name="broken"))
    (broken / "model.json").write_text("{}")
    assert evaluate([model, broken, other], benchmark, tmp_path / "out", "--tasks", "image_to_text") == 1
    assert {path.parent.name for path in (tmp_path / "out").rglob("results.json")} == {"tiny", "other"}
    captured = capsys.readouterr()
    assert "broken left out" in captured.err and "1 of 3 models failed" in captured.err
    assert "broken" not in captured.out


def test_strict_takes_no_ops_out_and_says_so(model, benchmark, tmp_path):
    own = {"val/000.jpg": ["A dog .", "a cat", "a man", "a tree", "a ball"]}
    items = [{"image": n, "caption": [*c, "a dog", "a cat on", "a woman", "a house", "a boat"]} for n, c in own.items()]
    (tmp_path / "same_concept.json").write_text(json.dumps(items))
    assert evaluate(model, benchmark, tmp_path / "out", "--annotations", str(tmp_path), "--protocol", "strict") == 0
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["sizes"]["image_to_text"]["same_concept"]["gallery"] == 9
    assert any("(strict): 1" in note for note in results["notes"])


def test_missing_images_are_refused_or_left_out_and_counted(model, benchmark, tmp_path, refusal):
    some = tmp_path / "images" / "val"
    some.mkdir(parents=True)
    for number in range(5):
        os.link(benchmark / "images" / "val" / f"{number:03}.jpg", some / f"{number:03}.jpg")
    some_images = ["--images", str(tmp_path / "images"), "--no-report", "--tasks", "image_to_text"]
    command = words(model, benchmark, tmp_path / "out", *some_images)
    assert "7 of 12 missing, the first is 'val/005.jpg'" in refusal(*command)
    assert not (tmp_path / "out").exists()
    assert main([*command, "--allow-missing-images"]) == 0
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["data"]["rococo"]["coverage"] == {"present": 5, "wanted": 12, "complete": False}
    assert results["sizes"]["image_to_text"]["danger"]["gallery"] == 5 * 10 + 1
    assert "only 5 of 12 images" in results["notes"][0]


def test_a_truncated_image_is_named_and_nothing_is_written(model, benchmark, tmp_path, capsys):
    images = tmp_path / "images" / "val"
    images.mkdir(parents=True)
    for path in (benchmark / "images" / "val").iterdir():
        content = path.read_bytes()
        (images / path.name).write_bytes(content[:-400] if path.name == "007.jpg" else content)
    out = tmp_path / "out"
    assert evaluate(model, benchmark, out, "--images", str(tmp_path / "images")) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert "007.jpg" in error and "wanted" in error
    assert not list(out.rglob("*"))


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("danger.json", '[{"image": "val/000.jpg", "caption": ["a",', "danger.json: JSON"),
        ("danger.json", json.dumps([{"image": "val/000.jpg", "caption": ["a"] * 9}]), "9"),
        ("coco_karpathy_test.json", json.dumps([{"image": "val/000.jpg"}]), '"caption"'),
    ],
)
def test_broken_annotations_are_refused_in_one_line(name, content, named, model, benchmark, tmp_path, capsys):
    folder = tmp_path / "annotations"
    folder.mkdir()
    for path in (benchmark / "annotations").iterdir():
        (folder / path.name).write_text(content if path.name == name else path.read_text())
    assert evaluate(model, benchmark, tmp_path / "o", "--annotations", str(folder)) == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert named in error[-1] and name in error[-1]
    assert not (tmp_path / "o").exists()


def test_corruptions_are_measured_against_the_same_cut_without_one(model, benchmark, tmp_path):
    options = ["--corruptions", "fog,pixelate", "--severities", "2,5", "--mixed-galleries", "none", "--no-report"]
    assert evaluate(model, benchmark, tmp_path, *options) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    for task in ("image_to_text", "text_to_image"):
        found = results["tasks"][task]
        kinds = {"fog_2", "fog_5", "pixelate_2", "pixelate_5", "corruptions_2", "corruptions_5"}
        assert {"clean", "uncorrupted"} | kinds <= set(found)
        assert found["fog_5"]["drop_points"] == pytest.approx(found["uncorrupted"]["r1"] - found["fog_5"]["r1"])
        assert found["corruptions_5"]["r5"] == pytest.approx((found["fog_5"]["r5"] + found["pixelate_5"]["r5"]) / 2)
        assert "r5_std" in found["corruptions_5"]
    rows = pq.read_table(tmp_path / "per_query.parquet").to_pylist()
    ranks = {variant: [row["rank"] for row in rows if row["variant"] == variant] for variant in ("clean", "fog_5")}
    assert ranks["clean"] != ranks["fog_5"]
    assert not any(row["variant"].startswith("corruptions") for row in rows)


def test_an_unknown_task_suggests_the_nearest(model, benchmark, tmp_path, capsys):
    assert evaluate(model, benchmark, tmp_path / "out", "--tasks", "image_to_txt") == 2
    assert "did you mean image_to_text?" in capsys.readouterr().err


def test_embed_writes_what_encode_gives(model, benchmark, tmp_path):
    captions, out = benchmark / "annotations" / "coco_karpathy_test.json", tmp_path / "e.npz"
    command = ["embed", str(model), "--images", str(benchmark / "images"), "--captions", str(captions)]
    assert main([*command, "--out", str(out)]) == 0
    arrays = np.load(out)
    assert sorted(arrays) == ["caption_image", "captions", "image_embeddings", "image_names", "text_embeddings"]
    assert arrays["caption_image"].tolist().count(4) == 6
    expected = load_model(model).encode_text(arrays["captions"].tolist())
    np.testing.assert_array_equal(arrays["text_embeddings"], expected)


def test_join_makes_a_model_that_beats_chance_on_images_it_has_not_seen(tmp_path, capsys, refusal):
    # Pictures of one flat colour; captions name it. Random towers see both; CCA must bring them together.
    colours = {"red": (200, 30, 30), "green": (30, 180, 40), "blue": (30, 50, 210)}

    def picture(number, random):
        colour = list(colours.values())[number % 3]
        pixels = np.clip(np.array(colour) + random.normal(0, 25, (40, 40, 3)), 0, 255)
        return Image.fromarray(pixels.astype(np.uint8))

    things = np.random.default_rng(0).choice(["ball", "car", "house"], 60)
    captions = [[f"a {list(colours)[number % 3]} {thing}"] for number, thing in enumerate(things)]
    write_world(tmp_path, captions, name="{}.png", picture=picture)
    items = json.loads((tmp_path / "captions.json").read_text())
    (tmp_path / "train.json").write_text(json.dumps(items[:45]))
    save_model(tmp_path / "towers", tiny_encoder())
    out = tmp_path / "joined"
    command = ["join", str(tmp_path / "towers"), str(tmp_path / "towers"), str(out), "--dim", "4"]
    command += ["--images", str(tmp_path / "images"), "--captions", str(tmp_path / "train.json")]
    assert main(command) == 0
    assert "held_out_recall_at_1" in capsys.readouterr().out
    joined = load_model(out)
    images = joined.encode_image([Image.open(tmp_path / "images" / item["image"]) for item in items[45:]])
    texts = joined.encode_text([f"a {colour} ball" for colour in colours])
    right = (images @ texts.T).argmax(axis=1) == np.arange(45, 60) % 3
    assert right.mean() > 0.8
    assert "wanted a new or empty folder" in refusal(*command)


@pytest.mark.slow
def test_killed_in_the_middle_evaluate_goes_on_and_gives_the_same_bytes(model, benchmark, evaluated, tmp_path):
    command = words(model, benchmark, tmp_path / "out", "--cache", str(tmp_path / "cache"), "--no-report")
    process = subprocess.Popen([sys.executable, "-m", "rococo_jax", *command], stderr=subprocess.DEVNULL)
    # Killed as soon as some parts of the embeddings are kept, of seven.
    while process.poll() is None and len(list((tmp_path / "cache").rglob("*.npy"))) < 3:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / "out" / "results.json").exists()
    assert main(command) == 0
    assert files_of(tmp_path / "out") == files_of(evaluated)
