"""Opens training data by name: image folders with captions files, shards, TFDS, and whatever else is registered.

open_pairs("coco/images", "captions_train.json")        folders and captions files (Karpathy form, or JSON lines)
open_pairs("coco/images,flickr8k/images", "captions_train.json,flickr8k/captions.json")
open_pairs("shards")                                    ArrayRecord shards, as `rococo pack` writes them
open_pairs("cc12m-{00000..01242}.tar")                  tars in WebDataset's form; or a folder of them
open_pairs("tfds:coco_captions/2014?split=train")       TensorFlow Datasets, without TensorFlow
"""

from collections.abc import Callable
from pathlib import Path

from rococo_jax.data.captions import read_captioned_images
from rococo_jax.data.pair_source import FolderPairs, JoinedPairs, PairSource, open_tfds
from rococo_jax.data.tar_pairs import is_tars, open_tars, split_names
from rococo_jax.errors import InputError
from rococo_jax.storage import refuse_url

_REGISTERED: dict[str, Callable[[str], PairSource]] = {}


def register_source(prefix: str, open_source: Callable[[str], PairSource]) -> None:
    """Makes `open_pairs` open names that start with `prefix`, such as `scenes:`, by `open_source(name)`."""
    _REGISTERED[prefix] = open_source


register_source("tfds:", open_tfds)


def open_pairs(images: str, captions: str = "", *, allow_missing: bool = False) -> PairSource:
    """Opens the training data that two settings name, each one entry or several separated by commas.

    Args:
        images: folders of images, folders or files of shards (`.array_record`) and of tars (`.tar`, with ranges in
            braces), names with a registered prefix (`tfds:NAME?split=...`).
        captions: captions files, `.jsonl` or the Karpathy form. Each applies to whichever folders hold its images;
            a `.jsonl` file also to its own folder. Shards, tars and registered sources have captions of their own.
        allow_missing: leave out images that no folder holds, and samples of tars without an image or a caption, as
            long as there are others.

    Raises:
        InputError: a file or folder is missing or unusable, no folder holds an image, or nothing is named.
    """
    parts = split_names(images)
    sources: list[PairSource] = []
    folders = []
    for part in parts:
        prefix = next((prefix for prefix in _REGISTERED if part.startswith(prefix)), None)
        if prefix is not None:
            sources.append(_REGISTERED[prefix](part))
        elif _holds_shards(Path(part)):
            from rococo_jax.data.array_record import RecordPairs

            sources.append(RecordPairs(part))
        elif is_tars(part):
            sources.append(open_tars(part, allow_missing=allow_missing))
        else:
            refuse_url(part, "images")
            folders.append(part)
    if folders and not captions.strip():
        raise InputError("training data", "captions", "no captions file", f"one for the images of {', '.join(folders)}")
    for part in captions.split(","):
        refuse_url(part.strip(), "captions")
    if captions.strip():
        read = read_captioned_images(",".join(folders), captions, allow_missing)
        sources.insert(0, FolderPairs(read.items, read.paths))
    if not sources:
        wanted = ", ".join(("folders of images", "shards", "tars", *(f"{prefix}NAME" for prefix in _REGISTERED)))
        raise InputError("training data", "images", repr(images), wanted)
    return sources[0] if len(sources) == 1 else JoinedPairs(sources)


def _holds_shards(path: Path) -> bool:
    return path.suffix == ".array_record" or (path.is_dir() and any(path.glob("*.array_record")))
