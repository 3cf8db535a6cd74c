"""The report on altered images: mixed galleries explained, corruptions as heat maps."""

import copy
import csv
import json
import re

import pytest

from rococo_jax.benchmarks.variants import Variant
from rococo_jax.cli.main import main
from rococo_jax.perturb.images.corruptions import CORRUPTIONS
from rococo_jax.report.blocks import Cell, HeatMap, asset, render_block
from rococo_jax.report.sections.corruptions import SHADES, shade, top_of_scale
from rococo_jax.report.vocabulary import order_variants, variant_label, variant_note
from tests.support.pages import Page, report, results_of, save
from tests.support.tiny import random_captions, tiny_encoder
from tests.support.variants import describe
from tests.support.world import noise, write_world

BASE = 40.0


def metrics_of(r1: float, **more) -> dict:
    split = {"top1_own": r1, "top1_own_altered": 0.0, "top1_other_altered": 0.0, "top1_other": 100 - r1}
    return {"r1": r1, "r5": r1 + 1, "r10": r1 + 2, "r_mean": r1 + 1, "fr1": 0.0, **split, **more}


def with_corruptions(results: dict, kinds=tuple(CORRUPTIONS), severities=(1, 3, 5)) -> dict:
    """Adds corrupted variants to image_to_text: kind number k at severity s drops by k + s per cent and a third."""
    results = copy.deepcopy(results)
    variants = results["tasks"]["image_to_text"]
    variants["uncorrupted"] = metrics_of(BASE)
    for severity in severities:
        for number, kind in enumerate(kinds):
            drop = number + severity + 1 / 3
            points = drop * BASE / 100
            variants[f"{kind}_{severity}"] = metrics_of(BASE - points, drop=drop, drop_points=points)
        if len(kinds) > 1:
            mean = (len(kinds) - 1) / 2 + severity + 1 / 3
            pooled = metrics_of(BASE * (1 - mean / 100), drop=mean, drop_points=mean * BASE / 100)
            variants[f"corruptions_{severity}"] = pooled
    return results


def with_mixes(results: dict) -> dict:
    results = copy.deepcopy(results)
    tasks = results["tasks"]
    clean, altered = tasks["image_to_text"]["clean"], tasks["image_to_text"]["danger"]
    spread = {f"{name}_std": 1.25 for name in ("r1", "r5", "fr1")}
    tasks["text_to_image"] = {"clean": clean, "control": altered, "mix_0.9": altered | spread, "patch_0.9": altered}
    sizes = {name: {"queries": 30, "gallery": 6} for name in ("clean", "control")}
    sizes |= {name: {"queries": 30, "gallery": 12, "seeds": [1, 10, 100]} for name in ("mix_0.9", "patch_0.9")}
    kinds = results["kinds"] | {"text_to_image": "rank"}
    return results | {"sizes": {"text_to_image": sizes}, "kinds": kinds}


def test_mixed_galleries_are_explained_and_variants_are_in_reading_order():
    assert "0.75 of itself blended" in variant_note("mix_0.75") and variant_note("fog_3") is None
    names = ["control", "control/unseen", "mix_0.9", "danger/unseen", "danger", "clean"]
    described = {name: Variant.of(fields) for name, fields in describe(names).items()}
    assert order_variants(names, described) == [
        "clean",
        "danger",
        "danger/unseen",
        "mix_0.9",
        "control",
        "control/unseen",
    ]


def test_the_heat_map_contains_every_kind_and_severity_with_its_number(tmp_path):
    results = with_corruptions(results_of("one"))
    page = report(tmp_path, save(tmp_path / "one", results))
    (cells,) = re.findall(r'<table class="heat">(.*?)</table>', (tmp_path / "report.html").read_text(), re.DOTALL)
    found = dict(re.findall(r'<td class="h\d" title="([^"]*?): drop[^"]*">([^<]*)</td>', cells))
    wanted = {
        variant_label(f"{kind}_{severity}"): f"{number + severity + 1 / 3:.1f}"
        for number, kind in enumerate(CORRUPTIONS)
        for severity in (1, 3, 5)
    }
    assert found.items() >= wanted.items() and len(found) == len(wanted) + 3
    for group in ("Noise", "Blur", "Weather", "Digital"):
        assert group in page.text("table")
    assert "Mean of 19 kinds" in page.text("table")
    # The CSV has every one.
    rows = csv.DictReader((tmp_path / "report.csv").open(encoding="utf-8", newline=""))
    assert {row["variant"] for row in rows} == set(results["tasks"]["image_to_text"])


