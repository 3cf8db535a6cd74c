"""The explorer in a real browser: every count is that of pandas, addresses restore a view, nothing is fetched."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from rococo_jax.cli.main import main
from tests.support.browser_checks import AXE, CHECKS, axe_complaints, show
from tests.support.chromium import Chromium, require_chromium
from tests.support.made_runs import make_run

pytestmark = pytest.mark.slow  # a browser starts

MODELS = ("a", "b")
FALSE = ("own_altered", "other_altered")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Results of two models with pictures of some of their images, and the page."""
    folder = tmp_path_factory.mktemp("explorer")
    for seed, name in enumerate(MODELS):
        run = make_run(folder / "runs" / name, name, 1.2 + seed, seed)
        results = json.loads((run / "results.json").read_text(encoding="utf-8"))
        results["data"]["rococo"]["images"] = str(folder / "images")
        (run / "results.json").write_text(json.dumps(results), encoding="utf-8")
    (folder / "images" / "val").mkdir(parents=True)
    for number in range(40):
        Image.new("RGB", (30, 20), (6 * number, 0, 0)).save(folder / "images" / "val" / f"{number:03}.jpg")
    return folder


@pytest.fixture(scope="module")
def browser(folder, tmp_path_factory):
    require_chromium()
    assert main(["explore", str(folder / "runs"), "--out", str(folder / "explore.html")]) in (0, None)
    browser = Chromium(tmp_path_factory.mktemp("profile"))
    try:
        yield browser
    finally:
        browser.close()


@pytest.fixture
def page(browser, folder):
    """The page with the filters of a part of its address."""

    def opened(address: str = ""):
        browser.open(folder / "explore.html", address)
        return browser

    return opened


@pytest.fixture(scope="module")
def frame(folder):
    """Answers of both models, side by side, read by pandas."""
    frames = [pd.read_parquet(folder / "runs" / name / "per_query.parquet") for name in MODELS]
    keys = ["task", "variant", "seed", "query"]
    tables = [each.assign(seed=each.seed.fillna(-1).astype(int)).set_index(keys) for each in frames]
    return tables[0].add_suffix("_a").join(tables[1].add_suffix("_b"), how="outer").reset_index()


def counts(browser) -> list[list[str]]:
    """Return the number of items, then the row of each model in the summary."""
    rows = "[...document.querySelectorAll('#summary tbody tr')].map(e => [...e.cells].map(c => c.textContent))"
    return [browser.evaluate("document.getElementById('count').textContent.split(' ')[0]"), *browser.evaluate(rows)]


def expected(rows: pd.DataFrame) -> list:
    lines = []
    for name in MODELS:
        fooled = rows[f"top1_kind_{name}"].isin(FALSE)
        shares = [
            f"{100 * each.mean():.1f} %" if len(rows) else "–" for each in (rows[f"r1_{name}"].astype(bool), fooled)
        ]
        total, right, wrong = len(rows), int(rows[f"r1_{name}"].sum()), int(fooled.sum())
        lines.append([name, f"{total:,}", f"{right:,}", shares[0], f"{wrong:,}" if total else "–", shares[1]])
    return [f"{len(rows):,}", *lines]


FILTERS = {
    "": lambda rows: rows.task.notna(),
    "m0=right&m1=wrong": lambda rows: rows.r1_a.astype(bool) & ~rows.r1_b.astype(bool),
    "m1=fooled&sort=margin1": lambda rows: rows.top1_kind_b.isin(FALSE),
    "search=numbered+11": lambda rows: (
        rows[["caption_a", "caption_b", "top1_text_a", "top1_text_b"]]
        .apply(lambda column: column.str.contains("numbered 11"))
        .any(axis=1)
    ),
}


@pytest.mark.parametrize("address", FILTERS)
def test_counts_of_a_filtered_view_match_pandas(page, frame, address):
    rows = frame[FILTERS[address](frame)]
    assert len(rows) > 0 and counts(page(address)) == expected(rows)


def test_filters_by_task_and_variant_and_word_match_pandas_and_are_restored_from_the_address(page, frame):
    browser = page()
    browser.evaluate(
        "(() => { for (const [name, label] of [['task', 'Image to text'], ['variant', 'Danger']]) {"
        "const field = fields[name]; field.value = [...field.options].find(e => e.textContent === label).value;"
        "field.dispatchEvent(new Event('input')); } fields.word.value = 'photo';"
        "fields.word.dispatchEvent(new Event('input')); })()"
    )
    # Captions of this variant say "weapon" instead of "photo".
    rows = frame[(frame.task == "image_to_text") & (frame.variant == "danger")]
    before = counts(browser), browser.evaluate("location.hash")
    assert before[0] == expected(rows) and "word=photo" in before[1]
    assert counts(page(before[1][1:])) == before[0]
    assert counts(page("word=weapon"))[0] == "0"


