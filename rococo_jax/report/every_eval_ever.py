"""Results as records of Every Eval Ever (schema 0.3.0, github.com/evaleval/every_eval_ever).

A model's record is `data/COLLECTION/DEVELOPER/MODEL/UUID.json` with every metric, its interval and definition, and
beside it `UUID_samples.jsonl` with a line for each query or item. A line has the first metric of its variant that
counts single answers (R@1, accuracy, ...); its metadata have the other columns of `per_query.parquet`. There is no
`sample_hash`: the reference of an image query is the best of its captions, which depends on the model.
"""

import hashlib
import json
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rococo_jax.benchmarks.benchmark import known_benchmarks
from rococo_jax.evaluation.journal import evaluation_time
from rococo_jax.evaluation.results import PER_QUERY
from rococo_jax.evaluation.table_metadata import numbers_hash, read_rows
from rococo_jax.metrics import metric_of
from rococo_jax.metrics.intervals import RESAMPLES
from rococo_jax.report.answers import Answer, answered_rows
from rococo_jax.report.collection import Run
from rococo_jax.report.hub_results import hub_data_set, portable_name
from rococo_jax.report.vocabulary import SPREAD
from rococo_jax.storage import hash_file, hash_json, write_json, write_json_lines

SCHEMA, COLLECTION = "0.3.0", "rococo_jax"
_UNITS = {"%": "percent", "points": "points", "": "number"}
_KEYS = ("benchmark", "task", "variant", "part", "alteration", "corruption", "severity", "unit")


def write_record(folder: Path, run: Run, about: Mapping[str, str]) -> list[Path]:
    """Write the record of a model below `folder`; return its files.

    Args:
        about: `developer` of the model, `organization` that evaluated it, and its `relationship` to the developer.

    Raises InputError: the table of queries is damaged or belongs to other results.
    """
    developer, _, name = run.results["model"].rpartition("/")
    developer = developer or about["developer"]
    model_id = f"{developer}/{name}"
    parts = [f"{part}_" if part.lower() == "data" else part for part in map(portable_name, (developer, name))]
    place = "/".join(["data", COLLECTION, *parts])
    evaluation_id = f"{COLLECTION}/{model_id}/{numbers_hash(run.results)[:16]}"
    number = uuid.UUID(bytes=hashlib.sha256(evaluation_id.encode()).digest()[:16], version=4)
    record = _record(run, evaluation_id, model_id, developer, about)
    path, samples = folder / place / f"{number}.json", folder / place / f"{number}_samples.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    table = run.path.with_name(PER_QUERY)
    if not table.is_file():
        write_json(path, record)
        return [path]
    rows = 0

    def counted() -> Iterator[dict[str, Any]]:
        nonlocal rows
        common = {"schema_version": SCHEMA, "evaluation_id": evaluation_id, "model_id": model_id}
        for sample in _samples(run, table):
            rows += 1
            yield common | sample

    write_json_lines(samples, counted())
    if not rows:
        samples.unlink()
        write_json(path, record)
        return [path]
    about_samples = {"format": "jsonl", "file_path": f"{place}/{samples.name}", "hash_algorithm": "sha256"}
    about_samples |= {"checksum": hash_file(samples), "total_rows": rows}
    write_json(path, record | {"detailed_evaluation_results": about_samples})
    return [path, samples]


def _record(run: Run, evaluation_id: str, model_id: str, developer: str, about: Mapping[str, str]) -> dict[str, Any]:
    fingerprint = run.results["fingerprint"]
    versions = {name: str(value) for name, value in fingerprint.get("versions", {}).items()}
    seconds = str(int(evaluation_time(run.path, run.results).timestamp()))
    hashes = {name: value for name, value in fingerprint.get("model", {}).items() if isinstance(value, str)}
    deployment = "self_deployed" if "weights" in hashes else "unknown"
    return {
        "schema_version": SCHEMA,
        "evaluation_id": evaluation_id,
        "evaluation_timestamp": seconds,
        "retrieved_timestamp": seconds,
        "source_metadata": {
            "source_name": "rococo_jax",
            "source_type": "evaluation_run",
            "source_organization_name": about["organization"],
            "evaluator_relationship": about["relationship"],
        },
        "eval_library": {
            "name": "rococo_jax",
            "version": versions.pop("rococo_jax", "unknown"),
            "additional_details": versions | {"protocol": run.results["protocol"]},
        },
        "model_info": {
            "name": run.results["model"],
            "id": model_id,
            "developer": developer,
            "additional_details": hashes | {"deployment_type": deployment, "model_availability": "unknown"},
        },
        "evaluation_results": [
            _result(run, task, variant, name)
            for task, variants in run.tasks.items()
            for variant, metrics in variants.items()
            for name, value in metrics.items()
            if value is not None and not name.endswith(SPREAD)
        ],
    }


