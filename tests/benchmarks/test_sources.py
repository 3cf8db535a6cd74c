"""Test every address of `sources.csv`, on a local web server and hub, up to the tasks of each benchmark's reader."""

import dataclasses
import re
import shutil
from pathlib import Path
from urllib.parse import unquote

import pytest

from rococo_jax.benchmarks import benchmark as registry
from rococo_jax.benchmarks.benchmark import read_sources
from rococo_jax.benchmarks.readers.cue_conflict import CLASSES
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.cli.main import main
from rococo_jax.data import downloads
from rococo_jax.evaluation.inputs import layout_folders
from tests.benchmarks.published_forms import FORMS, pack, write
from tests.support.cases import further
from tests.support.file_server import a_hub, publish
from tests.support.paths import CHECKOUT
from tests.support.world import noise, write_pictures

COCO = "COCO_val2014_000000000007.jpg"
NAMES = [info.name for info in registry.known_benchmarks().values() if info.downloads and info.name != "rococo"]
TARS = ("whatsup/data", "whatsup/vg_images")


def lay(info, data, scratch):
    """A benchmark's published form, where the documented layout has its files."""
    if info.name == "cue_conflict":
        for folder, rest in (("style-transfer-preprocessed-512", "-dog2"), ("filled-silhouettes", ""), ("edges", "")):
            files = [f"{folder}/{one}/{one}1{rest}.png" for one in CLASSES]
            write_pictures(data / "cue_conflict", files, noise(8, 8))
        return
    form, images = FORMS[info.name], data / info.folders["images"]
    if not form.images[0].startswith("data/"):
        images = data / next((each.to for each in info.downloads if each.role == "images"), "")
    if info.folders["images"] == "coco/images":
        form = dataclasses.replace(form, rows=[{**row, form.image_field: COCO} for row in form.rows], images=(COCO,))
    if any(each.url.endswith(".parquet") for each in info.downloads):
        pack(scratch, info.name)
        shutil.rmtree(scratch / "plain")
        shutil.copytree(scratch, data / info.folders["annotations"])
        return
    write(form, scratch)
    shutil.copytree(scratch / "images", images)
    shutil.rmtree(scratch / "images")
    shutil.copytree(scratch, data / info.folders["annotations"], dirs_exist_ok=True)


def files_of(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def answer(server, each, path, shared, scratch):
    """Serve the folder's files at a download's address; `shared` collects the files of each data set."""
    if each.unpack is not None:
        shutil.copytree(path, scratch / each.to / each.unpack)
        form = "gztar" if each.to.startswith(TARS) else "zip"
        path = Path(shutil.make_archive(str(scratch / path.name), form, scratch / each.to))
    inside = {f"/{name}": content for name, content in files_of(path).items()} or {"": path.read_bytes()}
    if not each.url.startswith("hf://"):
        server.files |= {f"/{each.url.removesuffix('/*')}{name}": content for name, content in inside.items()}
        return
    name, _, rest = each.url.removeprefix("hf://datasets/").partition("@")
    revision, _, pattern = rest.partition("/")
    fixed = pattern.partition("*")[0].rpartition("/")[0] if "*" in pattern else pattern
    shared.setdefault(name, {}).update({f"{fixed}{inner}": content for inner, content in inside.items()})
    publish(server, name, shared[name], unquote(revision))


@pytest.fixture
def web(monkeypatch):
    """Answers for every address, by its name as a path."""
    with a_hub() as server:
        opener = downloads._OPENER

        class Local:
            def open(self, request, timeout):
                if not request.full_url.startswith(server.url):
                    request.full_url = f"{server.url}/{request.full_url}"
                return opener.open(request, timeout=timeout)

        monkeypatch.setattr(downloads, "_OPENER", Local())
        yield server


@pytest.mark.parametrize("name", further(NAMES, NAMES[::3]))
def test_readers_can_read_the_files_that_are_fetched(name, web, tmp_path, monkeypatch, capsys):
    info = registry.find_benchmark(name)
    lay(info, tmp_path / "hand", tmp_path / "scratch")
    shared, served = {}, []
    for each in info.downloads:
        if (tmp_path / "hand" / each.to).exists():
            answer(web, each, tmp_path / "hand" / each.to, shared, tmp_path / "archives")
            served.append(dataclasses.replace(each, sha256=None))
    assert {each.role for each in served} == {each.role for each in info.downloads}
    monkeypatch.setattr(registry, "find_benchmark", lambda _: dataclasses.replace(info, downloads=tuple(served)))
    command = ["fetch", name, "--data", str(tmp_path / "got")]
    assert main(command) == 0
    assert files_of(tmp_path / "got") == files_of(tmp_path / "hand")
    opened = info.open(layout_folders(info, tmp_path / "got"), Settings(templates=("1",)))
    assert {task.name for task in opened.tasks} == set(info.tasks)
    requests = len(web.asked)
    assert main(command) == 0 and len(web.asked) == requests


def test_the_fetch_command_lists_files_and_licences_before_any_request(tmp_path, capsys, refusal):
    data = str(tmp_path)
    assert main(["fetch", "winoground", "imagecode", "--data", data, "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("winoground: META IMAGES RESEARCH LICENSE") and lines[1].startswith("imagecode:")
    assert lines[2].endswith("winoground/examples.jsonl: size not known, hashes from the hub; unverified")
    assert [line for line in lines if "needs access: accept the terms at" in line and "HF_TOKEN" in line] == lines[-1:]
    command = ["evaluate", "demo:plain", "--data", data, "--out", tmp_path / "out", "--benchmarks", "winoground"]
    assert f"`rococo fetch --data {data} winoground` downloads it" in refusal(*command)
    assert main(["benchmarks", "rococo", "imagecode", "aro"]) == 0
    sizes = dict(re.findall(r"fetch    rococo fetch (\w+) --data DIR \((.*)\)", capsys.readouterr().out))
    assert [sizes[name] for name in ("rococo", "imagecode", "aro")] == ["about 6.7 GB", "over 321 kB", "size not known"]


def test_every_fetched_file_is_part_of_the_layout_of_its_benchmark():
    known = registry.known_benchmarks()
    for each, benchmarks, source in read_sources():
        assert (benchmarks and source and each.sha256 is None) or len(each.sha256) == 64
        for name in benchmarks:
            assert f"{each.to}/".startswith(f"{known[name].folders[each.role]}/") and each in known[name].downloads


def test_the_documentation_lists_the_benchmarks_that_can_be_fetched():
    table = (
        (CHECKOUT / "docs/how-to/get-data.md").read_text().partition("| benchmark | what comes")[2].partition("\n\n")[0]
    )
    named = {name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert named == {info.name for info in registry.known_benchmarks().values() if info.downloads}
