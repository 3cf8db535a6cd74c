"""`rococo demo`: the whole benchmark on drawn scenes and the models that come with the package."""

import dataclasses
import sys
from pathlib import Path
from typing import Annotated, Literal

from rococo_jax.cli.outputs import output_folder, print_tables
from rococo_jax.options import Option

EXAMPLES = """\
  rococo demo
  rococo demo --out /tmp/demo --scenes 400 --seed 7
"""

# Training scenes whose captions the baselines without images are counted on.
_CAPTIONED_SCENES = 2000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Run the whole benchmark offline on drawn scenes and the small models that come with it; under a minute.

    Attributes:
        out: where it writes
        scenes: how many scenes
        seed: which scenes
        protocol: paper or strict
    """

    out: Annotated[str, Option("DIR", check=output_folder)] = "demo-out"
    scenes: Annotated[int, Option("N")] = 250
    seed: int = 1
    protocol: Literal["paper", "strict"] = "paper"


def run(options: Options) -> None:
    """Draws the scenes, evaluates the models, prints the table, writes the report."""
    from rococo_jax.benchmarks.settings import Settings
    from rococo_jax.checkpoints.hub import shipped_models
    from rococo_jax.demo.benchmark import draw_benchmark, open_questions, run_name
    from rococo_jax.demo.training_scenes import training_captions_of
    from rococo_jax.encoders.cache import EmbeddingCache
    from rococo_jax.evaluation.companions import standard_companions, training_captions
    from rococo_jax.evaluation.inputs import open_benchmarks
    from rococo_jax.evaluation.model_series import evaluate_all
    from rococo_jax.report import write_report
    from rococo_jax.runtime import cache_folder, enable_compilation_cache

    enable_compilation_cache()
    out = Path(options.out)
    settings = Settings(protocol=options.protocol, templates=("5",))
    images, annotations = draw_benchmark(out, options.scenes, options.seed)
    benchmarks = open_benchmarks(settings, images=images, annotations=annotations)
    benchmarks += open_questions(images, annotations, options.scenes, options.seed, settings)
    models = shipped_models()
    said = "; ".join(benchmark.summary() for benchmark in benchmarks)
    print(f"{len(models)} model(s), {said}; protocol {settings.protocol}", file=sys.stderr)
    results = out / run_name(options.scenes, options.seed) / options.protocol
    folders = {str(path): results / name for name, path in models.items()}
    cache = EmbeddingCache(cache_folder() / "embeddings")
    training = training_captions(training_captions_of(_CAPTIONED_SCENES), f"scenes:{_CAPTIONED_SCENES}")
    all_results, _ = evaluate_all(folders, results, benchmarks, settings, cache, standard_companions(training))
    print_tables(all_results)
    page, table = write_report(folders.values(), out / "report.html")
    print(f"report: {page}  (figures: {table}; scenes: {images.parent})")
