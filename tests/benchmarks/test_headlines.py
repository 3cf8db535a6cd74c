"""Each benchmark declares its headline, and results have it over all items and over parts, with the sizes of both."""

import json
from pathlib import Path

import numpy as np
import pytest

from rococo_jax.benchmarks.benchmark import find_benchmark, known_benchmarks, with_corrupted_images
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.benchmarks.tables import TEXTS, Embeddings
from rococo_jax.evaluation.caption_baselines import baselines_of
from rococo_jax.evaluation.counts import row_table, rows_of_outcomes
from rococo_jax.evaluation.results import make_results, per_query_table, read_results, with_checksum
from rococo_jax.evaluation.sections import results_of
from rococo_jax.metrics import METRICS
from rococo_jax.storage import write_json
from tests.benchmarks.published_forms import FORMS, write
from tests.benchmarks.test_readers import item, open_form, write_rows
from tests.support.cases import further
from tests.support.planted_winoground import planted_winoground
from tests.support.refusals import refused


@pytest.fixture(scope="module")
def winoground(tmp_path_factory):
    """28 of 400 items right: 8 of 141, 10 of 233 and 10 of 26."""
    return planted_winoground(tmp_path_factory.mktemp("winoground"), {"Object": 8, "Relation": 10, "Both": 10})


def test_every_benchmark_declares_a_headline_metric_and_its_source():
    for name, info in known_benchmarks().items():
        assert info.headline is not None and info.headline.source, name
        assert info.headline.metric in METRICS or name == "choices"
        assert info.headline.pooling in ("items", "parts")
        assert info.reader is None or info.reader.headline == info.headline


def test_the_documented_headlines_match_the_declared_ones():
    page = (Path(__file__).parents[2] / "docs/reference/headlines.md").read_text()
    for name, info in known_benchmarks().items():
        metric = f"`{info.headline.metric}`" if info.headline.metric else "the first metric"
        what = f"{metric} of `{info.headline.variants[0]}`"
        assert f"| `{name}` | {what} | {info.headline.pooling} | {info.headline.source} |" in page


def test_the_score_of_all_items_comes_first_if_the_paper_pools_items(winoground):
    results = winoground.results
    variants = results["tasks"]["winoground"]
    assert [*variants] == ["all", "mean", "object", "relation", "both"]
    assert variants["all"]["group_score"] == 100 * 28 / 400 == 7.0
    assert variants["mean"]["group_score"] == pytest.approx(100 * np.mean([8 / 141, 10 / 233, 10 / 26]))
    for variant in ("all", "mean"):
        assert results["sizes"]["winoground"][variant] == {"items": 400, "images": 400, "parts": 3, "of_parts": 3}
    source = find_benchmark("winoground").headline.source
    headline = {"variant": "all", "metric": "group_score", "pooling": "items", "source": source}
    assert results["headlines"] == {"winoground": headline}


def test_the_interval_over_all_items_matches_a_bootstrap_of_images(winoground):
    right = np.concatenate(
        [np.repeat([1.0, 0.0], [won, items - won]) for won, items in ((8, 141), (10, 233), (10, 26))]
    )
    rng = np.random.default_rng(7)
    draws = [100 * right[rng.integers(0, 400, 400)].mean() for _ in range(4000)]
    interval = winoground.results["intervals"]["winoground"]["all"]["group_score"]
    # Two sets of draws of 400 items, of which each is a step of 0.25.
    assert interval == pytest.approx(np.percentile(draws, [2.5, 97.5]), abs=0.5)


def test_rows_of_all_parts_sum_to_the_score_of_all_items(winoground):
    tables = [row_table("winoground", rows, winoground.benchmark) for rows in rows_of_outcomes(winoground.outcomes)]
    frame = per_query_table(tables).to_pandas()
    assert set(frame.part) == {"object", "relation", "both"}
    assert (frame.group_score.sum(), len(frame)) == (28, 400)
    described = winoground.results["variants"]["winoground"]
    kind = {"kind": "group_choice"}
    assert described["all"] == {"pooled": "all", "pooling": "items", "of": ["object", "relation", "both"]} | kind


