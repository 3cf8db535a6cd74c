"""The published annotations, read once."""

import pytest

from rococo_jax.benchmarks.rococo.annotations import AnnotationSet, read_annotation_folder


@pytest.fixture(scope="session")
def published_set(real_data) -> AnnotationSet:
    """The whole published folder."""
    return read_annotation_folder(real_data / "rococo" / "annotations")
