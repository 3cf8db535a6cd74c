"""Test sets with ImageNet's classes: published lists, layouts, and accuracy counted by hand."""

import json

import numpy as np
import pytest
from PIL import Image

import rococo_jax
from rococo_jax.benchmarks.readers.imagenet_variants import imagenet_classes
from rococo_jax.cli.main import main

# From the comment below the list in github.com/hendrycks/imagenet-r, eval.py, and from the keys of the dictionary in
# github.com/hendrycks/natural-adv-examples, eval.py: the first and last ten indices, and the sum of all 200.
OF_R = ([1, 2, 4, 6, 8, 9, 11, 13, 22, 23], [951, 953, 954, 957, 963, 965, 967, 980, 981, 983, 988][-10:])
OF_A = ([6, 11, 13, 15, 17, 22, 23, 27, 30, 37], [959, 971, 972, 980, 981, 984, 986, 987, 988][-9:])


def indices(column):
    return [index for index, each in enumerate(imagenet_classes()) if each[column] == "1"]


def test_the_lists_of_classes_match_the_published_ones():
    classes = imagenet_classes()
    wnids = [each["class"] for each in classes]
    assert len(wnids) == 1000 and wnids == sorted(set(wnids))
    assert (wnids[0], wnids[207], wnids[999]) == ("n01440764", "n02099601", "n15075141")
    for column, (first, last) in {"imagenet_r": OF_R, "imagenet_a": OF_A}.items():
        listed = indices(column)
        assert len(listed) == 200 and listed[: len(first)] == first and listed[-len(last) :] == last
    names = [each["name"] for each in classes]
    assert len(set(names)) == 1000 and names[207] == "golden retriever"


class ByColour:
    """Names the class whose number is the image's grey value; texts are found by their class's name."""

    name = "by colour"

    def __init__(self, names):
        self.numbers = {name: number for number, name in enumerate(names)}

    def _embed(self, numbers):
        angles = np.array(numbers) / len(self.numbers) * 2 * np.pi
        return np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)

    def encode_image(self, images):
        return self._embed([np.asarray(image)[..., :2].reshape(-1, 2).mean(0).round() @ [1, 256] for image in images])

    def encode_text(self, texts):
        return self._embed([self.numbers[text] for text in texts])


