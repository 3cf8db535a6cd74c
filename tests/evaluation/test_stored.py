"""Compare results of vectors and similarities made elsewhere from exported inputs with those of their model."""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from rococo_jax.cli.main import main
from rococo_jax.evaluation.results import read_results
from rococo_jax.metrics.change import METRICS as CHANGES
from tests.support.tiny import random_captions
from tests.support.world import noise, write_world

IMAGES = 6
ASKED = ["--seeds", "1,10", "--mixed-galleries", "mix_0.9", "--corruptions", "contrast", "--severities", "3"]
# A model that sees 16 colours, and to which every text is a random vector of its own: nothing nearly ties.
MODEL = """
import zlib
import numpy as np

class Colours:
    name = "colours"

    def encode_image(self, images):
        return np.stack([np.asarray(image.resize((4, 4), 4), float).ravel() - 127.5 for image in images])

    def encode_text(self, texts):
        return np.stack([np.random.default_rng(zlib.crc32(text.encode())).normal(size=48) for text in texts])
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Data, the model's own results, the exported inputs, and the model's vectors of them, made by plain code."""
    folder, rng = tmp_path_factory.mktemp("world"), np.random.default_rng(0)
    captions = [[f"{text} {n}" for text in random_captions(5, seed=n, longest=6)] for n in range(IMAGES)]
    write_world(folder, captions, picture=noise(6, 8, 6), altered={"danger": "{} car".format})
    for name in ("vectors", "scores"):
        (folder / name).mkdir()
    (folder / "model.py").write_text(MODEL)
    data = ["--images", str(folder / "images"), "--annotations", str(folder / "annotations"), *ASKED]
    assert main(["evaluate", f"{folder / 'model.py'}:Colours", *data, "--out", str(folder / "out" / "live")]) == 0
    assert main(["export-inputs", *data, "--out", str(folder / "inputs")]) == 0
    lines = [json.loads(line) for line in (folder / "inputs" / "images.jsonl").read_text().splitlines()]
    captions = [json.loads(line) for line in (folder / "inputs" / "captions.jsonl").read_text().splitlines()]
    space = {}
    exec(MODEL, space)
    model = space["Colours"]()
    images = model.encode_image([Image.open(folder / "inputs" / line["file"]).convert("RGB") for line in lines])
    texts = model.encode_text(captions)
    # As any user may hand them in: not normalised, in two forms, not in order.
    order = rng.permutation(len(lines))
    names = np.array([line["image"] for line in lines])
    np.savez(folder / "vectors" / "images.npz", image_names=names[order], image_embeddings=images[order])
    table = {"caption": captions, "embedding": list(texts.astype(np.float64))}
    pq.write_table(pa.table(table), folder / "vectors" / "captions.parquet")
    unit = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (images, texts)]
    for name in {line["set"] for line in lines}:
        rows = [row for row, line in enumerate(lines) if line["set"] == name]
        np.save(folder / "scores" / f"{name}.npy", (unit[0][rows] @ unit[1].T).astype(np.float32))
    return folder, data, lines, captions


def test_every_image_of_every_set_is_exported(world):
    folder, _, lines, captions = world
    sets = {line["set"] for line in lines}
    assert sets == {"originals", "mix_0.9_seed1", "mix_0.9_seed10", "control", "uncorrupted", "contrast_3"}
    assert len(lines) == IMAGES * len(sets) and len(captions) == 2 * 5 * IMAGES
    assert all((folder / "inputs" / line["file"]).is_file() for line in lines)
    original = next(line for line in lines if line["image"] == "03.png")
    assert (folder / "inputs" / original["file"]).read_bytes() == (folder / "images" / "03.png").read_bytes()


@pytest.fixture(scope="module")
def scored(world):
    """Results by what they were scored from."""
    folder, data, *_ = world
    for option, of in (("--embeddings", "vectors"), ("--similarities", "scores")):
        assert main(["score", option, str(folder / of), *data, "--out", str(folder / "out" / of)]) == 0
    return {name: read_results(folder / "out" / name / "results.json") for name in ("live", "vectors", "scores")}


@pytest.mark.parametrize("of", ["vectors", "scores"])
def test_scores_of_exported_inputs_match_those_of_the_model(scored, of):
    live, stored = scored["live"], scored[of]
    assert live["fingerprint"]["comparable"] == stored["fingerprint"]["comparable"]
    assert stored["tasks"].keys() == live["tasks"].keys()
    for task, variants in live["tasks"].items():
        for variant, metrics in variants.items():
            found = stored["tasks"][task][variant]
            # Probabilities over the gallery are made of float32 products, and not at all of given similarities.
            unsure = {metric.name for metric in CHANGES} & metrics.keys()
            assert unsure.isdisjoint(found) if of == "scores" else unsure <= found.keys()
            assert found.keys() | unsure == metrics.keys()
            for name, value in found.items():
                tolerance = 1e-6 if name in unsure else 1e-9
                assert value == pytest.approx(metrics[name], abs=tolerance), (task, variant, name)
            bounds = {name for name in live["intervals"][task][variant] if name in found or name not in unsure}
            assert stored["intervals"][task][variant].keys() == bounds
    assert live["tasks"]["text_to_image"]["mix_0.9"]["fr1"] > 0


