"""Words written on images: what they are, where they stand, and the choices between them and what is shown."""

import json

import numpy as np
import pytest
from PIL import Image

from rococo_jax.cli.main import main
from rococo_jax.perturb.images.written_words import draw_note
from tests.support.world import noise, write_pictures

CAPTIONS = {
    "dog.png": ["a dog on a mat", "the dog sleeps", "a brown pet"],
    "a/cat.jpg": ["two cats", "a cat on a chair", "a cat"],
    "car.webp": ["a red car", "an auto near a tree"],
    "none.png": ["very nice"],
    "boat.png": ["a boat on a lake", "a boat"],
}


@pytest.fixture
def write(tmp_path):
    write_pictures(tmp_path / "images", CAPTIONS, noise(90, 160))

    def run(out, *more, names=tuple(CAPTIONS)):
        captions = [{"image": name, "caption": CAPTIONS[name]} for name in names]
        (tmp_path / "captions.json").write_text(json.dumps(captions))
        words = f"mix-images --images {tmp_path}/images --captions {tmp_path}/captions.json --method text".split()
        assert main([*words, "--out", str(tmp_path / out), *more]) == 0
        items = [json.loads(line) for line in (tmp_path / out / "items.jsonl").read_text().splitlines()]
        return json.loads((tmp_path / out / "manifest.json").read_text())["images"], items

    return run


def test_a_note_covers_its_share_of_the_image_and_changes_no_other_pixel(write, tmp_path):
    images, _ = write("out")
    assert [each["file"] for each in images] == ["dog.png", "a/cat.jpg", "car.webp.png", "none.png", "boat.png"]
    for each in images:
        left, top, right, bottom = each["box"]
        before = np.asarray(Image.open(tmp_path / "images" / each["image"]).convert("RGB"))
        after = np.asarray(Image.open(tmp_path / "out" / each["file"])).astype(int)
        assert after.shape == before.shape and 0 <= left < right <= 160 and 0 <= top < bottom <= 90
        assert (right - left) * (bottom - top) / (160 * 90) == pytest.approx(1 - each["true_ratio"])
        assert each["true_ratio"] == pytest.approx(0.9, abs=0.006)
        note, outside = after[top:bottom, left:right].mean(-1), np.ones((90, 160), bool)
        outside[top:bottom, left:right] = False
        if not each["file"].endswith(".jpg"):
            np.testing.assert_array_equal(after[outside], before[outside])
            # White at the borders; the black letters stand in the middle of the width.
            assert (note[:, [0, -1]] == 255).all() and (note[[0, -1]] == 255).all() and note.min() < 50
            dark = np.flatnonzero((note < 128).any(0))
            assert abs(dark.mean() - (right - left - 1) / 2) < 3 and len(dark) > (right - left) / 2


def test_a_written_word_names_an_object_of_another_image(write):
    images, items = write("out")
    assert [each["object"] for each in images] == ["dog", "cat", "car", None, "boat"]
    for each in images:
        assert each["word"] in {"dog", "cat", "car", "boat"} - {each["object"]}
    assert [each["texts"][0] for each in items] == [f"a photo of a {name}." for name in ("dog", "cat", "car", "boat")]
    shown = [each for each in images if each["object"]]
    assert [each["texts"][1] for each in items] == [f"a photo of a {each['word']}." for each in shown]
    assert [each["images"] for each in items] == [[{"file": each["file"]}] for each in shown]
    backwards, _ = write("backwards", names=tuple(CAPTIONS)[::-1])
    words, others = ([each["word"] for each in found] for found in (images, write("seed", "--seed", "2")[0]))
    assert backwards[::-1] == images and others != words and len({*words}) > 2


@pytest.mark.slow
def test_words_can_come_from_a_list_and_the_control_writes_none(write, tmp_path, refusal, capsys):
    (tmp_path / "words.txt").write_text("mat\n\nowl\n")
    images, items = write("list", "--words", str(tmp_path / "words.txt"), "--ratio", "0.7")
    assert images[0]["word"] == "owl" and {each["word"] for each in images} <= {"mat", "owl"}
    assert "a photo of an owl." in items[0]["texts"] and images[0]["true_ratio"] == pytest.approx(0.7, abs=0.05)
    controls, same = write("control", "--protocol", "control")
    one, other = (Image.open(tmp_path / folder / "dog.png") for folder in ("control", "images"))
    assert one.tobytes() == other.tobytes() and controls == write("out")[0] and len(same) == len(items)
    words = ["evaluate", "demo:plain", "--images", str(tmp_path / "out"), "--annotations", str(tmp_path / "out")]
    assert main([*words, "--out", str(tmp_path / "results")]) == 0
    assert "words" in json.loads((tmp_path / "results" / "results.json").read_text())["tasks"]["choices"]
    mix = ["mix-images", "--images", str(tmp_path / "images"), "--captions", str(tmp_path / "captions.json")]
    (tmp_path / "words.txt").write_text("dog\n")
    (tmp_path / "wörter.txt").write_text("owl\nföhn\n")
    for more, said in (
        (["--words", str(tmp_path / "words.txt")], "--words: found it alone; wanted it with --method text"),
        (["--method", "text", "--protocol", "strict"], "wanted paper or control"),
        (["--method", "text", "--ratio", "1"], "to less than 1"),
        (["--method", "text", "--words", str(tmp_path / "wörter.txt")], "found 'f\\xf6hn'; wanted ASCII letters"),
        (["--method", "text", "--words", str(tmp_path / "words.txt")], "that no caption of 'dog.png' contains"),
    ):
        assert said in refusal(*mix, "--out", str(tmp_path / "x"), *more)
    assert not (tmp_path / "x").exists()
    draw_note(Image.new("RGB", (3, 1)), "a very long word", (0, 0, 3, 1))  # too small for letters, and no error
