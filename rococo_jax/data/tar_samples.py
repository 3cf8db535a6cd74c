"""The samples of a tar in WebDataset's form.

Members whose names are the same up to the first dot of the file name, one after another, are a sample, as img2dataset,
DataComp and CC12M write them:

    000000012.jpg     the image: the first of jpg, png, jpeg, webp, gif, bmp that there is
    000000012.txt     the captions, one a line; without it "caption" or "captions" of
    000000012.json

Captions are kept as they are written, blanks included, as other forms keep them. Samples without an image or without
a caption that is not blank, or with a text that is none, are left out, counted, and the first is named.
"""

import contextlib
import hashlib
import json
import re
import tarfile
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from rococo_jax.data.captions import caption_lines
from rococo_jax.data.image_files import is_hidden
from rococo_jax.data.remote import open_binary
from rococo_jax.errors import InputError, first_line
from rococo_jax.storage import hash_json
from rococo_jax.texts import decode_text

IMAGES = ("jpg", "png", "jpeg", "webp", "gif", "bmp")
SCHEMA = pa.schema([
    ("name", pa.string()), ("offset", pa.uint64()), ("size", pa.uint32()), ("captions", pa.list_(pa.string())),
    ("check", pa.binary(16)),
])  # fmt: skip
WANTED = "a whole, uncompressed tar of images and captions"
HEADER = 512
_NAME, _PREFIX = slice(0, 100), slice(345, 500)  # of a header
_SAMPLE = re.compile(r"((?:.*/)?[^/.]+)\.([^/]+)")


def read_tar(path: str) -> pa.RecordBatch:
    """Read a tar's samples.

    The metadata of the schema holds the hash of names, captions and images, what is left out, and `content`, the hash
    of all that is read here, the places of the members included.

    Raises InputError: not a tar, compressed, cut short or damaged, or a sample has two members of one kind.
    """
    names, offsets, sizes, captions, images, checks = [], [], [], [], [], []
    left_out: dict[str, Any] = {"no_image": 0, "no_caption": 0, "first": None}
    with open_binary(path) as file:
        for key, members in _samples(file, path):
            suffix = next((suffix for suffix in IMAGES if suffix in members), None)
            texts = _captions(members)
            if suffix is None or not texts:
                left_out["no_image" if suffix is None else "no_caption"] += 1
                left_out["first"] = left_out["first"] or key
                continue
            image = members[suffix]
            names.append(f"{key}.{suffix}")
            offsets.append(image.offset)
            sizes.append(image.size)
            captions.append(texts)
            digest = hashlib.sha256(image.content).digest()
            images.append(digest.hex())
            checks.append(check_of(image.header, digest))
    about = {"hash": hash_json([names, captions, images]), "captions": sum(map(len, captions)), **left_out}
    about["content"] = hash_json([about, offsets, sizes, [check.hex() for check in checks]])
    columns = zip((names, offsets, sizes, captions, checks), SCHEMA.types, strict=True)
    columns = [pa.array(column, of_type) for column, of_type in columns]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA.with_metadata({"tar": json.dumps(about)}))


def check_of(header: bytes, digest: bytes) -> bytes:
    """Return 128 bits of SHA-256 of a member: of the name in its header, and of the SHA-256 of its content."""
    return hashlib.sha256(header[_NAME] + header[_PREFIX] + digest).digest()[:16]


class _Member(NamedTuple):
    """A member of a sample; header and content of images and texts alone."""

    offset: int
    size: int
    header: bytes = b""
    content: bytes = b""


def _samples(file: Any, path: str) -> Iterator[tuple[str, dict[str, _Member]]]:
    key, members = "", {}
    for member in _members(file, path):
        split = _SAMPLE.fullmatch(member.name)
        if split is None or is_hidden(member.name) or not member.isreg() or member.issparse():
            continue
        name, suffix = split[1], split[2].lower()
        if name != key and members:
            yield key, members
            members = {}
        if suffix in members:
            raise InputError(path, f"sample {name!r}", f"two members .{suffix}", "one of each kind")
        key, data = name, b""
        if suffix in (*IMAGES, "txt", "json"):
            file.seek(member.offset_data - HEADER)
            data = file.read(HEADER + member.size)
        members[suffix] = _Member(member.offset_data, member.size, data[:HEADER], data[HEADER:])
    if members:
        yield key, members


def _members(file: Any, path: str) -> Iterator[tarfile.TarInfo]:
    """All members; `tarfile` itself takes a tar that ends early for one that ends."""
    count = 0
    try:
        with tarfile.open(fileobj=file, mode="r:") as tar:
            while (member := tar.next()) is not None:
                tar.members.clear()
                count += 1
                yield member
            end = tar.offset
        file.seek(end)
        block = file.read(HEADER)
    except tarfile.TarError as error:
        found = f"cut short after {count} members" if count else _not_a_tar(file, error)
        raise InputError(path, "tar", found, WANTED) from None
    if block != bytes(HEADER):
        found = "damaged" if len(block) == HEADER else "cut short"
        raise InputError(path, "tar", f"{found} after {count} members, at byte {end:,}", WANTED)


def _not_a_tar(file: Any, error: Exception) -> str:
    file.seek(0)
    start = file.read(6)
    if not start:
        return "an empty file"
    packed = start.startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd"))
    return "a compressed file" if packed else f"no tar ({first_line(error)})"


def _captions(members: dict[str, _Member]) -> list[str]:
    texts: Sequence[Any] = ()
    if "txt" in members:
        with contextlib.suppress(InputError):
            texts = caption_lines(decode_text(members["txt"].content, "", ""))
    else:
        value = {}
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(members["json"].content) if "json" in members else {}
        written = (value.get("captions") or value.get("caption")) if isinstance(value, dict) else None
        texts = written if isinstance(written, list) else [written]
    return [text for text in texts if isinstance(text, str) and text.strip()]