def test_stored_and_evaluated_models_share_one_table_with_paired_tests(world, scored):
    folder, *_ = world
    assert main(["report", str(folder / "out"), "--out", str(folder / "report.html")]) == 0
    page, board = ((folder / f"report.{suffix}").read_text() for suffix in ("html", "md"))
    assert "Not comparable" not in page and "Differences from" in page and "permutation test" in page
    assert all(name in board for name in ("colours", *scored.keys() - {"live"}))


@pytest.mark.slow
@pytest.mark.thorough
def test_results_of_other_numpy_and_jax_versions_are_compared(world, scored, tmp_path, monkeypatch, capsys):
    folder, data, *_ = world
    monkeypatch.setattr(np, "__version__", "2.99.0")
    monkeypatch.setattr(jax, "__version__", "0.99.0")
    out = tmp_path / "newer"
    assert main(["score", "--embeddings", str(folder / "vectors"), *data, "--out", str(out)]) == 0
    newer = read_results(out / "results.json")
    assert newer["tasks"] == scored["vectors"]["tasks"] and newer["intervals"] == scored["vectors"]["intervals"]
    versions = [each["fingerprint"]["versions"] for each in (newer, scored["vectors"])]
    assert (
        (versions[0]["numpy"], versions[0]["jax"]) == ("2.99.0", "0.99.0") != (versions[1]["numpy"], versions[1]["jax"])
    )
    capsys.readouterr()
    assert main(["compare", str(folder / "out" / "vectors"), str(out), "--json"]) == 0
    said = capsys.readouterr()
    rows = json.loads(said.out)
    verdicts = {row["verdict"] for row in rows}
    assert rows and all(row["points"] == 0 for row in rows) and not said.err
    assert verdicts <= {"identical answers", "at chance"} and "identical answers" in verdicts


def test_a_repeated_export_writes_only_missing_files(world):
    folder, data, *_ = world
    files = sorted((folder / "inputs" / "images").rglob("*.png"))
    before = {path: path.stat().st_mtime_ns for path in files}
    files[-1].unlink()
    assert main(["export-inputs", *data, "--out", str(folder / "inputs")]) == 0
    assert [path for path in files if path.stat().st_mtime_ns != before[path]] == [files[-1]]


def test_evaluate_accepts_stored_embeddings_among_its_models(world, tmp_path):
    folder, data, *_ = world
    sources = [f"embeddings:{folder / 'vectors'}", f"{folder / 'model.py'}:Colours"]
    more = ["--mixed-galleries", "none", "--out", str(tmp_path), "--no-report"]
    assert main(["evaluate", *sources, *data[: -len(ASKED)], *more]) == 0
    assert read_results(tmp_path / "vectors" / "results.json")["model"] == "vectors"


def test_embeddings_written_by_the_embed_command_are_read(world, tmp_path):
    """The altered file names all captions; without mixed galleries nothing else is asked."""
    folder, *_ = world
    data = ["--images", str(folder / "images")]
    annotation = str(folder / "annotations" / "danger.json")
    model = f"{folder / 'model.py'}:Colours"
    assert main(["embed", model, *data, "--captions", annotation, "--out", str(tmp_path / "E.npz"), "--no-cache"]) == 0
    data += ["--annotations", str(folder / "annotations"), "--mixed-galleries", "none"]
    assert main(["score", "--embeddings", str(tmp_path / "E.npz"), *data, "--out", str(tmp_path / "out")]) == 0
    live = read_results(folder / "out" / "live" / "results.json")["tasks"]["image_to_text"]["danger"]
    found = read_results(tmp_path / "out" / "results.json")["tasks"]["image_to_text"]["danger"]
    assert found == pytest.approx(live, abs=1e-9)


