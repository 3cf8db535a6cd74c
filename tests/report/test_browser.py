"""The report in a real browser: it sorts, it filters, nothing is complained of, and nothing is fetched.

At three widths, light and dark, nothing lies on anything else, and every text can be read.
"""

import itertools

import pytest

from rococo_jax.report import write_report
from tests.report.test_kinds import choice_run
from tests.support.browser_checks import AXE, CHECKS, axe_complaints, show
from tests.support.chromium import Chromium, require_chromium
from tests.support.made_runs import six_runs

pytestmark = pytest.mark.slow  # a browser starts

BOARD = 'document.querySelector("#s1-image_to_text table.sortable")'
# The first table with a filter: grounding, a row for each model and variant.
LONG = 'document.querySelector("#s1-image_to_text table.filterable")'


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    require_chromium()
    browser = Chromium(tmp_path_factory.mktemp("profile"))
    try:
        yield browser
    finally:
        browser.close()


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    folder = tmp_path_factory.mktemp("leaderboard")
    return write_report([six_runs(folder / "runs")], folder / "report.html")[0]


@pytest.fixture
def browser(chromium, board):
    """At the report as it opens, whatever a test before has sorted or filtered."""
    chromium.open(board)
    return chromium


def shown(browser, column: int, table: str = BOARD) -> list[str]:
    """Return the visible rows of a column, top to bottom: the exact number of a row where it has one."""
    return browser.evaluate(
        f"[...{table}.tBodies[0].rows].filter(row => row.offsetHeight > 0).map(row => row.cells[{column}])"
        ".map(cell => cell.dataset.value ?? cell.textContent)"
    )


def click(browser, column: int) -> None:
    browser.evaluate(f"{BOARD}.tHead.rows[1].cells[{column}].querySelector('button').click()")


def test_the_leaderboard_is_initially_sorted_by_the_best_model(browser):
    clean = [float(value) for value in shown(browser, 1)]
    assert len(clean) == 6 and clean == sorted(clean, reverse=True) and len(set(clean)) > 3


def test_a_click_sorts_by_any_column_and_a_second_click_reverses_the_order(browser):
    drop = browser.evaluate(f"{BOARD}.tHead.rows[1].cells.length") - 1
    click(browser, drop)
    first = [float(value) for value in shown(browser, drop)]
    click(browser, drop)
    second = [float(value) for value in shown(browser, drop)]
    assert first == sorted(first, reverse=True) and second == sorted(first)
    click(browser, 0)
    names = shown(browser, 0)
    assert names == sorted(names) and len(names) == 6


def test_the_filter_shows_rows_that_contain_every_word(browser):
    def write(text: str) -> str:
        return browser.evaluate(
            f"(() => {{ const line = {LONG}.parentElement.previousElementSibling;"
            f"const field = line.querySelector('input'); field.value = {text!r};"
            "field.dispatchEvent(new Event('input')); return line.querySelector('[role=status]').textContent; })()"
        )

    total = len(shown(browser, 0, LONG))
    assert write("FAMILY-1") == f"{total // 2} of {total} rows"
    assert {name.split("/")[0] for name in shown(browser, 0, LONG)} == {"family-1"}
    assert write("family-1 model-d") == f"{total // 6} of {total} rows"
    assert set(shown(browser, 0, LONG)) == {"family-1/model-d"}
    assert write("no such model") == f"0 of {total} rows" and shown(browser, 0, LONG) == []
    assert write("") == "" and len(shown(browser, 0, LONG)) == total


def test_tables_of_ten_rows_and_more_have_a_filter_and_rows_of_differences_filter_by_variant(browser):
    rows = browser.evaluate("[...document.querySelectorAll('table.filterable')].map(e => e.tBodies[0].rows.length)")
    assert min(rows) >= 10
    assert browser.evaluate("document.querySelectorAll('.filter input').length") == len(rows)
    table = 'document.querySelectorAll("#s1-image_to_text table.filterable")[1]'
    browser.evaluate(
        f"(() => {{ const field = {table}.parentElement.previousElementSibling.querySelector('input');"
        "field.value = 'danger'; field.dispatchEvent(new Event('input')); })()"
    )
    assert set(shown(browser, 1, table)) == {"Danger"} and len(shown(browser, 1, table)) == 5 * 9  # models, metrics


WIDTHS = (1400, 820, 390)


@pytest.fixture(scope="module")
def many_kinds(tmp_path_factory):
    """A page of two models on choices by part, corrupted images and a task of an unknown kind."""
    folder = tmp_path_factory.mktemp("kinds")
    for seed, name in enumerate(("plain", "an-organisation/a-model-with-a-rather-long-name-vit-b-16")):
        choice_run(folder / "runs" / str(seed), name, 60 + 20 * seed, seed)
    return write_report([folder / "runs"], folder / "report.html")[0]


