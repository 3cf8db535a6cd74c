"""`--bindings`: items divided by what training captions contain, against classes that the test made the items from."""

import json
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest

import rococo_jax
from rococo_jax.checkpoints import save_model
from rococo_jax.cli.main import main
from rococo_jax.data.training_images import training_images, write_training_images
from rococo_jax.evaluation.conditions import conditions_of
from rococo_jax.report.collection import group_by_fingerprint, load_results
from tests.docs.test_recompute import EXAMPLE
from tests.support.tiny import tiny_encoder
from tests.support.world import noise, write_pictures

IMAGES, ITEMS, CAPTION_COUNT = 6, 40, 40
# Words that the tiny tokenizer knows.
COLOURS, SIZES = ("red", "blue", "green"), ("big", "small")
NOUNS, RELATIONS = ("dog", "cat", "tree", "boat", "ball"), ("on", "in", "near")
PARTS = ("replace_att", "swap_att")
CAPTIONS = "captions.json"


def draw(rng):
    """Return a caption and its bindings, made from the same words."""
    colour, size, relation = (str(rng.choice(words)) for words in (COLOURS, SIZES, RELATIONS))
    first, second = map(str, rng.choice(NOUNS, 2, replace=False))
    text = f"a {colour} {first} {relation} the {size} {second}"
    return text, {(colour, first), (size, second), (first, relation, second)}


def class_by_hand(true, false, known):
    """Return the class of an item from the bindings of its sides."""
    own_true, own_false = true - false, false - true
    if not own_true or not own_false:
        return None
    names = {(1, 1): "both_known", (1, 0): "only_true_known", (0, 1): "only_false_known", (0, 0): "none_known"}
    return names[int(not own_true - known), int(not own_false - known)]


@pytest.fixture(scope="module")
def classes():
    """Class of each item by part; filled with the data."""
    return {}


@pytest.fixture(scope="module")
def world(tmp_path_factory, classes):
    """Two parts of SugarCrepe, captions that have most bindings, and a model that was trained on two images."""
    folder, rng = tmp_path_factory.mktemp("world"), np.random.default_rng(3)
    names = [f"{number:012}.jpg" for number in range(IMAGES)]
    write_pictures(folder / "data" / "coco" / "images", names, noise(40, 40))
    captions, bindings = zip(*(draw(rng) for _ in range(CAPTION_COUNT)), strict=True)
    known = set().union(*bindings)
    (folder / CAPTIONS).write_text(json.dumps([{"image": "a.jpg", "caption": [*captions]}]))
    (folder / "data" / "sugar_crepe").mkdir()
    for part in PARTS:
        # Truncated to the same tokens, so this item is left out.
        twins = {"caption": "the " * 30 + "red dog", "negative_caption": "the " * 30 + "blue cat"}
        items, classes[part] = {"twins": {"filename": names[0], **twins}}, []
        for item in range(ITEMS):
            (true, of_true), (false, of_false) = draw(rng), draw(rng)
            if item % 5 == 0:
                (true, of_true), (false, of_false) = ("a dog", set()), ("a cat", set())
            items[str(item)] = {"filename": names[item % IMAGES], "caption": true, "negative_caption": false}
            classes[part].append(class_by_hand(of_true, of_false, known))
        (folder / "data" / "sugar_crepe" / f"{part}.json").write_text(json.dumps(items))
    save_model(folder / "model", tiny_encoder(name="tiny"))
    files = [folder / "data" / "coco" / "images" / name for name in names[:2]]
    write_training_images(folder / "model", training_images(names[:2], files))
    return folder


@pytest.fixture
def evaluate(world, monkeypatch):
    """Evaluate in the folder of the world, and return the exit code."""
    monkeypatch.chdir(world)

    def run(out, *options):
        words = ["evaluate", "model", "--data", "data", "--benchmarks", "sugarcrepe", "--out", str(out)]
        return main([*words, "--cache", "cache", "--no-report", *options])

    return run


def read(out):
    return json.loads((out / "results.json").read_text())


def test_items_are_counted_by_class_and_other_numbers_stay(evaluate, classes, tmp_path, monkeypatch):
    assert evaluate(tmp_path / "plain") == 0
    assert evaluate(tmp_path / "out", "--bindings", CAPTIONS) == 0
    plain, results = read(tmp_path / "plain"), read(tmp_path / "out")
    rows = pq.read_table(tmp_path / "out" / "per_query.parquet").to_pandas()
    assert [*rows.bindings.fillna("")] == [name or "" for part in PARTS for name in classes[part]]
    names = [name for name in dict.fromkeys(classes[PARTS[0]]) if name]
    assert {*names} == {*classes[PARTS[1]]} - {None} and len(names) == 4

    found, sizes = results["tasks"]["sugarcrepe"], results["sizes"]["sugarcrepe"]
    for name in names:
        for part, of_part in (*((part, rows[rows.part == part]) for part in PARTS), ("all", rows)):
            of_class, variant = of_part[of_part.bindings == name], f"{part}/bindings_{name}"
            assert found[variant]["ota"] == pytest.approx(100 * (of_class.chosen == "right").mean())
            assert found[variant]["grounding"] == pytest.approx(100 * of_class.grounding.sum() / of_class.pairs.sum())
            counted = {"items": len(of_class), "images": of_class.image.nunique(), "of_items": len(of_part)}
            assert sizes[variant] == counted | ({"parts": 2} if part == "all" else {})
            unseen = of_class[~of_class.seen]
            assert found[f"{variant}/unseen"]["ota"] == pytest.approx(100 * (unseen.chosen == "right").mean())

    for part in ("tasks", "intervals", "sizes", "variants", "headlines"):
        of_plain, of_both = plain[part]["sugarcrepe"], results[part]["sugarcrepe"]
        assert {name: of_both[name] for name in of_plain} == of_plain
    others = results["tasks"]["sugarcrepe"].keys() - plain["tasks"]["sugarcrepe"].keys()
    assert others == {
        f"{part}/bindings_{name}{unseen}" for part in (*PARTS, "all") for name in names for unseen in ("", "/unseen")
    }
    assert main(["verify", str(tmp_path / "out")]) == 0
    monkeypatch.chdir(tmp_path)
    exec(EXAMPLE, {})


