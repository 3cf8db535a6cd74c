"""Run a script of the checkout in this process, with arguments."""

import runpy
import sys
from pathlib import Path

import pytest


def run_script(monkeypatch: pytest.MonkeyPatch, path: Path, *arguments: object) -> None:
    """Run a script as `python PATH ARGUMENTS` does."""
    monkeypatch.setattr(sys, "argv", [str(path), *map(str, arguments)])
    monkeypatch.setattr(sys, "path", [str(path.parent), *sys.path])
    runpy.run_path(str(path), run_name="__main__")
