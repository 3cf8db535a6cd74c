"""Downloads from a local server that cuts connections, refuses ranges, changes its files and lies."""

import dataclasses
import hashlib
import io
import signal
import subprocess
import sys
import threading
import zipfile

import numpy as np
import pytest

from rococo_jax.benchmarks import benchmark as registry
from rococo_jax.cli.main import main
from rococo_jax.data.downloads import DOWNLOADS, Download, fetch
from tests.support.file_server import serving, sizes_of_parts
from tests.support.paths import CHECKOUT
from tests.support.refusals import refused

CONTENT = np.random.default_rng(0).integers(0, 256, 400_000, np.uint8).tobytes()
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def server():
    with serving({"/file.bin": CONTENT}) as made:
        yield made


def file_of(server, **changes) -> Download:
    url = f"http://127.0.0.1:{server.server_port}/file.bin"
    return Download(**{"url": url, "to": "folder/file.bin", "role": "images", "sha256": DIGEST, **changes})


def get(server, data, **changes):
    counted = []
    try:
        return fetch(file_of(server, **changes), data, counted.append, wait=0.001), sum(counted)
    finally:
        assert not list(data.rglob("*.unpacked"))


def files_of(data):
    return sorted(path.relative_to(data).as_posix() for path in data.rglob("*") if path.is_file())


def zipped(name="val/a.txt", text="a"):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        file.writestr(name, text)
    return made.getvalue()


def get_part(server, data):
    """A download whose connection is cut too often, by a server without ranges; returns the part that stays."""
    server.cuts, server.ranges = [150_000] * 5, False
    refused("the connection was cut|IncompleteRead|reset", get, server, data)
    assert files_of(data) and all(name.startswith(DOWNLOADS) for name in files_of(data))
    server.cuts, server.ranges = [], True
    (part,) = data.rglob("*.part")
    return part


def test_a_file_is_downloaded_completely_and_once_without_leftover_files(server, tmp_path):
    assert get(server, tmp_path) == (True, len(CONTENT))
    assert files_of(tmp_path) == ["folder/file.bin"]
    assert (tmp_path / "folder/file.bin").read_bytes() == CONTENT
    assert get(server, tmp_path) == (False, 0) and len(server.asked) == 1


def test_interrupted_downloads_resume_where_they_stopped(server, tmp_path):
    server.cuts = [70_000, 50_000, 1]
    assert get(server, tmp_path) == (True, len(CONTENT))
    assert (tmp_path / "folder/file.bin").read_bytes() == CONTENT
    begins = [int(asked.removeprefix("bytes=").rstrip("-")) for asked in server.asked[1:]]
    assert server.asked[0] is None and len(begins) == 3 and 0 < begins[0] <= begins[1] <= begins[2]


@pytest.mark.parametrize("change", ["ranges refused", "another version"])
def test_a_download_that_cannot_be_resumed_starts_again(server, tmp_path, change):
    get_part(server, tmp_path)
    content = CONTENT
    if change == "another version":
        server.tag, content = '"two"', CONTENT[::-1]
        server.files["/file.bin"] = content
    else:
        server.ranges = False
    assert get(server, tmp_path, sha256=hashlib.sha256(content).hexdigest())[0]
    assert (tmp_path / "folder/file.bin").read_bytes() == content


@pytest.mark.parametrize(("change", "size"), [({"shrinks": 100_000}, 100_000), ({"shift": [10]}, len(CONTENT))])
def test_a_download_starts_again_if_the_file_shrank_or_the_range_is_wrong(server, tmp_path, change, size):
    server.cuts = [150_000]
    vars(server).update(change)
    assert get(server, tmp_path, sha256=None) == (True, size)
    assert (tmp_path / "folder/file.bin").read_bytes() == CONTENT[:size]


def test_a_response_without_a_length_ends_with_the_connection(server, tmp_path):
    server.lengths = False
    assert get(server, tmp_path) == (True, len(CONTENT)) and len(server.asked) == 1


def test_a_wrong_checksum_leaves_no_file_under_the_final_name(server, tmp_path):
    refused(f"sha256: found {DIGEST} .* wanted 0000", get, server, tmp_path, sha256="0" * 64)
    assert files_of(tmp_path) == []
    part = get_part(server, tmp_path)
    part.write_bytes(bytes(100) + part.read_bytes()[100:])
    refused("sha256", get, server, tmp_path)
    assert files_of(tmp_path) == [] and get(server, tmp_path)[0]


def test_temporary_failures_of_a_server_are_retried_and_missing_files_are_not(server, tmp_path):
    server.errors = [503, 429]
    assert get(server, tmp_path)[0] and len(server.asked) == 3
    refused("404", get, server, tmp_path, url=file_of(server).url + "x", to="other")
    assert len(server.asked) == 4 and files_of(tmp_path) == ["folder/file.bin"]


KILLED = """
import sys
from rococo_jax.data.downloads import Download, fetch
fetch(Download(sys.argv[1], "folder/file.bin", "images", sys.argv[2]), sys.argv[3])
"""


