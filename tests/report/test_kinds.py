"""Every kind of task is shown: choices by part, kinds and metrics that nobody knows."""

import csv
import xml.etree.ElementTree

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rococo_jax.report.charts import Bar, interval_bars
from rococo_jax.report.collection import Estimate
from rococo_jax.sweep.page import Curve, Panel, curve_figure, curve_panel
from tests.support.pages import NASTY, report, save
from tests.support.variants import describe

PARTS = {"add_att": 30, "replace_rel": 40, "swap_att": 20}


def choice_run(folder, name: str, accuracy: float, seed: int = 0, **changed):
    """Write results of a benchmark of choices, and of a task of an unknown kind."""
    rng = np.random.default_rng(seed)
    variants, rows = {}, []
    for part, items in PARTS.items():
        right = rng.random(items) < accuracy / 100
        variants[part] = {"ota": 100 * right.mean(), "ties": 0.0}
        variants[f"{part}/uncorrupted"] = {"ota": 50.0, "ties": 0.0}
        variants[f"{part}/fog_3"] = {"ota": 40.0, "ties": 0.0, "drop": 20.0, "drop_points": 10.0}
        variants[f"{part}/snow_3"] = {"ota": 20.0, "ties": 0.0, "drop": 60.0, "drop_points": 30.0}
        variants[f"{part}/corruptions_3"] = {"ota": 30.0, "ties": 0.0, "drop": 40.0, "drop_points": 20.0}
        for place, each in enumerate(right.tolist()):
            row = {"task": "sugarcrepe", "variant": part, "image": f"{place:02}.jpg", "unit": place}
            rows.append(row | {"ota": each, "ties": False})
    mean = float(np.mean([variants[part]["ota"] for part in PARTS]))
    variants["mean"] = {"ota": mean, "ties": 0.0}
    tasks = {"sugarcrepe": variants, "word_game": {"easy": {"points_won": 12.345}, "hard": {"points_won": 7.0}}}
    intervals = {"sugarcrepe": {part: {"ota": [10.0, 90.0]} for part in PARTS}}
    data = {"sugarcrepe": {"parts": "p"}}
    results = {"format": "rococo_jax.results", "version": 2, "model": name, "protocol": "paper", "tasks": tasks}
    results |= {"variants": {"sugarcrepe": describe(variants, PARTS, mean=PARTS)}}
    results |= {"kinds": {"sugarcrepe": "choice", "word_game": "riddle"}, "intervals": intervals}
    results |= {"fingerprint": {"model": {"weights": name}, "data": data, "protocol": "paper"}}
    results |= {"sizes": {"sugarcrepe": {part: {"items": items} for part, items in PARTS.items()}}}
    results |= {"data": {"sugarcrepe": {"annotations": "data/sugar_crepe", "image_count": 12}}}
    save(folder, results | changed)
    pq.write_table(pa.Table.from_pylist(rows), folder / "per_query.parquet")
    return folder


def leaderboard_of(tmp_path) -> str:
    page = (tmp_path / "report.html").read_text()
    return next(table for table in page.split("<caption")[1:] if ">Models, " in table).split("</table>")[0]


def groups_of(tmp_path) -> list[str]:
    head = leaderboard_of(tmp_path).split("</thead>")[0]
    return [text.partition("</bdi>")[0] for text in head.split("<bdi>")[1:]]


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """A page of two models on choices, and its folder."""
    folder = tmp_path_factory.mktemp("two")
    for seed, (name, accuracy) in enumerate((("worse", 30), ("better", 90))):
        choice_run(folder / "all" / name, name, accuracy, seed)
    return report(folder, folder / "all"), folder


def test_the_leaderboard_of_choices_shows_the_mean_before_the_parts(two):
    page, folder = two
    assert groups_of(folder) == ["Mean", "Add att", "Replace rel", "Swap att"]
    rows = leaderboard_of(folder).split("<tbody>")[1]
    assert rows.index("better") < rows.index("worse")
    assert "SugarCrepe" in page.text("h2") and "guessing gives 50 %" in page.text("p")
    assert "30 Add att, 40 Replace rel, 20 Swap att" in page.text("p")
    assert "sd" not in page.text("table").split() and "Accuracy by part" in page.text("h3")


