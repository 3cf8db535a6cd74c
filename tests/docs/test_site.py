"""The site: generated pages are complete, every table that a page promises is there, and pages are short."""

import base64
import csv
import json
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from rococo_jax.checkpoints.zoo import zoo
from rococo_jax.cli.main import COMMANDS
from rococo_jax.metrics import METRICS
from rococo_jax.training.config import default_config, flat
from tests.support.browser_checks import AXE, CHECKS, axe_complaints, show
from tests.support.chromium import Chromium, require_chromium
from tests.support.paths import CHECKOUT

DOCS = CHECKOUT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))


@pytest.fixture(scope="module")
def hooks():
    sys.path.insert(0, str(CHECKOUT / "tools"))
    import site_hooks

    yield site_hooks
    sys.path.pop(0)


def build_site(out, **settings):
    """Build the site as `make docs` does, with settings of mkdocs.yml changed; a warning is mkdocs's `Abort`."""
    build = pytest.importorskip("mkdocs.commands.build").build
    load_config = pytest.importorskip("mkdocs.config").load_config
    build(load_config(str(CHECKOUT / "mkdocs.yml"), strict=True, site_dir=str(out), **settings))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    build_site(out)
    return out


def test_pages_are_short():
    lines = {str(page.relative_to(DOCS)): len(page.read_text(encoding="utf-8").splitlines()) for page in PAGES}
    assert {name: count for name, count in lines.items() if count >= 200} == {}
    assert lines["research/README.md"] <= 150
    assert len((CHECKOUT / "README.md").read_text(encoding="utf-8").splitlines()) <= 130


def test_every_table_that_a_page_shows_has_rows_and_every_csv_is_shown_or_linked():
    named = set()
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for name in re.findall(r"^\[Table: (.+?)\]", text, re.MULTILINE):
            with (page.parent / name).open(encoding="utf-8", newline="") as file:
                head, *rows = csv.reader(file)
            assert rows and all(len(row) == len(head) for row in rows), name
            named.add(page.parent / name)
        named |= {page.parent / name for name in re.findall(r"\]\((\S+?\.csv)\)", text)}
    assert named == {*DOCS.rglob("*.csv")}


def test_pages_do_not_repeat_twelve_words_of_another_page():
    pages: dict[tuple[str, ...], Path] = {}
    for page in [CHECKOUT / "README.md", *PAGES]:
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        words = re.findall(r"[\w'@.-]+", text)
        for run in zip(*(words[start:] for start in range(12)), strict=False):
            assert pages.setdefault(run, page) == page, " ".join(run)


def test_every_mark_for_a_generated_table_is_followed_by_a_table():
    """A page whose generator writes below a mark must have what it promises."""
    for page in PAGES:
        _, mark, after = page.read_text(encoding="utf-8").partition("<!-- table -->")
        assert not mark or after.count("\n|") > 5, f"{page.name}: nothing below its mark"


def test_the_reference_has_every_command_key_benchmark_and_metric(hooks):
    reference = {name: make() for name, make in hooks.PAGES.items()}
    pages = hooks.command_pages()
    assert all(
        f"# rococo {name}\n" in pages[name] and f"(commands/{name}.md)" in reference["commands"] for name in COMMANDS
    )
    keys = flat(default_config())
    assert len(keys) > 80 and all(f"| `{key}` |" in reference["config"] for key in keys)
    assert not re.search(r"\| *\|$", reference["config"], re.MULTILINE), "a key without a meaning"
    assert all(f"| `{name}` |" in reference["metrics"] for name in METRICS)
    for row in zoo().values():
        (line,) = (
            line for line in reference["zoo"].splitlines() if line.startswith(f"| `zoo:{row.name}` | [{row.family}]")
        )
        facts = (row.address, row.architecture, row.activation, row.licence, row.note, *row.sources)
        assert all(fact in line for fact in facts)
    assert "| `rococo` |" in reference["benchmarks"] and "::: rococo_jax.encoders.load_model" in reference["python"]


def test_a_notebook_is_a_page_with_its_outputs(hooks):
    """Text, tables and pictures are shown in order; what a cell writes to standard error is not."""
    picture = base64.b64encode(b"a picture").decode()
    outputs = [
        {"output_type": "stream", "name": "stderr", "text": ["embedding\n"]},
        {"output_type": "stream", "name": "stdout", "text": ["36 %\n", "of 24\n"]},
        {"output_type": "display_data", "data": {"text/html": "<pre>bold</pre>", "text/plain": "\x1b[1mbold\x1b[0m 5"}},
        {"output_type": "display_data", "data": {"image/png": picture, "text/plain": ["<Figure>"]}},
        {"output_type": "execute_result", "data": {"text/html": ['<table class="x">\n  <tr><td>1</td></tr></table>']}},
    ]
    cells = [
        {"cell_type": "markdown", "source": ["# First\n", "\n", "See [the defence](../docs/explanation/defence.md)."]},
        {"cell_type": "code", "source": ["print(1)"], "outputs": outputs},
    ]
    pages = hooks.notebook_page("quickstart", json.dumps({"cells": cells}))
    text = pages.pop("start/notebooks/quickstart.md")
    assert pages == {"start/notebooks/quickstart-1.png": b"a picture"} and "embedding" not in text
    parts = [
        "# First", "(../../explanation/defence.md)", "```python\nprint(1)\n```", "```text\n36 %\nof 24\n```",
        "```text\nbold 5\n```", "](quickstart-1.png)", "<table><tr><td>1</td></tr></table>",
    ]  # fmt: skip
    places = [text.index(part) for part in parts]
    assert places == sorted(places)