def test_a_single_part_is_not_pooled(tmp_path):
    single = planted_winoground(tmp_path, {"Object": 8}, items={"Object": 20}).results
    assert [*single["tasks"]["winoground"]] == ["object"]
    assert single["headlines"]["winoground"]["variant"] == "object"
    assert single["sizes"]["winoground"]["object"] == {"items": 20, "images": 20}


def test_sizes_state_how_many_parts_are_present(tmp_path):
    found = planted_winoground(tmp_path, {"Object": 2, "Both": 3}, items={"Object": 5, "Both": 5}).results
    for variant in ("all", "mean"):
        assert found["sizes"]["winoground"][variant] == {"items": 10, "images": 10, "parts": 2, "of_parts": 3}
    assert found["tasks"]["winoground"]["all"]["group_score"] == 50.0


def scored(benchmark, **about):
    rng = np.random.default_rng(1)
    vectors = {name: rng.standard_normal((len(images), 8)) for name, images in benchmark.image_sets.items()}
    tables = vectors | {TEXTS: rng.standard_normal((len(benchmark.texts), 8))}
    tables = {name: each / np.linalg.norm(each, axis=1, keepdims=True) for name, each in tables.items()}
    return make_results("m", "paper", {}, [task.score(Embeddings(tables)) for task in benchmark.tasks],
                        headline=benchmark.headline, **about)  # fmt: skip


@pytest.mark.parametrize("name", further(sorted(FORMS), sorted(FORMS)[::3]))
def test_results_of_each_form_contain_their_headline(name, tmp_path):
    write(FORMS[name], tmp_path)
    results = scored(open_form(name, tmp_path))
    (headline,) = results["headlines"].values()
    assert results["tasks"][name][headline["variant"]][headline["metric"]] is not None
    pooled = [variant for variant, size in results["sizes"][name].items() if "parts" in size]
    assert not pooled or headline["variant"] in (*pooled, "scam")
    assert not pooled or next(iter(results["tasks"][name])) in pooled


def test_the_accuracy_of_a_negbench_file_is_over_all_of_its_items(tmp_path):
    templates = ("positive",) * 5 + ("negative",) * 3 + ("hybrid",)
    write_rows("negbench", tmp_path, [{"correct_answer_template": each} for each in templates])
    benchmark = open_form("negbench", tmp_path)
    outcomes = [task.score(Embeddings(random_tables(benchmark))) for task in benchmark.tasks]
    results = make_results("m", "paper", {}, outcomes, headline=benchmark.headline)
    right = np.concatenate([outcome.hits["ota"] for outcome in outcomes])
    variants = results["tasks"]["negbench"]
    file = find_benchmark("negbench").files[0].partition("_mcq")[0].lower()
    assert len(right) == 9 and variants[file]["ota"] == variants["all"]["ota"] == pytest.approx(100 * right.mean())
    assert results["sizes"]["negbench"]["all"]["of_parts"] == 9


def random_tables(benchmark):
    rng = np.random.default_rng(3)
    tables = {name: rng.standard_normal((len(images), 8)) for name, images in benchmark.image_sets.items()}
    tables[TEXTS] = rng.standard_normal((len(benchmark.texts), 8))
    return {name: each / np.linalg.norm(each, axis=1, keepdims=True) for name, each in tables.items()}


