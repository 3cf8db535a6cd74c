"""The command `rococo attack`: outputs that other commands read, and bad input."""

import json

import pytest

from rococo_jax import read_results
from rococo_jax.cli.main import main
from tests.attacks.worlds import ITEMS, LEXICON_JSON, words, write_files
from tests.support.devices import all_devices_are
from tests.support.paths import CHECKOUT

pytestmark = pytest.mark.quick  # margins and counts, however the programs are compiled


@pytest.fixture(scope="module", autouse=True)
def one_device():
    """A command takes all devices of the machine: here as on a machine that has one."""
    with all_devices_are(1):
        yield


@pytest.fixture(scope="module")
def world(paths, tmp_path_factory):
    """Images, captions and a lexicon, and the attack of two models on them."""
    folder = write_files(tmp_path_factory.mktemp("world"), paths)
    assert main([*words(folder, "demo:plain demo:sc-vc", "out"), "--words", "1,2", "--search", "beam"]) == 0
    return folder


def test_evaluate_reads_attacked_captions_and_computes_the_same_recall(world):
    out = world / "evaluated"
    command = f"evaluate demo:plain --images {world}/images --annotations {world}/out/plain/annotations"
    assert main([*command.split(), "--mixed-galleries", "none", "--no-report", "--out", str(out)]) == 0
    summary = json.loads((world / "out/plain/attack.json").read_text())
    frame = read_results(out)
    rows = frame[(frame.metric == "r1") & (frame.task == "image_to_text")].set_index("variant").value
    assert rows["clean"] == pytest.approx(summary["results"]["words"]["values"]["r1"])
    # The gallery has the captions made for all images; each image is fooled at least by its own.
    assert rows["attacked"] <= summary["results"]["words"]["values"]["r1_2"] + 1e-9


def test_several_models_are_compared_and_attacks_transferred(world):
    comparison = json.loads((world / "out/comparison.json").read_text())["words"]
    assert {(row["model"], row["reference"]) for row in comparison["differences"]} == {("sc-vc", "plain")}
    values = {
        name: json.loads((world / f"out/{name}/attack.json").read_text())["results"]["words"]["values"]
        for name in ("plain", "sc-vc")
    }
    for row in comparison["differences"]:
        expected = values["sc-vc"][row["metric"]] - values["plain"][row["metric"]]
        assert row["points"] == pytest.approx(expected)
    for name, tested in comparison["transfer"].items():
        assert set(tested) == {"plain", "sc-vc"}
        # Against the model itself the final captions leave what the search left.
        assert tested[name]["r1"] == pytest.approx(values[name]["r1_2"])


def test_a_benchmark_in_the_documented_layout_is_attacked(world, capsys):
    make = f"make-benchmark --images {world}/images --captions {world}/captions.json --lexicon {world}/lexicon.json"
    assert main([*make.split(), "--out", str(world / "data")]) == 0
    command = f"attack demo:plain --data {world}/data --lexicon {world}/lexicon.json --no-cache --out {world}/of_data"
    assert main([*command.split(), "--benchmarks", "mine"]) == 0
    one, two = (json.loads((world / name / "attack.json").read_text()) for name in ("of_data", "out/plain"))
    assert one["results"]["words"]["values"]["r1"] == two["results"]["words"]["values"]["r1"]


