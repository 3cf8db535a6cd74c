"""Own items of several kinds in one task, and items of one scene: results, comparisons and the page."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from rococo_jax.cli.main import main

ITEMS = 40


def items_of(number: int) -> list[dict]:
    """Two parts that choose among texts and two that choose among images; both images of a scene in the first two."""
    texts = [f"a {number}", f"b {number}"]
    one, other = ({"file": f"{place:03}.png"} for place in (number, number + ITEMS))
    parts = {"near": ([one], texts), "far": ([other], texts), "left": ([one, other], texts[:1])}
    parts["right"] = [other, one], texts[1:]
    return [
        {"id": f"{part}{number}", "images": images, "texts": of_part, "match": [[0, 0]], "part": part}
        | ({"scene": f"s{number}"} if part in ("near", "far") else {})
        for part, (images, of_part) in parts.items()
    ]


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """Results of two random models, whose answers are nearly the same for both images of a scene."""
    folder = tmp_path_factory.mktemp("kinds")
    images = folder / "data" / "choices" / "images"
    images.mkdir(parents=True)
    names = [f"{number:03}.png" for number in range(2 * ITEMS)]
    for number, name in enumerate(names):
        Image.fromarray(np.full((8, 8, 3), [number, 7, 99], np.uint8)).save(images / name)
    lines = [json.dumps(item) for number in range(ITEMS) for item in items_of(number)]
    (folder / "data" / "choices" / "items.jsonl").write_text("\n".join(lines) + "\n")
    texts = [f"{word} {number}" for word in "ab" for number in range(ITEMS)]
    sources = []
    for seed, name in enumerate(("one", "two")):
        rng = np.random.default_rng(seed)
        scenes = rng.normal(size=(ITEMS, 16))
        pictures = np.concatenate([scenes, scenes]) + 0.05 * rng.normal(size=(2 * ITEMS, 16))
        vectors = {"image_names": names, "image_embeddings": pictures}
        vectors |= {"captions": texts, "text_embeddings": rng.normal(size=(len(texts), 16))}
        np.savez(folder / f"{name}.npz", **{key: np.array(value) for key, value in vectors.items()})
        sources.append(f"{name}=embeddings:{folder / name}.npz")
    arguments = ["evaluate", *sources, "--data", folder / "data", "--benchmarks", "choices", "--out", folder / "out"]
    assert main([*map(str, arguments)]) == 0
    return folder / "out"


def results_of(out, name: str) -> dict:
    return json.loads((out / name / "results.json").read_text())


def test_each_kind_of_item_is_pooled_separately_with_its_metrics(out):
    results = results_of(out, "one")
    assert results["kinds"] == {"choices": "mixed"}
    variants, tasks = results["variants"]["choices"], results["tasks"]["choices"]
    kinds = {name: about["kind"] for name, about in variants.items()}
    assert kinds == {
        **dict.fromkeys(("choice/mean", "choice/all", "near", "far"), "choice"),
        **dict.fromkeys(("image_choice/mean", "image_choice/all", "left", "right"), "image_choice"),
    }
    for kind, metric, parts in (("choice", "ota", ("near", "far")), ("image_choice", "image_score", ("left", "right"))):
        assert variants[f"{kind}/mean"]["of"] == list(parts)
        values = [tasks[part][metric] for part in parts]
        for pooled in ("mean", "all"):
            assert tasks[f"{kind}/{pooled}"][metric] == pytest.approx(np.mean(values))
            assert results["intervals"]["choices"][f"{kind}/{pooled}"][metric] is not None
    headline = results["headlines"]["choices"]
    assert (headline["variant"], headline["metric"]) == ("choice/mean", "ota")


def test_every_kind_of_item_is_compared_by_its_metric(out, capsys):
    assert main(["compare", str(out), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    primary = {(row["variant"], row["metric"]) for row in rows}
    assert {("choice/mean", "ota"), ("left", "image_score"), ("right", "image_score")} <= primary
    assert main(["compare", str(out), "--metrics", "image_score", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    values = [results_of(out, name)["tasks"]["choices"] for name in ("one", "two")]
    found = {row["variant"]: row["points"] for row in rows}
    assert {"left", "right", "image_choice/mean"} <= found.keys()
    for variant, difference in found.items():
        assert difference == pytest.approx(values[1][variant]["image_score"] - values[0][variant]["image_score"])


def test_the_page_has_a_section_and_complete_sentences_for_each_kind_of_item(out):
    text = (out / "report.md").read_text()
    assert "### Choice\n" in text and "### Image choice\n" in text
    first = text[: text.index("## Compared with")]
    assert "Choices (80 items): Each item is an image with a few texts" in first
    assert "(, )" not in text and "reaches –" not in text


def test_items_of_a_scene_count_as_one_unit_in_comparisons(out, capsys):
    tables = [pq.read_table(out / name / "per_query.parquet").to_pylist() for name in ("one", "two")]
    rows = [[row for row in table if row["variant"] in ("near", "far")] for table in tables]
    assert all(row["scene"] == f"{int(row['image'][:3]) - ITEMS:03}.png" for row in rows[0] if row["variant"] == "far")
    assert all(row["scene"] is None for row in rows[0] if row["variant"] == "near")
    units = sorted({row["unit"] for row in rows[0]})
    assert len(units) == ITEMS and len({row["image"] for row in rows[0]}) == 2 * ITEMS
    hits = np.zeros((2, ITEMS))
    for model, of_model in enumerate(rows):
        for row in of_model:
            hits[model, units.index(row["unit"])] += row["ota"]
    assert main(["compare", str(out), "--metrics", "ota", "--json"]) == 0
    (row,) = [row for row in json.loads(capsys.readouterr().out) if row["variant"] == "choice/all"]
    # 95 % of the bootstrap over whole scenes; over images it would be narrower by a third.
    draws = np.random.default_rng(5).integers(0, ITEMS, (4000, ITEMS))
    bounds = np.percentile(100 * (hits[1] - hits[0])[draws].sum(axis=1) / (2 * ITEMS), [2.5, 97.5])
    assert [row["low"], row["high"]] == pytest.approx(bounds.tolist(), abs=2.5)
