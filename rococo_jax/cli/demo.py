"""`rococo demo`: run the benchmark offline on drawn scenes with the small models of the package."""

import dataclasses
import sys
from pathlib import Path
from typing import Annotated, Literal

from rococo_jax.cli.outputs import output_folder, print_short, print_tables
from rococo_jax.options import Option

EXAMPLES = """\
  rococo demo
  rococo demo --out /tmp/demo --scenes 400 --seed 7
"""

# Training scenes whose captions the text-only baselines are fitted on.
_CAPTIONED_SCENES = 2000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Run the benchmark offline on drawn scenes with three small bundled models, in about a minute.

    Attributes:
        out: output folder
        scenes: number of scenes
        seed: seed of the scenes
        protocol: paper or strict; see rococo evaluate --help
        all: print every number instead of one screen
    """

    out: Annotated[str, Option("DIR", check=output_folder)] = "demo-out"
    scenes: Annotated[int, Option("N")] = 250
    seed: int = 1
    protocol: Literal["paper", "strict"] = "paper"
    all: bool = False


def run(options: Options) -> None:
    """Draw the scenes, evaluate the models, print the table and write the report."""
    from rococo_jax.benchmarks.settings import Settings
    from rococo_jax.checkpoints.zoo import shipped_models
    from rococo_jax.demo.benchmark import draw_benchmark, open_questions, run_name
    from rococo_jax.demo.training_scenes import training_captions_of
    from rococo_jax.encoders.cache import EmbeddingCache
    from rococo_jax.evaluation.caption_baselines import training_captions
    from rococo_jax.evaluation.inputs import open_benchmarks
    from rococo_jax.evaluation.model_series import evaluate_all
    from rococo_jax.report import write_compared
    from rococo_jax.report.collection import group_by_fingerprint, load_results
    from rococo_jax.report.comparison import compare_groups
    from rococo_jax.report.leaderboard import leaderboard_tables
    from rococo_jax.report.overview import found_sentence, print_wrapped
    from rococo_jax.runtime import cache_folder, enable_compilation_cache

    enable_compilation_cache()
    out = Path(options.out)
    settings = Settings(protocol=options.protocol, templates=("5",))
    images, annotations = draw_benchmark(out, options.scenes, options.seed)
    benchmarks = open_benchmarks(settings, images=images, annotations=annotations)
    benchmarks += open_questions(images, annotations, options.scenes, options.seed, settings)
    models = shipped_models()
    print(f"evaluating {len(models)} models, protocol {settings.protocol}", file=sys.stderr)
    for benchmark in benchmarks:
        print(benchmark.summary(), file=sys.stderr)
    results = out / run_name(options.scenes, options.seed) / options.protocol
    folders = {str(path): results / name for name, path in models.items()}
    cache = EmbeddingCache(cache_folder() / "embeddings")
    training = training_captions(training_captions_of(_CAPTIONED_SCENES), f"scenes:{_CAPTIONED_SCENES}")
    all_results, _ = evaluate_all(folders, results, benchmarks, settings, cache, training)
    groups = group_by_fingerprint(load_results(folders.values()))
    comparisons, leaderboards = compare_groups(groups), leaderboard_tables(groups)
    if options.all:
        print_tables(all_results)
    else:
        print_short(groups, comparisons, leaderboards, all_results, results)
    page, table = write_compared(groups, comparisons, out / "report.html", leaderboards=leaderboards)
    print(f"report: {page}  (numbers: {table}; scenes: {images.parent})")
    print()
    command = f"rococo evaluate MODEL --images {images} --annotations {annotations} --out out"
    print_wrapped(found_sentence(groups[0], comparisons))
    print_wrapped(f"Next: open {page}, and evaluate your own model: {command}")
