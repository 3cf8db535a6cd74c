"""A thousand tiny samples as tars in WebDataset's form, and the same ones as a folder with a captions file."""

import io
import json
import tarfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from PIL import Image

from tests.support.tiny import WORDS

COUNT, TARS = 1000, 7
WITHOUT_IMAGE, WITHOUT_CAPTION = (3, 400, 999), (0, 17, 650)
BROKEN = {5: "cut", 123: "empty", 500: "text", 888: "cut"}
FORMATS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)


def caption_of(number: int) -> str:
    return f"{WORDS[number % len(WORDS)]} {number} dog"


def image_of(number: int) -> bytes:
    """A PNG file whose colour says which image it is; some are broken."""
    file = io.BytesIO()
    Image.new("RGB", (16, 16), (number % 256, number // 256, 7)).save(file, "PNG")
    data = file.getvalue()
    return {"cut": data[:40], "empty": b"", "text": b"no image at all"}.get(BROKEN.get(number), data)


def numbers_of(batch: dict) -> np.ndarray:
    """The samples that the pixels of a batch show."""
    return batch["pixels"][:, 0, 0, :2].astype(int) @ (1, 256)


def members_of(number: int) -> list[tuple[str, bytes]]:
    """A sample's members; captions stand in a text, in JSON, or in both, where the text counts."""
    members = [] if number in WITHOUT_IMAGE else [("PNG" if number % 5 == 0 else "png", image_of(number))]
    text = {0: "", 17: "  \n", 650: None}.get(number, caption_of(number))
    about = {"url": "https://example.org", "width": 16}
    if number % 3 == 1 and text:
        members.append(("json", json.dumps({**about, "caption": text}).encode()))
    elif text is not None:
        members += [("txt", text.encode()), ("json", json.dumps({**about, "caption": "another"}).encode())]
    return [*members, ("npz", bytes(10))] if number % 7 == 0 else members


def write_tar(path: Path, numbers: range, form: int) -> None:
    """Long names take headers of their own, another one in each format."""
    with tarfile.open(path, "w", format=form) as tar:
        folder = "deep/" * (24 if form != tarfile.USTAR_FORMAT else 0)
        directory = tarfile.TarInfo("a.folder")
        directory.type = tarfile.DIRTYPE
        tar.addfile(directory)
        for number in numbers:
            for suffix, data in members_of(number):
                member = tarfile.TarInfo(f"{folder}{number:06d}.{suffix}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))


def write_world(folder: Path) -> SimpleNamespace:
    """The tars, their pattern, and the folder with its captions file, in the same order."""
    ends = [COUNT * number * (number + 1) // (TARS * (TARS + 1)) for number in range(TARS + 1)]
    for number in range(TARS):
        write_tar(folder / f"cc-{number:02}.tar", range(*ends[number : number + 2]), FORMATS[number % 3])
    images = folder / "images"
    images.mkdir()
    whole = [number for number in range(COUNT) if number not in WITHOUT_IMAGE + WITHOUT_CAPTION]
    for number in whole:
        (images / f"{number:06d}.png").write_bytes(image_of(number))
    items = [{"image": f"{number:06d}.png", "caption": [caption_of(number)]} for number in whole]
    (folder / "captions.json").write_text(json.dumps(items))
    sizes = [sum(number in whole for number in range(*ends[tar : tar + 2])) for tar in range(TARS)]
    return SimpleNamespace(
        folder=folder, pattern=f"{folder}/cc-{{00..{TARS - 1:02}}}.tar", whole=whole, sizes=sizes,
        images=str(images), captions=str(folder / "captions.json"),
        tars=[folder / f"cc-{number:02}.tar" for number in range(TARS)],
    )  # fmt: skip
