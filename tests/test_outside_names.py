"""Test names that come from outside: those that a storage service lists, and those of images that are written."""

import pytest

from rococo_jax.data import remote
from rococo_jax.perturb.images.image_folders import ResumableFolder
from tests.support.refusals import refused


@pytest.mark.parametrize("name", ["bucket/model/../../../out", "bucket/model/a\\..\\b"])
def test_a_listed_file_outside_of_the_copied_folder_is_refused(name, tmp_path, monkeypatch):
    class Service:
        def find(self, url, detail):
            return {"bucket/model/model.json": {"size": 1}, name: {"size": 1}}

        def invalidate_cache(self, *_):
            pass

        def get(self, *_, **__):
            raise AssertionError("it was copied")

    monkeypatch.setattr(remote, "file_system", lambda url: Service())
    refused("name: found .*; wanted names of files below the folder", remote.local_copy, "gs://bucket/model", tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../out.png", "/tmp/out.png", "a/../../out.png", "link/out.png"])
def test_an_altered_image_is_not_written_outside_its_folder(name, tmp_path):
    folder = ResumableFolder(tmp_path / "in", {}, {})
    (tmp_path / "in/link").symlink_to(tmp_path)
    refused("image: found .*; wanted names of files below the folder", folder.missing, ["a.png", name])
    assert folder.missing(["a.png"]) == {"a.png"}
