"""The published annotations, read once; checking types at every call would take most of the time."""

import jaxtyping
import pytest

from rococo_jax.benchmarks.rococo.annotations import AnnotationSet, read_annotation_folder


@pytest.fixture(scope="session")
def published(real_data) -> AnnotationSet:
    """The whole published folder."""
    jaxtyping.config.update("jaxtyping_disable", True)
    annotations = read_annotation_folder(real_data / "rococo" / "annotations")
    jaxtyping.config.update("jaxtyping_disable", False)
    return annotations