def test_corruptions_stay_out_of_the_charts_and_of_the_other_headlines(tmp_path):
    page = report(tmp_path, save(tmp_path / "one", with_corruptions(with_mixes(results_of("one")))))
    charts = page.text("figure")
    assert "Same concept" in charts and "Mix 0.9" in charts and "Control" in charts
    assert not any(word in charts for word in ("Fog", "Gaussian noise", "Uncorrupted", "All kinds"))
    source = (tmp_path / "report.html").read_text()
    first, rest = source.split("Corrupted images</bdi></h2>")
    assert "Gaussian noise" not in first.split("<main")[1] and "Gaussian noise" in rest
    # The mean over nineteen kinds is a headline: 9 + severity + 1/3.
    tiles = rest[: rest.index("Means over kinds")]
    assert ">10.3<" in tiles and ">14.3<" in tiles and "severity 5" in tiles
    assert "sd\u00a0" not in rest


def with_unseen(results: dict) -> dict:
    """Add the control, and of every variant a second count over unseen images that is fooled far more often."""
    results = copy.deepcopy(results)
    variants = results["tasks"]["image_to_text"]
    variants["control"] = variants["danger"] | {"fr1": 3.0}
    unseen = {f"{name}/unseen": each | {"fr1": 90.0, "r1": 1.5, "drop": 88.0} for name, each in variants.items()}
    variants |= unseen | {"clean/unseen": variants["clean"]}
    return results


def test_results_on_unseen_images_are_not_shown_as_an_attack(tmp_path):
    page = report(tmp_path, save(tmp_path / "one", with_unseen(with_corruptions(results_of("one")))))
    source = (tmp_path / "report.html").read_text()
    first, rest = source.split("Corrupted images</bdi></h2>")
    main = first.split("<main")[1]
    assert "Fog" not in main and "Uncorrupted" not in main and "Fog 3" in rest
    # As without them: the first altered variant over all images, the largest drop, and no curve or point twice.
    headline = main.split('id="headline"')[1].split("<table")[0]
    assert "7.7 %" in headline and "unseen" not in headline and "90" not in headline
    tiles = main.split("Largest FR@1")[1].split("</div>")[0]
    assert "15.4" in tiles and "Danger" in tiles and "88.0" not in main.split("Largest drop")[1].split("</div>")[0]
    assert "Danger, unseen" in page.text("table")


def test_a_part_with_the_name_of_a_corruption_is_shown_as_a_part(tmp_path):
    results = results_of("one")
    figures = {"ota": 60.0, "ties": 0.0}
    results["tasks"]["own"] = {"fog_3": figures, "a/b": figures, "corruptions_1": figures, "mean": figures}
    results["kinds"]["own"] = "choice"
    parts = ["fog_3", "a/b", "corruptions_1"]
    results["variants"] = {"own": describe([*parts, "mean"], parts, mean=parts)}
    page = report(tmp_path, save(tmp_path / "one", results))
    assert "Fog 3" in page.text("table") and "Corrupted images" not in page.text()


def test_corruptions_of_several_models_share_one_scale_and_are_folded(tmp_path):
    for name, clean in (("alpha", 50.0), ("beta</td><script>x</script>", 40.0)):
        save(tmp_path / "all" / name[:4], with_corruptions(results_of(name, clean)))
    page = report(tmp_path, tmp_path / "all")
    assert len(page.all("script")) == 1
    source = (tmp_path / "report.html").read_text()
    assert source.count('class="heat"') == 2 and source.count('class="scale"') == 1
    means = next(each for each in source.split("<table") if "Means over corruptions</caption>" in each)
    assert means.index("alpha") < means.index("beta")
    assert "Corrupted images" in page.text("nav")


