"""MkDocs hooks: the Reference pages made from the code, tables read from CSV, links that leave docs/.

Commands come from the parser, config keys from `default_config` with their comments and docs/config_keys.toml,
benchmarks and metrics from their rows. A key without a meaning, or a meaning without a key, fails the build.
"""

import csv
import os
import posixpath
import re
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
# Files outside docs/ that are pages of the site too.
_OUTSIDE = {"launch/README.md": "launch.md"}
_TABLE = re.compile(r"^\[Table: ([\w.]+\.csv)\]\(\1\)$", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]*)\]\((\.\./[^)#\s]*)(#[^)\s]*)?\)")
# A workflow knows its repository, whose notebooks Colab opens by their address.
_COLAB = "https://colab.research.google.com/"
_REPOSITORY = os.environ.get("GITHUB_REPOSITORY")
_COMMENT = re.compile(r"^\s*# ?(.*)")
_KEY = re.compile(r'^\s*"(\w+)":')


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that are made, and those that lie elsewhere."""
    pages = {f"reference/{name}.md": make() for name, make in PAGES.items()}
    for path, page in _OUTSIDE.items():
        pages[page] = (ROOT / path).read_text(encoding="utf-8").replace("](docs/", "](").replace("](../docs/", "](")
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


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


def flat(config: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Every key of a config with its default; a section without keys is a key."""
    for name, value in config.items():
        if hasattr(value, "items") and len(value):
            yield from flat(value, f"{before}{name}.")
        else:
            yield before + name, value


def comments_of_keys(path: Path) -> dict[str, str]:
    """Config key -> the comment right above it in the table of keys. Nesting is read from the indentation."""
    found: dict[str, str] = {}
    sections: list[tuple[int, str]] = []
    comment: list[str] = []
    with tokenize.open(path) as file:
        lines = file.read().partition("def all_keys")[2].partition("\ndef ")[0].splitlines()
    for line in lines:
        if words := _COMMENT.match(line):
            comment.append(words[1])
            continue
        if key := _KEY.match(line):
            depth = len(line) - len(line.lstrip())
            sections = [each for each in sections if each[0] < depth]
            name = ".".join([*(each[1] for each in sections), key[1]])
            if comment:
                found[name] = " ".join(comment)
            if line.rstrip().endswith("{"):
                sections.append((depth, key[1]))
        comment = []
    return found


def config_page() -> str:
    """Every key of a training config, its default and its meaning."""
    from rococo_jax.cli.main import build_parser
    from rococo_jax.training.config import default_config

    keys = dict(flat(default_config()))
    comments = comments_of_keys(ROOT / "rococo_jax" / "training" / "config_keys.py")
    written = tomllib.loads((ROOT / "docs" / "config_keys.toml").read_text(encoding="utf-8"))
    meanings = dict(flat(written))
    evaluate = next(action for action in build_parser("evaluate")._actions if action.dest == "command")
    options = {action.dest: action.help for action in evaluate.choices["evaluate"]._actions}
    for key in keys:
        # A comment on a section of one line is that of all its keys.
        said = comments.get(key) or comments.get(key.rpartition(".")[0])
        if said and key not in meanings:
            meanings[key] = said
        option = key.removeprefix("eval.")
        if key.startswith("eval.") and option in options and key not in written.get("eval", {}):
            meanings[key] = options[option].replace("%(default)s", str(keys[key]))
    without = sorted(set(keys) - set(meanings))
    unknown = sorted(set(dict(flat(written))) - set(keys))
    if without or unknown:
        raise PluginError(
            f"docs/config_keys.toml: keys without a meaning: {', '.join(without) or 'none'}; "
            f"meanings of no key: {', '.join(unknown) or 'none'}"
        )
    rows = [[f"`{key}`", f"`{value!r}`", cell(meanings[key])] for key, value in keys.items()]
    said = "Of `rococo train` and `rococo sweep`, as `--config.KEY=VALUE`: [Training](../training.md)."
    return page_of_rows("Config keys", said, ["key", "default", "meaning"], rows)


def benchmarks_page() -> str:
    """Every benchmark's row."""
    from rococo_jax.benchmarks.benchmark import known_benchmarks

    rows = []
    for info in known_benchmarks().values():
        folders = ", ".join(f"`{place}`" for place in info.folders.values())
        row = [f"`{info.name}`", info.question, info.paper, f"{info.size}; {info.licence}", folders]
        rows.append([*map(cell, row)])
    head = ["name", "question", "paper", "data: size, licence", "folders"]
    return page_of_rows("Benchmarks", "What `rococo benchmarks` knows; folders are those under `--data`.", head, rows)


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
    "metrics": metrics_page,
    "python": python_page,
}