@pytest.fixture(params=["six models", "many kinds"])
def each_page(request, browser, many_kinds):
    """The browser with a page open."""
    if request.param == "many kinds":
        browser.open(many_kinds)
    yield browser
    show(browser, 1280, "light")


@pytest.mark.parametrize("width", WIDTHS)
def test_elements_do_not_overlap_and_the_page_does_not_scroll_sideways(each_page, width):
    show(each_page, width, "light")
    for name, script in CHECKS.items():
        assert each_page.evaluate(script) == [], f"{name} at {width} px"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.skipif(AXE is None, reason="no axe-core here: make node-tools")
def test_every_text_can_be_read(each_page, scheme):
    show(each_page, 1400, scheme)
    assert axe_complaints(each_page) == []


def test_the_first_screen_has_three_sentences_then_the_tables_then_the_chart(browser):
    boxes = "[...document.querySelectorAll('.headline > *')].map(e => e.getBoundingClientRect().toJSON())"
    show(browser, 1400, "light")
    heading, tested, happened, conclusion, board, _, table, _, chart, *_ = browser.evaluate(boxes)
    in_order = [heading, tested, happened, conclusion, board, table, chart]
    assert all(one["bottom"] <= other["top"] for one, other in itertools.pairwise(in_order))
    assert conclusion["bottom"] < 620  # on the first screen of a laptop
    show(browser, 390, "light")
    assert all(box["right"] <= 390 for box in browser.evaluate(boxes))
    show(browser, 1280, "light")


def test_a_table_that_is_cut_off_shows_a_hint_until_its_end_is_visible(browser):
    show(browser, 390, "light")
    line = f"{BOARD}.closest('.scroll').previousElementSibling"
    assert browser.evaluate(f"[{line}.className, {line}.hidden]") == ["more", False]
    assert browser.evaluate(f"{BOARD}.closest('.scroll').scrollLeft = 9999") == 9999
    stuck = f"{BOARD}.tBodies[0].rows[0].cells[0].getBoundingClientRect().left"
    assert 0 <= browser.evaluate(stuck) < 40, "the model's column went away"
    browser.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert browser.evaluate(f"{line}.hidden")
    show(browser, 1280, "light")


def test_every_control_can_be_reached_and_used_by_keyboard(browser):
    controls = "a[href], button, input, summary, [tabindex]"
    reachable = f"[...document.querySelectorAll('{controls}')].every(e => e.tabIndex === 0)"
    assert browser.evaluate(reachable)
    head = f"{BOARD}.tHead.rows[1].cells[0]"
    for key, code, text in (("Enter", 13, "\r"), (" ", 32, " ")):
        before = browser.evaluate(f"{head}.querySelector('button').focus(), {head}.getAttribute('aria-sort')")
        for kind in ("keyDown", "keyUp"):
            more = {"text": text} if kind == "keyDown" else {}
            browser.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **more)
        assert browser.evaluate(f"{head}.getAttribute('aria-sort')") not in (before, None)


def test_printing_does_not_cut_off_tables(browser):
    """A4 on its side with margins of 12 mm is 1,032 px wide."""
    show(browser, 1032, "light", media="print")
    cut = browser.evaluate(
        "[...document.querySelectorAll('table')].filter(e => e.offsetHeight > 0)"
        ".filter(e => e.getBoundingClientRect().right > 1033).map(e => e.caption?.textContent ?? e.className)"
    )
    show(browser, 1280, "light")
    assert cut == []


def test_the_browser_reports_no_errors(browser):
    kinds = {"Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled"}
    assert [event for event in browser.events if event["method"] in kinds] == []


def test_no_request_leaves_the_page(browser):
    asked = [event["params"]["request"]["url"] for event in browser.events
             if event["method"] == "Network.requestWillBeSent"]  # fmt: skip
    files = [url for url in asked if not url.startswith("data:")]
    assert files and all(url.startswith("file://") and url.endswith("/report.html") for url in files)


def test_the_content_security_policy_blocks_requests_of_scripts(browser):
    """The browser does enforce what the page promises. What it says of that is taken away: other tests want silence."""
    before = len(browser.events)
    browser.evaluate("document.body.append(Object.assign(new Image(), {src: 'http://example.invalid/x.png'})), 0")
    browser.wait_for("Network.loadingFailed", since=before)
    reasons = [event["params"].get("blockedReason") for event in browser.events[before:]
               if event["method"] == "Network.loadingFailed"]  # fmt: skip
    browser.wait_for("Log.entryAdded", since=before)
    del browser.events[before:]
    assert reasons == ["csp"]