def test_parts_with_different_kinds_of_questions_are_not_pooled(tmp_path):
    files = tuple(f"{number}.png" for number in range(6))
    rows = [item(n, "texts", files[n]) for n in range(3)]
    rows += [item(n, "images", *files[2 * n - 6 : 2 * n - 4], texts=("one",)) for n in range(3, 6)]
    write_rows("choices", tmp_path, rows, images=files)
    results = scored(open_form("choices", tmp_path))
    texts, images = (results["tasks"]["choices"][part] for part in ("texts", "images"))
    assert [*results["tasks"]["choices"]] == ["texts", "images"]
    assert "ota" in texts and "ota" not in images and "image_score" in images
    headline = results["headlines"]["choices"]
    assert (headline["variant"], headline["metric"]) == ("texts", "ota")


def test_a_part_named_all_keeps_its_name_and_a_note_reports_it(tmp_path):
    files = ("0.png", "1.png")
    write_rows("choices", tmp_path, [item(0, "all", files[0]), item(1, "few", files[1])], images=files)
    results = scored(open_form("choices", tmp_path))
    assert results["sizes"]["choices"]["all"] == {"items": 1, "images": 1}
    assert results["headlines"]["choices"]["variant"] == "mean"
    (note,) = [note for note in results["notes"] if "which is the name of a part" in note]
    assert note.startswith("choices: no variant over all parts is called 'all'")


def test_means_over_kinds_of_corruption_are_computed_within_a_part(tmp_path):
    files = tuple(f"{number}.png" for number in range(4))
    write_rows("choices", tmp_path, [item(n, "few" if n < 2 else "many", files[n]) for n in range(4)], images=files)
    benchmark = with_corrupted_images(open_form("choices", tmp_path), ["fog", "snow"], [3])
    sizes = scored(benchmark)["sizes"]["choices"]
    assert sizes["few/corruptions_3"] == sizes["few/fog_3"] == {"items": 2, "images": 2}
    assert sizes["all"] == {"items": 4, "images": 4, "parts": 2} and "all/fog_3" not in sizes


def test_baselines_without_images_are_pooled_like_results(tmp_path):
    files = tuple(f"{number}.png" for number in range(4))
    texts = ("a", "a b"), ("a b", "a"), ("a b", "a"), ("a b", "a")
    rows = [item(n, "few" if n < 1 else "many", files[n], texts=texts[n]) for n in range(4)]
    write_rows("choices", tmp_path, rows, images=files)
    found = baselines_of(open_form("choices", tmp_path))["choices"]
    shorter = {variant: found[variant]["shorter"]["preference"] for variant in ("few", "many", "mean", "all")}
    assert shorter == {"few": 100.0, "many": 0.0, "mean": 50.0, "all": 25.0}


def test_a_headline_is_read_back_and_belongs_to_its_benchmark(winoground, tmp_path):
    results = winoground.results | {"benchmarks": {"winoground": {"tasks": ["winoground"], "notes": []}}}
    write_json(tmp_path / "results.json", with_checksum(results))
    read = read_results(tmp_path / "results.json")
    assert results_of(read, "winoground", ["winoground"])["headlines"] == results["headlines"]
    other = read | {"benchmarks": read["benchmarks"] | {"other": {"tasks": ["other"], "notes": []}}}
    assert "headlines" not in results_of(other, "other", ["other"])
    (tmp_path / "results.json").write_text(json.dumps(results | {"headlines": {"winoground": {"variant": "all"}}}))
    refused("headlines: winoground: metric: found nothing; wanted a string", read_results, tmp_path / "results.json")


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.real_data
def test_replace_has_the_items_of_relations_and_attributes(real_data):
    folder = real_data / "compositionality/hard_positives"
    benchmark = find_benchmark("hard_positives").open({"images": folder / "none", "annotations": folder}, Settings())
    sizes = scored(benchmark)["sizes"]["hard_positives"]
    counts = {
        name: sizes[name]["items"] for name in ("replace_relations", "replace_attributes", "replace", "replace/all")
    }
    assert counts == {"replace_relations": 16868, "replace_attributes": 10575, "replace": 27443, "replace/all": 27443}
    assert (sizes["replace"]["parts"], sizes["replace"]["of_parts"]) == (2, 2)