def test_items_are_sorted_by_the_margin_of_the_selected_model(page, frame):
    shown = page("task=0&sort=margin1").evaluate("shownItems.map(item => answers[1].margin[item])")
    rows = frame[frame.task == "image_to_text"]
    np.testing.assert_allclose(shown, np.sort(rows.positive_score_b - rows.top1_score_b), atol=1e-6)


def test_a_card_shows_the_image_and_the_answer_of_each_model(page, frame):
    browser = page("item=3")
    row = frame[(frame.task == "image_to_text") & (frame.variant == "clean")].iloc[3]
    text = browser.evaluate("document.querySelector('.explored').innerText")
    assert counts(browser)[0] == "1" and row.top1_text_a in text.replace("\n", " ")
    browser.evaluate("document.querySelector('.explored img').decode()")
    assert browser.evaluate("document.querySelector('.explored img').naturalWidth") == 30
    assert browser.evaluate("document.querySelector('.explored img').alt") == row.image_a


def test_keys_turn_pages_and_select_items_and_focus_the_search(page):
    browser = page()

    def press(key: str) -> None:
        browser.evaluate(f"document.body.dispatchEvent(new KeyboardEvent('keydown', {{key: {key!r}, bubbles: true}}))")

    press("n")
    assert "page=2" in browser.evaluate("location.hash")
    press("p")
    press("j")
    press("j")
    assert browser.evaluate("[...document.querySelectorAll('.explored')].indexOf(document.activeElement)") == 1
    press("/")
    assert browser.evaluate("document.activeElement.name") == "search"
    browser.evaluate("document.activeElement.blur()")
    press("x")
    assert browser.evaluate("location.hash") == ""


@pytest.mark.parametrize("width", [1400, 390])
def test_only_images_are_fetched_and_elements_do_not_overlap(page, folder, width):
    browser = page()
    seen = len(browser.events)
    page()
    show(browser, width, "light")
    for name, script in CHECKS.items():
        assert browser.evaluate(script) == [], f"{name} at {width} px"
    requests = [
        each["params"]["request"]["url"]
        for each in browser.events[seen:]
        if each["method"] == "Network.requestWillBeSent"
    ]
    places = (folder / "explore.html").as_uri(), (folder / "explore_pictures").as_uri()
    assert all(url.startswith(places) for url in requests)
    assert not [
        each for each in browser.events[seen:] if each["method"] in ("Log.entryAdded", "Runtime.exceptionThrown")
    ]
    show(browser, 1280, "light")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.skipif(AXE is None, reason="no axe-core here: make node-tools")
def test_every_text_of_the_explorer_can_be_read(page, scheme):
    browser = page()
    show(browser, 1400, scheme)
    assert axe_complaints(browser) == []


def test_missing_images_are_counted_with_the_option_that_finds_them(folder, capsys):
    main(["explore", str(folder / "runs"), "--out", str(folder / "again.html")])
    out = capsys.readouterr().out
    assert "note: 20 images of rococo were not found; rococo explore --images rococo=DIR names their folder" in out
    assert len(list((folder / "again_pictures").glob("*.jpg"))) == 40
    (folder / "again_pictures" / f"{'0' * 16}.jpg").touch()  # of an earlier page
    main(["explore", str(folder / "runs" / "a"), "--out", str(folder / "again.html")])
    assert len(list((folder / "again_pictures").glob("*.jpg"))) == 40


def test_a_text_that_contains_a_closing_script_tag_stays_a_text(folder, monkeypatch):
    text = "</script><script>alert(1)</script>"
    monkeypatch.setattr("rococo_jax.report.explorer.task_label", lambda name: text)
    main(["explore", str(folder / "runs" / "a"), "--out", str(folder / "script.html")])
    page = (folder / "script.html").read_text(encoding="utf-8")
    content = re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1]
    assert json.loads(content)["tasks"] == [text, text]


def test_the_report_links_the_explorer_that_it_writes(folder):
    main(["report", str(folder / "runs"), "--out", str(folder / "report.html"), "--explore"])
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert '<a href="./report.explore.html">' in page
    assert 'id="data"' in (folder / "report.explore.html").read_text(encoding="utf-8")


def test_a_folder_of_an_unknown_benchmark_is_refused(folder, expect_refusal):
    out = folder / "other.html"
    expect_refusal(f"explore {folder / 'runs'} --out {out} --images coco={folder}", "--images", "'coco'", "rococo")
    assert not out.exists()
