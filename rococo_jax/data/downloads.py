"""Download files from the web, resuming after interruptions; a file that exists under its name is complete.

A download goes through four states:

    part        DIR/.downloads/NAME.part, which grows, beside NAME.json, a note of the server's version of the file
    complete    DIR/.downloads/NAME, whose length and checksum have been verified, if they are known
    unpacked    DIR/.downloads/NAME.unpacked, the hidden folder of an archive (`archives`)
    existing    the target, to which the complete file or the folder of the archive is moved

After an interruption a part resumes, if the server still has the same version and supports ranges; otherwise it starts
again. `hub_downloads` downloads several files of one address.
"""

import contextlib
import dataclasses
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
from rococo_jax.storage import atomic_write, check_free_space, remove_folder, temporary_files

DOWNLOADS = ".downloads"
_CHUNK = 1 << 20
_ATTEMPTS, _TIMEOUT_SECONDS = 5, 60.0


@dataclasses.dataclass(frozen=True)
class Download:
    """A file of a benchmark, or the files of a folder (`hub_downloads`).

    Attributes:
        url: address of the file.
        to: path below the data folder of the file, of the folder, or of the contents of an archive.
        sha256: published, or measured on the published file; None if it is unknown.
        size: in bytes, approximately; 0 if it is unknown. The size that the server reports counts.
        role: of the folder that it belongs to.
        unpack: the folder inside an archive (ZIP, tar) that becomes `to`; None for a plain file.
        git_blob: Git's hash of the file, which the hub has for files without a SHA-256.
        page: page of the hub; its files are requested with the user's token. Declared if its terms must be accepted.
        links_in: path below the data folder of the file that contains the links for a `*` in `url`.
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
        """A description of how the contents will be verified."""
        if self.sha256:
            return "SHA-256 known"
        if self.url.startswith("hf://"):
            return "hashes from the hub; unverified"
        return "no known hash; unverified"

    def exists(self, data: Path) -> bool:
        """Return whether the target exists already."""
        return (data / self.to).exists()


def fetch(
    download: Download,
    data: str | os.PathLike,
    on_progress: Callable[[int], None] = lambda count: None,
    wait: float = 1.0,
) -> bool:
    """Download one file into the data folder, unless it exists; return whether it was downloaded.

    Args:
        on_progress: called with the number of bytes since the last call.
        wait: seconds before the first of up to four further attempts; doubled each time.

    Raises:
        InputError: the server does not respond or has no such file, the connection is interrupted repeatedly, or the
            contents are not the published ones. A partial download that is not refused is kept for the next call.
    """
    data = Path(data)
    part = _part_of(download, data)
    # Links that users created inside the data folder may lead anywhere.
    if not is_inner_name(download.to):
        raise InputError(download.url, "name", repr(download.to), "a path below the data folder")
    if download.exists(data):
        _verify_existing(download, data / download.to)
        clear_leftovers(download, data)
        return False
    part.parent.mkdir(parents=True, exist_ok=True)
    complete = part.with_suffix("")
    if not complete.exists():
        _download(download, part, on_progress, wait)
        _verify(download, part)
        part.replace(complete)
        _note_of(part).unlink(missing_ok=True)
    else:
        on_progress(complete.stat().st_size)
        _verify(download, complete)
    target = data / download.to
    target.parent.mkdir(parents=True, exist_ok=True)
    if download.unpack is None:
        complete.replace(target)
    else:
        _unpack(download, complete, target)
    clear_leftovers(download, data)
    return True


def clear_leftovers(download: Download, data: str | os.PathLike) -> None:
    """Remove temporary files of a download that is complete, or was killed just before that."""
    part = _part_of(download, Path(data))
    complete, note = part.with_suffix(""), _note_of(part)
    for leftover in (part, note, complete, *temporary_files(note)):
        leftover.unlink(missing_ok=True)
    _remove_unpacked(_unpacked(complete))
    with contextlib.suppress(OSError):  # other downloads are running, or the folder does not exist
        part.parent.rmdir()


def _part_of(download: Download, data: Path) -> Path:
    last = re.sub(r"[^\w.-]", "_", download.url.rpartition("/")[2])
    name = hashlib.sha256(download.url.encode()).hexdigest()[:8] + "-" + last[-100:]
    return data / DOWNLOADS / f"{name}.part"


def _unpacked(archive: Path) -> Path:
    return archive.with_suffix(".unpacked")


def _note_of(part: Path) -> Path:
    return part.with_suffix(".json")


def _download(download: Download, part: Path, on_progress: Callable[[int], None], wait: float) -> None:
    """Download a file, with several attempts."""
    reported = 0
    for attempt in range(_ATTEMPTS):
        try:
            for received in _receive(download, part):
                on_progress(received - reported)
                reported = received
            return
        except urllib.error.HTTPError as error:
            if error.code == 416:  # the part is longer than the file, which must have changed
                part.unlink(missing_ok=True)
                on_progress(-reported)
                reported = 0
            elif error.code < 500 and error.code != 429:
                expected = terms(download.page) if error.code in (401, 403) and download.page else "the file"
                raise InputError(download.url, "download", f"{error.code} {error.reason}", expected) from None
            last_error: Exception = error
        except (urllib.error.URLError, ConnectionError, TimeoutError, http.client.HTTPException) as error:
            last_error = error
        if attempt < _ATTEMPTS - 1:
            time.sleep(wait * 2**attempt)
    problem = f"{first_line(last_error)}, {_ATTEMPTS} times"
    raise InputError(download.url, "download", problem, "an answer; run the same command again to resume") from None


def terms(page: str) -> str:
    """Return instructions for a file that the hub refuses."""
    return f"access: accept the terms at {page}, then set HF_TOKEN to a token of huggingface.co/settings/tokens"


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Sends the token only to the same server, and to no other one: the hub redirects to other hosts for its files."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):
        redirected = super().redirect_request(req, fp, code, msg, headers, newurl)
        token = req.unredirected_hdrs.get("Authorization")
        if token and redirected is not None and (redirected.type, redirected.host) == (req.type, req.host):
            redirected.add_unredirected_header("Authorization", token)
        return redirected


_OPENER = urllib.request.build_opener(_Redirects)


def _receive(download: Download, part: Path):
    """Append the contents to the part, or start it again; yield its length after each piece."""
    note = _note_of(part)
    start = part.stat().st_size if part.exists() else 0
    recorded = json.loads(note.read_text()) if note.exists() and start else {}
    if not recorded.get("version"):
        start = 0
    if start and start == recorded.get("size"):
        yield start
        return
    request = urllib.request.Request(download.url, headers={"User-Agent": "rococo_jax", "Accept-Encoding": "identity"})
    if start:
        request.add_header("Range", f"bytes={start}-")
        request.add_header("If-Range", recorded["version"])
    if download.page:
        from huggingface_hub import get_token

        if token := get_token():
            request.add_unredirected_header("Authorization", f"Bearer {token}")
    with _OPENER.open(request, timeout=_TIMEOUT_SECONDS) as answer:
        if answer.headers.get_content_type() == "text/html":
            raise InputError(download.url, "download", "a web page", "the file; in a browser the page says why")
        content_range = answer.headers.get("Content-Range") or ""
        is_continued = answer.status == 206 and content_range.startswith(f"bytes {start}-")
        if start and not is_continued:
            if answer.status == 206:
                raise ConnectionError("the server sent another range than was asked for")
            start = 0
        length = answer.headers.get("Content-Length")
        total = None if length is None else start + int(length)
        if not start:
            # A weak tag does not identify bytes.
            tag = answer.headers.get("ETag")
            version = tag if tag and not tag.startswith("W/") else answer.headers.get("Last-Modified")
            with atomic_write(note) as temporary:
                temporary.write_text(json.dumps({"url": download.url, "version": version, "size": total}))
            if total is not None:
                check_free_space(part.parent, total)
        received = start
        with part.open("r+b" if start else "wb") as file:
            file.seek(start)
            while chunk := answer.read1(_CHUNK):
                file.write(chunk)
                received += len(chunk)
                yield received
        if total is not None and received != total:
            raise ConnectionError(f"the connection was cut after {received:,} of {total:,} bytes")


def _verify(download: Download, file: Path) -> None:
    """Raise InputError, and remove the file, if its hash is not the published one."""
    name, actual, expected = _compare_hash(download, file)
    if actual != expected:
        size = file.stat().st_size
        file.unlink()
        _note_of(file).unlink(missing_ok=True)
        raise InputError(download.url, name, f"{actual} ({size:,} bytes)", expected)


def _verify_existing(download: Download, target: Path) -> None:
    """Raise InputError if an existing file is not the published one."""
    if not target.is_file() or download.unpack is not None:
        return
    name, actual, expected = _compare_hash(download, target)
    if actual != expected:
        raise InputError(
            target, name, actual, f"{expected}, that of {download.url}: remove the file to download it again"
        )


def _compare_hash(download: Download, file: Path) -> tuple[str, str | None, str | None]:
    """Return the name of a hash, that of the file and the published one; None for both if none is published."""
    expected = download.sha256 or download.git_blob
    if expected is None:
        return "", None, None
    blob = b"blob %d\0" % file.stat().st_size
    digest = hashlib.sha256() if download.sha256 else hashlib.sha1(blob, usedforsecurity=False)
    with file.open("rb") as contents:
        return digest.name, hashlib.file_digest(contents, lambda: digest).hexdigest(), expected


def _unpack(download: Download, archive: Path, target: Path) -> None:
    """Unpack an archive and move its folder to `target` when it is complete.

    The archive is removed, even if it is damaged, so that the next call downloads it again.
    """
    hidden = _unpacked(archive)
    _remove_unpacked(hidden)  # left by a run that was killed
    try:
        unpack(archive, hidden)
        inner, contents = hidden / download.unpack, sorted(hidden.iterdir())
        if contents and all(path.is_file() for path in contents):
            inner = hidden
        if not inner.is_dir():
            problem = ", ".join(path.name for path in contents)[:80] or "nothing in it"
            raise InputError(download.url, "archive", problem, f"a folder {download.unpack}")
        without_links(inner, hidden).replace(target)
    except (DamagedArchive, InputError) as error:
        _remove_unpacked(hidden)
        if isinstance(error, DiskFull):
            raise
        archive.unlink()
        if isinstance(error, InputError):
            raise
        raise InputError(download.url, "archive", first_line(error), "a complete ZIP or tar archive") from None
    _remove_unpacked(hidden)
    archive.unlink()


def _remove_unpacked(hidden: Path) -> None:
    remove_folder(hidden)
    remove_folder(copy_beside(hidden))
