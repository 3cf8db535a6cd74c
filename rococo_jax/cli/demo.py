"""`rococo demo`: the whole benchmark on drawn scenes and the models that come with the package."""

import argparse

from rococo_jax.cli.outputs import add_table_arguments, output_folder

HELP = "Run the whole benchmark offline on drawn scenes and the small models that come with it; under a minute."
EXAMPLES = """\
  rococo demo
  rococo demo --out /tmp/demo --scenes 400 --seed 7
"""

# Training scenes whose captions the baselines without images are counted on.
_CAPTIONED_SCENES = 2000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=output_folder, default="demo-out", metavar="DIR", help="where it writes (default: demo-out)"
    )
    parser.add_argument("--scenes", type=int, default=250, metavar="N", help="how many scenes (default 250)")
    parser.add_argument("--seed", type=int, default=1, help="which scenes (default 1)")
    parser.add_argument("--protocol", choices=("paper", "strict"), default="paper", help="default: paper")
    add_table_arguments(parser)


def run(arguments: argparse.Namespace) -> None:
    import sys
    from pathlib import Path

    from rococo_jax.benchmarks.settings import Settings
    from rococo_jax.checkpoints.hub import shipped_models
    from rococo_jax.demo.benchmark import draw_benchmark, run_name
    from rococo_jax.demo.questions import open_questions
    from rococo_jax.demo.training_scenes import training_captions_of
    from rococo_jax.encoders.cache import EmbeddingCache
    from rococo_jax.evaluation.companions import standard_companions, training_captions
    from rococo_jax.evaluation.inputs import open_benchmarks
    from rococo_jax.evaluation.model_series import evaluate_all
    from rococo_jax.evaluation.summary import print_summary
    from rococo_jax.report import write_report
    from rococo_jax.runtime import cache_folder, enable_compilation_cache

    enable_compilation_cache()
    out = Path(arguments.out)
    settings = Settings(protocol=arguments.protocol, templates=("5",))
    images, annotations = draw_benchmark(out, arguments.scenes, arguments.seed)
    benchmarks = open_benchmarks(settings, images=images, annotations=annotations)
    benchmarks += open_questions(images, annotations, arguments.scenes, arguments.seed, settings)
    models = shipped_models()
    said = "; ".join(benchmark.summary() for benchmark in benchmarks)
    print(f"{len(models)} model(s), {said}; protocol {settings.protocol}", file=sys.stderr)
    results = out / run_name(arguments.scenes, arguments.seed) / arguments.protocol
    folders = {str(path): results / name for name, path in models.items()}
    cache = EmbeddingCache(cache_folder() / "embeddings")
    training = training_captions(training_captions_of(_CAPTIONED_SCENES), f"scenes:{_CAPTIONED_SCENES}")
    all_results, _ = evaluate_all(folders, results, benchmarks, settings, cache, standard_companions(training))
    print_summary(all_results, wide=arguments.wide)
    page, table = write_report(folders.values(), out / "report.html")
    print(f"report: {page}  (figures: {table}; scenes: {images.parent})")
