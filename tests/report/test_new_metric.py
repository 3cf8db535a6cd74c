"""A metric that is added as one row to the metrics of a kind of task is in every table."""

import json

import numpy as np
import pytest

from rococo_jax import metrics
from rococo_jax.cli.main import main
from rococo_jax.metrics import retrieval
from rococo_jax.metrics.metric import Metric
from tests.support.world import noise, write_world

WRONG = Metric(
    "top1_wrong",
    "Wrong first",
    "lower",
    "%",
    "share of queries whose first item belongs to another image",
    "ours",
    lambda shares: shares["top1_other"] + shares["top1_other_altered"],
    is_share=True,
)


@pytest.fixture
def out(tmp_path, monkeypatch, capsys):
    """Results of two models of random embeddings, and what the command prints."""
    monkeypatch.setattr(retrieval, "METRICS", (*retrieval.METRICS, WRONG))
    # As the dictionary would be if the row were in the file.
    monkeypatch.setitem(metrics.METRICS, WRONG.name, WRONG)
    captions = [[f"{letter} {number}" for letter in "abcde"] for number in range(20)]
    write_world(tmp_path, captions, picture=noise(6, 8, 6), altered={"danger": "{} car".format})
    texts = [f"{text}{end}" for each in captions for text in each for end in ("", " car")]
    rng = np.random.default_rng(0)
    images = sorted(path.name for path in (tmp_path / "images").iterdir())
    words = [tmp_path / "images", "--annotations", tmp_path / "annotations", "--mixed-galleries", "none"]
    for name in ("one", "two"):
        arrays = {"image_names": images, "image_embeddings": rng.normal(size=(len(images), 8))}
        arrays |= {"captions": texts, "text_embeddings": rng.normal(size=(len(texts), 8))}
        np.savez(tmp_path / f"{name}.npz", **{key: np.array(value) for key, value in arrays.items()})
    sources = [f"{name}=embeddings:{tmp_path / name}.npz" for name in ("one", "two")]
    assert main(["evaluate", *sources, "--images", *map(str, words), "--out", str(tmp_path / "out"), "--all"]) == 0
    return tmp_path / "out", capsys.readouterr().out


def test_tables_need_only_the_declaration_of_a_new_metric(out, capsys):
    folder, printed = out
    results = json.loads((folder / "one" / "results.json").read_text())
    numbers = results["tasks"]["image_to_text"]["danger"]
    wrong = numbers["top1_other"] + numbers["top1_other_altered"]
    assert numbers["top1_wrong"] == pytest.approx(wrong) and "metrics" not in results
    assert results["intervals"]["image_to_text"]["danger"]["top1_wrong"] is not None
    assert "Wrong first" in printed and f"{wrong:.1f}" in printed
    page = (folder / "report.md").read_text()
    board = page[page.index("#### Results") if "#### Results" in page else page.index("Results") :]
    board = board[: board.index("<details>")]
    assert "Clean: Wrong first" in board and "Danger: Wrong first" in board
    assert WRONG.definition in page and "top1_wrong" in (folder / "report.csv").read_text()
    assert main(["compare", str(folder), "--metrics", "top1_wrong", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["metric"] for row in rows} == {"top1_wrong"} and len(rows) >= 3
