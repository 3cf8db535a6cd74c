"""Download files that have to be listed first: data sets of the Hugging Face hub, and the links in a file.

A benchmark declares them as one `Download` each:

Download("hf://datasets/OWNER/NAME@REVISION/data/examples.jsonl", "winoground/examples.jsonl", "annotations")
Download("hf://datasets/OWNER/NAME@REVISION/data/images.zip", "winoground/images", "images", unpack="images")
Download("hf://datasets/OWNER/NAME@REVISION/data/test-*.parquet", "bivlc/data", "images")
Download("https://HOST/images/*", "cola/images", "images", links_in="cola/benchmark.json")

REVISION is a commit, or a branch (`/` as %2F) if no commit was published. All files come from the commit to which it
currently points; partial downloads of other commits are not used. The hub provides the SHA-256 of large files and Git's
hash of small ones, and both are verified. HF_ENDPOINT selects another hub. With a `*`, which also matches slashes, `to`
is a folder. Its files have their paths below the last folder without a `*`, and it appears when it is complete.
"""

import dataclasses
import os
import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import quote, unquote

from rococo_jax.data.downloads import DOWNLOADS, Download, clear_leftovers, fetch, terms
from rococo_jax.errors import InputError, first_line
from rococo_jax.progress import say
from rococo_jax.safe_paths import stays_inside
from rococo_jax.storage import hash_json

_HUB = re.compile(r"hf://(datasets/([^/]+/[^/@]+))@([^/]+)/(.+)")


def fetch_files(
    download: Download,
    data: str | os.PathLike,
    on_progress: Callable[[int], None] = lambda count: None,
) -> bool:
    """Download the files of any `Download`, as `downloads.fetch`.

    Raises InputError: as `fetch`, or the list of files is not available or is empty.
    """
    data = Path(data)
    if download.exists(data):
        return fetch(download, data, on_progress)
    hub_match = _HUB.fullmatch(download.url)
    if hub_match is None and "*" not in download.url:
        return fetch(download, data, on_progress)
    files = _list_hub_files(download, *hub_match.groups()) if hub_match else _list_linked_files(download, data)
    if "*" not in download.url:
        return fetch(files[0], data, on_progress)
    hidden, target = data / DOWNLOADS / hash_json([each.url for each in files])[:16], data / download.to
    for each in files:
        if not stays_inside(hidden, each.to):
            raise InputError(download.url, "name", repr(each.to), "names of files below the folder")
    for each in files:
        if not fetch(each, hidden, on_progress):
            on_progress((hidden / each.to).stat().st_size)
    target.parent.mkdir(parents=True, exist_ok=True)
    hidden.replace(target)
    clear_leftovers(download, data)
    return True


def _list_hub_files(download: Download, repository: str, name: str, revision: str, pattern: str) -> list[Download]:
    """Return the files of a data set that match the pattern, with their hashes."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import GatedRepoError

    page, revision = f"{constants.ENDPOINT}/{repository}", unquote(revision)
    try:
        info = HfApi(endpoint=constants.ENDPOINT).dataset_info(name, revision=revision, files_metadata=True)
    except Exception as error:  # no network, no such data set or revision, no right to read it
        is_gated = isinstance(error, GatedRepoError)
        expected = terms(page) if is_gated else "an answer of the hub, with that revision of that data set"
        raise InputError(download.url, "hub", f"{type(error).__name__}: {first_line(error)}"[:200], expected) from None
    files = [each for each in info.siblings if fnmatchcase(each.rfilename, pattern)]
    if not files:
        raise InputError(download.url, "hub", f"no such file in {len(info.siblings)}", pattern)
    if revision != info.sha:
        say(f"{name}: {revision} is commit {info.sha} now")
    folder, slash, _ = pattern.partition("*")[0].rpartition("/")
    prefix_length = len(folder + slash)
    return [
        dataclasses.replace(
            download,
            url=f"{page}/resolve/{info.sha}/{quote(each.rfilename)}",
            to=each.rfilename[prefix_length:] if "*" in pattern else download.to,
            sha256=each.lfs.sha256 if each.lfs else None,
            git_blob=each.blob_id,
            size=each.size or 0,
            page=page,
        )
        for each in files
    ]


def _list_linked_files(download: Download, data: Path) -> list[Download]:
    """Return the files whose links in an existing file match the pattern."""
    before, _, after = download.url.partition("*")
    path = data / download.links_in
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    names = dict.fromkeys(re.findall(rf"{re.escape(before)}(\w[\w.-]*){re.escape(after)}", text))
    if not names:
        raise InputError(path, "links", "none" if text else "nothing there", f"links such as {download.url}")
    return [dataclasses.replace(download, url=f"{before}{name}{after}", to=f"{name}{after}") for name in names]
