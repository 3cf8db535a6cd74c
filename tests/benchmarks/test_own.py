"""A benchmark of one's own is made whole, found again, and asked; known layouts are found where people have them."""

import json
import re
import sys
from pathlib import Path

import pytest
from huggingface_hub import metadata_load
from PIL import Image

import rococo_jax
from rococo_jax import progress as shown
from rococo_jax.benchmarks.benchmark import find_benchmark
from rococo_jax.benchmarks.own import make_once
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.cli.main import main
from rococo_jax.demo.captions import demo_lexicon
from rococo_jax.evaluation.inputs import layout_folders, open_benchmarks
from rococo_jax.perturb.text import VARIANTS
from tests.benchmarks.published_forms import FORMS, write
from tests.support.refusals import refused
from tests.support.world import write_pictures

CAPTIONS = {"a.png": ["A dog on the beach.", "a brown dog"], "b.png": ["Two men ride a horse."], "c.png": ["so blue"]}
SETTINGS = Settings(mixed_galleries=())


@pytest.fixture
def photos(tmp_path) -> Path:
    write_pictures(tmp_path / "photos", CAPTIONS)
    rows = [f'{name},"{text}"' for name, texts in CAPTIONS.items() for text in texts]
    (tmp_path / "photos.csv").write_text("\n".join(["file_name,text", *rows]))
    return tmp_path / "photos"


def make(photos: Path, *extra: str) -> int:
    words = ["--images", photos, "--captions", f"{photos}.csv", "--out", photos.parent / "DATA", *extra]
    return main(["make-benchmark", *map(str, words)])


def test_a_benchmark_is_created_completely_and_found_again(photos, capsys):
    assert make(photos, "--licence", "CC-BY-4.0") == 0
    assert "75.0% of them with a noun of the lexicon" in capsys.readouterr().out
    data = photos.parent / "DATA"
    for name in CAPTIONS:
        assert (data / "mine" / "images" / name).read_bytes() == (photos / name).read_bytes()
    ranks, choices = open_benchmarks(SETTINGS, data=data)
    assert (ranks.name, choices.name) == ("mine", "mine_choices") and set(ranks.images) == set(CAPTIONS)
    assert [task.variant for task in ranks.tasks if task.name == "image_to_text"] == ["clean", *VARIANTS]
    # Each altered caption differs from its original in one place, and is an item beside it.
    items = [json.loads(line) for line in (data / "mine/choices/items.jsonl").read_text().splitlines()]
    assert len(items) == 3 * len(VARIANTS)
    for item in items:
        one, other = ([word.strip(".").lower() for word in text.split()] for text in item["texts"])
        assert item["texts"][0] in CAPTIONS[item["images"][0]["file"]] and one != other
        if item["part"] in ("same_concept", "diff_concept"):
            assert sum(a != b for a, b in zip(one, other, strict=True)) == 1
    card = metadata_load(data / "mine" / "README.md")
    assert card["license"] == "other" and card["license_name"] == "CC-BY-4.0"
    # The folder of one benchmark is a data folder, too.
    assert [each.fingerprint() for each in open_benchmarks(SETTINGS, data=data / "mine")] == [
        ranks.fingerprint(), choices.fingerprint()]  # fmt: skip


def test_evaluate_creates_the_same_benchmark_as_make_benchmark_and_only_once(photos, monkeypatch, capsys):
    assert make(photos, "--name", "photos") == 0
    root = photos.parent
    monkeypatch.setenv("ROCOCO_CACHE", str(root / "cache"))
    (root / "model.py").write_text(
        "import numpy as np\n"
        "class Model:\n"
        "    def encode_image(self, images):\n"
        "        return np.eye(9)[: len(images)]\n"
        "    def encode_text(self, texts):\n"
        "        return np.eye(9)[[len(text) % 9 for text in texts]]\n"
    )
    words = ["evaluate", f"{root}/model.py:Model", "--images", photos, "--captions", f"{photos}.csv", "--no-report",
             "--benchmarks", "photos_choices", "--out", root / "out"]  # fmt: skip
    assert main([*map(str, words)]) == 0
    assert json.loads((root / "out" / "results.json").read_text())["sizes"]["photos_choices"]["all"]["items"] == 12
    made, one = sorted((root / "DATA" / "photos").rglob("*.*")), root / "DATA"
    (kept,) = (root / "cache" / "benchmarks").iterdir()
    assert [path.relative_to(kept).parts for path in sorted((kept / "photos").rglob("*.*"))] == [
        path.relative_to(one).parts for path in made]  # fmt: skip
    assert all(path.is_dir() or path.read_bytes() == (kept / path.relative_to(one)).read_bytes() for path in made)
    # It is not made again for the same contents, and is another one for others.
    monkeypatch.setattr("rococo_jax.benchmarks.own.write_own", lambda folder, *_, **__: folder.mkdir() or {})
    table = f"{photos}.csv"
    assert make_once(str(photos), table) == kept
    Path(root / "coco.csv").write_text(Path(table).read_text())
    assert make_once(str(photos), str(root / "coco.csv")) != kept
    Path(table).write_text("file_name,text\na.png,A cat.")
    assert make_once(str(photos), table) != kept
    refused("evaluate: captions: found no images, or also annotations", rococo_jax.evaluate, None, captions=table)


