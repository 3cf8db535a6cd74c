"""Several processes as one command: the same bytes as from one process; when one fails, all others stop and name it.

The processes share no cache of embeddings here (`--no-cache`), and only process 0 uses the folder of results.
"""

import json
import re
import shutil
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from rococo_jax import process_group
from rococo_jax.cli.main import main
from rococo_jax.encoders import embedding
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.errors import InputError
from tests.support.processes import Hosts, processes_of, run_command_together, run_lines
from tests.support.threads import Threads
from tests.support.tiny import WORDS, tiny_encoder
from tests.support.world import write_world

pytestmark = pytest.mark.quick  # one process and several compile alike
# More than one part of the embedding cache, so that there is work to share.
IMAGES, IMAGES_PER_RUN, TEXTS_PER_PART = 24, 16, 64
TIMEOUT = 40


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Images, captions, altered captions, and a tiny model."""
    # Of two lengths: each is a program to compile.
    random = np.random.default_rng(0)
    captions = [[" ".join(random.choice(WORDS, random.choice([3, 9]))) for _ in range(5)] for _ in range(IMAGES)]
    folder, start = tmp_path_factory.mktemp("data"), tiny_encoder(name="tiny")
    return write_world(folder, captions, altered={"danger": "{}ish".format}, start=start)


def run_both(out: Path, monkeypatch, *words: object) -> tuple[Path, Path]:
    """Run the command in this process on its eight devices, and by two processes of one device each."""
    one, two = out / "one", out / "two"
    monkeypatch.setattr(embedding, "IMAGES_PER_RUN", IMAGES_PER_RUN)
    monkeypatch.setattr(embedding, "_TEXTS_PER_PART", TEXTS_PER_PART)
    assert main([*map(str, words), "--out", str(one)]) in (0, None)
    before = f"from rococo_jax.encoders import embedding\nembedding.IMAGES_PER_RUN = {IMAGES_PER_RUN}\n"
    before += f"embedding._TEXTS_PER_PART = {TEXTS_PER_PART}\n"
    run_command_together([*words, "--out", two], 2, before=before, as_users=True)
    return one, two


@pytest.mark.slow
def test_two_processes_evaluate_a_model_with_the_same_results_as_one(data, tmp_path, monkeypatch):
    words = ["evaluate", data / "start", "--images", data / "images", "--annotations", data / "annotations"]
    one, two = run_both(
        tmp_path, monkeypatch, *words, "--mixed-galleries", "mix_0.9", "--seeds", "1", "--no-cache", "--no-report"
    )
    for name in ("results.json", "per_query.parquet"):
        assert (two / name).read_bytes() == (one / name).read_bytes(), name


@pytest.mark.slow
@pytest.mark.thorough
def test_two_processes_evaluate_a_list_at_two_image_sizes_with_the_same_results_as_one(data, tmp_path, monkeypatch):
    listed = tmp_path / "listed.txt"
    listed.write_text("\n".join(sorted(path.name for path in (data / "images").iterdir())[::2]))
    words = ["evaluate", data / "start", "--images", data / "images", "--annotations", data / "annotations"]
    words += ["--only", listed, "--image-size", "24,32", "--mixed-galleries", "none", "--no-cache", "--no-report"]
    one, two = run_both(tmp_path, monkeypatch, *words)
    for size in (24, 32):
        for name in ("results.json", "per_query.parquet"):
            place = f"start@{size}px/{name}"
            assert (two / place).read_bytes() == (one / place).read_bytes(), place


@pytest.mark.slow
@pytest.mark.thorough
def test_two_processes_write_the_same_influence_table_as_one(data, tmp_path, monkeypatch):
    captions = data / "annotations" / "coco_karpathy_test.json"
    one, two = run_both(tmp_path, monkeypatch, "influence", data / "start", "--captions", captions)
    assert two.read_bytes() == one.read_bytes()
    assert len(one.read_bytes().splitlines()) == 5 * IMAGES


def test_each_part_is_encoded_by_one_process_and_cached_parts_are_sent_to_the_others(monkeypatch, tmp_path):
    team, encoded = Threads(3), []
    monkeypatch.setattr(embedding, "gather", team.gather)
    monkeypatch.setattr(jax, "process_index", team.jax.process_index)
    parts = [[10 * number, 10 * number + 1] for number in range(8)]
    contents = [[str(item).encode() for item in part] for part in parts]
    encoder = tiny_encoder()

    def embed(folder_of=lambda number: number) -> np.ndarray:
        number = jax.process_index()

        def encode(items):
            encoded.extend((number, item) for item in items if item % 10 == 0)
            # Batches go across parts.
            items = np.array(items, np.float32)[:, None]
            yield from ((np.arange(len(items))[batch], items[batch]) for batch in (slice(0, 3), slice(3, None)))

        cache = EmbeddingCache(tmp_path / str(folder_of(number)))
        return embedding.EmbeddingPass(encoder, "captions", parts, contents, encode, cache).features()

    expected = np.array(parts, np.float32).reshape(-1, 1)
    # Each process has its own folder.
    for found in team.start(embed):
        np.testing.assert_array_equal(found, expected)
    assert sorted(encoded) == sorted((place % 3, 10 * place) for place in range(8))
    # Parts stay in the folder of the process that encoded them; in another order of processes nothing is encoded again.
    encoded.clear()
    for found in team.start(lambda: embed(lambda number: 2 - number)):
        np.testing.assert_array_equal(found, expected)
    # A process with an empty folder gets what the others hold; parts that none holds are encoded again, shared out.
    shutil.rmtree(tmp_path / "1")
    assert encoded == []
    for found in team.start(embed):
        np.testing.assert_array_equal(found, expected)
    assert sorted(part for _, part in encoded) == [10, 40, 70]
    assert len({number for number, _ in encoded}) == 3


@pytest.mark.thorough
def test_jax_ends_all_processes_that_wait_for_a_frozen_one_and_names_it():
    lines = "barrier('the first')\nif me == 1: os.kill(os.getpid(), signal.SIGSTOP)\nbarrier('the second')\n"
    ended = run_lines(lines, 3, frozen=1)
    for number in (0, 2):
        code, said = ended[number]
        assert code not in (0, None) and "Task 1 heartbeat timeout" in said, said


def test_an_error_in_one_process_ends_all_with_its_exit_code():
    ended = run_lines("if me == 1: open('/no/such')\nbarrier('the others')\n", 2, timeout=6)
    assert [code for code, _ in ended] == [2, 2]
    said = "/no/such: file system: found No such file or directory; wanted a path that can be used"
    assert ended[1][1] == f"rococo: {said}\n"
    assert re.search(rf"process 1 \(.+\) ended with {said}; process 0 stops", ended[0][1])


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        ("raise ValueError('found on one host')", 1, "ended with ValueError: found on one host"),
        pytest.param("raise jax.errors.JaxRuntimeError('RESOURCE_EXHAUSTED')", 1,
                     "ended with JaxRuntimeError: RESOURCE_EXHAUSTED", marks=pytest.mark.slow),
        # The main thread is in a call that does not return.
        ("threading.Timer(1, os.kill, (os.getpid(), signal.SIGTERM)).start(); barrier('the data')", 143,
         "received SIGTERM"),
        pytest.param("threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start(); barrier('the data')", 130,
                     "received SIGINT", marks=pytest.mark.slow),
    ],
    ids=["ValueError", "JAX", "SIGTERM", "SIGINT"],
)  # fmt: skip
def test_an_error_or_a_signal_during_set_up_ends_all_processes_within_seconds(error, code, said):
    start = time.monotonic()
    ended = run_lines(f"if me == 1: {error}\ntime.sleep(600)\n", 2, timeout=300, before="import jax, threading\n")
    assert [each for each, _ in ended] == [code, code]
    assert re.fullmatch(rf"rococo: process 1 \(.+\) {said}; process 0 stops, too\n", ended[0][1]), ended[0][1]
    assert time.monotonic() - start < 60  # a machine that is busy with other tests may take long to join


def test_gathered_arrays_keep_their_bits_and_all_processes_raise_an_error():
    lines = """
