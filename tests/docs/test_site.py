"""The site: what is made from the code is whole, tables stand where pages promise them, pages are short."""

import csv
import re
import shutil
import subprocess
import sys

import pytest

from rococo_jax.cli.main import COMMANDS
from rococo_jax.metrics import METRICS
from rococo_jax.training.config import default_config
from tests.support.browser_checks import AXE, CHECKS, axe_complaints, show
from tests.support.chromium import Chromium, require_chromium
from tests.support.paths import CHECKOUT

DOCS = CHECKOUT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
# All others have less than 200 lines.
LONG = {"performance.md": 500}
mkdocs = pytest.importorskip("mkdocs", reason="no mkdocs here: pip install -e .[docs]")


@pytest.fixture(scope="module")
def hooks():
    sys.path.insert(0, str(CHECKOUT / "tools"))
    import site_hooks

    yield site_hooks
    sys.path.pop(0)


def build(folder, out):
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)],
        cwd=folder, capture_output=True, text=True, timeout=500,
    )  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    done = build(CHECKOUT, out)
    assert done.returncode == 0, done.stderr[-3000:]
    return out


def test_pages_are_short():
    lines = {str(page.relative_to(DOCS)): len(page.read_text(encoding="utf-8").splitlines()) for page in PAGES}
    assert {name: count for name, count in lines.items() if count > LONG.get(name, 199)} == {}
    assert lines["findings.md"] <= 150
    assert len((CHECKOUT / "README.md").read_text(encoding="utf-8").splitlines()) <= 90


def test_every_table_that_a_page_names_has_rows_and_every_csv_has_a_page():
    named = set()
    for page in PAGES:
        for name in re.findall(r"^\[Table: (.+?)\]", page.read_text(encoding="utf-8"), re.MULTILINE):
            with (page.parent / name).open(encoding="utf-8", newline="") as file:
                head, *rows = csv.reader(file)
            assert rows and all(len(row) == len(head) for row in rows), name
            named.add(page.parent / name)
    assert named == set(DOCS.rglob("*.csv"))


def test_no_mark_for_a_table_stands_without_one():
    """A page whose generator writes below a mark must have what it promises."""
    for page in PAGES:
        _, mark, after = page.read_text(encoding="utf-8").partition("<!-- table -->")
        assert not mark or after.count("\n|") > 5, f"{page.name}: nothing below its mark"


def test_figures_are_those_of_their_tables():
    subprocess.run([sys.executable, "tools/draw_findings.py", "--check"], cwd=CHECKOUT, check=True)


def test_the_reference_has_every_command_key_benchmark_and_metric(hooks):
    made = {name: make() for name, make in hooks.PAGES.items()}
    assert all(f"## rococo {name}\n" in made["commands"] for name in COMMANDS)
    keys = [key for key, _ in hooks.flat(default_config())]
    assert len(keys) > 100 and all(f"| `{key}` |" in made["config"] for key in keys)
    assert not re.search(r"\| *\|$", made["config"], re.MULTILINE), "a key without a meaning"
    assert all(f"| `{name}` |" in made["metrics"] for name in METRICS)
    assert "| `rococo` |" in made["benchmarks"] and "::: rococo_jax.encoders.load_model" in made["python"]


def test_a_key_without_a_meaning_fails_the_build(hooks, monkeypatch):
    comments = hooks.comments_of_keys(CHECKOUT / "rococo_jax" / "training" / "config.py")
    assert comments["micro_batches"].startswith("The contrastive batch") and "optimizer.schedule" in comments
    monkeypatch.setattr(
        hooks, "comments_of_keys", lambda path: {key: comments[key] for key in comments if key != "ema"}
    )
    with pytest.raises(hooks.PluginError, match="without a meaning: ema; meanings of no key: none"):
        hooks.config_page()


@pytest.mark.slow
def test_a_dead_link_fails_the_build(tmp_path):
    for name in ("docs", "tools", "rococo_jax", "launch"):
        (tmp_path / name).symlink_to(CHECKOUT / name)
    (tmp_path / "docs").unlink()
    shutil.copytree(DOCS, tmp_path / "docs")
    for name in ("mkdocs.yml", "CHANGELOG.md"):
        shutil.copy(CHECKOUT / name, tmp_path)
    page = tmp_path / "docs" / "findings.md"
    page.write_text(page.read_text() + "\n[gone](nowhere.md), [no such part](evaluating.md#nothing)\n")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode != 0 and "nowhere.md" in done.stderr and "#nothing" in done.stderr


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    require_chromium()
    browser = Chromium(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.mark.parametrize("page", ["index", "evaluating", "findings", "findings/defences", "reference/metrics"])
def test_pages_fit_their_widths_and_load_nothing_from_elsewhere(site, browser, page):
    before = len(browser.events)
    browser.open(site / f"{page}.html")
    for width in (1400, 820, 390):
        show(browser, width, "light")
        for name, script in CHECKS.items():
            assert browser.evaluate(script) == [], f"{name} at {width} px"
    asked = [event["params"]["request"]["url"] for event in browser.events[before:]
             if event["method"] == "Network.requestWillBeSent"]  # fmt: skip
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []


@pytest.mark.skipif(AXE is None, reason="no axe-core here: make node-tools")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_of_the_site_can_be_read(site, browser, scheme):
    show(browser, 1400, scheme)
    browser.open(site / "findings.html")
    assert [each for each in axe_complaints(browser) if each.startswith("color-contrast")] == []
