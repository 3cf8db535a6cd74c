"""Discriminative samples and visual factors, from the rows of several models."""

import json

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet
import pytest
import scipy.optimize
import scipy.special
import scipy.stats

from rococo_jax.cli.main import main
from rococo_jax.evaluation.results import with_checksum
from rococo_jax.storage import write_json
from rococo_jax.studies.factors import huber_line, measure_factor
from rococo_jax.studies.select import select_greedily

IMAGES = 240
NAMES = [f"{place}.jpg" for place in range(IMAGES)]
FIELDS = {"clean": {}, "uncorrupted": {"corruption": "uncorrupted"}, "fog_3": {"corruption": "fog", "severity": 3}}
# A table has the columns of its first row, so every row names them.
KEYS = {"corruption": None, "severity": None}
ANSWERS = {True: {"predicted": "cat", "chosen": "right"}, False: {"predicted": "dog", "chosen": "wrong"}}


def made_run(folder, name, right, changed=None, data="x", model=None):
    """Write results of one model: which images it gets right, and which answers fog changes."""
    variants = {"clean": right, "uncorrupted": right} | ({} if changed is None else {"fog_3": right ^ changed})
    rows = [
        {"task": "pets", "variant": variant, **KEYS, **FIELDS[variant], "image": image, **ANSWERS[one]}
        for variant, hits in variants.items()
        for image, one in zip(NAMES, hits.tolist(), strict=True)
    ]
    tasks = {"pets": {variant: {"top1": 100 * float(hits.mean())} for variant, hits in variants.items()}}
    fingerprint = {"model": {"weights": name}, "data": {"pets": data}, "protocol": "paper"}
    results = {"format": "rococo_jax.results", "version": 2, "protocol": "paper", "tasks": tasks}
    results |= {"model": model or name, "fingerprint": fingerprint, "data": {}}
    results |= {"kinds": {"pets": "classify"}, "intervals": {}}
    results |= {"variants": {"pets": {variant: FIELDS[variant] for variant in variants}}}
    write_json(folder / name / "results.json", with_checksum(results))
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), folder / name / "per_query.parquet")


def test_greedy_selection_matches_a_plain_implementation():
    rng = np.random.default_rng(0)
    v, vectors, a = rng.integers(0, 4, 40) / 3, rng.normal(size=(40, 3)), 0.4
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    expected = []
    for _ in range(10):
        best = max((i for i in range(40) if v[i] > 0 and i not in expected), key=lambda i: (
            round(a * v[i] + (1 - a) * min((1 - unit[i] @ unit[j] for j in expected), default=0), 12), -i))  # fmt: skip
        expected.append(best)
    chosen, distances, nearest = select_greedily(v, vectors, 10, a)
    assert chosen.tolist() == expected and nearest[0] == -1
    assert distances[3] == pytest.approx(min(1 - unit[expected[3]] @ unit[j] for j in expected[:3]))
    assert set(select_greedily(v, vectors, 100, a)[0].tolist()) == set(np.flatnonzero(v > 0).tolist())


def test_images_that_nothing_changes_are_never_selected(tmp_path):
    rng = np.random.default_rng(0)
    changed = [rng.random(IMAGES) < 0.3, rng.random(IMAGES) < 0.3]
    for name, each in zip(("a", "b"), changed, strict=True):
        made_run(tmp_path / "runs", name, rng.random(IMAGES) < 0.7, each)
    names = np.array(NAMES)
    np.savez(tmp_path / "e.npz", image_names=names, image_embeddings=rng.normal(size=(IMAGES, 4)))
    command = f"select {tmp_path}/runs --out {tmp_path}/s.json --count 1000 --embeddings {tmp_path}/e.npz"
    assert main(command.split()) == 0
    found = json.loads((tmp_path / "s.json").read_text())
    assert {each["image"] for each in found["chosen"]} == set(names[changed[0] | changed[1]].tolist())
    both = {each["image"] for each in found["chosen"] if each["inconsistency"] == 1}
    assert both == set(names[changed[0] & changed[1]].tolist())
    one = found["chosen"][1]
    assert one["nearest"] == found["chosen"][0]["image"] and set(one["changed"]) <= {"a", "b"}
    assert sorted(next(iter(one["changed"].values()))["fog_3"]) == ["cat", "dog"]


def test_a_choice_counts_as_changed_if_another_wrong_text_wins(tmp_path):
    said = {"0.jpg": ("wrong", "a cat", "a cow"), "1.jpg": ("wrong", "a cat", "a cat"), "2.jpg": ("right", "x", "y")}
    for name in ("a", "b"):
        made_run(tmp_path / "runs", name, np.ones(IMAGES, bool), np.zeros(IMAGES, bool))
        rows = [{"task": "pets", "variant": variant, **KEYS, **FIELDS[variant], "image": image, "chosen": chosen,
                 "wrong_caption": wrong}
                for image, (chosen, *texts) in said.items()
                for variant, wrong in zip(("uncorrupted", "fog_3"), texts, strict=True)]  # fmt: skip
        rows += [{**row, "variant": "clean", "corruption": None} for row in rows if row["variant"] == "uncorrupted"]
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "runs" / name / "per_query.parquet")
    assert main(f"select {tmp_path}/runs --out {tmp_path}/s.json".split()) == 0
    (one,) = json.loads((tmp_path / "s.json").read_text())["chosen"]
    assert one["image"] == "0.jpg" and one["changed"]["a"] == {"fog_3": ["wrong: a cat", "wrong: a cow"]}