import numpy as np
for size in (0, 5, 70_000):
    mine = np.frombuffer(np.random.default_rng(me).bytes(4 * size), np.float32)
    theirs = gather("bits", lambda: mine)
    expected = [np.random.default_rng(number).bytes(4 * size) for number in range(2)]
    assert [each.tobytes() for each in theirs] == expected
assert broadcast_from_process_0("word", lambda: f"said by {me}") == "said by 0"
from rococo_jax.processes import on_any_process
assert on_any_process(me == 1) and not on_any_process(False)
def fail():
    if me == 1: raise InputError("file", "field", "this", "that")
try:
    gather("an error", fail)
except InputError as error:
    assert error.found == "this"
    assert gather("and on", lambda: me) == [0, 1]
else:
    raise AssertionError("no error")
"""
    for code, said in run_lines(lines, 2):
        assert code == 0, said


def steps(workdir: Path) -> list[int]:
    path = workdir / "metrics.jsonl"
    whole = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line)["step"] for line in whole if line.endswith("\n")]


def checkpoints(workdir: Path) -> list[int]:
    return sorted(int(path.name) for path in (workdir / "checkpoints").glob("*") if path.name.isdecimal())


@pytest.mark.slow
@pytest.mark.thorough
def test_a_killed_process_ends_all_and_fewer_can_resume_and_sigterm_to_one_saves_in_all(data, tmp_path):
    workdir = tmp_path / "run"
    train = ["train", "--config", "configs/coco_lit.py", "--workdir", workdir]
    train += [f"--config.{each}" for each in (
        f"init.model={data}/start", f"data.images={data}/images", f"data.captions={data}/captions.json",
        "train.vision=all", "train.text=all", "init.residual_head_width=0", "data.cached_features=False",
        "data.feature_noise=0", "data.feature_pool.captions=4", "data.feature_pool.mixed=4",
        "data.workers=0", "steps=100000", "batch_size=4", "log.every=1",
        "log.tensorboard=False", "checkpoint.every=5",
    )]  # fmt: skip

    with Hosts(processes_of(4, 1, *train, timeout=TIMEOUT), tmp_path / "first") as group:
        group.wait_until(lambda: checkpoints(workdir) and steps(workdir)[-1] > checkpoints(workdir)[0] + 1)
        group.lose(2)
        assert all(group.end(2 * TIMEOUT)), group.said(0)

    # Two of the four go on, with two devices each.
    reached = checkpoints(workdir)[-1]
    with Hosts(processes_of(2, 2, *train, timeout=TIMEOUT), tmp_path / "second") as group:
        group.wait_until(lambda: checkpoints(workdir)[-1] > reached)
        group.stop(1)
        assert group.end(600) == [0, 0], group.said(0)
        said = group.said(0) + group.said(1)
    stopped = {int(step) for step in re.findall(r"stopped after step (\d+)", said)}
    assert len(re.findall(r"stopped after step", said)) == 2 and len(stopped) == 1
    assert f"resumed from step {reached}" in said
    assert checkpoints(workdir)[-1] == stopped.pop()
    assert steps(workdir) == list(range(1, steps(workdir)[-1] + 1))


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (jax.errors.JaxRuntimeError("Connection closed by peer"), 3),
        (ValueError("Gloo: closed"), 3),
        (InputError("a.json", "file", "nothing there", "captions"), 0),
        (KeyError("own"), 0),
    ],
)
def test_a_process_waits_for_the_reason_of_another_if_a_collective_fails(error, seconds, monkeypatch):
    """The others look for a reason once a second; a process that finds one ends with it."""
    events = []

    def end(group, code, reason):
        events.append(reason.split()[0])
        raise SystemExit(code)

    monkeypatch.setattr(process_group.time, "sleep", events.append)
    monkeypatch.setattr(process_group.Group, "end", end)
    with pytest.raises(SystemExit):
        process_group.Group.fail(object.__new__(process_group.Group), error)
    assert events == [*[seconds] * bool(seconds), "ended"]
