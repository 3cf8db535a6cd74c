"""Tests of real data do not skip without notice where the data are expected."""

import pytest

from tests.support.paths import CHECKOUT, require_real_data


def test_missing_data_skip_a_test_unless_they_are_required(tmp_path, monkeypatch):
    monkeypatch.delenv("ROCOCO_REQUIRE_DATA", raising=False)
    assert require_real_data(tmp_path) == tmp_path
    with pytest.raises(pytest.skip.Exception, match="no real data at"):
        require_real_data(tmp_path / "none")
    monkeypatch.setenv("ROCOCO_REQUIRE_DATA", "1")
    with pytest.raises(pytest.fail.Exception, match="no real data at"):
        require_real_data(tmp_path / "none")


def test_ci_requires_the_data_beside_the_checkout():
    lines = (CHECKOUT / ".ci" / "run").read_text()
    assert lines.index("export ROCOCO_REQUIRE_DATA=1") < lines.index("make test")
