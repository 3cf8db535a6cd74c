"""`rococo evaluate`, `embed` and `join` as users run them, on images, captions and models that the test makes."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from rococo_jax.checkpoints import save_model
from rococo_jax.cli.main import main
from rococo_jax.encoders import Encoder, load_model
from rococo_jax.storage import hash_file
from tests.support.kills import Killed, watched
from tests.support.tiny import WORDS, tiny_encoder
from tests.support.world import noise, write_world

IMAGES, SEEDS = 12, 2


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory) -> Path:
    """Write images and annotations in the published form: five originals and altered captions an image, one has six."""
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
    folders = ["--images", benchmark / "images", "--annotations", benchmark / "annotations", "--out", out]
    return [*map(str, ["evaluate", model, *folders, "--seeds", "1,10", *more])]


def evaluate(model, benchmark, out, *more) -> dict:
    assert main(words(model, benchmark, out, *more)) == 0
    return results_in(out)


def results_in(folder: Path) -> dict:
    return json.loads((folder / "results.json").read_text())


def rows_by_variant(path: Path) -> dict[tuple[str, str], list[dict]]:
    rows = {}
    for row in pq.read_table(path).to_pylist():
        rows.setdefault((row["task"], row["variant"]), []).append(row)
    return rows


@pytest.fixture(scope="module")
def evaluated(model, benchmark, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("out")
    evaluate(model, benchmark, out)
    return out


def files_of(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in ("results.json", "per_query.parquet")}


def test_results_agree_with_similarities_sorted_by_numpy(model, benchmark, evaluated):
    results = results_in(evaluated)
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


def test_the_parquet_file_has_a_row_for_every_query(evaluated):
    captions, results = 5 * IMAGES + 1, results_in(evaluated)
    rows = rows_by_variant(evaluated / "per_query.parquet")
    mixed = {("text_to_image", variant): SEEDS * captions for variant in ("mix_0.9", "patch_0.9")}
    assert {key: len(each) for key, each in rows.items()} == mixed | {
        **{("image_to_text", variant): IMAGES for variant in ("clean", "same_concept", "danger")},
        **{("text_to_image", variant): captions for variant in ("clean", "control")},
    }
    ranks = [row["rank"] for row in rows["image_to_text", "danger"]]
    assert 100 * ranks.count(1) / IMAGES == pytest.approx(results["tasks"]["image_to_text"]["danger"]["r1"])
    for row in (row for each in rows.values() for row in each):
        assert row["rank_optimistic"] <= row["rank"] <= row["rank_pessimistic"]


def test_the_parquet_file_of_pairs_gives_the_reported_numbers(evaluated):
    captions, results = 5 * IMAGES + 1, results_in(evaluated)
    rows = rows_by_variant(evaluated / "pairs.parquet")
    assert {key: len(each) for key, each in rows.items()} == {
        **{("image_to_text", variant): 5 * IMAGES for variant in ("same_concept", "danger")},
        **{("text_to_image", variant): SEEDS * captions for variant in ("mix_0.9", "patch_0.9")},
        ("text_to_image", "control"): captions,
    }
    for (task, variant), pairs in rows.items():
        found, bounds = (results[part][task][variant] for part in ("tasks", "intervals"))
        # Every seed has as many pairs, so that the mean over seeds is that over all.
        for name in ("preference", "blind", "grounding"):
            assert found[name] == pytest.approx(100 * np.mean([row[name] for row in pairs]))
            assert bounds[name][0] <= found[name] <= bounds[name][1]
        assert found["difference_r1"] == pytest.approx(100 * np.mean([row["rank"] == 1 for row in pairs]))
    assert not {"preference", "blind"} & set(results["tasks"]["image_to_text"]["clean"])


@pytest.mark.slow
def test_pairs_are_added_to_a_finished_run_from_the_cache(model, benchmark, evaluated, tmp_path, monkeypatch):
    def no_tower(*_):
        raise AssertionError("embedded again")

    for name, content in files_of(evaluated).items():
        (tmp_path / name).write_bytes(content)
    monkeypatch.setattr(Encoder, "image_batches", no_tower)
    monkeypatch.setattr(Encoder, "text_batches", no_tower)
    evaluate(model, benchmark, tmp_path, "--no-report")
    assert (tmp_path / "pairs.parquet").read_bytes() == (evaluated / "pairs.parquet").read_bytes()


def test_report_and_csv_are_written_beside_the_results(evaluated):
    assert "<html" in (evaluated / "report.html").read_text().lower()
    assert (evaluated / "report.csv").read_text().count("same_concept") >= 1


@pytest.mark.slow
def test_an_evaluation_gives_the_same_bytes_without_a_cache_and_after_being_killed(model, benchmark, tmp_path):
    few = "--mixed-galleries", "mix_0.9", "--seeds", "1", "--no-report"
    evaluate(model, benchmark, tmp_path / "anew", *few, "--no-cache")
    command = words(model, benchmark, tmp_path / "killed", *few, "--cache", tmp_path / "cache")

    def kill(operation):
        if len([*(tmp_path / "cache").rglob("*.npy")]) >= 2:
            raise Killed

    with pytest.raises(Killed):
        watched(tmp_path / "cache", kill, lambda: main(command))
    assert not (tmp_path / "killed" / "results.json").exists()
    assert main(command) == 0
    assert files_of(tmp_path / "anew") == files_of(tmp_path / "killed")


def test_finished_results_are_kept_and_other_results_are_never_overwritten(model, benchmark, evaluated, refusal):
    before = (evaluated / "results.json").stat().st_mtime_ns
    evaluate(model, benchmark, evaluated, "--no-report")
    assert "another output folder" in refusal(*words(model, benchmark, evaluated, "--protocol", "strict"))
    assert (evaluated / "results.json").stat().st_mtime_ns == before


def test_the_strict_protocol_excludes_no_ops_and_reports_it(model, benchmark, tmp_path):
    captions = ["A dog .", "a cat", "a man", "a tree", "a ball", "a dog", "a cat on", "a woman", "a house", "a boat"]
    (tmp_path / "same_concept.json").write_text(json.dumps([{"image": "val/000.jpg", "caption": captions}]))
    results = evaluate(model, benchmark, tmp_path / "out", "--annotations", tmp_path, "--protocol", "strict")
    assert results["sizes"]["image_to_text"]["same_concept"]["gallery"] == 9
    assert any("(strict): 1" in note for note in results["notes"])


def test_missing_images_are_refused_or_excluded_and_counted(model, benchmark, tmp_path, refusal):
    images = shutil.copytree(benchmark / "images", tmp_path / "images")
    for path in sorted(images.rglob("*.jpg"))[5:]:
        path.unlink()
    some = "--images", images, "--no-report", "--tasks", "image_to_text"
    said = refusal(*words(model, benchmark, tmp_path / "out", *some))
    assert "found 5 of 12, without 'val/005.jpg'" in said and not (tmp_path / "out").exists()
    results = evaluate(model, benchmark, tmp_path / "out", *some, "--allow-missing-images")
    assert results["data"]["rococo"]["coverage"] == {"present": 5, "wanted": 12, "complete": False}
    assert results["sizes"]["image_to_text"]["danger"]["gallery"] == 5 * 10 + 1
    assert "only 5 of 12 images" in results["notes"][0]


@pytest.mark.parametrize(
    ("file", "damage", "said"),
    [
        ("images/val/007.jpg", lambda content: content[:-400], "wanted"),
        ("annotations/danger.json", lambda _: b'[{"image": "val/000.jpg", "caption": ["a",', "danger.json: JSON"),
        ("annotations/danger.json", lambda _: json.dumps([{"image": "val/0.jpg", "caption": ["a"] * 9}]).encode(), "9"),
        ("annotations/coco_karpathy_test.json", lambda _: b'[{"image": "val/000.jpg"}]', '"caption"'),
    ],
)
def test_a_damaged_file_is_named_and_nothing_is_written(model, benchmark, tmp_path, refusal, file, damage, said):
    data = shutil.copytree(benchmark, tmp_path / "data")
    (data / file).write_bytes(damage((data / file).read_bytes()))
    error = refusal(*words(model, data, tmp_path / "out")).splitlines()[-1]
    assert Path(file).name in error and said in error
    assert not [*(tmp_path / "out").rglob("*")]


@pytest.mark.slow
def test_corruptions_are_compared_with_uncorrupted_images_of_the_same_crop(model, benchmark, tmp_path):
    options = ["--corruptions", "fog,pixelate", "--severities", "5", "--mixed-galleries", "none", "--no-report"]
    results = evaluate(model, benchmark, tmp_path, *options)
    for task in ("image_to_text", "text_to_image"):
        found = results["tasks"][task]
        kinds = {"fog_5", "pixelate_5", "corruptions_5"}
        assert {"clean", "uncorrupted"} | kinds <= set(found)
        assert found["fog_5"]["drop_points"] == pytest.approx(found["uncorrupted"]["r1"] - found["fog_5"]["r1"])
        assert found["corruptions_5"]["r5"] == pytest.approx((found["fog_5"]["r5"] + found["pixelate_5"]["r5"]) / 2)
        assert not any(metric.endswith("_std") for variant in found.values() for metric in variant)
        rows = rows_by_variant(tmp_path / "per_query.parquet")
        assert [row["rank"] for row in rows[task, "clean"]] != [row["rank"] for row in rows[task, "fog_5"]]
        assert not any(variant.startswith("corruptions") for _, variant in rows)


def test_the_error_for_an_unknown_task_suggests_the_nearest_one(model, benchmark, tmp_path, refusal):
    error = refusal(*words(model, benchmark, tmp_path / "out", "--tasks", "image_to_txt"))
    assert "did you mean image_to_text?" in error


def test_the_embed_command_writes_the_embeddings_of_encode(model, benchmark, tmp_path):
    captions, out = benchmark / "annotations" / "coco_karpathy_test.json", tmp_path / "e.npz"
    command = ["embed", str(model), "--images", str(benchmark / "images"), "--captions", str(captions)]
    assert main([*command, "--out", str(out)]) == 0
    arrays = np.load(out)
    assert sorted(arrays) == ["caption_image", "captions", "image_embeddings", "image_names", "text_embeddings"]
    assert arrays["caption_image"].tolist().count(4) == 6
    expected = load_model(model).encode_text(arrays["captions"].tolist())
    np.testing.assert_array_equal(arrays["text_embeddings"], expected)


@pytest.mark.slow
def test_a_joined_model_is_better_than_chance_on_unseen_images(tmp_path, capsys, refusal):
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
    command += ["--cache", str(tmp_path / "cache")]
    assert main(command) == 0
    assert "held_out_recall_at_1" in capsys.readouterr().out
    joined = load_model(out)
    names = [item["image"] for item in items]
    seen = joined.training_images.contains(names, [hash_file(tmp_path / "images" / name) for name in names])
    assert seen.tolist() == [number < 45 for number in range(len(items))]
    images = joined.encode_image([Image.open(tmp_path / "images" / item["image"]) for item in items[45:]])
    texts = joined.encode_text([f"a {colour} ball" for colour in colours])
    right = (images @ texts.T).argmax(axis=1) == np.arange(45, 60) % 3
    assert right.mean() > 0.8
    assert "wanted a new or empty folder" in refusal(*command)
    command[3] = str(tmp_path / "high")
    assert main([*command, "--precision", "high"]) == 0
    assert len([*(tmp_path / "cache" / "index").iterdir()]) == 4  # of either tower at either precision
