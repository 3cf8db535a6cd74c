"""Tests of real data, and in a browser, do not skip without notice where these are expected."""

import pytest

from tests.support import chromium
from tests.support.paths import CHECKOUT, require_real_data


def test_missing_data_skip_a_test_unless_they_are_required(tmp_path, monkeypatch):
    monkeypatch.delenv("ROCOCO_REQUIRE_DATA", raising=False)
    assert require_real_data(tmp_path) == tmp_path
    with pytest.raises(pytest.skip.Exception, match="no real data at"):
        require_real_data(tmp_path / "none")
    monkeypatch.setenv("ROCOCO_REQUIRE_DATA", "1")
    with pytest.raises(pytest.fail.Exception, match="no real data at"):
        require_real_data(tmp_path / "none")


def test_a_missing_browser_skips_a_test_unless_it_is_required(monkeypatch):
    monkeypatch.setattr(chromium, "CHROMIUM", None)
    monkeypatch.delenv("ROCOCO_REQUIRE_BROWSER", raising=False)
    with pytest.raises(pytest.skip.Exception, match="apt-get install chromium"):
        chromium.require_chromium()
    monkeypatch.setenv("ROCOCO_REQUIRE_BROWSER", "1")
    with pytest.raises(pytest.fail.Exception, match="apt-get install chromium"):
        chromium.require_chromium()


@pytest.mark.parametrize("name", ["ROCOCO_REQUIRE_DATA", "ROCOCO_REQUIRE_BROWSER"])
def test_ci_requires_the_data_beside_the_checkout_and_a_browser(name):
    lines = (CHECKOUT / ".ci" / "run").read_text()
    assert lines.index(f"export {name}=1") < lines.index("\nmake test")