def test_each_part_of_choices_has_a_mean_over_corruptions(two):
    _, folder = two
    means = (folder / "report.md").read_text().split("Means over kinds")[1].split("###")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in means.splitlines() if "SugarCrepe" in line]
    assert [row[1] for row in rows[::2]] == ["SugarCrepe, add att", "SugarCrepe, replace rel", "SugarCrepe, swap att"]
    assert {tuple(row[2:]) for row in rows} == {("50.0", "30.0", "40.0")} and len(rows) == 6


def test_choices_are_compared_item_by_item_and_the_csv_file_contains_the_differences(two):
    page, folder = two
    assert "Differences from better" in page.text("h3") and "Difference" in page.text("th")
    rows = list(csv.DictReader((folder / "report.csv").open(encoding="utf-8", newline="")))
    compared = [row for row in rows if row["compared_with"]]
    assert {row["variant"] for row in compared} == {*PARTS, "mean"}
    assert {(row["model"], row["metric"]) for row in compared} == {("worse", "ota"), ("worse", "ties")}
    figures = {(row["model"], row["variant"], row["metric"]): float(row["value"]) for row in rows}
    for row in compared:
        wanted = figures["worse", row["variant"], row["metric"]] - figures["better", row["variant"], row["metric"]]
        assert float(row["difference"]) == pytest.approx(wanted)
    markdown = (folder / "report.md").read_text()
    assert "| Model | Mean: OTA |" in markdown and "### Differences from better" in markdown


def test_parts_on_corrupted_images_have_a_separate_section_with_heat_maps(tmp_path):
    page = report(tmp_path, choice_run(tmp_path / "one", "one", 60))
    source = (tmp_path / "report.html").read_text()
    first, rest = source.split("Corrupted images</bdi></h2>")
    assert "fog" not in first.split("<main")[1].lower()
    assert rest.count('class="heat"') == 3 and "Uncorrupted OTA 50.0 %" in rest
    assert "SugarCrepe, replace rel" in page.text("h4")


def test_unknown_kinds_and_metrics_are_shown_under_their_names_in_the_results(two, tmp_path):
    page, folder = two
    assert "Word game" in page.text("h2") and "points won" in page.text("th") and "12.3" in page.text("td")
    assert "Word game" in page.text("nav")
    alone = report(tmp_path, folder / "all" / "worse")
    assert "Easy" in alone.text("table") and "Hard" in alone.text("table")


def test_a_share_metric_of_another_package_has_its_label_and_paired_tests(tmp_path):
    """Show tasks of an unknown kind from the results alone."""
    solved = {"label": "Riddles", "better": "higher", "unit": "%", "definition": "riddles that were solved"}
    for seed, (name, share) in enumerate((("worse", 30), ("better", 90))):
        right = np.random.default_rng(seed).random(60) < share / 100
        riddles = {"word_game": {"easy": {"riddles": 100 * right.mean()}}}
        described = {"word_game": describe(["easy"], ["easy"])}
        changed = {"tasks": riddles, "metrics": {"riddles": solved}, "variants": described}
        folder = choice_run(tmp_path / "all" / name, name, 60, **changed)
        row = {"task": "word_game", "variant": "easy"}
        rows = [row | {"unit": place, "riddles": bool(each)} for place, each in enumerate(right)]
        pq.write_table(pa.Table.from_pylist(rows), folder / "per_query.parquet")
    page = report(tmp_path, tmp_path / "all")
    assert "Riddles" in page.text("th") and "Differences from better" in page.text("h3")
    first, second = csv.DictReader((tmp_path / "report.csv").open(encoding="utf-8", newline=""))
    row = first if first["model"] == "worse" else second
    assert (row["label"], row["unit"], row["better"]) == ("Riddles", "%", "higher")
    assert float(row["difference"]) < -20 and float(row["p"]) < 0.01
    assert "Riddles" in (tmp_path / "report.md").read_text()


