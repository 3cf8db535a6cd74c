"""Evaluation on a list of images or items: the numbers of files that were cut by hand, and refusals of other lists."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas
import pytest
from PIL import Image

import rococo_jax
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.benchmarks.subset import read_subset
from rococo_jax.checkpoints import save_model
from rococo_jax.cli.main import main
from rococo_jax.evaluation.inputs import open_benchmarks
from rococo_jax.storage import hash_json
from tests.support.refusals import refused
from tests.support.tiny import WORDS, tiny_encoder
from tests.support.world import noise, write_pictures, write_world

IMAGES = 12
LISTED = [f"{number:02}.png" for number in (11, 2, 3, 5, 8)]
NUMBERS = ("kinds", "variants", "tasks", "intervals", "sizes", "chance", "headlines", "curves")
CLASSES = {f"{label}/{number}.png": label for label in ("cat", "dog", "tree") for number in range(8)}
IN_CLASSES = [f"{label}/{number}.png" for label in ("cat", "dog") for number in (6, 1, 3)]
# Two parts with the same ids; of what is listed, one pair is complete, and one lacks an item.
ITEMS = [
    {
        "id": f"{number}",
        "part": part,
        "images": [{"file": f"{number}.png"}],
        "texts": [f"a {WORDS[number + 6]} near {part}", "a big ball"],
        "match": [[0, 0]],
        "pair": f"pair {number // 2}",
    }
    for part in ("one", "two")
    for number in range(8)
]
ITEMS += [
    {
        "id": f"both {number}",
        "part": "both",
        "images": [{"file": f"{number}.png"}, {"file": f"{number + 1}.png"}],
        "texts": ["a red cat", "a blue boat"],
        "match": [[0, 0], [1, 1]],
    }
    for number in range(4)
]
IN_ITEMS = ["one/0", "one/1", "one/2", "3.png", "both 2"]
SMALL = {"mixed_galleries": ("mix_0.9",), "seeds": (1,), "templates": ("5",)}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """A data folder with retrieval, choices and classes, and a model."""
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    captions = [[" ".join(rng.choice(WORDS, 4)) for _ in range(5)] for _ in range(IMAGES)]
    write_world(folder / "made", captions, altered={"danger": "{} gun".format}, picture=noise(8, 8, 4))
    shutil.copytree(folder / "made" / "images", folder / "coco" / "images")
    shutil.copytree(folder / "made" / "annotations", folder / "rococo" / "annotations")
    write_pictures(folder / "choices" / "images", [f"{number}.png" for number in range(8)], noise(8, 8, 4))
    write_items(folder, ITEMS)
    write_pictures(folder / "classes" / "images", CLASSES, noise(8, 8, 4))
    write_labels(folder, CLASSES)
    write_pictures(folder / "out_images", ["a.png", "b.png", "c.png"], noise(8, 8, 4))
    save_model(folder / "tiny", tiny_encoder())
    save_model(folder / "other", tiny_encoder(seed=1, name="other"))
    return folder


def write_items(folder: Path, items: list[dict]) -> None:
    (folder / "choices" / "items.jsonl").write_text("".join(json.dumps(each) + "\n" for each in items))


def write_labels(folder: Path, labels: dict[str, str]) -> None:
    lines = [f"{image},{label}" for image, label in labels.items()]
    (folder / "classes" / "labels.csv").write_text("\n".join(["image,label", *lines]) + "\n")
    (folder / "classes" / "classes.json").write_text(json.dumps(["cat", "dog", "tree"]))


def evaluate(data: Path, benchmark: str, **settings):
    return rococo_jax.evaluate(tiny_encoder(), data=data, benchmarks=benchmark, **{**SMALL, **settings})


def listed_in(folder: Path, keys: list[str]) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "list.txt").write_text("\n".join(keys) + "\n")
    return str(folder / "list.txt")


def cut(data: Path, folder: Path) -> Path:
    """Copy a data folder whose files a test will cut."""
    shutil.copytree(data, folder)
    return folder


def test_retrieval_on_a_list_equals_retrieval_on_annotations_cut_by_hand(data, tmp_path):
    by_hand = cut(data, tmp_path / "cut")
    for path in (by_hand / "rococo" / "annotations").iterdir():
        items = [each for each in json.loads(path.read_text()) if each["image"] in LISTED]
        path.write_text(json.dumps(items))
    file = listed_in(tmp_path, LISTED)
    corrupted = {"corruptions": "fog", "severities": 3}
    subset, expected = evaluate(data, "rococo", only=file, **corrupted), evaluate(by_hand, "rococo", **corrupted)
    assert {part: subset.get(part) for part in NUMBERS} == {part: expected.get(part) for part in NUMBERS}
    # 5 images with 5 captions each, and as many altered captions.
    assert subset["sizes"]["image_to_text"]["danger"] == {"queries": 5, "gallery": 50, "images": 5, "pairs": 25}
    assert subset["sizes"]["text_to_image"]["clean"]["gallery"] == 5
    sentence = f"5 of {IMAGES} images, listed in {file}"
    assert [note for note in subset["notes"] if note.startswith(sentence)]
    only = subset["data"]["rococo"]["only"]
    assert (only["selected"], only["of"], only["unit"], only["file"]) == (5, IMAGES, "images", file)
    assert subset["fingerprint"]["data"]["rococo"]["only"] == only["sha256"] == hash_json(sorted(LISTED))
    everything = evaluate(data, "rococo")["fingerprint"]
    assert "only" not in everything["data"]["rococo"]
    assert everything["comparable"] != subset["fingerprint"]["comparable"]


def test_choices_on_a_list_equal_choices_on_items_cut_by_hand(data, tmp_path):
    chosen = {("one", "0"), ("one", "1"), ("one", "2"), ("one", "3"), ("two", "3"), ("both", "both 2")}
    chosen |= {("both", "both 3")}  # by its first image
    items = [each for each in ITEMS if (each["part"], each["id"]) in chosen]
    for each in items:  # its other item is not listed, so that it is no pair
        if each["part"] == "two":
            del each["pair"]
    by_hand = cut(data, tmp_path / "cut")
    write_items(by_hand, items)
    file = listed_in(tmp_path, IN_ITEMS)
    subset, expected = evaluate(data, "choices", only=f"choices={file}"), evaluate(by_hand, "choices")
    assert {part: subset.get(part) for part in NUMBERS} == {part: expected.get(part) for part in NUMBERS}
    assert subset["data"]["choices"]["only"]["selected"] == 7
    assert f"7 of 20 items, listed in {file}: the numbers are of these items only" in subset["notes"]
    assert subset["fingerprint"]["data"]["choices"]["only"] == hash_json(sorted(IN_ITEMS))


@pytest.mark.slow
def test_classes_on_a_list_have_the_rows_and_accuracies_of_the_listed_images(data, tmp_path):
    file = listed_in(tmp_path, IN_CLASSES)
    settings = {"corruptions": ("fog", "contrast"), "severities": 5, "out_images": {"other": data / "out_images"}}
    results = {}
    for name, only in (("all", ()), ("listed", file)):
        evaluate(data, "classes", only=only, out=tmp_path / name, **settings)
        results[name] = json.loads((tmp_path / name / "results.json").read_text())
    rows = {name: pandas.read_parquet(tmp_path / name / "per_query.parquet") for name in results}
    keys = ["task", "variant", "image"]
    full = rows["all"][rows["all"].image.isin(IN_CLASSES) | rows["all"].image.str.startswith("other/")]
    # The number of an image, and temperatures, depend on the other images.
    columns = [name for name in full if not name.startswith(("unit", "scaled", "nll_scaled", "ece_scaled"))]
    one, other = (each[columns].sort_values(keys).reset_index(drop=True) for each in (full, rows["listed"]))
    pandas.testing.assert_frame_equal(one, other)

    clean = rows["listed"][(rows["listed"].task == "classes") & (rows["listed"].variant == "uncorrupted")]
    for kind in ("fog", "contrast"):
        found = results["listed"]["tasks"]["classes"][f"{kind}_5"]
        after = rows["all"][(rows["all"].task == "classes") & (rows["all"].variant == f"{kind}_5")]
        before, after = (each.set_index("image").loc[IN_CLASSES] for each in (clean, after))
        assert found["ras"] == pytest.approx(ras(before, after), abs=1e-9)
        assert found["top1"] == pytest.approx(100 * (after.label == after.predicted).mean())
    assert results["listed"]["sizes"]["classes_ood"]["other"] == {"inside": 6, "outside": 3}


def ras(before: pandas.DataFrame, after: pandas.DataFrame) -> float:
    """RAS by its formula, from confidence, entropy and predictions of three classes."""

    def parts(rows: pandas.DataFrame) -> tuple[np.ndarray, np.ndarray]:
        right = (rows.label == rows.predicted).to_numpy()
        return 1 - np.abs(rows.confidence.to_numpy() - right), rows.entropy.to_numpy() / np.log(3)

    (a_before, u_before), (a_after, u_after) = parts(before), parts(after)
    return float(np.mean(a_after - a_before - np.abs(u_after - u_before)))


def test_the_hash_of_a_list_does_not_depend_on_its_order_or_form(data, tmp_path):
    (tmp_path / "a").write_text("".join(f"{key}\r\n" for key in LISTED))
    (tmp_path / "b").write_text(json.dumps(LISTED[::-1]))
    chosen = [{"image": key, "inconsistency": 1.0} for key in LISTED]
    (tmp_path / "c").write_text(json.dumps({"format": "rococo_jax.selection", "version": 1, "chosen": chosen}))
    hashes, folders = set(), {"images": data / "coco" / "images", "annotations": data / "rococo" / "annotations"}
    for form in "abc":
        (benchmark,) = open_benchmarks(Settings(only=(str(tmp_path / form),), mixed_galleries=()), **folders)
        assert benchmark.images == tuple(sorted(LISTED))
        assert "5 of 12 images, listed in" in benchmark.summary()
        hashes.add(benchmark.fingerprint()["only"])
    assert hashes == {hash_json(sorted(LISTED))}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "entries: found none; wanted at least one"),
        ("[]", "entries: found none"),
        ("02.png\n03.png\n02.png\n03.png", "entries: found 2 repeated, the first '02.png'; wanted each once"),
        ("02.png\nx.png\ny.png", "entries: found 2 of 3 that the benchmark does not have, the first 'x.png'"),
        ('{"images": ["02.png"]}', "JSON: found an object with 'images'; wanted one image or item per line"),
        ("[1, 2]", "entries: found 1; wanted names of images or items, as strings"),
        ('["02.png"', "JSON"),
    ],
)
def test_invalid_lists_are_refused_in_one_line(content, message, data, tmp_path):
    (tmp_path / "list").write_text(content)
    settings = Settings(only=(str(tmp_path / "list"),), mixed_galleries=())
    refused(f"list: {message}", open_benchmarks, settings, data=data, names=["rococo"])


def test_ambiguous_and_unknown_keys_of_items_are_refused(data, tmp_path):
    def opened(*keys: str):
        return open_benchmarks(Settings(only=(listed_in(tmp_path, [*keys]),)), data=data, names=["choices"])

    refused("found 2 ids that several parts have, the first '1'; wanted PART/ID, such as 'one/0'", opened, "1", "2")
    refused("found 1 of 2 that the benchmark does not have, the first 'two/9'", opened, "two/9", "0.png")


def test_lists_for_several_benchmarks_name_their_benchmarks(data, tmp_path, expect_refusal, capsys):
    images, items = listed_in(tmp_path / "i", LISTED), listed_in(tmp_path / "c", IN_ITEMS)
    command = f"evaluate {data}/tiny --data {data} --benchmarks rococo,choices --out {tmp_path}/out --no-report --quiet"
    command += " --mixed-galleries none --no-cache"
    expect_refusal(f"{command} --only {images}", f"only: found '{images}' for 2 benchmarks; wanted NAME=FILE")
    expect_refusal(f"{command} --only roccoco={images}", "only: found 'roccoco'", "did you mean rococo?")
    expect_refusal(f"{command} --only rococo={images} --only rococo={images}", "found two files for rococo; wanted one")
    expect_refusal(f"{command} --only rococo={tmp_path}/absent.txt", "absent.txt")
    assert main(f"{command} --only rococo={images} --only choices={items}".split()) == 0
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert {name: about["only"]["unit"] for name, about in results["data"].items()} == {
        "rococo": "images",
        "choices": "items",
    }


@pytest.mark.slow
def test_results_on_a_list_are_neither_resumed_nor_compared_with_others(data, tmp_path, expect_refusal, capsys):
    command = f"evaluate {{}} --data {data} --benchmarks rococo --quiet --mixed-galleries none --no-cache --out {{}}"
    tiny, other, out = data / "tiny", data / "other", tmp_path / "out"
    first = listed_in(tmp_path / "first", LISTED)
    same, fewer = listed_in(tmp_path / "same", LISTED[::-1]), listed_in(tmp_path / "fewer", LISTED[1:])
    listed = command.format(tiny, out / "listed")
    assert main(f"{listed} --only {first}".split()) == 0
    # Another file of the same list keeps the results; more is added to them; another list, or none, is refused.
    assert main(f"{listed} --only {same}".split()) == 0
    assert main(f"{listed} --only {same} --corruptions fog --severities 3".split()) == 0
    # The benchmark is opened again for both severities.
    assert main(f"{listed} --only {same} --corruptions fog --severities 5".split()) == 0
    results = json.loads((out / "listed" / "results.json").read_text())
    sizes = results["sizes"]["text_to_image"]
    assert [sizes[variant]["gallery"] for variant in ("clean", "fog_3", "fog_5")] == [5, 5, 5]
    expect_refusal(f"{listed} --only {fewer}", "fingerprint: data.rococo.", "another output folder")
    expect_refusal(listed, "fingerprint: data.rococo.images, data.rococo.only: found results of 'tiny'", "nothing for")
    assert main(command.format(other, out / "all").split()) == 0
    expect_refusal(f"compare {out}/listed {out}/all", "found 2 models under 2 different conditions", "data.rococo.only")
    assert main(command.format(tiny, out / "tiny").split()) == 0
    capsys.readouterr()
    assert main(f"compare {out}/all {out}/tiny {out}/listed".split()) == 0
    message = capsys.readouterr().err
    assert f"{out}/listed: not compared with the first results: data.rococo.only, data.rococo." in message
    assert main(f"report {out}/listed {out}/all --out {tmp_path}/page.html".split()) == 0
    page = (tmp_path / "page.html").read_text()
    assert "Not comparable with section 1" in page and "data.rococo.only" in page
    assert page.count(f"5 of 12 images, listed in {same}") >= 1


def test_a_list_is_refused_if_the_reader_cannot_select_items(data, tmp_path, monkeypatch):
    from rococo_jax.benchmarks.benchmark import find_benchmark
    from rococo_jax.benchmarks.choices.reader import open_choices

    info = find_benchmark("choices")
    settings = Settings(only=(listed_in(tmp_path, ["one/0"]),))

    def ignorant(folders, requested):
        return open_choices("choices", info.files, info.reader, folders, Settings())

    monkeypatch.setitem(info.__dict__, "open", ignorant)
    refused("choices: only: found .*list.txt; wanted no list", open_benchmarks, settings, data=data, names=["choices"])


def test_stored_embeddings_are_scored_on_a_list(data, tmp_path, expect_refusal):
    file = listed_in(tmp_path, LISTED)
    expected = evaluate(data, "rococo", only=file, mixed_galleries=())
    encoder, images = tiny_encoder(), [f"{number:02}.png" for number in range(IMAGES)]
    (benchmark,) = open_benchmarks(Settings(mixed_galleries=()), data=data, names=["rococo"])
    folder = data / "coco" / "images"
    pictures = [Image.open(folder / name) for name in images]
    vectors = {"image_names": images, "image_embeddings": encoder.encode_image(pictures)}
    vectors |= {"captions": list(benchmark.texts), "text_embeddings": encoder.encode_text(benchmark.texts)}
    np.savez(tmp_path / "vectors.npz", **{name: np.asarray(each) for name, each in vectors.items()})
    command = f"score --embeddings {tmp_path}/vectors.npz --data {data} --benchmarks rococo --mixed-galleries none"
    assert main(f"{command} --only {file} --out {tmp_path}/scored".split()) == 0
    scored = json.loads((tmp_path / "scored" / "results.json").read_text())
    assert scored["tasks"] == expected["tasks"] and scored["sizes"] == expected["sizes"]
    np.save(tmp_path / "S.npy", np.zeros((2, 2)))
    annotation = data / "rococo" / "annotations" / "danger.json"
    command = f"score --similarities {tmp_path}/S.npy --annotation {annotation} --only {file} --out {tmp_path}/F.json"
    expect_refusal(command, "--annotation: found also --only; wanted one of the two")


@pytest.mark.parametrize(
    "text",
    ['"a.png"\n"b.png"\n', '{"image": "a.png"}\n\n{"image": "b.png", "id": "7"}\n', '{"id": "a.png"}\n{"id": "b.png"}',
     '[{"image": "a.png"}, {"id": "b.png"}]'],
)  # fmt: skip
def test_lists_may_be_json_lines_and_objects(text, tmp_path):
    (tmp_path / "list.jsonl").write_text(text)
    assert [*read_subset(tmp_path / "list.jsonl").keys] == ["a.png", "b.png"]


def test_a_list_of_names_instead_of_files_is_recognised(data):
    names = [f"{number:02}.png" for number in range(3)]
    said = "only: found 3 entries for 1, such as '00.png', which is no file; wanted a file for each benchmark"
    refused(said, open_benchmarks, Settings(only=tuple(names)), data=data, names=("classes",))


def test_a_benchmark_without_the_requested_task_is_named_with_the_option(data, refusal, tmp_path):
    command = ["evaluate", "demo:plain", "--data", data, "--benchmarks", "classes,rococo", "--tasks", "image_to_text"]
    error = refusal(*command, "--out", tmp_path / "out")
    assert "classes: tasks: found none of --tasks (image_to_text); wanted one of classes" in error
