"""The command line: help imports no JAX and has examples; bad input is one line and exit code 2."""

import contextlib
import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rococo_jax.checkpoints import save_model
from rococo_jax.cli.main import COMMANDS, build_parser, main
from tests.support.tiny import random_captions, tiny_encoder


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny"
    save_model(path, tiny_encoder())
    return path


@pytest.fixture(scope="module")
def captioned(tmp_path_factory) -> Path:
    """A folder with images/ and captions.json, of as many images as `join` wants."""
    folder = tmp_path_factory.mktemp("captioned")
    (folder / "images").mkdir()
    rng = np.random.default_rng(0)
    items = []
    for number in range(12):
        Image.fromarray(rng.integers(0, 256, (40, 40, 3), np.uint8)).save(folder / "images" / f"{number}.png")
        items.append({"image": f"{number}.png", "caption": random_captions(5, number, longest=6)})
    (folder / "captions.json").write_text(json.dumps(items))
    return folder


def test_help_imports_no_jax():
    code = "import sys; from rococo_jax.cli.main import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
    code += "heavy = {'jax', 'flax', 'transformers', 'numpy', 'pyarrow'} & set(sys.modules)\nassert not heavy, heavy"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(command in done.stdout for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples(command, capsys):
    with pytest.raises(SystemExit) as stop:
        build_parser(command).parse_args([command, "--help"])
    assert stop.value.code == 0
    assert f"  rococo {command}" in capsys.readouterr().out.split("examples:")[1]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"model": "no/such/model"}, "no/such/model"),
        ({"captions": "no-captions.json"}, "no-captions.json: file: found nothing there"),
        ({"images": "no-images"}, "no-images"),
    ],
)
def test_bad_input_is_one_line_and_2(change, expected, model, captioned, tmp_path, refusal):
    given = {"model": model, "images": captioned / "images", "captions": captioned / "captions.json"} | change
    command = ["embed", given["model"], "--images", given["images"], "--captions", given["captions"]]
    lines = refusal(*command, "--out", tmp_path / "e.npz").strip().splitlines()
    assert expected in lines[-1] and lines[-1].startswith("rococo: ") and "wanted" in lines[-1]
    assert not any("Traceback" in line for line in lines)
    assert not list(tmp_path.iterdir())


def test_the_error_for_a_folder_without_a_model_describes_a_model(captioned, tmp_path, refusal):
    images, captions = captioned / "images", captioned / "captions.json"
    command = ["embed", images, "--images", images, "--captions", captions, "--out", tmp_path / "e.npz"]
    assert "wanted a model directory or a Hugging Face folder" in refusal(*command)


def test_a_model_of_an_unknown_type_is_named(captioned, tmp_path, refusal):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text(json.dumps({"model_type": "llama"}))
    error = refusal("convert", tmp_path / "m", tmp_path / "out")
    assert "llama" in error and "clip" in error
    assert not (tmp_path / "out").exists()


def _output_path(kind: str, folder: Path) -> Path:
    (folder / "file").write_text("")
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "folder").mkdir()
    return {
        "a folder": folder / "folder",
        "below a file": folder / "file" / "out.json",
        "a name too long": folder / ("n" * 300),
        "a loop of links": folder / "loop" / "out.json",
    }[kind]


@pytest.mark.parametrize("kind", ["a folder", "below a file", "a name too long", "a loop of links"])
def test_an_output_path_that_cannot_be_used_is_one_line_and_2(kind, tmp_path, refusal):
    path = _output_path(kind, tmp_path)
    before = sorted(tmp_path.rglob("*"))
    (line,) = refusal("verify", "--annotations", tmp_path, "--out", path).splitlines()
    assert line.startswith(f"rococo: {tmp_path}") and "file system: found " in line and "wanted a path" in line
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("number", [errno.EPERM, errno.EACCES, errno.EROFS, errno.EEXIST, errno.ENOSPC, errno.EDQUOT])
def test_system_errors_of_paths_and_disks_are_one_line_and_2(number, monkeypatch, capsys):
    from rococo_jax.cli import verify

    def refused(arguments):
        raise OSError(number, os.strerror(number), "some/file")

    monkeypatch.setattr(verify, "run", refused)
    assert main(["verify", "--annotations", "x"]) == 2
    assert capsys.readouterr().err.startswith(f"rococo: some/file: file system: found {os.strerror(number)}; wanted ")


def test_other_system_errors_keep_their_traceback(monkeypatch):
    from rococo_jax.cli import verify

    def broken(arguments):
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    monkeypatch.setattr(verify, "run", broken)
    with pytest.raises(OSError, match="Bad file descriptor"):
        main(["verify", "--annotations", "x"])


@contextlib.contextmanager
def small_disk(folder: Path, size: str):
    """Mounts a file system of `size` at `folder`; needs root."""
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a small file system needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize("command", ["embed", "join"])
def test_a_full_disk_is_reported_in_one_line_and_leaves_no_file(command, model, captioned, tmp_path, refusal):
    given = ["--images", captioned / "images", "--captions", captioned / "captions.json", "--no-cache"]
    with small_disk(tmp_path / "disk", "8k" if command == "embed" else "64k") as disk:
        if command == "embed":
            (disk / "ballast").write_bytes(bytes(4096))
            words = ["embed", model, "--out", disk / "e.npz"]
        else:
            words = ["join", model, model, disk / "m", "--dim", "2"]
        left = [path.name for path in disk.iterdir()]
        error = refusal(*words, *given)
        assert "no space left on device" in error.splitlines()[-1].lower() and "Traceback" not in error
        assert [path.name for path in disk.iterdir()] == left


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["evaluat"],
            ["rococo: command: found 'evaluat'; wanted one of the 28 that `rococo --help` lists", "evaluate?)"],
        ),
        (["zzz"], ["command: found 'zzz'; wanted one of the 28 that `rococo --help` lists\n"]),
        (
            ["verify", "--annotations", "x", "--imgaes", "y"],
            ["rococo verify: option: found '--imgaes'; wanted", "did you mean --images?"],
        ),
        (["inspect", "a", "b"], ["rococo inspect: argument: found 'b'; wanted an option; `rococo inspect --help`"]),
        (["join", "--zzz=1"], ["rococo join: ", "; see rococo join --help"]),
        (["demo", "--protocol", "papr"], ["rococo demo: argument --protocol: invalid choice: 'papr'"]),
    ],
)
def test_a_wrong_word_is_one_line_with_the_nearest(words, said, capsys):
    try:
        code = main(words)
    except SystemExit as ended:
        code = ended.code
    error = capsys.readouterr().err
    assert code == 2
    assert error.count("\n") == 1
    assert [part for part in said if part not in error] == [], error


def test_the_help_names_every_corruption():
    from rococo_jax.cli import corrupt_images
    from rococo_jax.perturb.images.corruptions import CORRUPTIONS

    listed = corrupt_images.EXAMPLES.partition("corruptions:")[2]
    assert sorted(re.findall(r"\w+", listed)) == sorted(CORRUPTIONS)


def test_a_reader_that_stops_reading_gets_no_traceback():
    command = f"{sys.executable} -m rococo_jax benchmarks | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""