def test_a_rotation_that_is_not_applied_is_reported_once(photos, capsys):
    rotated = Image.Exif()
    rotated[0x0112] = 6
    Image.new("RGB", (40, 30)).save(photos / "a.png", exif=rotated)
    assert make(photos) == 0
    assert capsys.readouterr().err.count("1 of 3 images have an EXIF rotation, which is not applied") == 1


def test_settings_that_would_mix_two_benchmarks_are_refused(photos, refusal):
    words = ["make-benchmark", "--images", photos, "--captions", f"{photos}.csv", "--out", photos.parent / "DATA"]
    assert make(photos) == 0 and make(photos) == 0
    for extra, said in (
        (("--seed", "1"), "manifest.json: made_by: found others; wanted those of this run, or another output folder"),
        (("--name", "coco"), "found 'coco', a name of the documented layout"),
        (("--name", "My data"), "found 'My data'; wanted small letters"),
    ):
        assert said in refusal(*words, *extra)
    Image.new("RGB", (40, 50)).save(photos / "b.png")
    assert "image 'b.png': found changed since" in refusal(*words)


def test_two_benchmarks_of_one_task_cannot_be_requested_together(photos, capsys):
    for name in ("mine", "other"):
        assert make(photos, "--name", name) == 0
    data = photos.parent / "DATA"
    assert [each.name for each in open_benchmarks(SETTINGS, data=data)] == ["mine", "mine_choices", "other_choices"]
    said = "other skipped: mine has tasks with the same names; name it in benchmarks to evaluate it"
    assert said in capsys.readouterr().err
    assert [each.name for each in open_benchmarks(SETTINGS, data=data, names=["other"])] == ["other"]
    said = "benchmarks: other: found tasks with the same names as those of mine"
    refused(said, open_benchmarks, SETTINGS, data=data, names=["mine", "other"])


def test_folders_are_found_in_the_layout_or_where_the_user_specifies(tmp_path, refusal):
    write(FORMS["valse"], tmp_path / "sets" / "valse")
    (tmp_path / "coco" / "images").mkdir(parents=True)
    command = ["evaluate", "demo:plain", "--data", str(tmp_path), "--benchmarks", "valse", "--out", str(tmp_path / "o")]
    error = refusal(*command).splitlines()[-1]
    assert f"{tmp_path}/valse: valse: found nothing there" in error
    assert f"`rococo fetch --data {tmp_path} valse` downloads it" in error and "--data-dir valse=DIR" in error
    places = layout_folders(find_benchmark("valse"), tmp_path, {"valse": tmp_path / "sets" / "valse"})
    assert places == {"images": tmp_path / "coco/images", "annotations": tmp_path / "sets" / "valse"}


def test_a_folder_given_for_a_benchmark_is_that_of_its_annotations_or_its_only_one():
    given = {"sugarcrepe": Path("s"), "cifar10": Path("c"), "coco/images": Path("i")}
    pairs, classes = (layout_folders(find_benchmark(name), Path(), given) for name in ("sugarcrepe", "cifar10"))
    assert pairs == {"images": Path("i"), "annotations": Path("s")} and classes == {"images": Path("c")}


def test_altering_all_variants_at_once_gives_the_same_captions_as_one_by_one(photos):
    words = ["alter-captions", "demo:plain", "--captions", f"{photos}.csv", "--select", "random", "--seed", "3"]
    out = photos.parent / "altered"
    assert main([*words, "--variant", "all", "--out", str(out)]) == 0
    assert main([*words, "--variant", "danger", "--out", str(photos.parent / "danger.json")]) == 0
    assert sorted(path.stem for path in out.iterdir()) == sorted(VARIANTS)
    assert (out / "danger.json").read_bytes() == (photos.parent / "danger.json").read_bytes()


@pytest.mark.parametrize("command", ["make-benchmark", "alter-captions"])
def test_the_lexicon_of_the_drawn_scenes_can_be_selected_by_name(command, photos, monkeypatch):
    # As in a new process, in which nothing has imported the demo.
    for name in ("rococo_jax.demo", "rococo_jax.demo.captions"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    data = photos.parent / "DATA"
    if command == "make-benchmark":
        assert make(photos, "--lexicon", "demo") == 0
    else:
        words = f"alter-captions demo:plain --captions {photos}.csv --select random --lexicon demo"
        assert main([*words.split(), "--variant", "same_concept", "--out", f"{data}/same_concept.json"]) == 0
    assert any(demo_lexicon().hash() in path.read_text() for path in data.rglob("*.json*"))


def test_the_influence_of_a_model_shows_its_progress(photos, monkeypatch, capsys):
    monkeypatch.setattr(shown, "_QUIET_SECONDS", 0.0)
    assert make(photos, "--model", "demo:plain") == 0
    assert re.search(r"^influence: 4 of 4 captions", capsys.readouterr().err, re.MULTILINE)


def test_a_misspelt_name_of_a_benchmark_of_the_user_gets_a_suggestion(photos):
    assert make(photos) == 0
    data = photos.parent / "DATA"
    message = r"'mine_choice'; wanted one of the \d+ that `rococo benchmarks --data DIR` lists"
    hint = r" \(did you mean mine_choices\?\)"
    refused(message + hint, lambda: open_benchmarks(SETTINGS, data=data, names=["mine_choice"]))
