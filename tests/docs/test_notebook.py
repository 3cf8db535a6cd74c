"""The notebooks are stored without outputs, and their cells run from the first to the last, thoroughly in a kernel."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import nbclient
import nbformat
import pytest

from rococo_jax.cli.main import main
from tests.support.made_runs import make_run
from tests.support.paths import CHECKOUT, REAL_DATA

NOTEBOOKS = CHECKOUT / "notebooks"
# Parameters for a run of a few seconds, in place of the notebook's own.
SMALL = {"SCENES": 4, "STEPS": 2, "BATCH": 16, "TRAINING_SCENES": 32}


@pytest.fixture
def run_cells(tmp_path, monkeypatch):
    """Run the code cells of a notebook with other parameters and functions, and return their variables."""
    plt = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plt, "show", lambda: plt.close("all"))

    def run(name: str, parameters: dict, **functions) -> dict:
        for function, replacement in functions.items():
            monkeypatch.setattr(f"rococo_jax.{function}", replacement, raising=False)
        variables: dict = {"__name__": "notebook"}
        cells = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4).cells
        for number, cell in enumerate(cell for cell in cells if cell.cell_type == "code"):
            exec(compile(cell.source, f"{name}.ipynb, code cell {number}", "exec"), variables)
            if "parameters" in cell.metadata.get("tags", ()):
                assert set(parameters) <= set(variables)
                variables.update(parameters)
        return variables

    return run


@pytest.mark.parametrize("name", sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb")))
def test_a_notebook_installs_the_package_only_from_a_checkout_or_an_address(name, tmp_path, monkeypatch):
    """The name is on no index: whoever registered it there would run code in every notebook."""
    cells = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4).cells
    (install,) = (cell.source for cell in cells if cell.cell_type == "code" and "pip" in cell.source)
    installed = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("subprocess.run", lambda words, **_: installed.append(words[-1]))
    for source in ("", "rococo-jax", "nowhere"):
        monkeypatch.setenv("ROCOCO_JAX", source)
        with pytest.raises(RuntimeError, match="set SOURCE above, or ROCOCO_JAX in the environment"):
            exec(install, {})
    assert not installed
    (tmp_path / "checkout").mkdir()
    for source in ("checkout", "git+https://example.org/repository"):
        monkeypatch.setenv("ROCOCO_JAX", source)
        exec(install, {})
    assert installed[0].startswith(f"{tmp_path / 'checkout'}[notebook")
    assert installed[1].endswith(" @ git+https://example.org/repository")


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs_and_names_no_machine(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert code and all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert all(set(cell["metadata"]) <= {"tags"} for cell in notebook["cells"])
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    assert notebook["metadata"] == {"kernelspec": kernel, "language_info": {"name": "python"}}
    nbformat.validate(nbformat.from_dict(notebook))


@pytest.mark.thorough
def test_every_cell_of_the_notebook_runs_in_a_kernel(tmp_path):
    notebook = nbformat.read(NOTEBOOKS / "quickstart.ipynb", as_version=4)
    (parameters,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", ())]
    parameters.source += "".join(f"\n{name} = {value}" for name, value in SMALL.items())
    # One device, as users have, instead of the tests' eight.
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    client = nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}})
    client.execute(env=environment)
    shown = [kind for cell in notebook.cells for output in cell.get("outputs", ()) for kind in output.get("data", ())]
    # An altered caption, mixed pictures, false recall, losses, false recall again; and the last table.
    assert shown.count("image/png") == 5 and "text/html" in shown
    assert (tmp_path / "quickstart" / "sc-vc-2-steps" / "model" / "model.json").is_file()


@pytest.mark.slow
def test_the_cells_of_the_quickstart_run_with_synthetic_results(tmp_path, run_cells):
    """Made results stand for all evaluations, and nothing is trained: the thorough sibling does both."""
    results = json.loads((make_run(tmp_path / "made", "made", 1.0) / "results.json").read_text())
    evaluated, weights = [], []

    def evaluate(model, *_, **__):
        evaluated.append(model)
        return results

    def train(config, folder):
        weights.append(config.losses.sc.weight)
        folder.mkdir()
        (folder / "metrics.jsonl").write_text(json.dumps({"step": 1, "contrastive": 2.0}))
        return SimpleNamespace(model=folder / "model")

    variables = run_cells("quickstart", SMALL, train=train, evaluate=evaluate)
    assert weights == [0.0, 1.0] and len(evaluated) == len(variables["compared"]) == 5
    assert (
        variables["original"] != variables["altered"]
        and ("text_to_image", "mix_0.9") in variables["table"](variables["compared"]).index
    )


def test_the_cells_of_the_defence_notebook_run_with_synthetic_results(tmp_path, run_cells):
    """Training and evaluation themselves are tried by the thorough sibling and by tests of their own."""
    metrics = {"r1": 50.0, "fr1": 20.0, "blind": 55.0, "grounding": 60.0}
    results = {"tasks": {"image_to_text": {"clean": {"r1": 60.0, "fr1": 0.0}, "same_concept": metrics}}}
    weights = {}

    def train(config, folder):
        weights[folder.name] = config.losses.sc.weight
        return SimpleNamespace(model=f"{folder}/model")

    functions = {"evaluate": lambda *_, **__: results, "draw_benchmark": lambda *_, **__: (tmp_path, tmp_path)}
    variables = run_cells("train_defence", {}, train=train, **functions)
    assert len(variables["results"]) == len(variables["DEFENCES"]) == 3
    assert list(weights.values()) == [0.0, 1.0, 1.0]


@pytest.mark.slow
def test_the_cells_of_the_notebook_on_your_data_run_with_synthetic_results(tmp_path, run_cells, monkeypatch):
    """The benchmark is made; its evaluation and the training are those of the tutorial that a test runs."""
    evaluated = []

    def command(words):
        if words[0] != "evaluate":
            return main(words)
        evaluated.append(words[1])
        make_run(Path(words[words.index("--out") + 1]), words[1], 1.0)
        return 0

    monkeypatch.setattr("rococo_jax.cli.main.main", command)
    trained = SimpleNamespace(model=Path("your_data/run/model"))
    variables = run_cells("your_data", {"SCENES": 8}, train=lambda config, folder: trained)
    assert evaluated == ["demo:plain", "your_data/run/model"]
    assert variables["results"].model.nunique() == 2 and set(variables["shown"].metric) == {"fr1"}
    assert (tmp_path / "your_data" / "DATA" / "mine" / "README.md").is_file()


@pytest.mark.thorough
def test_a_torch_model_and_its_conversion_are_evaluated_together(exported, tmp_path, run_cells):
    variables = run_cells("your_model", {"MODEL": str(exported), "SCENES": 8})
    for task, variants in variables["results"]["tasks"].items():
        for variant, metrics in variants.items():
            assert metrics["r1"] == variables["ours"]["tasks"][task][variant]["r1"]
    assert (tmp_path / "your_model" / "report.html").is_file()


@pytest.mark.thorough
def test_the_defence_notebook_trains_and_evaluates_a_model(run_cells):
    """Run every cell on one model: the other models differ only in their weights."""
    small = {"SCENES": 8, "STEPS": 1, "BATCH": 64, "TRAINING_SCENES": 64}
    defences = {"and balanced": {"sc": 1.0, "vc": 1.0, "grounding": 1.0}}
    variables = run_cells("train_defence", {**small, "DEFENCES": defences})
    assert "grounding" in variables["results"]["and balanced"]["tasks"]["image_to_text"]["same_concept"]


@pytest.mark.thorough
def test_the_notebook_on_your_data_makes_a_benchmark_and_trains_a_defended_model(tmp_path, run_cells):
    """On photographs where they are there, else on drawn scenes."""
    small = {"SCENES": 16, "STEPS": 1, "BATCH": 8}
    photos = REAL_DATA / "coco" / "originals" / "val2014"
    if photos.is_dir():
        names = {path.name for path in photos.iterdir()}
        items = json.loads((REAL_DATA / "coco" / "captions_test.json").read_text())
        rows = [[item["image"].rpartition("/")[2], text] for item in items for text in item["caption"][:2]]
        rows = [row for row in rows if row[0] in names][:32]
        (tmp_path / "photos.jsonl").write_text("\n".join(json.dumps({"file_name": a, "text": b}) for a, b in rows))
        small |= {"PHOTOS": str(photos), "CAPTIONS": str(tmp_path / "photos.jsonl")}
    variables = run_cells("your_data", small)
    assert (variables["results"].model.nunique(), variables["results"].section.nunique()) == (2, 1)
    assert (tmp_path / "your_data" / "DATA" / "mine" / "README.md").is_file()
