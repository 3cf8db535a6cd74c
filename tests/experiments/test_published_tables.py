"""Statistics that are computed from published tables: stars by Holm, intervals over folds and over families."""

import csv

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests

from tests.support.paths import CHECKOUT

RESEARCH = CHECKOUT / "docs/research"


@pytest.fixture(scope="module")
def script(experiment):
    return experiment("published_tables")


def read(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_stars_mark_the_differences_that_holm_rejects(script, tmp_path):
    cells = ["28.0 (+4.0 to +12.0)", "15.0 (-8.6 to -1.4)*", "24.5 (+1.3 to +7.7)*", "20.1 (-0.2 to +0.3)*"]
    (tmp_path / "table.csv").write_text(
        "arm,one,other\n**plain**,20.0 (18.0-22.0),20.0 (17.0-23.0)\n"
        f"a,{cells[0]},{cells[1]}\nb,{cells[2]},{cells[3]}\n"
    )
    # A normal approximation; a table rounds value and plain by 0.05 each, and both ends of the interval.
    distances, halves = np.array([8.0, 5.0, 4.5, 0.1]) - 0.1, np.array([4.0, 3.6, 3.2, 0.25]) + 0.05
    p = 2 * stats.norm.sf(1.959964 * distances / halves)
    rejected = multipletests(p, 0.05, "holm")[0]
    assert (p < 0.05).tolist() == [True, True, True, False] and rejected.tolist() == [True, True, True, False]
    assert script.add_stars(tmp_path / "table.csv") == (4, 3)
    (a, b) = read(tmp_path / "table.csv")[1:]
    starred = [cell.endswith("*") for row in (a, b) for cell in (row["one"], row["other"])]
    assert starred == rejected.tolist()


@pytest.mark.parametrize("name", ["published", "balanced_and_mixed", "choices", "transfer"])
def test_stars_on_pages_match_the_correction_of_holm(script, name, tmp_path):
    kept = RESEARCH / f"defences_{name}.csv"
    copy = tmp_path / kept.name
    copy.write_bytes(kept.read_bytes())
    tests, stars = script.add_stars(copy)
    assert read(copy) == read(kept) and 0 < stars < tests


def test_the_published_intervals_over_folds_match_the_t_distribution(script):
    for row in read(RESEARCH / "defence_folds.csv"):
        folds = np.array([float(row[f"fold {number}"]) for number in range(5)])
        half = stats.t.ppf(0.975, 4) * folds.std(ddof=1) / np.sqrt(5)
        ends = [float(row[f"over folds {end}"]) for end in ("low", "high")]
        assert ends == pytest.approx([folds.mean() - half, folds.mean() + half], abs=0.006), row["claim"]


def test_draws_contain_complete_families(script):
    families = ["a", "b", "a", "c", "c", "c"]
    for seed in range(20):
        drawn = np.bincount(script.draw_families(families, np.random.default_rng(seed)), minlength=6)
        assert drawn[0] == drawn[2] and drawn[3] == drawn[4] == drawn[5]
        assert drawn[0] + drawn[1] + drawn[3] == 3


def test_partial_correlations_of_checkpoints_match_the_published_table(script):
    columns = {"image_to_text": "coco_i2t", "text_to_image": "coco_t2i", "mmvp": "mmvp_vlm"}
    kept = {}
    for row in read(RESEARCH / "population_published.csv"):
        pair = frozenset(columns.get(row[side], row[side]) for side in ("x_task", "y_task"))
        if row["partial_rho"]:
            kept[pair] = 100 * float(row["partial_rho"])
    field, names = read(RESEARCH / "published_field.csv"), sorted(frozenset().union(*kept))
    values = np.array([[float(row[name]) for row in field] for name in names])
    correlations = script.partial_correlations(values, np.array([float(row["coco_i2t"]) for row in field]))
    for pair, value in kept.items():
        one, other = map(names.index, pair)
        assert 100 * correlations[one, other] == pytest.approx(value, abs=1e-9)
    rows = read(RESEARCH / "population_families.csv")
    assert {frozenset((row["x"], row["y"])) for row in rows} == set(kept) and len(kept) == 66
    for row in rows:
        value, low, high = (float(row[name]) for name in ("partial rho x 100", "low", "high"))
        assert value == pytest.approx(kept[frozenset((row["x"], row["y"]))], abs=0.51) and low <= value <= high


def test_sizes_of_training_data_do_not_separate_families(script):
    names = ["ViT-B-16 laion400m_e32", "CLIP_vitb16 laion10m", "EVA02-L-14 merged2b_s4b_b131k"]
    assert {script.family_of(name) for name in names} == {"laion"}
    names = ["CLIP_ViT-B-16 syn4m", "CLIP_ViT-B-16 real64m", "CLIP_ViT-B-16 synreal1m"]
    assert {script.family_of(name) for name in names} == {"scaled synthetic"}
    assert script.family_of("ViT-B-32 openai") == "openai"
