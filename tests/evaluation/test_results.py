"""`results.json` of a benchmark whose parts are of several kinds, and the draws that intervals took."""

import dataclasses
import json

import numpy as np
import pytest

from rococo_jax.benchmarks.pooling import Pool
from rococo_jax.benchmarks.tasks import Outcome
from rococo_jax.benchmarks.tasks.task import Task
from rococo_jax.benchmarks.variants import Variant
from rococo_jax.evaluation.results import make_results, read_results
from rococo_jax.evaluation.variant_results import VariantResult, grounding_notes
from rococo_jax.metrics.counts import Counts
from rococo_jax.metrics.grounding import METRICS as GROUNDING
from rococo_jax.metrics.intervals import RESAMPLES
from rococo_jax.metrics.metric import percent
from rococo_jax.metrics.ood import OodScores
from tests.support.refusals import refused


@dataclasses.dataclass(frozen=True, eq=False)
class Figures(Outcome):
    """Counts and pairs as they are given."""

    of: Task
    kind: str
    counts: dict
    pair_counts: dict = dataclasses.field(default_factory=dict)
    sizes: dict = dataclasses.field(default_factory=dict)

    unit = np.arange(10)

    def count(self, columns, unit):
        """Every column is a share, and those of pairs are shares of them."""
        metrics = [percent(name, name, "higher", name, "ours") for name in self.counts]
        return Counts.of_rows(columns, unit, (*metrics, *(GROUNDING if "pairs" in columns else ())))


@dataclasses.dataclass(frozen=True, eq=False)
class Separate(Outcome):
    """Scores of both sides as they are given."""

    of: Task
    kind: str
    separated: OodScores
    counts: dict
    unit: np.ndarray
    sizes: dict = dataclasses.field(default_factory=dict)


def counts(share: float, *names: str) -> dict:
    return dict.fromkeys(names, np.arange(10) < round(10 * share))


def pairs(share: float) -> dict:
    """Ten pairs, one an item, of which this share has all metrics."""
    names = ("preference", "blind", "grounding", "difference_r1")
    return {"pairs": np.ones(10, int), **dict.fromkeys(names, (np.arange(10) < round(10 * share)).astype(float))}


def part(name: str, kind: str, counted, pair_counts=None) -> Figures:
    return Figures(Task("own", name, pools=(Pool(Variant(pooled="mean"), "parts"),)), kind, counted, pair_counts or {})


def test_parts_of_several_kinds_are_pooled_by_kind():
    outcomes = [
        part("texts", "choice", counts(0.4, "ota", "ties"), pairs(0.6)),
        part("more texts", "choice", counts(0.8, "ota", "ties"), pairs(0.2)),
        part("images", "image_choice", counts(0.2, "image_score", "ties")),
    ]
    made = make_results("one", "paper", {}, outcomes)
    turned = make_results("one", "paper", {}, outcomes[::-1])
    assert made["kinds"] == turned["kinds"] == {"own": "mixed"}
    mean = made["tasks"]["own"]["choice/mean"]
    assert set(mean) >= {"ota", "ties", "blind"} and mean == turned["tasks"]["own"]["choice/mean"]
    assert mean["ota"] == pytest.approx(60.0) and made["intervals"]["own"]["choice/mean"]["ota"] is not None
    assert made["tasks"]["own"]["texts"]["blind"] == 60.0 and "blind" not in made["tasks"]["own"]["images"]
    in_part = make_results("one", "paper", {}, [outcomes[0], part("no pairs", "choice", counts(0.2, "ota", "ties"))])
    (note,) = in_part["notes"]
    assert note.startswith("own, mean: no preference, blind and grounding, because only some of its parts have pairs")
    of_texts = make_results("one", "paper", {}, outcomes[:2])
    assert of_texts["kinds"] == {"own": "choice"} and of_texts["tasks"]["own"]["mean"]["blind"] == 40.0
    assert not of_texts["notes"] and set(made["sizes"]["own"]) == {"texts", "more texts", "images", "choice/mean"}


def test_one_note_per_task_gives_the_reason_for_missing_grounding():
    def result(why: str | None) -> VariantResult:
        return VariantResult({}, {}, {}, None, None, None, why)

    why = "the model is scored pair by pair"
    results = {("choices", name): result(why) for name in ("mean", "swap", "add")}
    assert grounding_notes(results) == [f"choices: no preference, blind and grounding, because {why}"]
    results |= {("choices", "own"): result(None), ("other", "one"): result("none")}
    assert grounding_notes(results) == [
        f"choices, mean, swap, add: no preference, blind and grounding, because {why}",
        "other, one: no preference, blind and grounding, because none",
    ]


def test_only_metrics_of_other_packages_are_described_in_the_results(tmp_path):
    made = make_results("one", "paper", {}, [part("easy", "riddle", counts(0.4, "riddles_solved", "ota"))])
    described = {"label": "riddles_solved", "better": "higher", "unit": "%", "definition": "riddles_solved"}
    assert made["metrics"] == {"riddles_solved": described}
    (tmp_path / "results.json").write_text(json.dumps(made | {"metrics": {"riddles_solved": described | {"unit": 1}}}))
    refused("metrics: riddles_solved: unit: found 1; wanted a string", read_results, tmp_path / "results.json")


def test_the_recorded_number_of_draws_is_the_one_that_was_used():
    rng = np.random.default_rng(0)
    far = OodScores(*({name: rng.random(5) for name in ("mcm", "max_logit", "energy", "entropy")} for _ in range(2)))
    of_sides = {"inside": np.arange(10) < 5} | {
        name: np.concatenate([far.ins[name], far.outs[name]]) for name in far.ins
    }
    outcomes = [Separate(Task("pets_ood", "far"), "out_of_distribution", far, counts=of_sides, unit=np.arange(10))]
    bootstrap = make_results("one", "paper", {}, [*outcomes, part("texts", "choice", counts(0.4, "ota"))])["bootstrap"]
    assert bootstrap["resamples"] == RESAMPLES and set(bootstrap["resamples_of"]) == {"pets_ood"}
    assert set(bootstrap["resamples_of"]["pets_ood"]["far"].values()) == {RESAMPLES}
    of_ten_million = OodScores(*({"mcm": np.broadcast_to(0.5, 5 * 10**6)} for _ in range(2)))
    assert set(of_ten_million.resamples.values()) == {200}
    assert {len(each) for each in far.bootstrap(300, 0).values()} == {300}
