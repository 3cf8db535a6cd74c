"""The quickstart notebook is stored without outputs and runs from the first cell to the last."""

import json
import os
import re

import nbclient
import nbformat
import pytest

from tests.support.paths import CHECKOUT

NOTEBOOK = CHECKOUT / "notebooks" / "quickstart.ipynb"
# Parameters for a run of a few seconds, in place of the notebook's own.
SMALL = {"SCENES": 8, "STEPS": 2, "BATCH": 16, "TRAINING_SCENES": 32}


def test_the_notebook_is_kept_without_outputs_and_names_no_machine():
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert code and all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert all(set(cell["metadata"]) <= {"tags"} for cell in notebook["cells"])
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    assert notebook["metadata"] == {"kernelspec": kernel, "language_info": {"name": "python"}}
    nbformat.validate(nbformat.from_dict(notebook))


@pytest.mark.slow
def test_every_cell_of_the_notebook_runs(tmp_path):
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    (parameters,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", ())]
    assert all(re.search(rf"\b{name}\b", parameters.source) for name in SMALL)
    parameters.source += "".join(f"\n{name} = {value}" for name, value in SMALL.items())
    # One device, as users have, instead of the tests' eight.
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    client = nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}})
    client.execute(env=environment)
    shown = [kind for cell in notebook.cells for output in cell.get("outputs", ()) for kind in output.get("data", ())]
    # An altered caption, mixed pictures, false recall, losses, false recall again; and the last table.
    assert shown.count("image/png") == 5 and "text/markdown" in shown
    assert (tmp_path / "quickstart" / "sc-vc-2-steps" / "model" / "model.json").is_file()
