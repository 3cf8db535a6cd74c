"""MkDocs hooks: generate the Reference pages and those of notebooks, and adapt what Markdown lacks.

The commands come from the parser, the config keys from their declarations, and the benchmarks and metrics from their
rows. Tables of CSV files are shown, formulas become MathML, which browsers draw without a script, and links that leave
docs/ lead to a page or become words. `make_samples.py` makes samples, which are added if they exist.
"""

import base64
import csv
import html
import inspect
import json
import os
import posixpath
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
# Files outside docs/ that are pages of the site as well.
_OUTSIDE = {"launch/README.md": "how-to/launch.md", "CHANGELOG.md": "changelog.md"}
# Samples and notebooks with outputs, of tools/make_samples.py.
SAMPLES = ROOT / "build" / "samples"
_SAMPLE = re.compile(r"<!-- sample: (\S+) -->")
_FORMULA = re.compile(r"""<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>""", re.DOTALL)
_TABLE = re.compile(r"^\[Table: ([\w.]+\.csv)\]\(\1\)$", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]*)\]\((\.\./[^)#\s]*)(#[^)\s]*)?\)")
# GitHub's workflows set the variable. Links to the repository and to Colab need an address, so others have none.
_REPOSITORY = os.environ.get("GITHUB_REPOSITORY")
_COLAB_MARK = "<!-- colab -->"

# A row of parameters, such as "images, annotations", of which no default is known.
_SEVERAL = re.compile(r"(<tr[^>]*>\s*<td>\s*<code>\w+, (?:(?!</tr>).)*?)<em>required</em>", re.DOTALL)


def on_config(config: Any) -> Any:
    """Add links to the repository if its address is known."""
    if _REPOSITORY:
        config.repo_url = f"https://github.com/{_REPOSITORY}"
        config.repo_name = _REPOSITORY
        config.edit_uri = "edit/main/docs/"
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages and the pages that lie outside docs/."""
    pages = {f"reference/{name}.md": make() for name, make in PAGES.items()}
    pages |= {f"reference/commands/{name}.md": text for name, text in command_pages().items()}
    for path, page in _OUTSIDE.items():
        pages[page] = relinked((ROOT / path).read_text(encoding="utf-8"), path, f"docs/{page}")
    for notebook in sorted((ROOT / "notebooks").glob("*.ipynb")):
        with_outputs = SAMPLES / "notebooks" / notebook.name
        file = with_outputs if with_outputs.is_file() else notebook
        pages |= notebook_page(notebook.stem, file.read_text(encoding="utf-8"))
    for path, content in pages.items():
        files.append(File.generated(config, path, content=content))
    for path in sample_files():
        files.append(File.generated(config, f"samples/{path.relative_to(SAMPLES)}", abs_src_path=str(path)))
    return files


def sample_files() -> list[Path]:
    """Return the files of samples: the report with its numbers, and its explorer with pictures."""
    files = [path for path in SAMPLES.glob("report.*") if path.suffix in (".html", ".csv")]
    return [*files, *SAMPLES.glob("report*/*")]


def notebook_page(name: str, text: str) -> dict[str, str | bytes]:
    """Return the page of a notebook and its pictures, by their places below docs/."""
    place, cells, pictures = f"start/notebooks/{name}", [], {}
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"]).strip()
        if cell["cell_type"] == "markdown":
            cells.append(relinked(source, f"notebooks/{name}.ipynb", f"docs/{place}.md"))
            continue
        cells.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                picture = f"{place}-{len(pictures) + 1}.png"
                pictures[picture] = base64.b64decode(data["image/png"])
                cells.append(f"![Output of the cell above.]({posixpath.basename(picture)})")
            elif "<table" in "".join(data.get("text/html", "")):
                table = re.sub(r"<style.*?</style>|\n\s*", "", "".join(data["text/html"]), flags=re.DOTALL)
                cells.append(re.sub(r"<table[^>]*>", "<table>", table))
            elif output.get("name") == "stdout" or "text/plain" in data:
                text_of_cell = "".join(output.get("text", data.get("text/plain", "")))
                plain = re.sub(r"\x1b\[[\d;]*m", "", text_of_cell)
                cells.append(f"```text\n{plain.rstrip()}\n```")
    introduction, *rest = cells
    link = f"*The page of the notebook [{name}.ipynb](../../../notebooks/{name}.ipynb).*"
    return {f"{place}.md": "\n\n".join([introduction, link, *rest]) + "\n", **pictures}


def relinked(text: str, source: str, destination: str) -> str:
    """Return the text of a page with its relative links rewritten for another place in the repository."""

    def link(match: re.Match) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[2]))
        if ":" in match[2] or not (ROOT / target).exists():
            return match[0]
        return f"{match[1]}{posixpath.relpath(target, posixpath.dirname(destination))}{match[3] or ''})"

    return re.sub(r"(\]\()([^)#\s]+)(#[^)\s]*)?\)", link, text)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Show tables of CSV files; point links that leave docs/ to their page, or turn them into plain words."""
    folder = posixpath.dirname(page.file.src_uri)

    def table(match: re.Match) -> str:
        path = Path(config.docs_dir) / folder / match[1]
        with path.open(encoding="utf-8", newline="") as file:
            head, *rows = csv.reader(file)
        if not rows:
            raise PluginError(f"{path}: a table without rows")
        return "\n".join([*markdown_table(head, rows), "", f"[{match[1]}]({match[1]})"])

    def link(match: re.Match) -> str:
        target = posixpath.normpath(posixpath.join("docs", folder, match[2]))
        if target.startswith("docs/") or not (ROOT / target).exists():
            return match[0]  # MkDocs reports dead links
        if target not in _OUTSIDE:
            return match[1]
        return f"[{match[1]}]({posixpath.relpath(_OUTSIDE[target], folder or '.')}{match[3] or ''})"

    def sample(match: re.Match) -> str:
        if not (SAMPLES / match[1]).is_file():
            return "Sample: not in this build (`make gallery`)."
        return f'<a href="{posixpath.relpath(f"samples/{match[1]}", folder or ".")}">Open the sample</a>'

    markdown = _SAMPLE.sub(sample, markdown)
    if _REPOSITORY:
        notebook = f"https://colab.research.google.com/github/{_REPOSITORY}/blob/main/notebooks/quickstart.ipynb"
        markdown = markdown.replace(_COLAB_MARK, f" or [in Colab]({notebook})")
    return _LINK.sub(link, _TABLE.sub(table, markdown))


def on_page_content(content: str, page: Any, config: Any, files: Files) -> str:
    """Turn formulas into MathML, and remove what mkdocstrings says of an entry that names several parameters."""

    def mathml(match: re.Match) -> str:
        if match[1] == "span":
            return convert(html.unescape(match[2]))
        return f'<div class="formula">{convert(html.unescape(match[2]), display="block")}</div>'

    return _SEVERAL.sub(r"\1", _FORMULA.sub(mathml, content))


def markdown_table(head: list[str], rows: list[list[str]]) -> Iterator[str]:
    """Yield the lines of a table; columns of numbers are aligned to the right."""
    is_number = [
        all(not row[column] or re.match(r"[-+*−]*\d", row[column]) for row in rows) for column in range(len(head))
    ]
    yield f"| {' | '.join(head)} |"
    yield f"| {' | '.join('---:' if number else '---' for number in is_number)} |"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def page_of_rows(title: str, introduction: str, head: list[str], rows: list[list[str]]) -> str:
    """Return a page with one table."""
    return "\n".join([f"# {title}", "", introduction, "", *markdown_table(head, rows)]) + "\n"


def cell(text: object) -> str:
    """Return text for a cell of a table."""
    return str(text).replace("|", r"\|").replace("<", "&lt;").replace("\n", " ")


def _parsers() -> dict[str, Any]:
    """Return the parser of each command, in the order of `rococo --help`."""
    from rococo_jax.cli.main import COMMANDS, build_parser

    parser = build_parser()
    parsers = next(action for action in parser._actions if action.dest == "command").choices
    return {name: parsers[name] for name in COMMANDS}


def commands_page() -> str:
    """Return the list of commands, with a link to each one's page."""
    rows = [
        [f"[`rococo {name}`](commands/{name}.md)", cell((parser.description or "").strip().partition("\n\n")[0])]
        for name, parser in _parsers().items()
    ]
    introduction = "Each command has a page with its options and examples, as `rococo COMMAND --help` shows them."
    return page_of_rows("Commands", introduction, ["command", "purpose"], rows)


def command_pages() -> dict[str, str]:
    """Return a page for each command: usage, examples, and a table for each group of options."""
    return {name: "\n".join(_command_page(name, parser)) for name, parser in _parsers().items()}


def _command_page(name: str, parser: Any) -> Iterator[str]:
    usage = parser.format_usage()
    usage = f"rococo {usage[usage.index(name) :].strip()}"
    _, _, examples = (parser.epilog or "").partition("examples:\n")
    yield from (f"# rococo {name}", "", f"{cell(parser.description)}", "", f"```text\n{usage}\n```", "")
    for group in parser._action_groups:
        rows = [_option_row(action) for action in group._group_actions if action.dest != "help"]
        if rows:
            yield from (f"## {group.title.capitalize()}", "", *markdown_table(["option", "meaning"], rows), "")
    yield from ("## Examples", "", f"```text\n{examples.rstrip()}\n```", "", "[All commands](../commands.md)", "")


def _option_row(action: Any) -> list[str]:
    """Return an option with its value, and its help."""
    choices = f"{{{','.join(map(str, action.choices))}}}" if action.choices else action.dest.upper()
    is_switch = action.option_strings and action.nargs == 0
    words = [*action.option_strings[:1], *([] if is_switch else [action.metavar or choices])]
    return [f"`{' '.join(words)}`".replace("|", r"\|"), cell((action.help or "").replace("%%", "%"))]


def config_page() -> str:
    """Return every key of a training config with its default and its meaning."""
    from rococo_jax.training.config import default_config
    from rococo_jax.training.config import flat as leaves
    from rococo_jax.training.config_keys import all_keys

    defaults = leaves(default_config())
    rows = [[f"`{name}`", f"`{defaults[name]!r}`", cell(key.help)] for name, key in leaves(all_keys()).items()]
    introduction = (
        "Keys of the configs of `rococo train` and `rococo sweep`. Set a key in the config file, or on the command "
        "line as `--config.KEY=VALUE`: see [Fine-tune CLIP](../how-to/train.md)."
    )
    return page_of_rows("Config keys", introduction, ["key", "default", "meaning"], rows)


def benchmarks_page() -> str:
    """Return one row for each benchmark."""
    from rococo_jax.benchmarks.benchmark import known_benchmarks

    rows = []
    for info in known_benchmarks().values():
        folders = ", ".join(f"`{place}`" for place in info.folders.values())
        headline = f"{info.headline.phrase}: {info.headline.source}" if info.headline else ""
        row = [f"`{info.name}`", info.question, info.paper, headline, f"{info.size}; {info.licence}", folders]
        rows.append([*map(cell, row)])
    head = ["name", "question", "paper", "headline", "data: size, licence", "folders"]
    introduction = (
        "Every benchmark that `rococo evaluate --benchmarks` knows. Folders are relative to `--data`. "
        "[How benchmarks are scored](scoring.md) explains the metrics, [Headlines](headlines.md) the number that ranks."
    )
    return page_of_rows("Benchmarks", introduction, head, rows)


def zoo_page() -> str:
    """Return one row for each published fine-tune that has a name."""
    from rococo_jax.checkpoints.zoo import ZOO, zoo

    head = ["name", "method", "source", "towers", "activation", "licence", "note", "SHA-256 known", "read in"]
    rows = []
    for each in zoo().values():
        method = f"[{each.family}](https://arxiv.org/abs/{each.paper})"
        sources = ", ".join(f"[{number}]({url})" for number, url in enumerate(each.sources, 1))
        row = [f"`{ZOO}{each.name}`", method, f"<{each.address}>", each.architecture, each.activation, each.licence]
        has_hash = "yes" if each.sha256 else "no"
        rows.append([*row, each.note, has_hash, sources])
    introduction = (
        "Published fine-tunes that can be named wherever a command takes a model. **None of these files was available "
        "when this was written, so none has been verified.** An empty cell means that no source states the fact. If "
        "the activation is empty, it is read from the checkpoint's configuration, or you choose it with `--activation`."
    )
    return page_of_rows("Zoo", introduction, head, rows)


def downloads_page() -> str:
    """Return one row for each file that `rococo fetch` downloads."""
    from rococo_jax.benchmarks.benchmark import read_sources
    from rococo_jax.cli.fetch import in_bytes

    rows = []
    for each, benchmarks, source in read_sources():
        size = in_bytes(each.size) if each.size else ""
        check = f"{each.verification}; needs accepted terms" if each.page else each.verification
        row = [" ".join(sorted(benchmarks)), f"`{each.to}`", size, check, f"`{each.url}`", source]
        rows.append([*map(cell, row)])
    head = ["benchmarks", "destination", "size", "verification", "address", "documented in"]
    introduction = (
        "Every file that `rococo fetch` downloads into the folder given by `--data`. *Not tried*: the address comes "
        "from the authors' code or from mteb and has not been tested, see [Get the data](../how-to/get-data.md)."
    )
    return page_of_rows("Downloads", introduction, head, rows)


def metrics_page() -> str:
    """Return one row for each metric."""
    from rococo_jax.metrics import METRICS

    head = ["key", "label", "better", "unit", "definition", "origin"]
    rows = [
        [*map(cell, (f"`{each.name}`", each.label, each.better or "", each.unit, each.definition, each.origin or ""))]
        for each in METRICS.values()
    ]
    introduction = (
        "The metrics in `results.json`, by key. The column *origin* states where the formula comes from: the "
        "benchmark's public code, its paper, or *ours*, if the public material gives no formula and this project "
        "defines one. "
        "Numbers marked *ours* cannot be compared with published ones. [Glossary](glossary.md)"
    )
    return page_of_rows("Metrics", introduction, head, rows)


def python_page() -> str:
    """Return every public name with its signature and its docstring."""
    import rococo_jax

    lines = ["# Python API", "", "The public names of `rococo_jax`. Each is loaded on first use.", ""]
    for name, module in rococo_jax._PUBLIC.items():
        signature = inspect.signature(getattr(rococo_jax, name))
        parameters = [each.replace(annotation=each.empty) for each in signature.parameters.values()]
        call = re.sub(r"<class '[\w.]*?(\w+)'>", r"\1", f"{name}{inspect.Signature(parameters)}")
        call = textwrap.fill(call, 90, subsequent_indent=" " * (len(name) + 1), break_on_hyphens=False)
        lines += [f"## {name}", "", f"```python\n{call}\n```", "", f"::: {module}.{name}", ""]
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
