"""The comparison over folds: the folds, and the runs that are put together from them."""

import json

import numpy as np
import pytest

from rococo_jax.metrics import metric_of
from rococo_jax.metrics.counts import Counts
from tests.support.made_runs import make_run
from tests.support.paths import CHECKOUT
from tests.support.scripts import run_script

SCRIPT = CHECKOUT / "experiments/defence_folds.py"


@pytest.fixture(scope="module")
def script(experiment):
    return experiment("defence_folds")


def test_every_image_is_held_out_once_and_its_fold_does_not_train_on_it(tmp_path, monkeypatch):
    data, out = tmp_path / "data", tmp_path / "folds"
    names = [f"val2014/{number}.jpg" for number in range(12)]
    for name in names:
        (data / "coco/images" / name).parent.mkdir(parents=True, exist_ok=True)
        (data / "coco/images" / name).write_bytes(name.encode())
    for file, part in (("captions_train.json", names[:9]), ("captions_test.json", names[9:])):
        (data / "coco" / file).write_text(json.dumps([{"image": name, "caption": ["a"]} for name in part]))
    run_script(monkeypatch, SCRIPT, "split", "--data", data, "--out", out)
    held_out = []
    for fold in range(5):
        training = {image["image"] for image in json.loads((out / str(fold) / "train.json").read_text())}
        images = {f"val2014/{path.name}" for path in (out / str(fold) / "data/coco/images/val2014").iterdir()}
        assert images == {image["image"] for image in json.loads((out / str(fold) / "held.json").read_text())}
        assert training == set(names) - images
        held_out += images
    assert sorted(held_out) == sorted(names)


def test_the_interval_of_the_ratio_matches_a_bootstrap_over_seeds_of_each_arm(script):
    generator = np.random.default_rng(2)
    a, b = generator.normal(12.0, 1.0, 10), generator.normal(30.0, 1.0, 10)
    runs = [script.Runs(values, np.tile(values, (4000, 1))) for values in (a, b)]
    ratio, low, high = script.bootstrap_ratio(*runs)
    assert ratio == pytest.approx(100 * a.mean() / b.mean())
    # The delta method with the variance that a bootstrap of ten values has.
    relative = np.sqrt(a.var() / 10 / a.mean() ** 2 + b.var() / 10 / b.mean() ** 2)
    # Quantiles of 4,000 draws, of a ratio that is nearly normal.
    assert [low, high] == pytest.approx([ratio * (1 - 1.96 * relative), ratio * (1 + 1.96 * relative)], rel=0.01)


def test_folds_are_joined_into_one_run_with_images_in_order(script):
    folds = [
        Counts.of_rows({"r1": np.array(hits)}, np.arange(2), [metric_of("r1")]).with_unit_names(np.array(names, object))
        for hits, names in (([1.0, 0.0], ["b", "d"]), ([0.0, 1.0], ["a", "c"]))
    ]
    counts = script.stack_folds(folds)
    assert counts.units.tolist() == ["a", "b", "c", "d"] and counts.value("r1") == 50
    assert counts.only(["r1"]).on(counts.units).tolist() == [[0, 1], [1, 1], [1, 1], [0, 1]]
    with pytest.raises(ValueError, match="two folds"):
        script.stack_folds([folds[0], folds[0]])


def test_runs_of_a_sweep_are_read_by_arm_and_seed(script, tmp_path):
    for name in ("plain-steps_200-0", "sc-held-steps_200-0", "sc-held-steps_200-1"):
        make_run(tmp_path / "points" / name / "evaluation", name, 1.0)
    assert set(script.read_sweep(tmp_path)) == {("plain", 0), ("sc-held", 0), ("sc-held", 1)}
    assert set(script.read_sweep(tmp_path, [1])) == {("sc-held", 1)}