def _result_id(task: str, variant: str, metric: str) -> str:
    return f"{task}/{variant}/{metric}"


def _name(run: Run, task: str, variant: str) -> str:
    benchmark = run.benchmark_of(task) or task
    return "/".join(dict.fromkeys((benchmark, task, variant)))


def _result(run: Run, task: str, variant: str, name: str) -> dict[str, Any]:
    """Return one metric of a variant, with its definition, interval and sizes."""
    metric, estimate, size = metric_of(name), run.estimate(task, variant, name), run.sizes(task).get(variant, {})
    low, high = metric.bounds
    # A share of 100 % may be 100.00000000000001.
    details = {"sizes": json.dumps(size), "kind": run.kind(task)}
    if estimate.spread is not None:
        details["standard_deviation_over_seeds"] = json.dumps(estimate.spread)
    if (chance := run.chance(task, variant, name)) is not None:
        details["chance"] = json.dumps(chance)
    headline = run.headline(task)
    if headline is not None and (headline.variant, headline.metric) == (variant, name):
        details["headline"] = headline.source
    score: dict[str, Any] = {"score": min(max(estimate.value, low), high), "details": details}
    if estimate.has_interval:
        bounds = {"lower": estimate.low, "upper": estimate.high, "confidence_level": 0.95}
        interval = bounds | {"method": "percentile bootstrap over images"}
        score["uncertainty"] = {
            "confidence_interval": interval,
            "num_bootstrap_samples": _resamples(run, task, variant, name),
        }
        if "images" in size:
            score["uncertainty"]["num_samples"] = size["images"]
    return {
        "evaluation_result_id": _result_id(task, variant, name),
        "evaluation_name": _name(run, task, variant),
        "source_data": _source_data(run, run.benchmark_of(task) or task),
        "metric_config": {
            "evaluation_description": metric.definition,
            "metric_id": f"rococo_jax.{name}",
            "metric_name": metric.label,
            "metric_unit": _UNITS[metric.unit],
            "lower_is_better": metric.better == "lower",
            "score_type": "continuous",
            "min_score": low if low > -float("inf") else "-Infinity",
            "max_score": high if high < float("inf") else "Infinity",
            "additional_details": {"better": metric.better or "neither"},
        },
        "score_details": score,
    }


def _resamples(run: Run, task: str, variant: str, metric: str) -> int:
    bootstrap = run.results.get("bootstrap", {})
    fewer = bootstrap.get("resamples_of", {}).get(task, {}).get(variant, {})
    return int(fewer.get(metric, bootstrap.get("resamples", RESAMPLES)))


def _source_data(run: Run, benchmark: str) -> dict[str, Any]:
    """Return where the data of a benchmark are published, and their hash."""
    known = hub_data_set(benchmark)
    info = known_benchmarks().get(benchmark)
    data: dict[str, Any] = {"dataset_name": benchmark, "source_type": "hf_dataset" if known else "other"}
    details = {"sha256": hash_json(run.results["fingerprint"].get("data", {}).get(benchmark))}
    if known:
        data["hf_repo"] = known[0]
        details |= {"revision": known[1]} if known[1] else {}
    if info is not None:
        details |= {"paper": info.paper, "licence": info.licence, "source": info.source}
    return data | {"additional_details": details}


def _samples(run: Run, path: Path) -> Iterator[dict[str, Any]]:
    """Yield a record of each row of a table of queries that has a metric of single answers."""
    table = read_rows(path, "the table of queries that `rococo evaluate` writes beside results.json")
    return (_sample(run, row, answer) for row, answer in answered_rows(run, table))


def _sample(run: Run, row: dict[str, Any], answer: Answer) -> dict[str, Any]:
    task, variant = row["task"], row["variant"]
    output = answer.answer
    if answer.ranks_images and row.get("top1_kind", "").endswith("altered"):
        output += f" ({variant})"  # altered images have the names of their originals
    others = {name: value for name, value in row.items() if name not in (*_KEYS, *answer.columns)}
    identity = [task, variant, *(str(row[name]) for name in ("seed", "query", "item") if name in row)]
    if "query" not in row and "item" not in row:
        identity.append(row["image"])
    return {
        "evaluation_name": _name(run, task, variant),
        "evaluation_result_id": _result_id(task, variant, answer.metric),
        "sample_id": "/".join(identity),
        "interaction_type": "single_turn",
        "input": {"raw": answer.query, "reference": [answer.right]},
        "output": {"raw": [output]},
        "answer_attribution": [
            {
                "turn_idx": 0,
                "source": "output.raw",
                "extracted_value": output,
                "extraction_method": "highest score",
                "is_terminal": True,
            }
        ],
        "evaluation": {"score": float(answer.is_right), "is_correct": answer.is_right},
        "metadata": {name: value if isinstance(value, str) else json.dumps(value) for name, value in others.items()},
    }
