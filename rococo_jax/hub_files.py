"""Download snapshots of Hugging Face hub repositories, at the commit that a revision names."""

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from rococo_jax.errors import InputError, first_line, object_of
from rococo_jax.storage import read_json_object

# Old repositories, such as gpt2, have no owner. The revision may be a reference such as refs/pr/3.
_HUB_NAME = re.compile(
    r"(?P<explicit>hf-hub:)?(?P<name>(?:[\w-][\w.-]*/)?[\w-][\w.-]*)(?:@(?P<revision>(?!.*\.\.)[\w./-]+))?"
)
# A name with one of these suffixes is a missing file, and is not looked up on the hub.
_FILE_SUFFIXES = frozenset(
    ".safetensors .ckpt .pt .pth .bin .npz .npy .json .jsonl .msgpack .h5 .hdf5 .onnx .gguf .ggml .pkl .pickle "
    ".tflite .pb .pdparams .tar .tgz .gz .xz .bz2 .zst .zip .7z .txt .csv .tsv .yaml .yml .toml .py .md "
    ".model .parquet .arrow".split()
)
_COMMIT = re.compile(r"[0-9a-f]{40}")
MODEL_WANTED = "a model directory, a checkpoint's folder or file, or a hub name such as openai/clip-vit-base-patch32"
REVISION = "a branch, a tag, or a commit of 40 digits"


def find_folder(
    source: str | Path,
    files: Sequence[str],
    field: str = "model",
    expected: str = MODEL_WANTED,
    required: Sequence[str] = (),
) -> Path:
    """Return a folder itself, or the snapshot of the hub name `OWNER/NAME[@REVISION]` as `hub_snapshot` does.

    Raises InputError where the source is a file, is named like a file and missing, or is no hub name.
    """
    folder = Path(source)
    if folder.is_dir():
        return folder
    if folder.exists():
        raise InputError(source, field, "a file", expected)
    match = _HUB_NAME.fullmatch(str(source))
    if match is None:
        raise InputError(source, field, "nothing there", expected)
    suffix = Path(match["name"].lower()).suffix
    if not match["explicit"] and match["revision"] is None and suffix in _FILE_SUFFIXES:
        problem = f"nothing there (no such file, and names that end in {suffix} are not looked up on the hub)"
        raise InputError(source, field, problem, expected)
    return hub_snapshot(source, match["name"], files, field, expected, match["revision"], required)


def hub_snapshot(
    source: object,
    name: str,
    files: Sequence[str],
    field: str,
    expected: str,
    revision: str | None = None,
    required: Sequence[str] = (),
) -> Path:
    """Return the folder of a repository's snapshot, with only the files that match the patterns `files`.

    Args:
        source, field, expected: arguments of `InputError`.
        revision: a branch, tag or commit; the default branch by default.
        required: patterns of which a cached copy must have one where the hub does not answer. Without this check a copy
            that a cut download left incomplete would look like a repository without these files.

    Where the hub does not answer, a cached copy is used: a branch or tag is then the commit that it last was.

    Raises InputError: the hub cannot be reached and no usable copy is cached, or it has no such name or revision.
    """
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RevisionNotFoundError,
    )
    from huggingface_hub.utils.logging import set_verbosity_error

    set_verbosity_error()  # the error below replaces the messages of its retries
    try:
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=list(files)))
    except Exception as error:  # no network, no such name or revision, no right to read it
        if isinstance(error, RevisionNotFoundError):
            expected = f"{name}@REVISION, where REVISION is {REVISION}"
        problem = f"no such folder, and the hub answers: {first_line(error)}"
        # An answer of the hub is the cause of the error that nothing is cached.
        is_unreachable = not isinstance(error.__cause__, HfHubHTTPError)
        if is_unreachable and isinstance(error, LocalEntryNotFoundError | OfflineModeIsEnabled):
            reason = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else first_line(error.__cause__ or error)
            problem = f"no such folder; the name is not in the local cache, and the hub answers nothing ({reason})"
            cached = "a folder, a name in the cache, or a connection to the hub, without HF_HUB_OFFLINE"
            expected = cached if expected == MODEL_WANTED else expected
        raise InputError(source, field, problem, expected) from None
    if required and (missing := _missing_files(folder, required)):
        try:
            HfApi().repo_info(name, revision=folder.name)
        except Exception as error:
            problem = f"no {missing} in the cache, and the hub answers: {first_line(error)}"
            raise InputError(source, field, problem, expected) from None
    return folder


def commit_of(folder: Path) -> str | None:
    """Return the commit of a snapshot's folder, None for other folders.

    >>> commit_of(Path("models--o--n/snapshots") / ("c0ffee" * 6 + "beef")) == "c0ffee" * 6 + "beef"
    True
    """
    return folder.name if folder.parent.name == "snapshots" and _COMMIT.fullmatch(folder.name) else None


def _missing_files(folder: Path, required: Sequence[str]) -> str:
    """Return what a snapshot lacks: any of the required files, or a shard that an index names; empty if nothing."""
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    if not any(fnmatchcase(name, pattern) for name in names for pattern in required):
        return " or ".join(required)
    for index in (name for name in sorted(names) if fnmatchcase(name, "*.index*.json")):
        shards = object_of(read_json_object(folder / index, "an index of weight files").get("weight_map")).values()
        beside = [(Path(index).parent / shard).as_posix() for shard in shards if isinstance(shard, str)]
        if absent := sorted({*beside} - names):
            return absent[0]
    return ""
