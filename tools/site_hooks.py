"""MkDocs hooks: the Reference pages made from the code, tables read from CSV, links that leave docs/.

Commands come from the parser, config keys from their declarations, benchmarks and metrics from their rows.
"""

import csv
import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
# Files outside docs/ that are pages of the site too.
_OUTSIDE = {"launch/README.md": "how-to/launch.md"}
_TABLE = re.compile(r"^\[Table: ([\w.]+\.csv)\]\(\1\)$", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]*)\]\((\.\./[^)#\s]*)(#[^)\s]*)?\)")
# A workflow knows its repository, whose notebooks Colab opens by their address.
_COLAB = "https://colab.research.google.com/"
_REPOSITORY = os.environ.get("GITHUB_REPOSITORY")


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that are made, and those that lie elsewhere."""
    pages = {f"reference/{name}.md": make() for name, make in PAGES.items()}
    for path, page in _OUTSIDE.items():
        pages[page] = relinked((ROOT / path).read_text(encoding="utf-8"), path, f"docs/{page}")
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def relinked(text: str, source: str, destination: str) -> str:
    """Return the text of a page with its relative links rewritten for another place in the repository."""

    def link(match: re.Match) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[2]))
        if ":" in match[2] or not (ROOT / target).exists():
            return match[0]
        return f"{match[1]}{posixpath.relpath(target, posixpath.dirname(destination))}{match[3] or ''})"

    return re.sub(r"(\]\()([^)#\s]+)(#[^)\s]*)?\)", link, text)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Shows tables of CSV files; leads links that leave docs/ to their page, or makes them plain words."""
    folder = posixpath.dirname(page.file.src_uri)

    def table(found: re.Match) -> str:
        path = Path(config.docs_dir) / folder / found[1]
        with path.open(encoding="utf-8", newline="") as file:
            head, *rows = csv.reader(file)
        if not rows:
            raise PluginError(f"{path}: a table without rows")
        return "\n".join([*markdown_table(head, rows), "", f"[{found[1]}]({found[1]})"])

    def link(found: re.Match) -> str:
        target = posixpath.normpath(posixpath.join("docs", folder, found[2]))
        if target.startswith("docs/") or not (ROOT / target).exists():
            return found[0]  # MkDocs says where it is dead
        if target not in _OUTSIDE:
            return found[1]
        return f"[{found[1]}]({posixpath.relpath(_OUTSIDE[target], folder or '.')}{found[3] or ''})"

    if _REPOSITORY:
        notebook = f"github/{_REPOSITORY}/blob/main/notebooks/quickstart.ipynb"
        markdown = markdown.replace(f"{_COLAB}#upload", _COLAB + notebook)
    return _LINK.sub(link, _TABLE.sub(table, markdown))


def markdown_table(head: list[str], rows: list[list[str]]) -> Iterator[str]:
    """The lines of a table; columns of figures to the right."""
    figures = [all(not row[place] or re.match(r"[-+*−]*\d", row[place]) for row in rows) for place in range(len(head))]
    yield f"| {' | '.join(head)} |"
    yield f"| {' | '.join('---:' if right else '---' for right in figures)} |"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def page_of_rows(title: str, said: str, head: list[str], rows: list[list[str]]) -> str:
    """A page with one table."""
    return "\n".join([f"# {title}", "", said, "", *markdown_table(head, rows)]) + "\n"


def cell(text: object) -> str:
    """Text in a cell of a table."""
    return str(text).replace("|", r"\|").replace("<", "&lt;").replace("\n", " ")


def commands_page() -> str:
    """Every command with its help."""
    from rococo_jax.cli.main import COMMANDS, build_parser

    parser = build_parser()
    parsers = next(action for action in parser._actions if action.dest == "command").choices
    lines = ["# Commands", "", "What `rococo COMMAND --help` prints.", ""]
    for name in COMMANDS:
        lines += [f"## rococo {name}", "", "```text", parsers[name].format_help().rstrip(), "```", ""]
    return "\n".join(lines)


def config_page() -> str:
    """Every key of a training config, its default and its meaning."""
    from rococo_jax.training.config import default_config
    from rococo_jax.training.config import flat as leaves
    from rococo_jax.training.config_keys import all_keys

    defaults = leaves(default_config())
    rows = [[f"`{name}`", f"`{defaults[name]!r}`", cell(key.help)] for name, key in leaves(all_keys()).items()]
    said = "Of `rococo train` and `rococo sweep`, as `--config.KEY=VALUE`: [Training](../how-to/train.md)."
    return page_of_rows("Config keys", said, ["key", "default", "meaning"], rows)


def benchmarks_page() -> str:
    """Every benchmark's row."""
    from rococo_jax.benchmarks.benchmark import known_benchmarks

    rows = []
    for info in known_benchmarks().values():
        folders = ", ".join(f"`{place}`" for place in info.folders.values())
        headline = f"{info.headline.phrase}: {info.headline.source}" if info.headline else ""
        row = [f"`{info.name}`", info.question, info.paper, headline, f"{info.size}; {info.licence}", folders]
        rows.append([*map(cell, row)])
    head = ["name", "question", "paper", "headline", "data: size, licence", "folders"]
    return page_of_rows("Benchmarks", "What `rococo benchmarks` knows; folders are those under `--data`.", head, rows)


def zoo_page() -> str:
    """Every published fine-tune that has a name."""
    from rococo_jax.checkpoints.zoo import ZOO, zoo

    head = ["name", "method", "where", "towers", "activation", "licence", "note", "SHA-256 known", "read in"]
    rows = []
    for each in zoo().values():
        method = f"[{each.family}](https://arxiv.org/abs/{each.paper})"
        sources = ", ".join(f"[{number}]({url})" for number, url in enumerate(each.sources, 1))
        row = [f"`{ZOO}{each.name}`", method, f"<{each.address}>", each.architecture, each.activation, each.licence]
        hashed = "yes" if each.sha256 else "no"
        rows.append([*row, each.note, hashed, sources])
    said = (
        "Published fine-tunes by name, wherever a model is named. An empty cell was in no source; an empty activation "
        "is read from the configuration, or has to be given. The published files are not verified by this project."
    )
    return page_of_rows("Zoo", said, head, rows)


def downloads_page() -> str:
    """Every file that `rococo fetch` gets."""
    from rococo_jax.benchmarks.sources import read_sources
    from rococo_jax.cli.fetch import in_bytes

    rows = []
    for each, benchmarks, source in read_sources():
        size = in_bytes(each.size) if each.size else ""
        check = f"{each.verification}; needs accepted terms" if each.page else each.verification
        row = [" ".join(sorted(benchmarks)), f"`{each.to}`", size, check, f"`{each.url}`", source]
        rows.append([*map(cell, row)])
    head = ["benchmarks", "comes to", "size", "contents", "address", "read in"]
    said = "What `rococo fetch` gets, below `--data`; *not tried* as in [Getting the data](../how-to/get-data.md)."
    return page_of_rows("Downloads", said, head, rows)


def metrics_page() -> str:
    """Every metric's row."""
    from rococo_jax.metrics import METRICS

    head = ["key", "label", "better", "unit", "is", "formula"]
    rows = [
        [*map(cell, (f"`{each.name}`", each.label, each.better or "", each.unit, each.definition, each.origin or ""))]
        for each in METRICS.values()
    ]
    said = "Keys of `results.json`. *ours*: the public material gives no formula, so it is this project's."
    return page_of_rows("Metrics", said, head, rows)


def python_page() -> str:
    """Every public name, from its docstring."""
    from rococo_jax import _PUBLIC

    lines = ["# Python", "", "Names of `rococo_jax`, loaded on first use.", ""]
    for name, module in _PUBLIC.items():
        lines += [f"## {name}", "", f"::: {module}.{name}", ""]
    return "\n".join(lines)


PAGES = {
    "commands": commands_page,
    "config": config_page,
    "benchmarks": benchmarks_page,
    "downloads": downloads_page,
    "metrics": metrics_page,
    "zoo": zoo_page,
    "python": python_page,
}
