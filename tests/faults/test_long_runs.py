"""Memory, open files, threads and processes stay level over many images, embeddings and steps."""

import os
import threading
from pathlib import Path

import numpy as np
import pytest

from rococo_jax.data.images import FileImages
from rococo_jax.encoders import load_model
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.encoders.embedding import embed_images
from rococo_jax.training.config import read_config
from rococo_jax.training.run import run_training

# Resident memory: allocators keep some of what was freed.
_LEVEL_MB = 60


class Levels:
    """Resources of this process at each call of `take`."""

    def __init__(self) -> None:
        self.taken: list[tuple[float, int, int]] = []

    def take(self) -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        open_files = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
        self.taken.append((pages * os.sysconf("SC_PAGE_SIZE") / 2**20, open_files, threading.active_count()))

    def assert_level(self) -> None:
        """The second half is not above the first."""
        half = len(self.taken) // 2
        before, after = (np.array(part).max(axis=0) for part in (self.taken[:half], self.taken[half:]))
        memory, *others = after - before
        assert memory < _LEVEL_MB and not any(other > 2 for other in others), (before, after)


@pytest.mark.parametrize("count", [480, pytest.param(20_000, marks=pytest.mark.thorough)])
def test_embedding_many_images_does_not_leak_memory_or_files_or_threads(count, world):
    encoder, cache, levels = load_model(world / "model"), EmbeddingCache(world / "of many"), Levels()
    step = count // 10
    for start in range(0, count, step):
        numbers = range(start, start + step)
        paths = tuple(world / "images" / f"{number % 12:02}.png" for number in numbers)
        assert len(embed_images(encoder, FileImages(tuple(map(str, numbers)), paths), cache)) == step
        levels.take()
    levels.assert_level()


@pytest.mark.thorough
def test_training_two_thousand_steps_does_not_leak_memory_or_files_or_threads(world, monkeypatch):
    monkeypatch.chdir(world.root)
    overrides = ("steps=2000", "log.every=50", "checkpoint.every=200")
    config, levels = read_config(world / "config.py", [f"config.{each}" for each in overrides]), Levels()
    run_training(config, world / "workdir", on_step=lambda done, state: levels.take() if done % 50 == 0 else None)
    levels.taken = levels.taken[4:]  # compiling, and the first checkpoints
    levels.assert_level()
