"""File locks for folders and files that commands write: one writer at a time, among processes and threads.

A lock of the file system ends with its process, even if that is killed, and child processes do not inherit it.
"""

import contextlib
import errno
import fcntl
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from rococo_jax.errors import InputError
from rococo_jax.progress import say
from rococo_jax.storage import atomic_directory, refuse_url, remove_path, target_name, temporary_files

# Locks of this process, with the thread that holds each of them.
_locks: dict[Path, int] = {}
_locks_changed = threading.Condition()


@contextlib.contextmanager
def hold(path: str | os.PathLike, beside: bool = False, wait: bool = False) -> Iterator[None]:
    """Lock a folder, or a file that will be written, for this process while the block runs.

    The lock ends with the process, even if that is killed. Temporary files of a previous holder that was killed are
    removed. A file system without locks has none.

    Args:
        path: a folder, whose lock is `PATH/.lock`, or a file, whose lock is `.NAME.lock` beside it.
        beside: put the lock of a folder beside it too; the folder may not exist yet.
        wait: wait for another command or thread that holds the lock, instead of raising an error.

    Raises InputError: the path is a URL, this thread holds the lock, or another one does and `wait` is False.
    """
    refuse_url(path, "output")
    path = Path(path).absolute()
    lock = path / ".lock" if path.is_dir() and not beside else _lock_beside(path)
    _claim(path, lock, wait)
    try:
        file = _lock_file(path, lock, wait)
    except BaseException:
        _release(lock)
        raise
    with contextlib.suppress(OSError):
        _remove_leftovers(path, deep=lock.parent != path)
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        os.close(file)
        _release(lock)


def made_once(folder: Path, fill: Callable[[Path], object]) -> Path:
    """Return a folder; if it does not exist, `fill` first writes its contents into an empty folder, which becomes it.

    Other processes and threads that need it meanwhile wait.
    """
    if not folder.exists():
        with hold(folder, beside=True, wait=True):
            if not folder.exists():
                with atomic_directory(folder) as unfinished:
                    fill(unfinished)
    return folder


def _claim(path: Path, lock: Path, wait: bool) -> None:
    """Lock among the threads of this process, which a lock of the file system does not distinguish."""
    this_thread = threading.get_ident()
    with _locks_changed:
        while lock in _locks:
            if not wait or _locks[lock] == this_thread:
                raise _in_use(path, "this process")
            _locks_changed.wait()
        _locks[lock] = this_thread


def _release(lock: Path) -> None:
    with _locks_changed:
        _locks.pop(lock, None)
        _locks_changed.notify_all()


def _lock_file(path: Path, lock: Path, wait: bool) -> int:
    """Open and lock a file. POSIX locks work on NFS, and child processes do not inherit them."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    while True:
        file = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock_or_wait(file, path, wait)
            if _is_at(file, lock):  # the previous holder may have removed the file between the two calls
                os.ftruncate(file, 0)
                os.write(file, f"process {os.getpid()} of {socket.gethostname()}".encode())
                return file
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                holder = _holder_of(file)
                os.close(file)
                raise _in_use(path, holder) from None
            if error.errno in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL):
                return file
            os.close(file)
            raise
        os.close(file)


def _lock_or_wait(file: int, path: Path, wait: bool) -> None:
    """Lock an open file; say whom it waits for. Raises OSError: another process holds the lock, and `wait` is False."""
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if not wait or error.errno not in (errno.EACCES, errno.EAGAIN):
            raise
        say(f"{path}: waiting for {_holder_of(file)}")
        fcntl.lockf(file, fcntl.LOCK_EX)


def _holder_of(file: int) -> str:
    """Return the process that wrote its name into an open lock file."""
    return os.pread(file, 200, 0).decode(errors="replace") or "another process"


def _remove_leftovers(path: Path, deep: bool) -> None:
    """Remove the temporary files of a command that was killed; the holder of the lock knows that nobody uses them.

    If the lock is inside of the folder, other commands may write to its subfolders, which `deep=False` leaves alone.
    What another command has locked inside of the folder is left alone in any case.
    """
    leftovers = temporary_files(path)
    if path.is_dir():
        inside = path.rglob(".*.part") if deep else path.glob(".*.part")
        leftovers += [each for each in inside if target_name(each) and not _is_locked(each, path)]
    for each in leftovers:
        remove_path(each)


def _is_locked(temporary: Path, folder: Path) -> bool:
    """Return whether there is a lock of the temporary file's target, or of a folder between it and `folder`."""
    target = temporary.with_name(target_name(temporary) or "")
    below = [target, *(parent for parent in target.parents if folder in parent.parents)]
    return any((each / ".lock").exists() or _lock_beside(each).exists() for each in below)


def _lock_beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.lock")


def _is_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _in_use(path: Path, holder: str) -> InputError:
    return InputError(
        path, "lock", f"in use by {holder}", "one command at a time: wait, stop it, or name another output"
    )