def test_a_page_is_written_for_a_single_kind_and_for_a_model_without_a_drop(tmp_path):
    results = with_corruptions(results_of("one"), kinds=("fog",), severities=(2,))
    results["tasks"]["image_to_text"]["fog_2"]["drop"] = None
    page = report(tmp_path, save(tmp_path / "one", results))
    assert "Fog" in page.text("table") and "Mean of" not in page.text("table")
    assert "Means over kinds" not in page.text()


def test_seeds_spread_and_control_are_explained(tmp_path):
    page = report(tmp_path, save(tmp_path / "one", with_mixes(results_of("one"))))
    assert "over mixing seeds 1, 10, 100; sd is" in page.text("p")
    assert "sd 1.2" in page.text("table")
    assert "resized to a square and compressed" in page.text("li")
    assert "what preprocessing alone does" in page.text("li")


def test_shades_are_in_order_and_cover_the_full_range():
    assert [shade(value, 60.0) for value in (-5, 0, 60, 61)] == [0, 0, SHADES - 1, SHADES - 1]
    shades = [shade(value, 60.0) for value in range(61)]
    assert shades == sorted(shades) and set(shades) == set(range(SHADES))
    assert top_of_scale([60.0]) == 60.0 and top_of_scale([60.1]) == 70.0 and top_of_scale([-3.0, None]) == 10.0
    drawn = render_block(HeatMap("x", ["kind", "1"], [("group", "<b>", [Cell("–", title="nothing")])]))
    assert "&lt;b&gt;" in drawn and '<td title="nothing">–</td>' in drawn


def colours(css: str) -> dict[str, str]:
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{3,6});", css))


def luminance(colour: str) -> float:
    """Relative luminance of WCAG 2.1."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    values = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in values]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("dark", [False, True])
def test_shades_keep_their_order_in_grey_and_their_numbers_are_readable(dark):
    css = asset("page.css")
    light_part, dark_part = css.split("@media screen and (prefers-color-scheme: dark)")
    found = colours(light_part) | (colours(dark_part[: dark_part.index("* {")]) if dark else {})
    shades = [luminance(found[f"h{each}"]) for each in range(SHADES)]
    assert shades == sorted(shades, reverse=not dark)
    for each in range(SHADES):
        ink = re.search(rf"\.h{each} {{ background: var\(--h{each}\); color: var\(--([\w-]+)\)", css)[1]
        low, high = sorted((shades[each], luminance(found[ink])))
        assert (high + 0.05) / (low + 0.05) >= 4.5, each  # WCAG 2.1, level AA


@pytest.mark.slow
def test_results_of_altered_images_are_shown(tmp_path):
    """No synthetic results: a tiny model, twelve pictures, one mix and two corruptions, through the command line."""
    captions = [random_captions(5, seed, longest=6) for seed in range(12)]
    write_world(tmp_path, captions, name="val/{:02}.png", picture=noise(9, 6, 60), altered={}, start=tiny_encoder())
    places = {name: str(tmp_path / name) for name in ("annotations", "images", "out")}
    command = ["evaluate", str(tmp_path / "start"), *(f"--{name}={place}" for name, place in places.items())]
    options = "--mixed-galleries patch_0.9,control --seeds 1,10 --corruptions contrast,pixelate --severities 5"
    assert main([*command, *options.split(), "--no-cache"]) == 0
    page = Page((tmp_path / "out" / "report.html").read_text(encoding="utf-8"))
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    numbers = results["tasks"]["text_to_image"]
    assert numbers["patch_0.9"]["fr1"] > 0, "nobody is fooled, so this test would show nothing"
    pictures = page.all("img")
    assert any("the image that ranks first: val/" in image["alt"] for image in pictures)
    assert all(max(int(each["width"]), int(each["height"])) <= 320 for each in pictures)
    assert any(text in page.text("article") for texts in captions for text in texts)
    assert "Pixelate" in page.text("table") and "Control" in page.text("table")
    assert "over mixing seeds 1, 10; sd is" in page.text("p")
