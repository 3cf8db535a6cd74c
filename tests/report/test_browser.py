"""The leaderboard in a real browser: it sorts, it filters, nothing is complained of, and nothing is fetched."""

import pytest

from rococo_jax.report import write_report
from tests.support.chromium import Chromium, require_chromium
from tests.support.made_runs import six_runs

BOARD = 'document.querySelector("#s1-image_to_text table.filterable")'


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    require_chromium()
    folder = tmp_path_factory.mktemp("leaderboard")
    page, _ = write_report([six_runs(folder / "runs")], folder / "report.html")
    browser = Chromium(folder / "profile")
    try:
        browser.open(page)
        yield browser
    finally:
        browser.close()


def shown(browser, column: int, table: str = BOARD) -> list[str]:
    """What the visible rows of a column say, top to bottom: their exact number where they have one."""
    return browser.evaluate(
        f"[...{table}.tBodies[0].rows].filter(row => row.offsetHeight > 0).map(row => row.cells[{column}])"
        ".map(cell => cell.dataset.value ?? cell.textContent)"
    )


def click(browser, column: int) -> None:
    browser.evaluate(f"{BOARD}.tHead.rows[1].cells[{column}].querySelector('button').click()")


def test_the_leaderboard_opens_best_first(browser):
    clean = [float(value) for value in shown(browser, 1)]
    assert len(clean) == 6 and clean == sorted(clean, reverse=True) and len(set(clean)) > 3


def test_a_click_sorts_by_any_column_and_a_second_click_turns_it_round(browser):
    drop = browser.evaluate(f"{BOARD}.tHead.rows[1].cells.length") - 1
    click(browser, drop)
    first = [float(value) for value in shown(browser, drop)]
    click(browser, drop)
    second = [float(value) for value in shown(browser, drop)]
    assert first == sorted(first, reverse=True) and second == sorted(first)
    click(browser, 0)
    names = shown(browser, 0)
    assert names == sorted(names) and len(names) == 6


def test_the_filter_keeps_rows_that_have_every_word(browser):
    def write(text: str) -> str:
        return browser.evaluate(
            f"(() => {{ const line = {BOARD}.parentElement.previousElementSibling;"
            f"const field = line.querySelector('input'); field.value = {text!r};"
            "field.dispatchEvent(new Event('input')); return line.querySelector('[role=status]').textContent; })()"
        )

    assert write("FAMILY-1") == "3 of 6 rows"
    assert {name.split("/")[0] for name in shown(browser, 0)} == {"family-1"}
    assert write("family-1 model-d") == "1 of 6 rows" and shown(browser, 0) == ["family-1/model-d"]
    assert write("no such model") == "0 of 6 rows" and shown(browser, 0) == []
    assert write("") == "" and len(shown(browser, 0)) == 6


def test_every_table_of_many_models_has_a_filter_and_rows_of_differences_filter_by_variant(browser):
    assert browser.evaluate("document.querySelectorAll('.filter input').length") == 6
    table = 'document.querySelectorAll("#s1-image_to_text table.filterable")[2]'
    browser.evaluate(
        f"(() => {{ const field = {table}.parentElement.previousElementSibling.querySelector('input');"
        "field.value = 'danger'; field.dispatchEvent(new Event('input')); })()"
    )
    assert set(shown(browser, 1, table)) == {"Danger"} and len(shown(browser, 1, table)) == 5


def test_the_browser_has_nothing_to_complain_of(browser):
    kinds = {"Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled"}
    assert [event for event in browser.events if event["method"] in kinds] == []


def test_no_request_leaves_the_page(browser):
    asked = [event["params"]["request"]["url"] for event in browser.events
             if event["method"] == "Network.requestWillBeSent"]  # fmt: skip
    files = [url for url in asked if not url.startswith("data:")]
    assert len(files) == 1 and files[0].endswith("/report.html") and files[0].startswith("file://")


def test_the_policy_of_the_page_refuses_what_a_script_would_fetch(browser):
    """Last, because the refusal is written to the console: the browser does enforce what the page promises."""
    before = len(browser.events)
    browser.evaluate("document.body.append(Object.assign(new Image(), {src: 'http://example.invalid/x.png'})), 0")
    browser.wait_for("Network.loadingFailed", since=before)
    reasons = [event["params"].get("blockedReason") for event in browser.events[before:]
               if event["method"] == "Network.loadingFailed"]  # fmt: skip
    assert reasons == ["csp"]