def test_results_of_other_data_are_refused_even_if_images_have_the_same_names(tmp_path, refusal):
    for name, data in (("a", "x"), ("b", "y")):
        made_run(tmp_path / "runs", name, np.ones(IMAGES, bool), np.ones(IMAGES, bool), data=data)
    error = refusal("select", tmp_path / "runs", "--out", tmp_path / "s.json")
    assert "/b/results.json, which differs from" in error and "in data.pets; wanted results that differ only" in error
    assert not (tmp_path / "s.json").exists()


def test_two_models_of_the_same_name_are_kept_apart(tmp_path):
    for folder in ("first", "second"):
        made_run(tmp_path / "runs", folder, np.ones(IMAGES, bool), np.ones(IMAGES, bool), model="a")
    assert main(f"select {tmp_path}/runs --out {tmp_path}/s.json".split()) == 0
    found = json.loads((tmp_path / "s.json").read_text())
    assert found["models"] == ["a (first)", "a (second)"]
    assert all({*one["changed"]} == {*found["models"]} for one in found["chosen"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--weight", "2"], "weight"), (["--count", "0"], "count"), (["--task", "none"], "task"),
     (["--embeddings", "none.npz"], "none.npz: file")],
)  # fmt: skip
def test_bad_input_is_reported_in_one_line(tmp_path, refusal, arguments, said):
    for name in ("a", "b"):
        made_run(tmp_path / "runs", name, np.ones(IMAGES, bool), np.ones(IMAGES, bool))
    error = refusal("select", tmp_path / "runs", "--out", tmp_path / "s.json", *arguments)
    assert said in error and error.count("\n") == 1
    assert "two models" in refusal("select", tmp_path / "runs" / "a", "--out", tmp_path / "s.json")


def test_the_fitted_line_matches_scipy_on_probit_axes():
    rng = np.random.default_rng(0)
    skill = np.linspace(-0.5, 1.5, 9)
    difficulty = rng.normal(size=2000)
    right = skill[:, None] + rng.normal(size=(9, 2000)) > difficulty
    right[4, :500] = rng.random(500) < 0.02  # one model fails on the factor alone
    within = np.arange(2000) < 500
    found = measure_factor(right, within)
    x, y = (scipy.stats.norm.ppf(each.mean(1)) for each in (right, right[:, within]))
    slope, intercept = huber_line(x, y)
    assert found.line == pytest.approx((slope, intercept))
    scale = np.median(np.abs(y - slope * x - intercept)) / 0.6745
    least = scipy.optimize.least_squares(lambda line: (y - line[0] * x - line[1]), [1, 0], loss="huber",
                                         f_scale=1.345 * scale, xtol=1e-14, ftol=1e-14, gtol=1e-14).x  # fmt: skip
    assert found.line == pytest.approx(tuple(least), abs=2e-3)
    foretold = scipy.stats.norm.cdf(slope * x + intercept)
    np.testing.assert_allclose(found.effective[:, 0], 100 * (right[:, within].mean(1) - foretold), atol=1e-9)
    assert found.effective[4, 2] < -20 and ((found.effective[:, 1] <= found.effective[:, 0]).all())


@pytest.mark.parametrize(("models", "images"), [(4, 300), (6, 199)])
def test_no_line_is_fitted_to_few_models_or_images(models, images):
    right = np.random.default_rng(0).random((models, 500)) < 0.5
    assert measure_factor(right, np.arange(500) < images).line is None


