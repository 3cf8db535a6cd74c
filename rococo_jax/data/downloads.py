"""Files from the web, resumed after an interruption, and there under their names only when they are complete.

A download grows in `DIR/.downloads/NAME.part`, beside a note of the server's version of the file. After a cut or a kill
it resumes where it was, if the server still has the same version and answers ranges; otherwise it begins anew. It gets
its name when it has the length that the server gave, if it gave one, and its hash, where one is known, is right. An
archive is then unpacked into a hidden folder (`archives`), whose contents get their names last. Several files of one
address: `hub_downloads`.
"""

import contextlib
import dataclasses
import glob
import hashlib
import http.client
import json
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from rococo_jax.data.archives import DamagedArchive, copy_beside, unpack, without_links
from rococo_jax.errors import DiskFull, InputError, first_line
from rococo_jax.safe_paths import is_inner_name
from rococo_jax.storage import atomic_write, check_free_space, remove_folder

DOWNLOADS = ".downloads"
_CHUNK = 1 << 20
_TRIES, _TIMEOUT_SECONDS = 5, 60.0


@dataclasses.dataclass(frozen=True)
class Download:
    """One file of a benchmark, or the files of one folder (`hub_downloads`).

    Attributes:
        url: where it is got.
        to: path below the data folder: of the file, of the folder, or of what an archive unpacks.
        sha256: where one is published, or was measured of the published file.
        size: in bytes, roughly; the server's word counts. 0 where no source tells it.
        role: of the folder that it belongs to.
        unpack: the folder inside an archive (ZIP, tar) that becomes `to`; None for a plain file.
        git_blob: Git's hash of the file, which the hub tells of those that have no SHA-256.
        page: of the hub, whose files are asked for with the user's token; declared where its terms must be accepted.
        links_in: path below the data folder of the file whose links are meant by a `*` in `url`.
    """

    url: str
    to: str
    role: str
    sha256: str | None = None
    size: int = 0
    unpack: str | None = None
    git_blob: str | None = None
    page: str | None = None
    links_in: str | None = None

    @property
    def verification(self) -> str:
        """What is known of the contents before they come."""
        if self.sha256:
            return "SHA-256 known"
        return f"{'hashes told by the hub' if self.url.startswith('hf://') else 'no known hash'}; not tried"

    def exists(self, data: Path) -> bool:
        """Whether it need not be got."""
        return (data / self.to).exists()


def fetch(
    download: Download,
    data: str | os.PathLike,
    on_progress: Callable[[int], None] = lambda count: None,
    wait: float = 1.0,
) -> bool:
    """Gets one file below the data folder, unless it is there. Returns whether it was got now.

    Args:
        on_progress: called with the number of further bytes that are there.
        wait: seconds before the first of up to four further tries; doubled each time.

    Raises:
        InputError: the server does not answer or has no such file, the connection is cut again and again, or what came
            is not what was published. What came so far of a file that is not refused is kept for the next call.
    """
    data = Path(data)
    part = _part_of(download, data)
    # Links that the user has put into the data folder may lead anywhere.
    if not is_inner_name(download.to):
        raise InputError(download.url, "name", repr(download.to), "a path below the data folder")
    if download.exists(data):
        _check_existing(download, data / download.to)
        clear_leftovers(download, data)
        return False
    part.parent.mkdir(parents=True, exist_ok=True)
    whole = part.with_suffix("")
    if not whole.exists():
        _get(download, part, on_progress, wait)
        _check(download, part)
        part.replace(whole)
        _note_of(part).unlink(missing_ok=True)
    else:
        on_progress(whole.stat().st_size)
        _check(download, whole)
    target = data / download.to
    target.parent.mkdir(parents=True, exist_ok=True)
    if download.unpack is None:
        whole.replace(target)
    else:
        _unpack(download, whole, target)
    clear_leftovers(download, data)
    return True


def clear_leftovers(download: Download, data: str | os.PathLike) -> None:
    """Removes what a download that is done, or was killed at its end, left beside the file itself."""
    part = _part_of(download, Path(data))
    whole, note = part.with_suffix(""), _note_of(part)
    for left in (part, note, whole, *note.parent.glob(f".{glob.escape(note.name)}.*.part")):
        left.unlink(missing_ok=True)
    _remove_unpacked(_unpacked(whole))
    with contextlib.suppress(OSError):  # others are on their way, or it was never made
        part.parent.rmdir()


def _part_of(download: Download, data: Path) -> Path:
    last = re.sub(r"[^\w.-]", "_", download.url.rpartition("/")[2])
    name = hashlib.sha256(download.url.encode()).hexdigest()[:8] + "-" + last[-100:]
    return data / DOWNLOADS / f"{name}.part"


def _unpacked(archive: Path) -> Path:
    return archive.with_suffix(".unpacked")


def _note_of(part: Path) -> Path:
    return part.with_suffix(".json")


def _get(download: Download, part: Path, on_progress: Callable[[int], None], wait: float) -> None:
    counted = 0
    for attempt in range(_TRIES):
        try:
            for there in _receive(download, part):
                on_progress(there - counted)
                counted = there
            return
        except urllib.error.HTTPError as error:
            if error.code == 416:  # what is there is longer than the file: it has changed
                part.unlink(missing_ok=True)
                on_progress(-counted)
                counted = 0
            elif error.code < 500 and error.code != 429:
                wanted = terms(download.page) if error.code in (401, 403) and download.page else "the file"
                raise InputError(download.url, "download", f"{error.code} {error.reason}", wanted) from None
            last = error
        except (urllib.error.URLError, ConnectionError, TimeoutError, http.client.HTTPException) as error:
            last = error
        if attempt < _TRIES - 1:
            time.sleep(wait * 2**attempt)
    found = f"{first_line(last)}, {_TRIES} times"
    raise InputError(download.url, "download", found, "an answer; the same command goes on from here") from None


