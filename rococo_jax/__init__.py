"""Measure the robustness of image-text models under altered captions and mixed images, in JAX.

>>> import rococo_jax
>>> model = rococo_jax.load_model("demo:plain")                         # doctest: +SKIP
>>> images, annotations = rococo_jax.draw_benchmark("scenes", 100)      # doctest: +SKIP
>>> results = rococo_jax.evaluate(model, images, annotations)           # doctest: +SKIP
>>> results["tasks"]["image_to_text"]["same_concept"]["fr1"]            # doctest: +SKIP
"""

import importlib

from rococo_jax.version import __version__

# Public names and the modules that have them, imported on first use, so that importing the package imports no JAX.
_PUBLIC = {
    "load_model": "rococo_jax.encoders",
    "save_model": "rococo_jax.checkpoints",
    "draw_benchmark": "rococo_jax.demo.benchmark",
    "evaluate": "rococo_jax.evaluation.api",
    "print_summary": "rococo_jax.evaluation.summary",
    "write_report": "rococo_jax.report",
    "read_results": "rococo_jax.report.exports",
    "read_rows": "rococo_jax.report.exports",
    "compare": "rococo_jax.report.exports",
    "leaderboard": "rococo_jax.report.leaderboard",
    "default_config": "rococo_jax.training.config",
    "train": "rococo_jax.sweep.train",
    "InputError": "rococo_jax.errors",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str):
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'rococo_jax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