@pytest.mark.slow
def test_the_class_of_an_image_is_attacked_and_counted_as_evaluate_does(world, tmp_path, expect_refusal, monkeypatch):
    monkeypatch.setattr("rococo_jax.attacks.pixel_attack._CPU_IMAGES", 5)
    for label, numbers in {"cat": (0, 3), "race_car": (1, 2), "tree": (4,)}.items():
        folder = tmp_path / "data/classes/images" / label
        folder.mkdir(parents=True)
        for number in numbers:
            (folder / f"{number}.png").symlink_to((world / "images" / f"{number}.png").resolve())
    attack = f"attack demo:plain --data {tmp_path}/data --benchmarks classes --no-cache"
    expect_refusal(f"{attack} --words 1 --out {tmp_path}/x", "for --pixels alone has classes")
    assert (
        main([*attack.split(), *f"--pixels 2/255 --templates 5 --steps 2 --loss margin --out {tmp_path}/out".split()])
        == 0
    )
    values = json.loads((tmp_path / "out/attack.json").read_text())["results"]["pixels"]["values"]
    top1 = []
    attacked = (
        f"--images {tmp_path}/out/attacked_images/images --annotations {tmp_path}/out/attacked_images/annotations"
    )
    for name, data in (("clean", f"--data {tmp_path}/data --benchmarks classes"), ("attacked", attacked)):
        out = tmp_path / name
        command = f"evaluate demo:plain {data} --tasks classes --templates 5 --no-report --out {out}"
        assert main(command.split()) == 0
        frame = read_results(out)
        top1 += frame[(frame.metric == "top1") & (frame.variant == "clean")].value.tolist()
    assert top1 == pytest.approx([values["r1"], values["r1_2/255"]])
    assert values["r1_2/255"] < values["r1"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lexicon": {"groups": [{"concept": "fish", "nouns": ["carp", "eel"]}]}}, "nouns of the lexicon: found none"),
        ({"captions": [{"image": "0.png", "caption": ["Nothing here"]}], "options": "--changes attribute,order"},
         "captions: words: found no word that attribute, order can change"),
        ({"options": "--changes nouns"}, "attack: --changes: found 'nouns'"),
        ({"options": "--words 0"}, "--words: numbers: found 0"),
        ({"options": "--data x"}, "rococo attack: data: found both; wanted --data, or --images and --captions"),
        ({"options": "--by pairs"}, "score_pairs: found none"),
        ({"options": "--characters 1 --universal 2"}, "attack: --universal: found it alone; wanted it with"),
        ({"options": "--benchmarks mine"}, "attack: --benchmarks: found it alone; wanted it with --data"),
        ({"captions": [{"image": "none.png", "caption": ["A dog"]}, {"image": "0.png", "caption": ["A cat"]}]},
         "wanted all of them, or --allow-missing-images"),
        ({"captions": [{"image": "0.png", "caption": ["A dog"]}], "options": "--characters 1"},
         "captions: images: found 'A dog' for every image"),
        ({"captions": [{"image": "0.png", "caption": ["A dog", "A cat"]}], "options": "--pixels 1/255"},
         "captions: texts: found only true ones of 0.png; wanted a wrong text for each image"),
        ({"options": "--norm l2 --steps 3"}, "attack: --norm: found it alone; wanted it with --pixels"),
        ({"options": "--pixels 1/255 --changes order"}, "attack: --changes: found it alone; wanted it with --words or"),
        ({"options": "--beam-width 3"}, "attack: --beam-width: found it alone; wanted it with --search beam"),
        ({"options": "--pixels 0"}, "attack: --pixels: found 0; wanted a radius above 0, at most 1"),
        ({"options": "--pixels 1/255,2"}, "attack: --pixels: found 2; wanted"),
        ({"options": "--search depth"}, "attack: --search: found 'depth'"),
        ({"options": "--pixels 1/255 --loss ce+l2"}, "attack: --loss: found 'l2'"),
        ({"options": "--pixels tiny"}, "--pixels: numbers: found tiny"),
        ({"options": "--pixels 1/255", "model": f"{CHECKOUT}/tests/attacks/worlds.py:Words"}, "gradients: found none"),
    ],
)  # fmt: skip
def test_bad_input_is_reported_in_one_line(world, tmp_path, refusal, changes, message):
    captions = [{"image": item.image, "caption": list(item.captions)} for item in ITEMS]
    (tmp_path / "captions.json").write_text(json.dumps(changes.get("captions", captions)))
    (tmp_path / "lexicon.json").write_text(json.dumps({**LEXICON_JSON, **changes.get("lexicon", {})}))
    (tmp_path / "images").symlink_to(world / "images")
    model, options = changes.get("model", "demo:plain"), changes.get("options", "")
    line = refusal(*words(tmp_path, model, "out", "--pixels" not in options), *options.split())
    assert message in line and not (tmp_path / "out").exists()
