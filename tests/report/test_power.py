"""`rococo power`: the number of images that it prints finds the effect in about 80 % of samples."""

import json
import re

import numpy as np
import pytest

from rococo_jax.cli.main import main
from rococo_jax.metrics import metric_of
from rococo_jax.metrics.counts import Counts
from rococo_jax.metrics.paired import minimum_detectable_effect, paired_differences
from rococo_jax.report.power import images_needed
from tests.support.made_runs import make_run

SAMPLES = 400


def power(capsys, *arguments):
    assert main(["power", *map(str, arguments)]) == 0
    return capsys.readouterr().out.splitlines()


def shares_of_two(rng, images, gains, discordance):
    """Two models that differ on a share of the images in each test, the first winning more by its gain."""
    kinds = rng.random((images, len(gains)))
    up, down = kinds < (discordance + gains) / 2, kinds >= 1 - (discordance - gains) / 2
    recall, every = [metric_of("r1")], np.arange(images)
    sides = [[Counts.of_rows({"r1": each}, every, recall) for each in columns.T] for columns in (up, down)]
    return list(zip(*sides, strict=True))


def found_share(images, gains, discordance):
    rng = np.random.default_rng(7)
    results = [
        paired_differences(shares_of_two(rng, images, gains, discordance), flips=999)[0]["r1"] for _ in range(SAMPLES)
    ]
    return np.mean([each.p_corrected < 0.05 for each in results])


@pytest.mark.parametrize(
    ("rate", "discordance", "effect"), [(50, 40, 12), pytest.param(90, 12, 3, marks=pytest.mark.thorough)]
)
def test_the_printed_number_of_images_finds_the_effect_in_80_percent_of_samples(capsys, rate, discordance, effect):
    first, *_ = power(capsys, "--rate", rate, "--discordance", discordance, "--effect", effect)
    images = int(re.match(r"images needed: ([\d,]+) ", first)[1].replace(",", ""))
    assert 0.75 <= found_share(images, np.array([effect / 100]), discordance / 100) <= 0.85


@pytest.mark.thorough
def test_the_number_for_a_corrected_test_finds_the_effect_in_80_percent_of_samples():
    tests, effect = 10, 12.0
    pilot = paired_differences(shares_of_two(np.random.default_rng(1), 300, np.zeros(tests), 0.4))[0]["r1"]
    images = images_needed(effect, pilot.spread, pilot.critical)
    assert images > 1.4 * images_needed(effect, pilot.spread)
    gains = np.append(effect / 100, np.zeros(tests - 1))
    # The pilot's discordance is an estimate.
    assert 0.75 <= found_share(images, gains, pilot.spread**2 / 100**2) <= 0.85


def test_the_number_of_images_and_the_effect_follow_from_one_formula():
    for effect, spread, critical in ((5.0, 50.0, 1.96), (1.0, 20.0, 3.1), (30.0, 60.0, 2.4)):
        images = images_needed(effect, spread, critical)
        detectable = [minimum_detectable_effect(spread / n**0.5, n, critical) for n in (images, images - 1)]
        assert detectable[0] <= effect < detectable[1]


def test_a_pilot_gives_the_same_mde_as_its_comparison_and_family(tmp_path, capsys):
    for name, noise, seed in (("one", 1.0, 0), ("two", 1.6, 1)):
        make_run(tmp_path / name, name, noise, seed)
    number = "image_to_text", "danger", "fr1"
    lines = power(capsys, "--from", tmp_path, "--number", "/".join(number), "--effect", 10)
    assert main(["compare", str(tmp_path), "--json"]) == 0
    assert "corrected over 9 primary differences" in lines[0]
    rows = json.loads(capsys.readouterr().out)
    (mde,) = (row["mde"] for row in rows if (row["task"], row["variant"], row["metric"]) == number)
    assert lines[1] == f"minimum detectable effect: {mde:.1f} points with 60 images"
    assert lines[2].startswith("from two and one, FR@1, Danger, Image to text: discordance ") and len(lines) == 3
    more = power(capsys, "--from", tmp_path, "--effect", 10, "--n", 6000)
    assert more[1].endswith(" points with 6,000 images") and "R@1, Clean" in more[2]


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ((), "input: found neither; wanted --from OUT or --rate PERCENT"),
        (("--rate", "60", "--from", "OUT"), "--from: found also --rate; wanted one of the two"),
        (("--rate", "60", "--discordance", "2"), "--discordance: percent: found 2; wanted a share from 3 (the effect)"),
        (("--rate", "60", "--effect", "70"), "--effect: points: found 70; wanted at most 60, with a rate of 60 %"),
        (("--rate", "160"), "--rate: found 160.0; wanted a percentage from 0 to 100"),
        (("--from", "OUT"), "no two that can be compared"),
    ],
)
def test_meaningless_plans_are_refused_in_one_line(tmp_path, refusal, options, part):
    make_run(tmp_path / "one", "one", 1.0)
    options = [str(tmp_path / "one") if each == "OUT" else each for each in options]
    assert part in refusal("power", *(["--effect", "3"] if "--effect" not in options else []), *options)