def test_a_task_without_a_kind_is_shown(tmp_path):
    page = report(tmp_path, choice_run(tmp_path / "one", "one", 60, kinds={}))
    assert "SugarCrepe" in page.text("h2") and "OTA" in page.text("th")


@pytest.mark.parametrize("label", [NASTY, "$x^2$ \\frac", "日本語 model", "two\nlines", "\x00\ud800"])
def test_charts_with_any_label_are_well_formed_and_load_nothing(label):
    drawn = interval_bars(label, [Bar(label, Estimate(10.0, 5.0, 20.0))], [0.0, 25.0], "drop")
    root = xml.etree.ElementTree.fromstring(drawn.strip())
    assert root.tag == "figure" and root[0].tag == "figcaption"
    assert not {"script", "style", "use", "image", "metadata"} & {each.tag for each in root.iter()}
    assert "url(" not in drawn and "href" not in drawn and "http" not in drawn.replace("http://evil", "")
    assert "10.0 %" in " ".join(each.get("title", "") for each in root.iter("div"))


def test_equal_charts_give_equal_bytes_with_colours_for_light_and_dark():
    panel = Panel("R@1", "%", (Curve(0, False, "sc", ((8, Estimate(10.0, 5.0, 20.0, 1.0)), (16, Estimate(20.0)))),))
    files = [curve_figure("Sweep", [panel, panel], [8, 16], "batch_size") for _ in range(2)]
    assert files[0] == files[1]
    assert "prefers-color-scheme: dark" in files[0] and "var(--curve-0)" in files[0]


def test_curves_of_equal_values_are_drawn_side_by_side():
    curves = tuple(
        Curve(colour, False, str(colour), ((8, Estimate(10.0)), (16, Estimate(20.0)))) for colour in range(3)
    )
    root = xml.etree.ElementTree.fromstring(curve_panel(Panel("x", "", curves), [8, 16], "axis"))
    across = [float(each.get("cx")) for each in root.iter("circle")]
    assert np.diff(np.sort(across)) == pytest.approx([1.6, 1.6, max(across) - min(across) - 6.4, 1.6, 1.6], abs=0.02)


def texts_and_dots(values: list, figures: list[float], logarithmic: bool = False) -> tuple[list[str], list[float]]:
    """The words of a panel of one curve, and how far its points are along, from 0 to 1."""
    points = tuple((value, Estimate(figure)) for value, figure in zip(values, figures, strict=True))
    drawn = curve_panel(Panel("x", "", (Curve(0, False, "", points),), logarithmic), values, "axis")
    root = xml.etree.ElementTree.fromstring(drawn)
    across = [float(each.get("cx")) for each in root.iter("circle")]
    first, last = min(across), max(across)
    return [each.text for each in root.iter("text")], [(each - first) / (last - first) for each in across]


def test_axes_are_logarithmic_if_values_are_far_apart():
    # Places are rounded to a hundredth of a pixel, of some 250.
    near = {"abs": 1e-3}
    assert texts_and_dots([32, 64, 128, 256], [1, 2, 3, 4])[1] == pytest.approx([0, 1 / 3, 2 / 3, 1], **near)
    assert texts_and_dots([0.0, 1.0, 4.0], [1, 2, 3])[1] == pytest.approx([0, 0.25, 1], **near)
    words, places = texts_and_dots(["own", "batch"], [20.3, 31.9])
    assert places == [0, 1] and "own" in words and "batch" in words
    assert len([word for word in words if word.replace(".", "").isdecimal()]) >= 4
    far = texts_and_dots([1, 2], [150.0, 20_000.0], logarithmic=True)[0]
    assert [each for each in far if each.replace(",", "").isdecimal()][2:] == [
        "100", "200", "500", "1,000", "2,000", "5,000", "10,000", "20,000",
    ]  # fmt: skip
