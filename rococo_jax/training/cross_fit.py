"""Cross-fitting: two models, each trained on the images of one fold and evaluated on those of the other.

WORKDIR/fold_0/            the run without the images of fold 0, as of `training.run`
WORKDIR/fold_1/            the run without those of fold 1
WORKDIR/cross_fit.json     at the end: the folder is one cross-fitted model, as `rococo join --cross-fit` makes them

The folds are halves by hash (`data.training_images.fold_of`), the same for an image wherever it is found. A starting
model must not have seen the fold that is left out either: a cross-fitted one starts each run with its own half.
"""

import contextlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from rococo_jax.data.captioned_images import open_pairs
from rococo_jax.data.image_files import hash_image
from rococo_jax.data.pair_source import FolderPairs, PairSource
from rococo_jax.data.training_images import CROSS_FIT, TrainingImages, fold_of, read_folds, write_folds
from rococo_jax.errors import InputError
from rococo_jax.processes import broadcast_from_process_0

FOLDS = ("fold_0", "fold_1")


def without_fold(source: PairSource, fold: int) -> FolderPairs:
    """The images of the other fold. Raises InputError: the source has no image files, or the other fold is empty."""
    files = _files_of(source)
    kept = np.flatnonzero(fold_of(files.names, _hashes(files)) != fold)
    if not len(kept):
        wanted = "images of both folds; a few dozen have them"
        raise InputError("training data", "data.left_out_fold", f"{fold}, the fold of all {len(source)} images", wanted)
    return files.take(kept.tolist())


def _files_of(source: PairSource) -> FolderPairs:
    if (files := source.image_files) is None:
        wanted = "image folders with captions files alone, whose images have a hash each"
        raise InputError("training data", "data.left_out_fold", type(source).__name__, wanted)
    return files


def _hashes(files: FolderPairs) -> list[str]:
    hashes = []
    for place in map(files.place, range(len(files))):
        try:
            hashes.append(hash_image(place))
        except (FileNotFoundError, IsADirectoryError):  # refused or skipped by the run itself
            hashes.append("0" * 64)
    return hashes


def refuse_two_models(name: str) -> None:
    """Raises InputError where the starting model is a cross-fitted one: a run starts from one of its halves."""
    if name and read_folds(name) is not None:
        wanted = "one model, or cross-fitting, whose runs start from a half each"
        raise InputError("config", "init.model", f"{name!r}, a cross-fitted model", wanted)


def refuse_seen_fold(data: ConfigDict, known: TrainingImages | None) -> None:
    """Raises InputError where the starting model, trained on `known`, has seen images of the fold that is left out."""
    if data.left_out_fold < 0 or known is None:
        return
    source = _files_of(open_pairs(data.images, data.captions, allow_missing=True, split=data.split))
    hashes = _hashes(source)
    rows = np.flatnonzero(fold_of(source.names, hashes) == data.left_out_fold).tolist()
    left_out = source.take(rows)
    seen = int(known.seen(left_out.names, [hashes[row] for row in rows]).sum())
    if seen:
        found = f"a model trained on {seen:,} of the {len(left_out):,} images that are left out"
        raise InputError("config", "init.model", found, "one that has not seen them, such as a cross-fitted model")


def cross_fit(config: ConfigDict, workdir: Path, train_fold: Callable[[ConfigDict, Path], bool]) -> bool:
    """Trains both halves, one after the other, and makes `workdir` a cross-fitted model.

    Args:
        config: of both; its `data.left_out_fold` is -1.
        workdir: made where it does not exist. The same call goes on.
        train_fold: trains under a config in a folder; whether that run is done.

    Returns whether both are.

    Raises:
        InputError: a fold is left out already, or the folder is that of one run.
    """
    if config.data.left_out_fold >= 0:
        wanted = "-1 with cross-fitting, which leaves out each in turn"
        raise InputError("config", "data.left_out_fold", config.data.left_out_fold, wanted)
    starts = read_folds(config.init.model) if config.init.model else None
    if (workdir / "config.json").exists():
        raise InputError(workdir, "working folder", "a run that is not cross-fitted", "another folder")
    made = not workdir.exists()
    try:
        for number, name in enumerate(FOLDS):
            of_fold = config.copy_and_resolve_references()
            of_fold.data.left_out_fold = number
            if starts is not None:
                of_fold.init.model = str(starts[number])
            if not train_fold(of_fold, workdir / name):
                return False
    finally:
        if made:
            with contextlib.suppress(OSError):  # not there, or not empty
                workdir.rmdir()
    folds = [f"{name}/model" for name in FOLDS]
    broadcast_from_process_0("the folds", lambda: write_folds(workdir, folds))
    return True


def refuse_cross_fitted(workdir: Path) -> None:
    """Raises InputError where the folder holds cross-fitted runs."""
    if (workdir / CROSS_FIT).exists() or any((workdir / name).exists() for name in FOLDS):
        raise InputError(workdir, "working folder", "cross-fitted runs", "another folder, or cross-fitting")
