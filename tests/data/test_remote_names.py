"""Names that a storage service lists, before a folder is copied from it."""

import pytest

from rococo_jax.data import remote
from tests.support.refusals import refused


@pytest.mark.parametrize("name", ["bucket/model/../../../out", "bucket/model/a\\..\\b"])
def test_a_listed_name_that_leads_out_of_the_copy_is_refused(name, tmp_path, monkeypatch):
    class Service:
        def find(self, url, detail):
            return {"bucket/model/model.json": {"size": 1}, name: {"size": 1}}

        def get(self, *_, **__):
            raise AssertionError("it was copied")

    monkeypatch.setattr(remote, "file_system", lambda url: Service())
    refused("name: found .*; wanted names of files below the folder", remote.local_copy, "gs://bucket/model", tmp_path)
    assert list(tmp_path.iterdir()) == []
