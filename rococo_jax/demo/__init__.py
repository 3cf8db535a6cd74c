"""The embedded default: drawn scenes with captions, altered captions, and small models trained on such scenes."""

from pathlib import Path

ASSETS = Path(__file__).parent / "assets"
_DESCRIPTION = "model.json"


def shipped_models() -> dict[str, Path]:
    """The model directories that come with the package, by name; `plain`, the undefended one, is first."""
    found = sorted((path.parent for path in ASSETS.glob(f"*/{_DESCRIPTION}")), key=lambda path: path.name != "plain")
    return {path.name: path for path in found}