def test_formulas_are_rendered_as_mathml_and_samples_are_linked(hooks, tmp_path, monkeypatch):
    html = '<p><span class="arithmatex">\\(a &lt; b\\)</span></p><div class="arithmatex">\\[\nx^2\n\\]</div>'
    shown = hooks.on_page_content(html, None, None, None)
    assert "arithmatex" not in shown and shown.count("<math ") == 2
    assert "<mo>&#x0003C;</mo>" in shown and 'class="formula"><math' in shown and 'display="block"' in shown
    page = SimpleNamespace(file=SimpleNamespace(src_uri="gallery.md"))
    monkeypatch.setattr(hooks, "SAMPLES", tmp_path)
    for there in (False, True):
        markdown = hooks.on_page_markdown("<!-- sample: report.html -->", page, SimpleNamespace(docs_dir=DOCS), None)
        assert ('href="samples/report.html"' in markdown) is there
        (tmp_path / "report.html").write_text("x")


@pytest.mark.slow
def test_a_dead_link_fails_the_build(tmp_path, caplog):
    """Without the Python interface, which takes most of the time."""
    docs = shutil.copytree(DOCS, tmp_path / "docs")
    with (docs / "research" / "README.md").open("a", encoding="utf-8") as page:
        page.write("\n[gone](nowhere.md), [no such part](../how-to/evaluate.md#nothing)\n")
    with pytest.raises(pytest.importorskip("mkdocs.exceptions").Abort):
        build_site(tmp_path / "site", docs_dir=str(docs), plugins=["search"])
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 2 and "nowhere.md" in warnings[0] and "#nothing" in warnings[1]


def test_colab_opens_the_notebook_of_the_publishing_repository(hooks, monkeypatch):
    """Without an address there is no link: an upload dialog would not find the package."""
    text = (DOCS / "start" / "notebook.md").read_text(encoding="utf-8")
    page = SimpleNamespace(file=SimpleNamespace(src_uri="start/notebook.md"))
    opened = "https://colab.research.google.com/github/someone/fork/blob/main/notebooks/quickstart.ipynb"
    for repository, links in ((None, 0), ("someone/fork", 1)):
        monkeypatch.setattr(hooks, "_REPOSITORY", repository)
        html = hooks.on_page_markdown(text, page, SimpleNamespace(docs_dir=DOCS), None)
        assert html.count("colab.research.google.com") == html.count(opened) == links
        config = hooks.on_config(SimpleNamespace(repo_url=None))
        assert config.repo_url == ("https://github.com/someone/fork" if links else None)


def test_the_site_finds_what_users_search_for():
    """Check that the page that answers a question contains the words that users search for."""
    answers = {
        "significance": "how-to/compare", "p-value": "how-to/compare", "confidence interval": "how-to/compare",
        "cite": "how-to/report-and-cite", "BibTeX": "how-to/report-and-cite", "LaTeX": "how-to/report-and-cite",
        "wandb": "how-to/monitor", "Weights & Biases": "how-to/monitor", "resume": "how-to/monitor",
        "out of memory": "how-to/troubleshooting", "install": "start/install",
    }  # fmt: skip
    for words, page in answers.items():
        assert words.lower() in (DOCS / f"{page}.md").read_text(encoding="utf-8").lower(), f"{page}: {words}"


@pytest.mark.slow
def test_names_in_tables_do_not_break_in_the_middle(site, browser):
    """The longest name of the first column stays on one line, on a wide and on a narrow screen."""
    lines = """
      [...document.querySelectorAll(".md-typeset td:first-child code")].filter(e => e.getClientRects().length > 1)
        .map(e => e.textContent)"""
    for page in ("how-to/monitor", "how-to/evaluate", "reference/config", "how-to/launch"):
        browser.open(site / f"{page}.html")
        for width in (1400, 390):
            show(browser, width, "light")
            assert browser.evaluate(lines) == [], f"{page} at {width} px"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    require_chromium()
    browser = Chromium(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        "index",
        "how-to/evaluate",
        "research/index",
        "research/appendix_photographs",
        "reference/metrics",
        "explanation/defence",
        "gallery",
    ],
)
def test_pages_fit_their_widths_and_load_nothing_from_elsewhere(site, browser, page):
    before = len(browser.events)
    browser.open(site / f"{page}.html")
    for width in (1400, 820, 390):
        show(browser, width, "light")
        for name, script in CHECKS.items():
            assert browser.evaluate(script) == [], f"{name} at {width} px"
    requests = [each for each in browser.events[before:] if each["method"] == "Network.requestWillBeSent"]
    urls = [each["params"]["request"]["url"] for each in requests]
    assert [url for url in urls if not url.startswith(("file:", "data:", "blob:"))] == []


@pytest.mark.slow
@pytest.mark.skipif(AXE is None, reason="no axe-core here: make node-tools")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_accessibility_problem(site, browser, scheme):
    show(browser, 1400, scheme)
    for page in ("index", "how-to/evaluate", "research/index", "reference/config"):
        browser.open(site / f"{page}.html")
        # Material lets the keyboard reach code that scrolls once it is in view.
        complaints = [each for each in axe_complaints(browser) if not each.startswith("scrollable-region-focusable")]
        assert complaints == [], page
