"""SugarCrepe as a choice benchmark: figures by an independent count, through the command, and what is refused."""

import csv
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from rococo_jax.benchmarks.benchmark import find_benchmark, known_benchmarks, register
from rococo_jax.benchmarks.readers.sugarcrepe import PARTS
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.checkpoints import save_model
from rococo_jax.cli.main import main
from rococo_jax.encoders import load_model
from rococo_jax.errors import InputError
from rococo_jax.evaluation.inputs import open_benchmarks
from tests.support.tiny import random_captions, tiny_encoder
from tests.support.world import noise, write_pictures

IMAGES = 9


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """A data folder in the documented layout: two parts over nine images under COCO's older names, and RoCOCO."""
    folder = tmp_path_factory.mktemp("data")
    names = [f"{number:012}.jpg" for number in range(1, IMAGES + 1)]
    write_pictures(folder / "coco" / "images", [f"val2014/COCO_val2014_{name}" for name in names], noise(40, 40))
    clean = [
        {"image": f"val2014/COCO_val2014_{name}", "caption": random_captions(5, seed=number, longest=6)}
        for number, name in enumerate(names)
    ]
    files = {"rococo/annotations/coco_karpathy_test": clean}
    for part, seed in (("replace_rel", 1), ("swap_att", 2)):
        pairs = zip(*(random_captions(2 * IMAGES, 10 * seed + side, longest=6) for side in (0, 1)), strict=True)
        files[f"sugar_crepe/{part}"] = {
            str(item): {"filename": names[item % IMAGES], "caption": right, "negative_caption": wrong}
            for item, (right, wrong) in enumerate(pairs)
        }
    for name, content in files.items():
        (path := folder / f"{name}.json").parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny"
    save_model(path, tiny_encoder(name="tiny"))
    return path


