"""Configure all tests strictly: eight virtual CPU devices, no silent dtype or rank promotion, no hub."""

import contextlib
import itertools
import os
import resource
from collections import Counter
from collections.abc import Callable

# One part of a program at a time: a worker has a core to itself, and the parts of small programs cost more than they
# save. No digit depends on it.
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "")
    + " --xla_force_host_platform_device_count=8 --xla_cpu_parallel_codegen_split_count=1"
)
# Threads of torch and NumPy that wait for each other on a busy core: 0.04 s of the step's oracle became 2.5 s.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["JAX_PLATFORMS"] = os.environ.get("JAX_PLATFORMS", "cpu")

# Before the package, whose modules `types` checks as they are imported, and before JAX.
from tests.support import memory, types

os.environ["HF_HUB_OFFLINE"] = "1"

from pathlib import Path

import jax
import pytest

from rococo_jax.cli.main import COMMANDS, main
from rococo_jax.cores import usable_cores
from rococo_jax.runtime import enable_compilation_cache
from tests.support import restored
from tests.support.paths import require_real_data
from tests.support.programs import QUICK_FOLDERS, compile_quickly, is_quick

WORKER_GB = 2.5  # at its peak
PROGRAMS_GB = 1.8  # of a worker, above which it drops its programs at the end of a file
# Files of few tests with a fixture that takes most of a minute.
LONG_FIXTURES = ("test_tutorials.py", "test_sweep.py", "test_devices.py")

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


def pytest_collection_modifyitems(items):
    """Skip thorough tests unless they are requested; begin with the files that take longest."""
    skip_thorough = pytest.mark.skip(reason="thorough; set ROCOCO_THOROUGH=1")
    counts, slow = Counter(), Counter()
    for item in items:
        if item.get_closest_marker("thorough") and not os.environ.get("ROCOCO_THOROUGH"):
            item.add_marker(skip_thorough)
            continue
        counts[item.path] += 1
        slow[item.path] += item.get_closest_marker("slow") is not None
    # A long file taken last would leave the other workers idle.
    items.sort(
        key=lambda item: (
            not compiles_quickly(item), item.path.name not in LONG_FIXTURES, -slow[item.path], -counts[item.path],
            item.path,
        )
    )  # fmt: skip


def compiles_quickly(node: pytest.Item | pytest.Module) -> bool:
    """Return whether the programs of a test or file are compiled quickly."""
    return node.path.parent.name in QUICK_FOLDERS or node.get_closest_marker("quick") is not None


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_auto_num_workers() -> int:
    """Return the workers of `-n auto`: one for each core, or as memory allows. Each collects all tests: no more."""
    workers = usable_cores()
    free = WORKER_GB * workers
    with contextlib.suppress(OSError):
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        free = int(lines["MemAvailable"].split()[0]) / 1e6
    return max(1, min(workers, int(free / WORKER_GB)))


USAGES = pytest.StashKey[list]()


def usage() -> tuple[float, float]:
    """Return the peak memory of this process in GB, and the processor seconds of it and of its children."""
    process, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return process.ru_maxrss / 2**20, process.ru_utime + process.ru_stime + children.ru_utime + children.ru_stime


def pytest_sessionfinish(session):
    """Report the memory and time of a worker to the controller."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["usage"] = usage()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """Collect the memory and time of each worker."""
    if worker_usage := getattr(node, "workeroutput", {}).get("usage"):
        node.config.stash.setdefault(USAGES, []).append(worker_usage)


def pytest_terminal_summary(terminalreporter, config):
    """Print the peak memory of every worker, the processor time with that of commands, and the time of each folder."""
    usages, seconds = config.stash.get(USAGES, []) or [usage()], Counter()
    for report in itertools.chain(*terminalreporter.stats.values()):
        if hasattr(report, "duration"):
            seconds[report.nodeid.split("/")[1].partition(".py::")[0]] += report.duration
    peaks = ", ".join(f"{peak:.1f}" for peak, _ in usages)
    folders = ", ".join(f"{folder} {each:.0f}" for folder, each in seconds.most_common())
    processor = sum(seconds for _, seconds in usages)
    terminalreporter.write_line(f"peak memory {peaks} GB; processor {processor:.0f} s; by folder {folders}")


@pytest.fixture(autouse=True)
def checks_and_memory_of_a_test():
    """Check types and shapes at the first calls of every function; leave older objects out of garbage collections."""
    types.begin_test()
    memory.begin_test()


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Return the folder of real images, captions and towers; a test that uses it is marked `real_data`."""
    return require_real_data()


@pytest.fixture
def refusal(capsys) -> Callable[..., str]:
    """Run a command, one argument per word, that is refused with exit code 2 and one line; return its standard error.

    A command line in one string, or the name of no command, would be refused for that alone.
    """

    def error_of(*words: object) -> str:
        assert words[0] in COMMANDS
        assert main([str(word) for word in words]) == 2
        error = capsys.readouterr().err
        assert error.splitlines()[-1].startswith("rococo: ")
        return error

    return error_of


@pytest.fixture
def expect_refusal(refusal) -> Callable[..., None]:
    """Run a command line without spaces in its arguments; the last line of its error contains each of some texts."""

    def expect(command: str, *texts: str) -> None:
        assert texts
        line = refusal(*command.split()).splitlines()[-1]
        assert [text for text in texts if text not in line] == [], line

    return expect


@pytest.fixture(scope="session")
def exported(tmp_path_factory) -> Path:
    """Return a folder from which `transformers` loads the CLIP of `exportable_encoder`."""
    from rococo_jax.checkpoints import export_huggingface
    from tests.support.tiny import exportable_encoder

    folder = tmp_path_factory.mktemp("exported") / "tiny-clip"
    export_huggingface(exportable_encoder(), folder)
    return folder


@pytest.fixture(scope="session", autouse=True)
def workers_share_programs_and_made_runs(tmp_path_factory):
    """Let workers and commands share one cache of programs, apart from the user's, and one set of made-up results."""
    base = tmp_path_factory.getbasetemp()
    os.environ.setdefault("ROCOCO_CACHE", str(base.parent / "rococo-cache"))
    os.environ["ROCOCO_MADE_RUNS"] = str((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "made-runs")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    enable_compilation_cache()
    # XLA reads its flags once, here, before a file that compiles quickly sets them for the commands that it starts.
    jax.jit(lambda: 0).lower().compile()


@pytest.fixture(scope="module", autouse=True)
def programs_of_a_file(request):
    """Compile as the file's folder or mark says; drop programs when the worker has grown too large."""
    types.begin_file()
    restored.begin_file()
    quick = compiles_quickly(request.node)
    if quick != is_quick():
        jax.clear_caches()
    compile_quickly(quick)
    yield
    if memory.resident_gb() > PROGRAMS_GB:
        jax.clear_caches()
        memory.give_back()


@pytest.fixture
def nothing_is_kept():
    """Drop a test's programs and arrays at its end, where those of a whole file would take half a gigabyte."""
    yield
    jax.clear_caches()
    memory.give_back()
