"""Test that tests of real data, and in a browser, do not skip without notice where these are expected."""

import pytest

from tests.support import chromium
from tests.support.paths import CHECKOUT, require_real_data


@pytest.mark.parametrize(
    ("require", "variable", "missing"),
    [
        (lambda: require_real_data(CHECKOUT / "none"), "ROCOCO_REQUIRE_DATA", "no real data at"),
        (chromium.require_chromium, "ROCOCO_REQUIRE_BROWSER", "apt-get install chromium"),
    ],
)
def test_missing_data_and_browsers_skip_a_test_unless_they_are_required(require, variable, missing, monkeypatch):
    monkeypatch.setattr(chromium, "CHROMIUM", None)
    monkeypatch.delenv(variable, raising=False)
    with pytest.raises(pytest.skip.Exception, match=missing):
        require()
    monkeypatch.setenv(variable, "1")
    with pytest.raises(pytest.fail.Exception, match=missing):
        require()


@pytest.mark.parametrize("name", ["ROCOCO_REQUIRE_DATA", "ROCOCO_REQUIRE_BROWSER"])
def test_ci_requires_data_beside_the_checkout_and_a_browser(name):
    lines = (CHECKOUT / ".ci" / "run").read_text()
    assert lines.index(f"export {name}=1") < lines.index("\nmake test\n")