@pytest.fixture(scope="module")
def evaluated(model, data, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("out")
    command = ["evaluate", str(model), "--data", str(data), "--benchmarks", "rococo,sugarcrepe", "--out", str(out)]
    assert main([*command, "--mixed-galleries", "none", "--no-cache"]) == 0
    return out


def accuracy(model: Path, data: Path, part: str) -> float:
    """Strict accuracy in percent, from the encoder's own vectors."""
    encoder, folder = load_model(model), data / "coco" / "images" / "val2014"
    items = json.loads((data / "sugar_crepe" / f"{part}.json").read_text()).values()
    images = encoder.encode_image([Image.open(folder / f"COCO_val2014_{item['filename']}") for item in items])
    texts = (encoder.encode_text([item[key] for item in items]) for key in ("caption", "negative_caption"))
    right, wrong = ((images.astype(float) * each).sum(1) for each in texts)
    return 100 * np.mean(right > wrong)


@pytest.mark.slow
def test_the_accuracy_matches_an_independent_count(model, data, evaluated):
    results = json.loads((evaluated / "results.json").read_text())
    found = results["tasks"]["sugarcrepe"]
    expected = {part: accuracy(model, data, part) for part in ("replace_rel", "swap_att")}
    assert {part: found[part]["ota"] for part in expected} == pytest.approx(expected)
    assert found["mean"]["ota"] == pytest.approx(np.mean(list(expected.values())))
    assert results["kinds"] == {"image_to_text": "rank", "text_to_image": "rank", "sugarcrepe": "choice"}
    for part, metrics in found.items():
        low, high = results["intervals"]["sugarcrepe"][part]["ota"]
        assert 0 <= low <= metrics["ota"] <= high <= 100


def test_the_report_the_csv_file_and_the_rows_contain_the_choices(evaluated):
    assert "sugarcrepe" in (evaluated / "report.html").read_text().lower()
    with (evaluated / "report.csv").open() as file:
        assert any("sugarcrepe" in row for row in csv.reader(file))
    rows = pq.read_table(evaluated / "per_query.parquet").to_pylist()
    chosen = [row for row in rows if row["task"] == "sugarcrepe" and row["variant"] == "swap_att"]
    assert len(chosen) == 2 * IMAGES and {row["chosen"] for row in chosen} <= {"right", "wrong", "tie"}
    assert all((row["right_score"] > row["wrong_score"]) == (row["chosen"] == "right") for row in chosen)
    ranked = [row for row in rows if row["task"] == "image_to_text"]
    assert all(row["chosen"] is None and row["rank"] >= 1 for row in ranked)


def test_a_benchmark_can_be_given_by_its_two_folders(model, data, evaluated, tmp_path):
    folders = ["--images", str(data / "coco" / "images"), "--annotations", str(data / "sugar_crepe")]
    assert main(["evaluate", str(model), *folders, "--tasks", "sugarcrepe", "--out", str(tmp_path), "--no-cache"]) == 0
    alone, both = (json.loads((out / "results.json").read_text()) for out in (tmp_path, evaluated))
    assert alone["tasks"] == {"sugarcrepe": both["tasks"]["sugarcrepe"]}
    assert alone["intervals"]["sugarcrepe"] == both["intervals"]["sugarcrepe"]


def test_corrupted_images_are_evaluated_part_by_part(data):
    settings = Settings(corruptions=("fog",), severities=(3,))
    (benchmark,) = open_benchmarks(settings, images=data / "coco" / "images", annotations=data / "sugar_crepe")
    variants = [task.variation.name for task in benchmark.tasks]
    asked = ["", "/uncorrupted", "/fog_3"]
    assert variants == [f"{part}{images}" for images in asked for part in ("replace_rel", "swap_att")]
    assert {task.baseline for task in benchmark.tasks if task.corruption == "fog"} == set(variants[2:4])


def test_the_command_lists_benchmarks_and_which_of_their_files_exist(data, capsys):
    assert main(["benchmarks", "--data", str(data)]) == 0
    lines = capsys.readouterr().out.splitlines()
    words = {line.split()[0]: line.split()[1:] for line in lines if line and not line.startswith("rococo benchmarks")}
    assert list(words) == list(known_benchmarks())
    assert words["rococo"][:5] == ["partly", "9", "of", "9", "images;"]
    assert words["sugarcrepe"][:5] == ["partly", "9", "of", "9", "images;"] and words["valse"][0] == "missing"
    assert main(["benchmarks", "sugarcrepe", "--data", str(data)]) == 0
    details, info = capsys.readouterr().out, find_benchmark("sugarcrepe")
    assert info.question in details and info.licence in details and "  status   partly: 9 of 9 images" in details
    assert main(["benchmarks", "--data", str(data / "none")]) == 2


# `test_readers` has every kind of bad item; here through the command.
@pytest.mark.parametrize(
    ("times", "said"),
    [(1, "found 0 of 1, without '000000000099.jpg'; wanted all of them (`rococo fetch`"), (2, "the key '0' twice")],
)
def test_bad_items_are_refused_in_one_line(model, data, tmp_path, refusal, times, said):
    one = '"0": {"filename": "000000000099.jpg", "caption": "a dog", "negative_caption": "a cat"}'
    (tmp_path / "swap_att.json").write_text("{" + ", ".join([one] * times) + "}")
    folders = ["--images", str(data / "coco" / "images"), "--annotations", str(tmp_path)]
    error = refusal("evaluate", model, *folders, "--out", tmp_path / "out")
    assert said in error and error.count("\n") == 1 and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--benchmarks", "sugarcrep"], "did you mean sugarcrepe?"),
        (["--tasks", "image_to_txt"], "did you mean image_to_text?"),
        (["--data-dir", "coco/image=x"], "did you mean coco/images?"),
        (["--images", "x"], "found images and data; wanted --data, or --images and --annotations"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest_name(model, data, tmp_path, refusal, words, said):
    assert said in refusal("evaluate", model, "--data", data, "--out", tmp_path / "never", *words)
    assert not (tmp_path / "never").exists()


def test_a_missing_folder_is_reported_in_one_line(model, tmp_path, refusal):
    (tmp_path / "coco" / "images").mkdir(parents=True)
    command = ["evaluate", model, "--data", tmp_path, "--out", "never"]
    error = refusal(*command, "--benchmarks", "sugarcrepe")
    assert "sugar_crepe" in error and "7,511 items" in error and error.count("\n") == 1
    assert "benchmarks: found none with all files" in refusal(*command)


def test_the_registry_contains_each_name_once():
    info = find_benchmark("sugarcrepe")
    assert register(info) is info and set(PARTS) == {Path(name).stem for name in info.files}
    with pytest.raises(ValueError, match="two benchmarks"):
        register(type(info)(**{**vars(info), "question": "another"}))
    with pytest.raises(InputError, match="did you mean"):
        find_benchmark("rococco")


@pytest.mark.real_data
def test_the_published_files_are_read_completely(real_data):
    settings = Settings(allow_missing_images=True)
    folders = {"images": real_data / "coco" / "images", "annotations": real_data / "compositionality" / "sugar_crepe"}
    (benchmark,) = open_benchmarks(settings, **folders)
    assert sum(len(task.ids) for task in benchmark.tasks) == 4223 and len(benchmark.images) == 869
    assert [task.variant for task in benchmark.tasks] == list(PARTS)
    assert benchmark.data["coverage"]["wanted"] == 1560