def test_the_results_have_source_hash_and_parser(evaluate, classes, tmp_path):
    # With the two items that are left out because this model truncates them.
    of_class = sum(name is not None for of_part in classes.values() for name in of_part) + len(PARTS)
    assert evaluate(tmp_path / "out", "--bindings", CAPTIONS) == 0
    results = read(tmp_path / "out")
    about = results["data"]["sugarcrepe"]["bindings"]
    assert {key: about[key] for key in ("source", "captions", "parser", "items")} == {
        "source": CAPTIONS, "captions": CAPTION_COUNT, "parser": 1, "items": of_class,
    }  # fmt: skip
    assert any(f"({about['hash'][:12]})" in note and "version 1 of the parser" in note for note in results["notes"])
    frame = rococo_jax.read_results(tmp_path / "out")
    assert set(frame[frame.variant == "all/bindings_none_known"].bindings) == {"none_known"}


def test_classes_are_added_to_results_and_other_captions_are_refused(world, evaluate, tmp_path, capsys):
    together, apart = tmp_path / "together", tmp_path / "apart"
    assert evaluate(together, "--bindings", CAPTIONS) == 0 and evaluate(apart) == 0
    assert evaluate(apart, "--bindings", CAPTIONS) == 0
    capsys.readouterr()
    # Without the option, or with the same captions elsewhere, there is nothing to do.
    shutil.copy(world / CAPTIONS, world / "same.json")
    for options in ((), ("--bindings", CAPTIONS), ("--bindings", "same.json")):
        assert evaluate(apart, *options) == 0
    assert "embedded" not in capsys.readouterr().err
    for name in ("results.json", "per_query.parquet", "pairs.parquet", "examples.parquet"):
        assert (apart / name).read_bytes() == (together / name).read_bytes()
    # What is added later keeps the classes.
    for out in (apart, together):
        assert evaluate(out, "--corruptions", "fog", "--severities", "2") == 0
    assert "all/bindings_none_known" in read(apart)["tasks"]["sugarcrepe"]
    (world / "other.json").write_text(json.dumps([{"image": "a.jpg", "caption": ["a red dog"]}]))
    assert evaluate(apart, "--bindings", "other.json") == 2
    assert "data.sugarcrepe.bindings.captions: found results of 'model' with" in capsys.readouterr().err


def test_results_share_a_table_where_classes_are_of_the_same_captions(world, evaluate, tmp_path):
    (world / "fewer.json").write_text(json.dumps([{"image": "a.jpg", "caption": ["a red dog", "a small cat"]}]))
    for name, options in {"plain": (), "one": (CAPTIONS,), "other": ("fewer.json",)}.items():
        assert evaluate(tmp_path / name, *(word for file in options for word in ("--bindings", file))) == 0
    variants = {name: conditions_of(read(tmp_path / name))[0].variants for name in ("plain", "one", "other")}
    key, of_class = ("sugarcrepe", "all"), ("sugarcrepe", "all/bindings_none_known")
    assert variants["plain"][key] == variants["one"][key] == variants["other"][key]
    assert variants["one"][of_class] != variants["other"][of_class]
    _, second = group_by_fingerprint(load_results([tmp_path / "one", tmp_path / "other"]))
    assert {field.partition(" of ")[0] for field, *_ in second.differences} == {"bindings captions"}


# Options, the file of captions, and what the one line contains.
REFUSED = {
    "no file": (None, "captions.csv: "),
    "no bindings": ([{"image": "a.jpg", "caption": ["ein roter Hund"]}], "bindings: found none in 1 captions"),
    "other JSON": ({"a": 3}, "bad.json: "),
}


@pytest.mark.parametrize("case", REFUSED)
def test_captions_that_cannot_be_used_are_refused_in_one_line(world, evaluate, tmp_path, capsys, case):
    value, words = REFUSED[case]
    (world / "bad.json").write_text(json.dumps(value))
    assert evaluate(tmp_path / "out", "--bindings", "captions.csv" if value is None else "bad.json") == 2
    assert words in (line := capsys.readouterr().err.strip().splitlines()[-1]) and line.startswith("rococo: ")
    assert not (tmp_path / "out").exists()


def test_benchmarks_without_true_and_false_texts_are_refused_alone_and_left_as_they_are_beside_others(
    world, evaluate, tmp_path, capsys
):
    write_pictures(world / "data" / "cifar10" / "images", [f"{each}/0.png" for each in ("cat", "dog")], noise(4, 4, 8))
    assert evaluate(tmp_path / "out", "--bindings", CAPTIONS, "--benchmarks", "cifar10") == 2
    assert "bindings: found cifar10, without an item that has bindings" in capsys.readouterr().err
    assert evaluate(tmp_path / "out", "--bindings", CAPTIONS, "--benchmarks", "cifar10,sugarcrepe") == 0
    assert "not divided by bindings" in capsys.readouterr().err
    assert "bindings" not in read(tmp_path / "out")["benchmarks"]["cifar10"]["request"]
