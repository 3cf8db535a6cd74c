"""Captions, items and tables of the experiment on batch size and attribute density."""

import csv
import json

import numpy as np
import pytest

from rococo_jax.demo.objects import ANY, PLACES
from tests.support.made_runs import make_run

# Places that contain a colour: "in the green meadow".
PLACE_PHRASES = sorted({phrase for place in PLACES for phrase in place.phrases}, key=len, reverse=True)


@pytest.fixture(scope="module")
def script(experiment):
    return experiment("batch_size")


@pytest.fixture(scope="module")
def scenes(script):
    return list(script.make_scenes("train", 300))


def colours_and_other_words(caption):
    place = next(phrase for phrase in PLACE_PHRASES if caption.endswith(f" {phrase}"))
    words = caption.removesuffix(place).split()
    colours = [word for word in words if word in ANY]
    return colours, [word for word in words if word not in (*ANY, "a", "an")] + [place]


def test_sparse_captions_leave_out_three_of_four_colours_and_change_nothing_else(script, scenes):
    named = 0
    for scene in scenes:
        for sparse, dense in zip(script.captions_of(scene, 0.25), script.captions_of(scene, 1.0), strict=True):
            of_sparse, sparse_words = colours_and_other_words(sparse)
            of_dense, dense_words = colours_and_other_words(dense)
            assert sparse_words == dense_words and set(of_sparse) <= set(of_dense)
            assert sorted(of_dense) == sorted([scene.main.colour, scene.other.colour])
            named += len(of_sparse)
    # Five standard deviations of 3,000 colours.
    assert abs(named / 3000 - 0.25) < 0.04


def test_only_the_order_of_colours_tells_an_exchanged_caption_from_the_true_one(script, scenes):
    for scene in scenes:
        captions = script.false_captions(scene)
        true, exchanged = captions["exchanged colours"]
        assert sorted(true.replace("an ", "a ").split()) == sorted(exchanged.replace("an ", "a ").split())
        assert true != exchanged and {each for each, _ in captions.values()} == {true}
        [false_colour] = set(colours_and_other_words(captions["colour"][1])[0]) - {
            scene.main.colour,
            scene.other.colour,
        }
        assert false_colour in ANY
        true_words, false_words = (set(text.split()) - {"a", "an"} for text in captions["noun"])
        [false_noun] = false_words - true_words
        assert false_noun in {noun for kind in script.KINDS for noun in kind.nouns}
        assert false_noun not in {*scene.main.kind.nouns, *scene.other.kind.nouns}


def test_the_splits_share_no_composition(script, scenes):
    of_split = [
        {(scene.place.name, *sorted(thing.kind.name for thing in script.things_of(scene))) for scene in each}
        for each in (scenes, script.make_scenes("validation", 100), script.make_scenes("test", 100))
    ]
    assert not of_split[0] & of_split[1] and not of_split[0] & of_split[2] and not of_split[1] & of_split[2]


def write_sweep(folder, captions, batch_size, rate, runs, steps=4):
    """Write a sweep with results of made-up models: the noise of each is given by seed."""
    points = []
    for seed, noise in runs.items():
        run = folder / "points" / f"run-{rate}-{seed}"
        make_run(run / "evaluation", run.name, noise, seed)
        config = {"batch_size": batch_size, "steps": steps, "optimizer.learning_rate": rate}
        (run / "config.json").write_text(json.dumps(config))
        points.append({"run": run.name, "arm": captions})
    points.append({"run": "not-trained-yet", "arm": captions})
    (folder / "sweep.json").write_text(json.dumps({"points": points}))


def r1_of(run, task="image_to_text"):
    return json.loads((run / "evaluation" / "results.json").read_text())["tasks"][task]["clean"]["r1"]


