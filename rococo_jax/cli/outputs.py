"""Output options, which are checked before any work is done.

This module imports nothing heavy: the checks run while the command line is parsed.
"""

import argparse
import contextlib
import errno
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rococo_jax.errors import InputError
from rococo_jax.locks import hold
from rococo_jax.storage import refuse_url

if TYPE_CHECKING:  # loads NumPy
    from rococo_jax.report.blocks import Table
    from rococo_jax.report.collection import Group
    from rococo_jax.report.comparison import Comparisons

_OUTPUTS = ("out", "per_query", "items", "workdir")
_GROUP = ("ROCOCO_COORDINATOR", "ROCOCO_PROCESSES", "ROCOCO_PROCESS")


def output_file(text: str) -> str:
    """Check the path of a file that will be written or replaced.

    Raises OSError: it is a folder, or its folder cannot be created or written to.
    """
    refuse_url(text, "output")
    path = Path(text)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), text)
    _probe(path.parent)
    return text


def output_folder(text: str) -> str:
    """Check the path of a folder that will be created or written to.

    Raises OSError: it is a file, or cannot be created or written to.
    """
    refuse_url(text, "output")
    _probe(Path(text))
    return text


def output_file_or_folder(text: str) -> str:
    """Check the path of a file or folder, for commands whose other options determine which.

    Raises OSError: neither can be created or written to.
    """
    refuse_url(text, "output")
    _probe(Path(text) if Path(text).is_dir() else Path(text).parent)
    return text


def _probe(folder: Path) -> None:
    """Write and remove a file in `folder`, or in its nearest existing parent."""
    path = folder.absolute()
    while not path.exists() and not path.is_symlink() and path != path.parent:
        path = path.parent
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    try:
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        # Name the folder instead of the temporary file.
        raise OSError(error.errno, error.strerror or str(error), str(path)) from None


def refuse_overwriting(arguments: argparse.Namespace) -> None:
    """Raise InputError if an output is the same file or folder as an input."""
    values = vars(arguments)
    outputs = {name: values[name] for name in _OUTPUTS if isinstance(values.get(name), str)}
    for name, output in outputs.items():
        for option, value in values.items():
            if option in outputs:
                continue
            for part in value if isinstance(value, list | tuple) else [value]:
                if isinstance(part, str) and _is_same_path(output, part):
                    raise InputError(output, name, f"what {option} names", "another path than that of an input")
    paths = [os.path.realpath(path) for path in outputs.values()]
    if len(set(paths)) < len(paths):
        raise InputError(next(iter(outputs.values())), " and ".join(outputs), "one path", "different ones")


def print_tables(results: Sequence[dict], *, as_json: bool = False, quiet: bool = False) -> None:
    """Print the tables of results, or the results as JSON: an object for one model, else a list."""
    from rococo_jax.evaluation.summary import print_summary

    if as_json:
        print(json.dumps(results[0] if len(results) == 1 else results, indent=2, ensure_ascii=False))
    elif not quiet:
        print_summary(results)


def print_short(
    groups: "Sequence[Group]",
    comparisons: "Comparisons",
    leaderboards: "Sequence[Table]",
    results: Sequence[dict],
    out: str | Path,
) -> None:
    """Print one screen on several models, with the notes of their results and what was published of them.

    Args:
        out: folder of the results, which the commands that print more are named with.
    """
    from rococo_jax.evaluation.summary import note_lines, published_lines
    from rococo_jax.report.leaderboard import print_short_leaderboards
    from rococo_jax.report.overview import print_overview, print_wrapped

    print_short_leaderboards(leaderboards, f"rococo leaderboard {out}")
    print_overview(groups, comparisons)
    for line in note_lines(results, join=True):
        print_wrapped(f"note: {line}")
    for line in published_lines(results):
        print_wrapped(line)


@contextlib.contextmanager
def hold_output(arguments: argparse.Namespace) -> Iterator[None]:
    """Lock the output of a command, so that another command cannot write there.

    Commands of several processes or shards share their output; training locks its own folder.
    """
    shared = getattr(arguments, "shard", None) or any(name in os.environ for name in _GROUP)
    if shared or not isinstance(getattr(arguments, "out", None), str):
        yield
        return
    path = Path(arguments.out).absolute()
    absent = [folder for folder in path.parents if not folder.exists()]
    try:
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):  # a folder may be writable although its parent is not
                stack.enter_context(hold(path, beside=True))
            yield
    finally:
        for folder in absent:
            with contextlib.suppress(OSError):
                folder.rmdir()  # fails unless the folder is empty


def _is_same_path(output: str, named: str) -> bool:
    for part in {named, *named.split(",")}:
        try:
            if part and Path(output).samefile(part):
                return True
        except (OSError, ValueError):
            continue
    return False
