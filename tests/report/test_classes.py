"""Classes on the page: reliability, ROC, shape, RAS and errors, each only where the results have it."""

import numpy as np
import pytest

from rococo_jax.benchmarks.tables import ORIGINALS, TEXTS, Embeddings, Rows
from rococo_jax.benchmarks.tasks import ClassifyTask
from rococo_jax.benchmarks.tasks.out_of_distribution import OutOfDistributionTask
from rococo_jax.benchmarks.variants import UNCORRUPTED, Variant
from rococo_jax.evaluation.counts import row_table, rows_of_outcomes
from rococo_jax.evaluation.results import (
    make_fingerprint,
    make_results,
    per_query_table,
    read_results,
    with_checksum,
    write_per_query,
)
from rococo_jax.report import write_report
from rococo_jax.storage import write_json

IMAGES, CLASSES = 60, ("cat", "dog", "eel")


def save(folder, name, seed, corrupted=True):
    """Write results of a model on classes, on stimuli with a texture, and against other images."""
    rng = np.random.default_rng(seed)
    label = np.arange(IMAGES) % 3
    texts = np.eye(3, 6)
    images = texts[label] + 0.7 * rng.normal(size=(IMAGES, 6))
    tables = {TEXTS: texts, ORIGINALS: images, "uncorrupted": images, "out_far": rng.normal(size=(40, 6))}
    tables |= {f"fog_{severity}": images + 0.3 * severity * rng.normal(size=images.shape) for severity in (1, 3)}
    embeddings = Embeddings(
        {key: each / np.linalg.norm(each, axis=1, keepdims=True) for key, each in tables.items()}, logit_scale=9.0
    )
    every, names = np.arange(IMAGES), [f"{place}.jpg" for place in range(IMAGES)]
    asked = ("clean", CLASSES, np.arange(3)[:, None], Rows.of(ORIGINALS, every), every, names, label)
    pets, cues = ClassifyTask("pets", *asked), ClassifyTask("cues", *asked, texture=(label + every // 3 % 3) % 3)
    out_names = [f"far/{n}" for n in range(40)]
    far = OutOfDistributionTask("pets_ood", "far", pets, Rows.of("out_far", np.arange(40)), out_names)
    tasks = [pets, cues, far]
    if corrupted:
        fog = [Variant(corruption="fog", severity=severity) for severity in (1, 3)]
        tasks += [pets.on_images(each, UNCORRUPTED, None) for each in (Variant(corruption=UNCORRUPTED), *fog)]
    outcomes = [task.score(embeddings) for task in tasks]
    fingerprint = make_fingerprint(model={"weights": name}, data={"pets": {"labels": "x"}}, protocol="paper")
    written = type("Names", (), {"images": tuple(names), "texts": CLASSES})()
    write_json(folder / name / "results.json", with_checksum(make_results(name, "paper", fingerprint, outcomes)))
    rows = [row_table("pets", each, written) for each in rows_of_outcomes(outcomes)]
    write_per_query(folder / name / "per_query.parquet", per_query_table(rows))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two models, on corrupted images as well."""
    folder = tmp_path_factory.mktemp("runs")
    for number in range(2):
        save(folder, f"model-{number}", number)
    return folder


@pytest.mark.parametrize("models", [1, 2])
def test_the_page_of_classes_has_every_chart(runs, tmp_path, models):
    page = write_report([runs / f"model-{number}" for number in range(models)], tmp_path / "r.html")[0].read_text()
    for words in ("Reliability", ">ROC<", "Shape or texture", "Change of confidence under corruption"):
        assert words in page, words
    # Reliability of two tasks and a ROC chart for each model; the shape diagram is drawn by the page.
    assert page.count('class="chart"') == 2 * models + models
    assert ("Top-1 difference" in page or "differences from" in page.lower()) == (models == 2)
    assert "60 images of 3 classes" in page and "against 40 of Far" in page
    table = (tmp_path / "r.csv").read_text()
    assert "ece_scaled" in table and "auroc_energy" in table and "ras_destructive" in table
    if models == 1:  # plain numbers have three decimals
        row = next(line for line in (tmp_path / "r.md").read_text().splitlines() if line.startswith("| Clean |"))
        assert any(len(cell.split(" ")[0].partition(".")[2]) == 3 for cell in row.split(" | "))


def test_metrics_that_were_not_measured_are_not_mentioned(tmp_path):
    save(tmp_path / "runs", "model", 0, corrupted=False)
    page = write_report([tmp_path / "runs"], tmp_path / "r.html")[0].read_text()
    assert "RAS" not in page and "Reliability" in page


@pytest.mark.parametrize(("drop", "ras", "is_noted"), [(-5.0, -0.1, True), (5.0, -0.1, False), (-5.0, 0.1, False)])
def test_the_page_notes_a_gain_in_accuracy_with_a_negative_ras(runs, tmp_path, drop, ras, is_noted):
    content = read_results(runs / "model-0" / "results.json")
    for variant in ("fog_1", "fog_3"):
        content["tasks"]["pets"][variant] |= {"drop": 5.0, "ras": -0.1}
    content["tasks"]["pets"]["fog_3"] |= {"drop": drop, "ras": ras}
    write_json(tmp_path / "model" / "results.json", with_checksum(content))
    page = write_report([tmp_path / "model"], tmp_path / "r.html")[0].read_text()
    assert ("although RAS is negative; accuracy alone hides the change: model-0, pets, fog 3." in page) == is_noted
