"""The command line: help imports no JAX and has examples; bad input is one line and exit code 2."""

import contextlib
import errno
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from rococo_jax.cli import corrupt_images
from rococo_jax.cli.main import COMMANDS, build_parser, main
from rococo_jax.errors import as_input_error
from rococo_jax.perturb.images.corruptions import CORRUPTIONS
from tests.support.paths import CHECKOUT
from tests.support.tiny import random_captions, tiny_encoder
from tests.support.world import write_world


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    """Write the fewest images that `join` takes, their captions, a model, and a folder that only looks like a model."""
    captions = [random_captions(5, number, longest=6) for number in range(12)]
    folder = write_world(tmp_path_factory.mktemp("world"), captions, start=tiny_encoder())
    (folder / "llama").mkdir()
    (folder / "llama" / "config.json").write_text('{"model_type": "llama"}')
    return folder


def test_help_imports_no_jax():
    code = "import sys; from rococo_jax.cli.main import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
    code += "heavy = {'jax', 'flax', 'transformers', 'numpy', 'pyarrow'} & set(sys.modules)\nassert not heavy, heavy"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(command in done.stdout for command in COMMANDS)


def test_models_import_no_kernels_until_one_is_used():
    code = "import sys, rococo_jax.models\nheavy = {'jax.experimental.pallas', 'transformers'} & set(sys.modules)\n"
    done = subprocess.run([sys.executable, "-c", code + "assert not heavy, heavy"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples(command, capsys):
    with pytest.raises(SystemExit) as stop:
        build_parser(command).parse_args([command, "--help"])
    assert stop.value.code == 0
    assert f"  rococo {command}" in capsys.readouterr().out.split("examples:")[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("embed no/such/model --images images --captions captions.json --out e.npz", ["no/such/model"]),
        ("embed start --images images --captions c.json --out e.npz", ["c.json: file: found nothing there; wanted"]),
        ("embed start --images i --captions captions.json --out e.npz", ["rococo: i", "wanted"]),
        ("embed images --images images --captions captions.json --out e.npz",
         ["wanted a model directory or a Hugging Face folder"]),
        ("convert llama out", ["llama", "clip"]),
    ],
)  # fmt: skip
def test_bad_input_is_reported_in_one_line_with_exit_code_2(words, said, world, monkeypatch, refusal):
    monkeypatch.chdir(world)
    before = sorted(world.rglob("*"))
    error = refusal(*words.split())
    assert [part for part in said if part not in error.splitlines()[-1]] == [] and "Traceback" not in error
    assert sorted(world.rglob("*")) == before


@pytest.mark.parametrize("number", [errno.EPERM, errno.EACCES, errno.EROFS, errno.EEXIST, errno.ENOSPC, errno.EDQUOT])
def test_system_errors_of_paths_and_disks_are_reported_as_bad_input_and_others_are_not(number):
    refused = as_input_error(OSError(number, os.strerror(number), "some/file"))
    assert str(refused).startswith(f"some/file: file system: found {os.strerror(number)}; wanted ")
    assert as_input_error(OSError(errno.EBADF, os.strerror(errno.EBADF))) is None


@contextlib.contextmanager
def small_disk(folder: Path, size: str):
    """Mount a file system of `size` at `folder`; needs root."""
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a small file system needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize(
    ("words", "size", "ballast"), [("embed start --out m", "8k", 4096), ("join start start m --dim 2", "64k", 0)]
)
def test_a_full_disk_is_reported_in_one_line_and_leaves_no_file(words, size, ballast, world, tmp_path, refusal):
    given = ["--images", world / "images", "--captions", world / "captions.json", "--no-cache"]
    with small_disk(tmp_path / "disk", size) as disk:
        (disk / "ballast").write_bytes(bytes(ballast))
        places = {"start": world / "start", "m": disk / "m.npz"}
        error = refusal(*(places.get(word, word) for word in words.split()), *given)
        assert "no space left on device" in error.splitlines()[-1].lower() and "Traceback" not in error
        assert [path.name for path in disk.iterdir()] == ["ballast"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("evaluat", ["rococo: command: found 'evaluat'; wanted one of the", "`rococo --help` lists", "evaluate?)"]),
        ("zzz", ["command: found 'zzz'; wanted one of the", "that `rococo --help` lists\n"]),
        ("inspect m --imgae-size 32", ["rococo: inspect: option: found '--imgae-size'; wanted", "mean --image-size?"]),
        ("inspect a b", ["rococo: inspect: argument: found 'b'; wanted an option; `rococo inspect --help`"]),
        # An option is not abbreviated, and a wrong one is named before what is missing because of it.
        ("evaluate m --data D --benchmark b", ["option: found '--benchmark'", "(did you mean --benchmarks?)"]),
        ("evaluate m --outt D", ["option: found '--outt'", "(did you mean --out?)"]),
        ("train --confg scenes_tiny --workdir w", ["option: found '--confg'", "(did you mean --config?)"]),
        ("evaluate", ["required: --out; usage: rococo evaluate [MODEL ...] --out DIR", "see rococo evaluate --help"]),
        ("evaluate demo:plian --data D --out out", ["found 'demo:plian'; wanted", "(did you mean demo:plain?)"]),
        ("evaluate a=zoo:fare3 --data D --out out", ["found 'fare3'; wanted", "(did you mean fare"]),
        ("demo --protocol papr", ["rococo demo: argument --protocol: invalid choice: 'papr'"]),
    ],
)
def test_a_misspelt_word_is_reported_in_one_line_with_the_nearest_one(words, said, capsys):
    with pytest.raises(SystemExit) as ended:
        sys.exit(main(words.split()))
    error = capsys.readouterr().err
    assert ended.value.code == 2 and error.count("\n") == 1
    assert [part for part in said if part not in error] == [], error