def picture(number, border=0, side=12):
    """Draw a picture whose first two channels spell a number; a border is red."""
    image = Image.new("RGB", (side + 2 * border, side + 2 * border), "red")
    image.paste((number % 256, number // 256, 0), (border, border, border + side, border + side))
    return image


def save(folder, numbers, border=0):
    folder.mkdir(parents=True)
    for position, number in enumerate(numbers):
        picture(number, border).save(folder / f"{position}.png")


def top1(tmp_path, benchmark, model):
    (tmp_path / "template.txt").write_text("{}\n")
    rococo_jax.evaluate(
        model,
        data=tmp_path,
        benchmarks=[benchmark],
        templates=[str(tmp_path / "template.txt")],
        out=tmp_path / f"out_{benchmark}",
    )
    results = json.loads((tmp_path / f"out_{benchmark}" / "results.json").read_text())
    return results["tasks"][benchmark]["clean"]


def names_of(column=None):
    return [each["name"] for each in imagenet_classes() if column is None or each[column] == "1"]


@pytest.mark.parametrize(
    ("benchmark", "folder", "column"),
    [("imagenet_r", "imagenet-r", "imagenet_r"), ("imagenet_a", "imagenet-a", "imagenet_a")],
)
def test_a_model_chooses_among_the_200_classes(tmp_path, benchmark, folder, column):
    wnids = [each["class"] for each in imagenet_classes() if each[column] == "1"]
    # Every fifth class has a second image, which shows the next class.
    for number, wnid in enumerate(wnids):
        save(tmp_path / folder / wnid, [number, (number + 1) % 200][: 1 + (number % 5 == 0)])
    measured = top1(tmp_path, benchmark, ByColour(names_of(column)))
    assert measured["top1"] == pytest.approx(100 * 200 / 240)


def test_folders_of_imagenet_v2_are_numbered_by_the_order_of_wordnet_ids(tmp_path):
    """In the order of names, folder 10 would come after 1; only the number is right."""
    for number in range(1000):
        save(tmp_path / "imagenetv2-matched-frequency-format-val" / str(number), [number if number != 7 else 8])
    measured = top1(tmp_path, "imagenet_v2", ByColour(names_of()))
    assert measured["top1"] == pytest.approx(99.9)


@pytest.mark.slow
def test_class_names_of_the_user_replace_those_of_wordnet(tmp_path):
    names = [f"name {number}" for number in range(1000)]
    for number, each in enumerate(imagenet_classes()):
        save(tmp_path / "sketch" / each["class"], [number])
    (tmp_path / "imagenet").mkdir()
    (tmp_path / "imagenet" / "classes.json").write_text(json.dumps(names))
    assert top1(tmp_path, "imagenet_sketch", ByColour(names))["top1"] == 100.0


# Folders and names of made-up classes; the first is not in ImageNet.
OBJECTNET = {f"object_{number}": f"Object {number}" for number in range(114)}


def write_objectnet(tmp_path, classes):
    for number, folder in enumerate(OBJECTNET):
        save(tmp_path / "objectnet-1.0" / "images" / folder, [number], border=2)
    mappings = tmp_path / "objectnet-1.0" / "mappings"
    mappings.mkdir()
    (mappings / "folder_to_objectnet_label.json").write_text(json.dumps(OBJECTNET))
    in_imagenet = {name: "analog clock; digital clock" for name in list(OBJECTNET.values())[-classes:]}
    (mappings / "objectnet_to_imagenet_1k.json").write_text(json.dumps(in_imagenet))


def test_objectnet_is_restricted_to_imagenet_classes_and_its_red_border_is_removed(tmp_path):
    """With the border the mean colour, and with it the class, would be another one."""
    write_objectnet(tmp_path, 113)
    assert top1(tmp_path, "objectnet", ByColour([name.lower() for name in OBJECTNET.values()]))["top1"] == 100.0
    results = json.loads((tmp_path / "out_objectnet" / "results.json").read_text())
    assert results["chance"]["objectnet"]["clean"]["top1"] == pytest.approx(100 / 113)


def test_objectnet_with_other_mappings_is_refused_in_one_line(tmp_path, capsys):
    write_objectnet(tmp_path, 112)
    words = f"evaluate demo:plain --data {tmp_path} --benchmarks objectnet --out {tmp_path}/out"
    assert main(words.split()) == 2
    assert "classes: found 112 named by both files; wanted the 113" in capsys.readouterr().err
    (tmp_path / "objectnet-1.0" / "mappings" / "folder_to_objectnet_label.json").unlink()
    assert main(words.split()) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert "folder_to_objectnet_label.json" in error


def test_another_layout_is_refused_in_one_line(tmp_path, capsys):
    for wnid in ("n01443537", "n01440764"):
        save(tmp_path / "imagenet-r" / wnid, [0])
    words = f"evaluate demo:plain --data {tmp_path} --benchmarks imagenet_r --out {tmp_path}/out"
    assert main(words.split()) == 2
    error = capsys.readouterr().err
    assert "found 2, without 'n01484850'; wanted the 200 folders of the published archive" in error
    (tmp_path / "imagenet").mkdir()
    (tmp_path / "imagenet" / "classes.json").write_text('["tench"]')
    for each in imagenet_classes():
        if each["imagenet_a"] == "1":
            save(tmp_path / "imagenet-a" / each["class"], [0])
    assert main(words.replace("imagenet_r", "imagenet_a").split()) == 2
    assert "classes.json: names: found ['tench']; wanted 1,000 names" in capsys.readouterr().err
