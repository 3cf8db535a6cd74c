"""Lost input: texts that a model cuts, altered ones that are then their originals, images that are one file."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import rococo_jax
from rococo_jax.benchmarks.rococo.annotations import AlteredCaptions, write_annotation
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.cli.main import main
from rococo_jax.encoders import load_encoder
from rococo_jax.evaluation.inputs import open_benchmarks
from rococo_jax.evaluation.models.encoder import EncoderModel
from tests.support.refusals import refused

IMAGES = 12


class SixWords:
    """Reads six words. A caption is its image's, less so for every word that is not "fool"; "same" is no image's."""

    name = "six words"

    def encode_image(self, images):
        return np.eye(IMAGES + 2, dtype=np.float32)[[np.asarray(image)[0, 0, 0] // 10 for image in images]]

    def encode_text(self, texts):
        vectors = np.zeros((len(texts), IMAGES + 2), np.float32)
        for vector, words in zip(vectors, (text.split()[:6] for text in texts), strict=True):
            vector[:IMAGES] = 1 if words[0] == "same" else np.eye(IMAGES)[int(words[0])]
            vector[-2:] = 0.1 * (len(words) - words.count("fool")), 0.01 * words.count("cat")
        return vectors


class Telling(SixWords):
    """Stand in for a model that reports which tokens it reads."""

    def token_rows(self, texts):
        rows = [[sum(map(ord, word)) for word in text.split()] for text in texts]
        return [row[:6] for row in rows], [len(row) > 6 for row in rows]


def write(folder: Path, captions: list[tuple[str, str | None]]) -> dict[str, Path]:
    (folder / "annotations").mkdir(parents=True)
    (folder / "images").mkdir()
    items = []
    for number, (original, altered) in enumerate(captions):
        Image.new("RGB", (32, 32), (10 * number, 0, 0)).save(folder / "images" / f"{number}.png")
        items.append(AlteredCaptions(f"{number}.png", (original,), (altered,)))
    write_annotation(folder / "annotations" / "mine.json", "mine", items, made_by={})
    return {"images": folder / "images", "annotations": folder / "annotations"}


# Three of them fool the model.
SHORT = [(f"{number} a dog", f"{number} a fool" if number < 3 else f"{number} a cat x") for number in range(IMAGES)]
LONG = ("{} a b c d e f dog", "{} a b c d e f cat")


@pytest.mark.slow
def test_altered_captions_that_equal_their_originals_after_truncation_are_excluded(tmp_path):
    folders = write(tmp_path / "cut", [*SHORT[:-1], tuple(text.format(IMAGES - 1) for text in LONG)])
    cut = rococo_jax.evaluate(Telling(), mixed_galleries=(), **folders)
    without = [*SHORT[:-1], (LONG[0].format(IMAGES - 1), None)]
    expected = rococo_jax.evaluate(SixWords(), mixed_galleries=(), **write(tmp_path / "without", without))
    assert all(cut[part] == expected[part] for part in ("tasks", "intervals", "sizes"))
    assert cut["tasks"]["image_to_text"]["mine"]["fr1"] == 25.0
    assert cut["notes"] == [
        "2 of 24 texts are longer than the model's 6 tokens and were truncated",
        "altered texts left out because truncation makes them equal to their originals (image_to_text, mine: 1 of 12)",
    ]
    asked_all = rococo_jax.evaluate(SixWords(), mixed_galleries=(), **folders)
    assert asked_all["tasks"]["image_to_text"]["mine"]["fr1"] == pytest.approx(100 * 4 / IMAGES)
    assert not asked_all["notes"]


def test_an_empty_variant_is_not_evaluated_and_no_warning_blames_the_weights(tmp_path, monkeypatch, capsys):
    folders = write(tmp_path, [(f"same a b c d e {number} dog", f"same a b c d e {number} cat") for number in range(4)])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.py").write_text("from tests.evaluation.test_excluded_input import Telling as make")
    asked = [f"--{name}={folder}" for name, folder in folders.items()]
    assert main(["evaluate", "m.py:make", *asked, "--tasks", "image_to_text", "--out", str(tmp_path / "out")]) == 0
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert list(results["tasks"]["image_to_text"]) == ["clean"]
    left_out = "truncation makes them equal to their originals (image_to_text, mine: all 4, so it is not"
    assert any(left_out in note for note in results["notes"])
    chance = [note for note in results["notes"] if "cannot be told from chance" in note]
    assert len(chance) == 1 and "(25): most texts were truncated; its drops" in chance[0]
    said = capsys.readouterr()
    assert (said.out + said.err).count("texts are longer than the model's 6 tokens") == 1


@pytest.mark.slow
def test_a_note_explains_chance_results_by_images_of_the_same_file(tmp_path):
    folders = write(tmp_path, SHORT)
    for number in range(IMAGES - 1):
        (folders["images"] / f"{number}.png").write_bytes((folders["images"] / f"{IMAGES - 1}.png").read_bytes())
    notes = rococo_jax.evaluate(Telling(), mixed_galleries=(), **folders)["notes"]
    assert sum("12 of 12 images are 1 files under several names" in note for note in notes) == 1
    chance = [note for note in notes if "cannot be told from chance" in note]
    assert len(chance) == 2 and all("(8.33): most images are the same files; its drops" in note for note in chance)


@pytest.mark.slow
def test_a_note_reports_images_with_an_exif_rotation_once(tmp_path):
    folders, exif = write(tmp_path, SHORT), Image.Exif()
    exif[0x0112] = 6
    Image.open(folders["images"] / "3.png").save(folders["images"] / "3.png", exif=exif)
    notes = rococo_jax.evaluate(Telling(), mixed_galleries=(), **folders)["notes"]
    assert notes == ["1 of 12 images have an EXIF rotation, which is not applied, as in CLIP itself"]


def test_choices_exclude_wrong_texts_that_equal_right_ones_after_truncation(tmp_path):
    folders = write(tmp_path, SHORT)
    long, short = "{} a b c d e {}", "{} a b"
    shown = [
        ("one", [long.format(0, "x"), long.format(0, "y"), short.format(1)], [0]),
        ("one", [long.format(1, "x"), long.format(1, "z")], [1]),
        ("one", [short.format(number) for number in (2, 0, 1)], [2]),
        ("both", [long.format(0, "x"), long.format(0, "y")], [0, 1]),
        ("both", [short.format(0), short.format(1)], [0, 1]),
    ]
    (tmp_path / "choices").mkdir()
    with (tmp_path / "choices" / "items.jsonl").open("w") as file:
        for number, (part, texts, images) in enumerate(shown):
            item = {"id": str(number), "part": part, "texts": texts, "match": [[n, n] for n in range(len(images))]}
            file.write(json.dumps(item | {"images": [{"file": f"{image}.png"} for image in images]}) + "\n")
    results = rococo_jax.evaluate(Telling(), images=folders["images"], annotations=tmp_path / "choices")
    sizes, tasks = results["sizes"]["choices"], results["tasks"]["choices"]
    assert sizes["one"]["items"] == 2 and sizes["both"]["items"] == 1
    assert tasks["one"]["ota"] == tasks["both"]["group_score"] == 100.0
    assert results["notes"][1].endswith("(choices, one: 2 of 5; choices, both: 2 of 4)")


def test_truncated_captions_are_counted_once_for_any_number_of_corruptions(tmp_path):
    items = [[f"{number} a b c d e f dog", f"{number} a b c d e f cat"] for number in range(IMAGES)]
    images = write(tmp_path, SHORT)["images"]
    lines = [
        {"id": f"{number}", "images": [{"file": f"{number}.png"}], "texts": texts, "match": [[0, 0]], "part": "long"}
        for number, texts in enumerate(items)
    ]
    (tmp_path / "items").mkdir()
    (tmp_path / "items" / "items.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    settings = Settings(corruptions=("fog", "contrast"), severities=(1, 3))
    folders = {"images": images, "annotations": tmp_path / "items"}
    (benchmark,) = open_benchmarks(settings, **folders)
    model = EncoderModel(load_encoder(Telling()))
    (excluded,) = [each for each in model.adapt_benchmark(benchmark).excluded if each.kind == "same_tokens"]
    assert (excluded.count, excluded.total) == (IMAGES, IMAGES)
    assert excluded.note.count("choices, long: ") == 1


def test_benchmarks_without_truncated_texts_are_evaluated_unchanged(tmp_path):
    (benchmark,) = open_benchmarks(Settings(), **write(tmp_path, SHORT))
    read = EncoderModel(load_encoder(Telling())).adapt_benchmark(benchmark)
    assert read.tasks == benchmark.tasks and read.excluded == benchmark.excluded


def test_a_model_that_returns_too_few_token_ids_is_refused(tmp_path):
    folders = write(tmp_path, SHORT)
    encoder = Telling()
    encoder.token_rows = lambda texts: ([[1]], [True])
    refused("found 1 and 1 for 24 texts; wanted ids of each text", rococo_jax.evaluate, encoder, **folders)