def terms(page: str) -> str:
    """What to do where the hub refuses a file."""
    return f"access: accept the terms at {page}, then set HF_TOKEN to a token of huggingface.co/settings/tokens"


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Sends the token on to the same server, and to no other: the hub's files lie elsewhere."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):
        new = super().redirect_request(req, fp, code, msg, headers, newurl)
        token = req.unredirected_hdrs.get("Authorization")
        if token and new is not None and (new.type, new.host) == (req.type, req.host):
            new.add_unredirected_header("Authorization", token)
        return new


_OPENER = urllib.request.build_opener(_Redirects)


def _receive(download: Download, part: Path):
    """Appends what comes to the part, or begins it anew; yields its length."""
    note, start = _note_of(part), part.stat().st_size if part.exists() else 0
    known = json.loads(note.read_text()) if note.exists() and start else {}
    start = start if known.get("version") else 0
    if start and start == known.get("size"):
        yield start
        return
    request = urllib.request.Request(download.url, headers={"User-Agent": "rococo_jax", "Accept-Encoding": "identity"})
    if start:
        request.add_header("Range", f"bytes={start}-")
        request.add_header("If-Range", known["version"])
    if download.page:
        from huggingface_hub import get_token

        if token := get_token():
            request.add_unredirected_header("Authorization", f"Bearer {token}")
    with _OPENER.open(request, timeout=_TIMEOUT_SECONDS) as answer:
        if answer.headers.get_content_type() == "text/html":
            raise InputError(download.url, "download", "a web page", "the file; in a browser the page says why")
        goes_on = answer.status == 206 and _starts_at(answer.headers.get("Content-Range"), start)
        if start and not goes_on:
            if answer.status == 206:
                raise ConnectionError("the server sent another range than was asked for")
            start = 0
        length = answer.headers.get("Content-Length")
        total = None if length is None else start + int(length)
        if not start:
            # A weak tag names no bytes.
            tag = answer.headers.get("ETag")
            version = tag if tag and not tag.startswith("W/") else answer.headers.get("Last-Modified")
            with atomic_write(note) as temporary:
                temporary.write_text(json.dumps({"url": download.url, "version": version, "size": total}))
            if total is not None:
                check_free_space(part.parent, total)
        there = start
        with part.open("r+b" if start else "wb") as file:
            file.seek(start)
            while chunk := answer.read1(_CHUNK):
                file.write(chunk)
                there += len(chunk)
                yield there
        if total is not None and there != total:
            raise ConnectionError(f"the connection was cut after {there:,} of {total:,} bytes")


def _starts_at(content_range: str | None, start: int) -> bool:
    return content_range is not None and content_range.startswith(f"bytes {start}-")


def _check(download: Download, file: Path) -> None:
    """Remove the file and raise InputError where its hash is not the published one."""
    name, found, wanted = _compare_hash(download, file)
    if found != wanted:
        size = file.stat().st_size
        file.unlink()
        _note_of(file).unlink(missing_ok=True)
        raise InputError(download.url, name, f"{found} ({size:,} bytes)", wanted)


def _check_existing(download: Download, target: Path) -> None:
    """Raise InputError where a file lies under the name already and is not the published one."""
    if not target.is_file() or download.unpack is not None:
        return
    name, found, wanted = _compare_hash(download, target)
    if found != wanted:
        raise InputError(target, name, found, f"{wanted}, that of {download.url}: remove the file to get it anew")


def _compare_hash(download: Download, file: Path) -> tuple[str, str | None, str | None]:
    """Return the name of a hash, the file's and the published one; None for both where none was published."""
    wanted = download.sha256 or download.git_blob
    if wanted is None:
        return "", None, None
    blob = b"blob %d\0" % file.stat().st_size
    digest = hashlib.sha256() if download.sha256 else hashlib.sha1(blob, usedforsecurity=False)
    with file.open("rb") as contents:
        return digest.name, hashlib.file_digest(contents, lambda: digest).hexdigest(), wanted


def _unpack(download: Download, archive: Path, target: Path) -> None:
    """Move the archive's folder to `target`, which appears complete; the archive is removed, also where it is damaged,
    so that the next call fetches it anew.
    """
    hidden = _unpacked(archive)
    _remove_unpacked(hidden)  # of a run that was killed
    try:
        unpack(archive, hidden)
        inner, contents = hidden / download.unpack, sorted(hidden.iterdir())
        if contents and all(path.is_file() for path in contents):
            inner = hidden
        if not inner.is_dir():
            found = ", ".join(path.name for path in contents)[:80] or "nothing in it"
            raise InputError(download.url, "archive", found, f"a folder {download.unpack}")
        without_links(inner, hidden).replace(target)
    except (DamagedArchive, InputError) as error:
        _remove_unpacked(hidden)
        if isinstance(error, DiskFull):
            raise
        archive.unlink()
        if isinstance(error, InputError):
            raise
        raise InputError(download.url, "archive", first_line(error), "a whole ZIP or tar archive") from None
    _remove_unpacked(hidden)
    archive.unlink()


def _remove_unpacked(hidden: Path) -> None:
    remove_folder(hidden)
    remove_folder(copy_beside(hidden))
