"""Make what the site shows before anything is installed: the demo's report and explorer, and notebooks with outputs.

    python tools/make_samples.py

`make gallery` runs this and builds the site. The files, about 6 MB, lie below build/samples, where `site_hooks.py`
finds them. Each is made once; delete the folder to make them again, after a change of the package. A notebook whose
cells have changed is executed again in any case.
"""

import os
from pathlib import Path

import nbclient
import nbformat

from rococo_jax.cli.main import main as rococo

ROOT = Path(__file__).resolve().parents[1]
SAMPLES, NOTEBOOKS = ROOT / "build" / "samples", ROOT / "notebooks"
# The fourth notebook downloads a model.
EXECUTED = ("quickstart", "your_data", "train_defence")


def run(command: str) -> None:
    """Run a command as in a terminal."""
    if code := rococo(command.split()):
        raise SystemExit(code)


def sources_of(notebook: nbformat.NotebookNode) -> list[str]:
    """Return the text of each cell."""
    return [cell.source for cell in notebook.cells]


def execute(name: str) -> None:
    """Write a copy of a notebook with its outputs; a copy with the same cells is kept."""
    copy = SAMPLES / "notebooks" / f"{name}.ipynb"
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    if copy.is_file() and sources_of(nbformat.read(copy, as_version=4)) == sources_of(notebook):
        return
    folder = SAMPLES / "work" / name
    folder.mkdir(parents=True, exist_ok=True)
    client = nbclient.NotebookClient(notebook, timeout=1800, resources={"metadata": {"path": str(folder)}})
    client.execute(env={**os.environ, "ROCOCO_JAX": str(ROOT)})
    copy.parent.mkdir(exist_ok=True)
    nbformat.write(notebook, copy)


def main() -> None:
    SAMPLES.mkdir(parents=True, exist_ok=True)
    os.chdir(SAMPLES)
    if not Path("report.html").is_file():
        run("demo --out demo")
        run("report demo/250-scenes-seed-1/paper --reference plain --out report.html --explore")
    for name in EXECUTED:
        execute(name)


if __name__ == "__main__":
    main()