def test_a_dry_run_prints_every_key_and_trains_nothing(tmp_path, capsys, refusal):
    dry = [
        "train",
        "--config",
        str(CHECKOUT / "configs/scenes_tiny.py"),
        "--workdir",
        str(tmp_path / "run"),
        "--dry-run",
    ]
    assert main([*dry, "--config.steps", "7", "--config.losses.sc.weight=0.25"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "steps = 7" in lines and "losses.sc.weight = 0.25" in lines and lines == sorted(lines)
    assert len(lines) > 60 and not (tmp_path / "run").exists()
    assert "no '='; wanted --config.key=value" in refusal(*dry, "--config.steps")


def test_articles_fit_the_inserted_word(tmp_path):
    captions, out = tmp_path / "captions.json", tmp_path / "same_concept.json"
    # One noun each; a text decides its draw, so that equal texts would be one draw.
    texts = [f"a {word} {k}" for word in ("dog", "cat", "man", "woman", "child", "horse", "car") for k in range(5)]
    captions.write_text(json.dumps([{"image": f"{k}.jpg", "caption": [text]} for k, text in enumerate(texts)]))
    words = (
        f"alter-captions demo:plain --captions {captions} --variant same_concept --select random --seed 1 --out {out}"
    )
    assert main(words.split()) == 0
    assert not re.search(r"\ba [aeio]\w+|\ban [^aeiouh]\w+", out.read_text())


def test_half_truths_are_made_from_captions_without_a_model(tmp_path, refusal):
    texts = [f"a {word} on the grass" for word in ("dog", "cat", "horse", "car", "boat", "bird")] + ["very nice"]
    images = [{"image": f"{k}.jpg", "caption": [text, "another one, with a cup"]} for k, text in enumerate(texts)]
    (tmp_path / "captions.json").write_text(json.dumps(images))
    words = f"alter-captions --captions {tmp_path}/captions.json --variant half_truth".split()

    def made(name, *more):
        out, lines = tmp_path / f"{name}.json", tmp_path / f"{name}.jsonl"
        assert main([*words, "--out", str(out), "--items", str(lines), *more]) == 0
        return json.loads(out.read_text()), [json.loads(line) for line in lines.read_text().splitlines()]

    annotation, items = made("one")
    assert (annotation, items) == made("again") and made("other", "--seed", "1")[0]["items"] != annotation["items"]
    assert annotation["items"][6]["altered"][0] is None and len(items) == 13
    details = set()
    for item in items:
        short, long = (text.replace("an ", "a ").split() for text in item["texts"])
        detail = list((Counter(long) - Counter(short)).elements())
        kind = "object" if "and" in detail else "attribute"
        assert (
            item["part"] == f"half_truth_{kind}" and len(long) - len(short) == len(detail) == {"o": 3, "a": 1}[kind[0]]
        )
        others = " ".join(images[int(item["images"][0]["file"][0])]["caption"]).split()
        assert not {*detail} - {"and", "a"} & {*others} and item["match"] == [[0, 0]]
        details.add(kind)
    assert details == {"object", "attribute"}
    for more in (["--select", "random"], ["--influence", "x.jsonl"]):
        assert "also --variant half_truth; wanted one of the two" in refusal(
            *words, "--out", str(tmp_path / "x.json"), *more
        )
    words[-1] = "danger"
    assert "MODEL: model: found none" in refusal(*words, "--out", str(tmp_path / "x.json"))


def test_altered_captions_depend_on_seed_lexicon_and_influence_table(tmp_path):
    texts = [f"a {word} on a {word}" for word in ("dog", "cat", "horse", "car")]
    images = [{"image": f"{k}.jpg", "caption": [text]} for k, text in enumerate(texts)]
    (tmp_path / "captions.json").write_text(json.dumps(images))
    pets = {"concept": "pet", "nouns": ["dog", "cat", "horse", "parrot", "hamster", "rabbit", "mouse", "fish"]}
    (tmp_path / "pets.json").write_text(
        json.dumps(
            {"format": "rococo_jax.lexicon", "version": 1, "groups": [pets, {"concept": "ride", "nouns": ["car"]}]}
        )
    )
    command = f"alter-captions demo:plain --captions {tmp_path}/captions.json --variant same_concept --select random"

    def altered(name, *more):
        assert main([*command.split(), "--out", str(tmp_path / name), *more]) == 0
        items = json.loads((tmp_path / name).read_text())["items"]
        return [re.findall(r"\w+", text) for item in items for text in item["altered"] if text]

    own = altered("a", "--seed", "1", "--lexicon", str(tmp_path / "pets.json"))
    assert own == altered("b", "--seed", "1", "--lexicon", str(tmp_path / "pets.json"))
    assert own != altered("c", "--seed", "2", "--lexicon", str(tmp_path / "pets.json"))
    with (tmp_path / "table.jsonl").open("w") as table:
        for k, text in enumerate(texts):
            values = [None, 0.1 + k % 2, None, None, 0.9]
            print(json.dumps({"image": "", "caption": text, "words": text.split(), "influence": values}), file=table)
    for select, words in (("lowest", [1, 4, 1, 4]), ("highest", [4, 1, 4, 1])):
        chosen = altered(select, "--select", select, "--influence", str(tmp_path / "table.jsonl"))
        assert [[*map(str.__eq__, a.split(), b)].index(False) for a, b in zip(texts, chosen, strict=True)] == words
    assert len(own) == 3 and {word for words in own for word in words} <= {*pets["nouns"], "a", "on"}


def test_the_help_names_every_corruption():
    listed = corrupt_images.EXAMPLES.partition("corruptions:")[2]
    assert sorted(re.findall(r"\w+", listed)) == sorted(CORRUPTIONS)


@pytest.mark.slow
def test_a_closed_pipe_causes_no_traceback():
    command = f"{sys.executable} -m rococo_jax benchmarks | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.stdout.count("\n") == 1 and done.stderr == ""
