"""Data sets of a local hub and links of a file: all of them or nothing, of one commit, with their hashes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from rococo_jax.data.downloads import DOWNLOADS, Download
from rococo_jax.data.hub_downloads import fetch_files
from tests.support.file_server import COMMIT, a_hub, publish, sizes_of_parts
from tests.support.paths import CHECKOUT
from tests.support.refusals import refused

NAME, OTHER = "owner/set", "f00d" * 10
FILES = {f"data/test-{number}.parquet": np.random.default_rng(number).bytes(200_000) for number in range(3)}
FILES |= {"data/train-0.parquet": b"none of it", "list.csv": b"a,b\n"}
SHARDS = Download(f"hf://datasets/{NAME}@main/data/test-*.parquet", "set/data", "annotations")
LIST = Download(f"hf://datasets/{NAME}@main/list.csv", "set/list.csv", "annotations")


@pytest.fixture
def hub():
    with a_hub() as server:
        publish(server, NAME, FILES)
        yield server


def files_of(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def expected(version=FILES):
    return {name.replace("data", "set/data"): content for name, content in version.items() if "/test-" in name}


def test_files_that_match_a_pattern_are_downloaded_once(hub, tmp_path, capsys):
    counted = []
    assert fetch_files(SHARDS, tmp_path, counted.append) and sum(counted) == 600_000
    assert files_of(tmp_path) == expected()
    assert f"owner/set: main is commit {COMMIT} now" in capsys.readouterr().err
    requests = len(hub.asked)
    assert not fetch_files(SHARDS, tmp_path) and len(hub.asked) == requests
    assert fetch_files(LIST, tmp_path) and files_of(tmp_path)["set/list.csv"] == b"a,b\n"
    assert not (tmp_path / DOWNLOADS).exists()


KILLED = """
import sys
from rococo_jax.data.hub_downloads import Download, fetch_files
fetch_files(Download(sys.argv[1], "set/data", "annotations"), sys.argv[2])
"""


@pytest.mark.parametrize("moved", [False, True])
def test_a_download_killed_within_the_second_file_resumes_to_the_same_bytes(moved, hub, tmp_path):
    hub.holds = [None, None, 50_000]  # the list, the first file, a part of the second
    environment = os.environ | {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0"}
    command = [sys.executable, "-c", KILLED, SHARDS.url, str(tmp_path)]
    process = subprocess.Popen(command, cwd=CHECKOUT, env=environment)
    while hub.holds or sizes_of_parts(tmp_path) != [50_000]:  # the first file has its name by then
        assert process.poll() is None
        threading.Event().wait(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL and not (tmp_path / "set").exists()
    version = {name: content[::-1] for name, content in FILES.items()} if moved else FILES
    publish(hub, NAME, version, commit=OTHER if moved else COMMIT)
    before, counted = len(hub.asked), []
    assert fetch_files(SHARDS, tmp_path, counted.append) and sum(counted) == 600_000
    assert expected(version).items() <= files_of(tmp_path).items()
    assert hub.asked[before:] == ([None] * 4 if moved else [None, "bytes=50000-", None])


@pytest.mark.parametrize(("each", "hash"), [(SHARDS, "sha256"), (LIST, "sha1")])
def test_contents_of_another_hash_are_refused(each, hash, hub, tmp_path):
    for path in [path for path in hub.files if path.startswith("/datasets/")]:
        hub.files[path] = hub.files[path][::-1]
    refused(f"{hash}: found [0-9a-f]+ \\(", fetch_files, each, tmp_path)
    assert files_of(tmp_path) == {}


def test_files_that_are_missing_on_the_hub_are_reported_in_one_line(hub, tmp_path):
    for url, message in (
        (SHARDS.url.replace("@main", "@c0ffee"), "hub: found .*404.*with that revision"),
        (SHARDS.url.replace("test-*", "val-*"), "no such file in 5; wanted data/val-"),
        (LIST.url.replace("list", "other"), "no such file in 5; wanted other.csv"),
    ):
        refused(message, fetch_files, Download(url, "set/data", "annotations"), tmp_path)
    hub.shutdown()
    hub.server_close()
    refused("hub: found ConnectError", fetch_files, SHARDS, tmp_path)
    assert files_of(tmp_path) == {}


@pytest.mark.parametrize("name", ["../../../../out.parquet", "//tmp/out.parquet", "a\\..\\b.parquet", "C:/a.parquet"])
def test_a_name_of_a_hub_that_leads_out_of_the_folder_is_refused(name, hub, tmp_path):
    publish(hub, NAME, {**FILES, f"data/test-/{name}": b"bad"})
    each = Download(f"hf://datasets/{NAME}@main/data/*.parquet", "set/data", "annotations")
    outer = SHARDS if name.startswith("..") else each
    if name.startswith(("/", "C")):  # below the folder of the pattern, it is the name itself
        publish(hub, NAME, {**FILES, f"data/{name}": b"bad"})
    refused("name: found .*; wanted names of files below the folder", fetch_files, outer, tmp_path / "data")
    assert files_of(tmp_path) == {}


def test_a_link_in_place_of_a_folder_is_refused(hub, tmp_path, monkeypatch):
    from rococo_jax.data import hub_downloads

    folder = tmp_path / DOWNLOADS / "0123456789abcdef"
    folder.mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (folder / "deep").symlink_to(tmp_path / "elsewhere")
    monkeypatch.setattr(hub_downloads, "hash_json", lambda _: folder.name)
    publish(hub, NAME, {"data/deep/test-0.parquet": b"bad"})
    each = Download(f"hf://datasets/{NAME}@main/data/*.parquet", "set/data", "annotations")
    refused("name: found 'deep/test-0.parquet'", fetch_files, each, tmp_path)
    assert files_of(tmp_path / "elsewhere") == {}


def test_the_token_is_sent_only_to_the_hub(hub, tmp_path, monkeypatch):
    hub.wants_token = "Bearer hf_mine"
    refused("401 .*accept the terms at .*/datasets/owner/set, then set HF_TOKEN", fetch_files, LIST, tmp_path)
    monkeypatch.setenv("HF_TOKEN", "hf_mine")
    path = f"/datasets/{NAME}/resolve/{COMMIT}/list.csv"
    hub.files["/elsewhere"] = hub.files[path]
    hub.moved = {path: "/datasets/cached", "/datasets/cached": f"{hub.url.replace('127.0.0.1', 'localhost')}/elsewhere"}
    assert fetch_files(LIST, tmp_path) and files_of(tmp_path) == {"set/list.csv": b"a,b\n"}
    assert hub.tokens[-2:] == [("127.0.0.1", path), ("127.0.0.1", "/datasets/cached")]


def test_links_are_read_from_the_file_that_lists_them(hub, tmp_path):
    each = Download(f"{hub.url}/pictures/*.jpg", "set/images", "images", links_in="set/list.json")
    refused("list.json: links: found nothing there", fetch_files, each, tmp_path)
    (tmp_path / "set").mkdir()
    links = [f"{hub.url}/{path}" for path in ("pictures/1.jpg", "other/2.jpg", "pictures/3.png")]
    (tmp_path / "set/list.json").write_text(json.dumps(links))
    hub.files["/pictures/1.jpg"] = b"one"
    assert fetch_files(each, tmp_path) and files_of(tmp_path / "set/images") == {"1.jpg": b"one"}


def test_a_web_page_instead_of_a_file_is_refused(hub, tmp_path):
    hub.files["/page"], hub.kinds["/page"] = b"<html>Quota exceeded", "text/html; charset=utf-8"
    refused("download: found a web page", fetch_files, Download(f"{hub.url}/page", "a.json", "images"), tmp_path)
    assert files_of(tmp_path) == {}


@pytest.mark.parametrize("form", ["zip", "gztar", "cut", "empty"])
def test_an_archive_without_a_folder_is_unpacked_into_the_folder(form, hub, tmp_path):
    (tmp_path / "made").mkdir()
    (tmp_path / "made/a.bin").write_bytes(FILES["data/test-0.parquet"])
    (tmp_path / "empty").mkdir()
    kind = {"cut": "gztar", "empty": "zip"}.get(form, form)
    made = shutil.make_archive(str(tmp_path / "made"), kind, tmp_path / ("empty" if form == "empty" else "made"))
    hub.files["/a"] = Path(made).read_bytes()[: 50_000 if form == "cut" else None]
    each, data = Download(f"{hub.url}/a", "images", "images", unpack="images"), tmp_path / "data"
    if form in ("cut", "empty"):
        wanted = "a complete ZIP or tar archive" if form == "cut" else "a folder images"
        refused(f"archive: found .*; wanted {wanted}", fetch_files, each, data)
        assert files_of(data) == {}
    else:
        assert fetch_files(each, data) and list(files_of(data)) == ["images/a.bin"]