def test_the_rate_with_the_highest_mean_of_both_directions_is_chosen(script, tmp_path, capsys):
    for rate, noise in ((0.001, 1.0), (0.002, 0.6), (0.004, 1.4)):
        write_sweep(tmp_path / f"{rate}", "dense", 16, rate, {0: noise})
        write_sweep(tmp_path / f"sparse-{rate}", "sparse", 64, rate, {0: 1 - 100 * rate})
    # A search over fewer pairs chooses nothing.
    write_sweep(tmp_path / "shorter", "dense", 16, 0.008, {0: 0.1}, steps=2)
    script.write_rates(sorted(tmp_path.iterdir()), tmp_path / "rates.csv")
    rows = list(csv.DictReader((tmp_path / "rates.csv").open()))
    assert [(row["captions"], row["learning_rate"]) for row in rows if row["chosen"]] == [
        ("dense", "0.002"),
        ("sparse", "0.004"),
    ]
    run = tmp_path / "0.002" / "points" / "run-0.002-0"
    expected = (r1_of(run) + r1_of(run, "text_to_image")) / 2
    (row,) = [row for row in rows if (row["captions"], row["learning_rate"]) == ("dense", "0.002")]
    assert float(row["R@1"]) == pytest.approx(expected, abs=0.006)
    # The sparse arm's best rate is the highest that was tried.
    (warning,) = capsys.readouterr().out.splitlines()
    assert warning == "sparse, batch size 64: the best rate, 0.004, is at an end of the range"


def test_a_table_has_a_row_for_each_arm_and_tests_those_of_the_longest_training(script, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "METRICS", script.METRICS[:1])
    monkeypatch.setattr(script, "TESTED", ("R@1, image to text",))
    noise = {("sparse", 64): 0.9, ("sparse", 256): 1.1, ("dense", 16): 0.5, ("dense", 64): 0.6, ("dense", 1024): 0.7}
    # A batch of 1,024 is trained on twice as many pairs.
    pairs = {arm: 8192 if arm[1] == 1024 else 4096 for arm in noise}
    for (captions, size), each in noise.items():
        runs = {seed: each for seed in (1, 2, 3)}
        write_sweep(
            tmp_path / f"models-{captions}-{size}", captions, size, 0.002, runs, steps=pairs[captions, size] // size
        )
        write_sweep(
            tmp_path / f"half-{captions}-{size}",
            captions,
            size,
            0.002,
            {1: each},
            steps=pairs[captions, size] // 2 // size,
        )
    script.write_table(sorted(tmp_path.iterdir()), tmp_path / "table.csv")
    rows = {
        (row["captions"], int(row["batch_size"]), int(row["pairs"])): row
        for row in csv.DictReader((tmp_path / "table.csv").open())
    }
    assert len(rows) == 10
    values = {arm: [r1_of(run) for run in tmp_path.glob(f"models-{arm[0]}-{arm[1]}/points/run-*")] for arm in noise}
    for arm, of_arm in values.items():
        assert float(rows[*arm, pairs[arm]]["mean"]) == pytest.approx(np.mean(of_arm), abs=0.006)
        assert float(rows[*arm, pairs[arm]]["SD of seeds"]) == pytest.approx(np.std(of_arm, ddof=1), abs=0.006)
        assert rows[*arm, pairs[arm]]["seeds"] == "3" and rows[*arm, pairs[arm] // 2]["seeds"] == "1"
    tests = {row["claim"].partition(": ")[2]: row for row in csv.DictReader((tmp_path / "table_tests.csv").open())}
    for name, (first, second) in {
        "dense, batch of 1024 minus 16": (("dense", 16), ("dense", 1024)),
        "sparse, batch of 256 minus 64": (("sparse", 64), ("sparse", 256)),
        "dense minus sparse, batch of 64": (("sparse", 64), ("dense", 64)),
    }.items():
        expected = np.mean(values[second]) - np.mean(values[first])
        assert float(tests[name]["difference"]) == pytest.approx(expected, abs=0.006)
        assert tests[name]["p by Holm"] and tests[name]["seeds"] == "3"