def test_factors_give_a_page_and_numbers(tmp_path, refusal):
    rng = np.random.default_rng(0)
    for number in range(6):
        made_run(tmp_path / "runs", f"m{number}", rng.random(IMAGES) < 0.4 + 0.08 * number)
    lines = [{"file_name": f"x/{place}.jpg", "pose": int(place < 210), "shadow": int(place % 3 == 0)}
             for place in range(IMAGES)]  # fmt: skip
    (tmp_path / "f.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = ["factors", str(tmp_path / "runs"), "--factors", str(tmp_path / "f.jsonl"), "--out"]
    assert main([*command, str(tmp_path / "f.html")]) == 0
    found = json.loads((tmp_path / "f.json").read_text())["factors"]
    assert found["pose"]["images"] == 210 and len(found["pose"]["line"]) == 2 and found["shadow"]["line"] is None
    page = (tmp_path / "f.html").read_text()
    assert page.count("<svg") == 1 and "No line" in page
    facts = pandas.DataFrame({"model": [f"m{number}" for number in range(6)], "loss": [*"aababb"]})
    facts.to_csv(tmp_path / "facts.csv", index=False)
    assert main([*command, str(tmp_path / "f.html"), "--facts", str(tmp_path / "facts.csv")]) == 0
    (comparison,) = json.loads((tmp_path / "f.json").read_text())["facts"]
    effective = np.array([found["pose"]["models"][f"m{number}"]["effective"] for number in range(6)])
    in_a = (facts["loss"] == "a").to_numpy()
    assert (comparison["fact"], comparison["variable"]) == ("loss", "pose")
    assert comparison["p"] == pytest.approx(scipy.stats.kruskal(effective[in_a], effective[~in_a]).pvalue)
    assert [group["mean"] for group in comparison["groups"]] == pytest.approx(
        [effective[in_a].mean(), effective[~in_a].mean()]
    )
    (tmp_path / "f.jsonl").write_text('{"file_name": "other.jpg", "pose": 1}\n')
    assert not (tmp_path / "g.html").exists() and refusal(*command, tmp_path / "g.html").count("\n") == 1


def imagenet_x(images):
    """Lines as the README of ImageNet-X shows them, of made-up images: class, justification and metaclass are none."""
    for place in range(images):
        line = {"file_name": f"x/{place}.jpg", "class": place // 8, "pose": int(place % 2 == 0), "pattern": 0,
                "shadow": place % 3 == 0, "larger": float(place % 5 == 0), "justification": "close up of a thing.",
                "one_word": "1" if place == 3 else "pose", "metaclass": "other"}  # fmt: skip
        yield line


@pytest.mark.parametrize("form", ["jsonl", "csv", "tsv", "parquet"])
@pytest.mark.parametrize("images", [IMAGES, 12])
def test_only_columns_of_0_and_1_are_factors(tmp_path, capsys, form, images):
    """A class 0 or 1 is none, in a part of the file either; a factor without an image is named and left out."""
    rng = np.random.default_rng(0)
    for number in range(2):
        made_run(tmp_path / "runs", f"m{number}", rng.random(IMAGES) < 0.5)
    path, frame = tmp_path / f"x.{form}", pandas.DataFrame(imagenet_x(images))
    if form == "jsonl":
        frame.to_json(path, orient="records", lines=True)
    elif form == "parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False, sep="\t" if form == "tsv" else ",")
    command = ["factors", str(tmp_path / "runs"), "--factors", str(path), "--out", str(tmp_path / "f.html")]
    assert main(command) == 0
    factors = json.loads((tmp_path / "f.json").read_text())["factors"]
    expected = {name: int((frame[name] == 1).sum()) for name in ("pose", "shadow", "larger")}
    assert {name: factor["images"] for name, factor in factors.items()} == expected
    said = capsys.readouterr().err
    assert f"x.{form}: no factors: class, justification, one_word, metaclass" in said
    assert "left out, as no image of the results has them: pattern" in said
    assert "no image of the results has them: pattern." in (tmp_path / "f.html").read_text()


def test_texts_in_json_and_columns_with_other_values_are_not_factors(tmp_path, refusal):
    made_run(tmp_path / "runs", "m", np.ones(IMAGES, bool))
    lines = [{"file_name": f"x/{place}.jpg", "text": "1", "later": 1, "gaps": 1} for place in range(3)]
    lines += [{"file_name": "another.jpg", "text": "1", "later": 2, "gaps": None}]
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = ["factors", str(tmp_path / "runs"), "--factors", str(path), "--out", str(tmp_path / "f.html")]
    assert main(command) == 0
    assert json.loads((tmp_path / "f.json").read_text())["factors"].keys() == {"gaps"}
    path.write_text("".join(json.dumps({**line, "gaps": "x"}) + "\n" for line in lines))
    assert "x.jsonl: factors: found none among text, gaps, later" in refusal(*command)
    path.write_text("".join(json.dumps({"file_name": line["file_name"], "gaps": 0}) + "\n" for line in lines))
    assert "x.jsonl: factors: found no image with gaps" in refusal(*command)


def test_the_line_minimises_the_huber_loss():
    rng = np.random.default_rng(0)
    x = rng.uniform(20, 70, 80)
    y = 0.4 * x + 50 + rng.normal(0, 1, 80)
    y[:8] -= 40  # models that are no part of the trend
    slope, intercept = huber_line(x, y)
    assert abs(slope - 0.4) < 0.03
    scale = np.median(np.abs(y - slope * x - intercept)) / 0.6745

    def loss(line):
        return scipy.special.huber(1.345, (y - line[0] * x - line[1]) / scale).sum()

    options = {"xatol": 1e-8, "fatol": 1e-10, "maxiter": 5000}
    found = scipy.optimize.minimize(loss, [0.3, 55.0], method="Nelder-Mead", options=options).x
    np.testing.assert_allclose([slope, intercept], found, atol=5e-3)