def test_a_download_killed_several_times_resumes_to_the_same_bytes(server, tmp_path):
    server.holds = [20_000, 40_000, 60_000]
    command = [sys.executable, "-c", KILLED, file_of(server).url, DIGEST, str(tmp_path)]
    for there in np.cumsum(server.holds):
        process = subprocess.Popen(command, cwd=CHECKOUT)
        while sum(sizes_of_parts(tmp_path)) < there and process.poll() is None:
            threading.Event().wait(0.002)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert not (tmp_path / "folder").exists()
    assert get(server, tmp_path)[0] and (tmp_path / "folder/file.bin").read_bytes() == CONTENT
    assert files_of(tmp_path) == ["folder/file.bin"]
    assert server.asked == [None, *(f"bytes={there}-" for there in (20_000, 60_000, 120_000))]


def test_leftover_files_of_a_download_killed_at_its_end_are_removed(server, tmp_path, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    for number, unpack in enumerate((None, "val")):
        server.files["/file.bin"] = CONTENT if unpack is None else zipped()
        about = {"to": f"folder/{number}", "sha256": None, "unpack": unpack}
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr("rococo_jax.data.downloads.clear_leftovers", killed)
            get(server, tmp_path, **about)
        assert (tmp_path / DOWNLOADS).is_dir() and (tmp_path / f"folder/{number}").exists()
        assert not get(server, tmp_path, **about)[0]
        assert not (tmp_path / DOWNLOADS).exists()


@pytest.mark.parametrize(
    "known", [{}, {"sha256": None, "git_blob": hashlib.sha1(b"blob 400000\0" + CONTENT).hexdigest()}]
)
def test_another_file_of_the_same_name_is_not_accepted_as_the_published_one(known, server, tmp_path):
    target = tmp_path / "folder/file.bin"
    target.parent.mkdir()
    for content in (CONTENT[:-1], CONTENT[:-1] + b"x"):
        target.write_bytes(content)
        refused(
            r"folder/file.bin: sha\d+: found .*: remove the file to download it again", get, server, tmp_path, **known
        )
        assert target.read_bytes() == content and server.asked == []
    target.write_bytes(CONTENT)
    assert get(server, tmp_path, **known) == (False, 0)


def test_a_complete_download_of_a_killed_run_is_verified_again(server, tmp_path):
    (tmp_path / DOWNLOADS).mkdir()
    name = hashlib.sha256(file_of(server).url.encode()).hexdigest()[:8] + "-file.bin"
    (tmp_path / DOWNLOADS / name).write_bytes(CONTENT[:-1])
    refused("sha256: found", get, server, tmp_path)
    assert get(server, tmp_path)[0] and files_of(tmp_path) == ["folder/file.bin"]


@pytest.mark.parametrize("to", ["../out.bin", "/tmp/out.bin", "a/../../out.bin", "a\\b", "C:/a", ""])
def test_a_destination_outside_of_the_data_folder_is_refused(to, server, tmp_path):
    refused("name: found .*; wanted a path below the data folder", get, server, tmp_path / "data", to=to)
    assert files_of(tmp_path) == [] and server.asked == []


def test_files_are_written_into_a_folder_that_the_user_linked(server, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "data/folder").symlink_to(tmp_path / "elsewhere")
    assert get(server, tmp_path / "data")[0] and (tmp_path / "elsewhere/file.bin").read_bytes() == CONTENT


def test_an_archive_is_unpacked_completely_or_not_at_all(server, tmp_path):
    server.files["/file.bin"] = zipped()
    assert get(server, tmp_path, to="coco/images/val", sha256=None, unpack="val")[0]
    assert files_of(tmp_path) == ["coco/images/val/a.txt"]
    for content, message in (
        (zipped("other/a.txt"), "found other; wanted a folder val"),
        (CONTENT, "neither a ZIP nor a tar file"),
    ):
        server.files["/file.bin"] = content
        refused(message, get, server, tmp_path, to="again/val", sha256=None, unpack="val")
        assert files_of(tmp_path) == ["coco/images/val/a.txt"]


def test_the_command_prints_the_licence_and_removes_leftovers_of_killed_runs(server, tmp_path, capsys, monkeypatch):
    one = (file_of(server, to="rococo/annotations/danger.json"),)
    made = dataclasses.replace(registry.find_benchmark("rococo"), downloads=one)
    monkeypatch.setattr(registry, "find_benchmark", lambda name: made)
    command = ["fetch", "rococo", "--data", str(tmp_path)]
    assert main([*command, "--dry-run"]) == 0 and files_of(tmp_path) == []
    assert main(command) == 0
    assert capsys.readouterr().out.startswith("rococo: annotations MIT; captions CC BY 4.0")
    assert files_of(tmp_path) == ["rococo/annotations/danger.json"]
    (tmp_path / DOWNLOADS).mkdir()
    name = hashlib.sha256(one[0].url.encode()).hexdigest()[:8] + "-file.bin"
    for left in (name, f"{name}.json", f".{name}.json.1234abcd.part"):
        (tmp_path / DOWNLOADS / left).touch()
    assert main(command) == 0
    assert files_of(tmp_path) == ["rococo/annotations/danger.json"] and not (tmp_path / DOWNLOADS).exists()


def test_files_that_must_be_downloaded_by_hand_are_reported_in_one_line(tmp_path, refusal):
    found = "svo_probes: downloads: found none that a program may get; wanted by hand:"
    assert found in refusal("fetch", "svo_probes", "--data", tmp_path)