def drop(arrays, kept):
    return arrays | {name: arrays[name][kept] for name in ("image_names", "image_embeddings")}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda a: drop(a, ["mix_0.9_seed10" not in name for name in a["image_names"]]),
         "images of mix_0.9_seed10 (rococo): found no vector of 6 of 6, such as 'mix_0.9_seed10/00.png'"),
        (lambda a: a | {"captions": np.array(["wrong", *a["captions"][1:]])},
         "captions: found 1 of 60 that no benchmark has, such as 'wrong'"),
        (lambda a: a | {"captions": a["captions"][1:], "text_embeddings": a["text_embeddings"][1:]},
         "captions (rococo): found no vector of 1 of 60"),
        (lambda a: drop(a, [0, *range(len(a["image_names"]))]), "image: found '00.png' twice; wanted each image once"),
        (lambda a: a | {"captions": np.array([a["captions"][1], *a["captions"][1:]])}, "wanted each caption once"),
        (lambda a: a | {"text_embeddings": a["text_embeddings"][:, :2]}, "3 of an image and 2 of a caption"),
        (lambda a: a | {"text_embeddings": a["text_embeddings"] * np.nan}, "NaN or infinite values"),
        (lambda a: a | {"image_embeddings": a["image_embeddings"][1:]}, "one row for each key"),
        (lambda a: {"captions": a["captions"]}, "captions: found captions; wanted captions and text_embeddings"),
        (lambda a: a | {"captions": a["captions"].astype(object)},
         "E.npz: array 'captions': found Python objects; wanted numbers or texts: save numpy.array(values.tolist())"),
        (lambda a: {"other": a["captions"]}, "arrays: found other; wanted embeddings: .npz"),
    ],
)  # fmt: skip
def test_bad_embeddings_are_reported_in_one_line(world, tmp_path, refusal, change, said):
    _, data, lines, captions = world
    images = np.arange(3 * len(lines), dtype=float).reshape(-1, 3) + 1
    texts = np.arange(3 * len(captions), dtype=float).reshape(-1, 3) + 2
    arrays = {"image_names": np.array([line["image"] for line in lines]), "image_embeddings": images}
    arrays |= {"captions": np.array(captions), "text_embeddings": texts}
    np.savez(tmp_path / "E.npz", **change(arrays))
    error = refusal("score", "--embeddings", tmp_path / "E.npz", *data, "--out", tmp_path / "out").splitlines()
    assert said in error[-1] and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--embeddings", "nothing"], "nothing: embeddings: found nothing there"),
        (["--similarities", "nothing"], "nothing: similarities: found none"),
        ([], "found none; wanted one of --similarities, --embeddings and --logits"),
        (["--embeddings", "a", "--per-query", "q.parquet"], "--per-query: found it alone; wanted it with --annotation"),
        (["--embeddings", "clip"], "clip: embeddings: found img_emb/img_emb_0.npy, an array without names; wanted"),
        (
            ["--embeddings", "a", "--annotation", "b.json"],
            "--annotation: found it alone",
        ),
        (
            ["--embeddings", "a", "--similarities", "b"],
            "--similarities: found also --embeddings",
        ),
    ],
)
def test_bad_combinations_of_options_are_reported_in_one_line(world, tmp_path, refusal, monkeypatch, options, said):
    _, data, *_ = world
    monkeypatch.chdir(tmp_path)
    Path("clip/img_emb").mkdir(parents=True)
    np.save("clip/img_emb/img_emb_0.npy", np.zeros((2, 3)))
    data = () if "--annotation" in options else data
    assert said in refusal("score", *options, *data, "--out", "out").splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "of"),
    [("--similarities", "scores"), pytest.param("--embeddings", "vectors", marks=pytest.mark.thorough)],
)
def test_new_files_in_a_folder_add_results_and_changed_files_are_refused(world, tmp_path, refusal, option, of):
    folder, data, *_ = world
    images, stored = data[:4], tmp_path / of
    if of == "scores":
        shutil.copytree(folder / of, stored, ignore=shutil.ignore_patterns("*_seed10.npy"))
        (later,) = (folder / of).glob("*_seed10.npy")
    else:
        stored.mkdir()
        arrays = np.load(folder / of / "images.npz")
        is_later = np.array([name.startswith("mix_0.9_seed10/") for name in arrays["image_names"].tolist()])
        for name, rows in (("images", ~is_later), ("more", is_later)):
            place = (stored if name == "images" else tmp_path) / f"{name}.npz"
            np.savez(place, **{key: values[rows] for key, values in arrays.items()})
        shutil.copy(folder / of / "captions.parquet", stored)
        later = tmp_path / "more.npz"

    def score(out: str, seeds: str) -> list[str]:
        words = ["score", option, str(stored), *images, "--mixed-galleries", "mix_0.9", "--seeds", seeds]
        return [*words, "--corruptions", "contrast", "--severities", "3", "--out", str(tmp_path / out)]

    assert main(score("apart", "1")) == 0
    shutil.copy(later, stored)
    assert main(score("apart", "1,10")) == 0 and main(score("together", "1,10")) == 0
    for file in ("results.json", "per_query.parquet", "pairs.parquet", "examples.parquet"):
        assert (tmp_path / "apart" / file).read_bytes() == (tmp_path / "together" / file).read_bytes(), file
    if of == "scores":
        np.save(stored / "originals.npy", np.load(stored / "originals.npy") + 1)
        assert "fingerprint: model.files.originals.npy: found" in refusal(*score("apart", "1,10"))
