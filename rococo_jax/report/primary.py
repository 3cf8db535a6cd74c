"""Which numbers `rococo compare` tests unless others are requested: the primary ones, which are corrected together.

They are the metric that ranks models on a task, and R@1, FR@1, grounding and blind of each altered variant and of each
part whose items choose between true and altered captions. The control is no altered variant.
"""

from collections.abc import Collection, Mapping, Sequence

from rococo_jax.benchmarks.variants import Variant
from rococo_jax.report.collection import Run, by_kind
from rococo_jax.report.sections import section_of, section_of_kind
from rococo_jax.report.sections.generic import pooled_variants

# Primary in every altered variant, beside the metric that ranks models.
PRIMARY = ("r1", "fr1", "grounding", "blind")


def primary_metrics(
    runs: Sequence[Run], task: str, counted: Mapping[str, Collection[str]]
) -> frozenset[tuple[str, str]]:
    """Return variant and metric of the primary numbers of a task.

    The metric that ranks models is primary in its variant or, if that has no counts, in every altered variant and part.
    If it has no counts anywhere, the usual one of the kind of task replaces it. Each kind of a task with several has
    its own ranking metric.

    Args:
        counted: metrics with counts of single queries or items, by variant; all but single corruptions.
    """
    leads: list[tuple[str, str, set[str]]] = []  # variant and metric of a kind, and the variants with that metric
    pooled: set[str] = set()
    for kind, of_kind in by_kind(runs, task).items():
        section = section_of(of_kind, task)
        lead_variant, lead_metric = section.ranked_by
        of_this = {name: counted[name] for name in counted if any(name in run.tasks[task] for run in of_kind)}
        if all(lead_metric not in metrics for metrics in of_this.values()):
            usual = section_of_kind(kind).lead[1]
            lead_metric = usual if any(usual in metrics for metrics in of_this.values()) else lead_metric
        leads.append((lead_variant, lead_metric, {name for name, metrics in of_this.items() if lead_metric in metrics}))
        pooled |= pooled_variants(section, of_kind, task)
    described = {name: variant for run in reversed(runs) for name, variant in run.described.get(task, {}).items()}
    altered = {name for name in counted if _is_altered_or_part(described[name], name in pooled)}
    leading = {
        (name, metric)
        for variant, metric, with_metric in leads
        for name in ({variant} if variant in with_metric else with_metric & altered)
    }
    return frozenset(leading | {(name, metric) for name in altered for metric in PRIMARY if metric in counted[name]})


def _is_altered_or_part(variant: Variant, is_pooled: bool) -> bool:
    """Whether a variant is an attack or a part of a benchmark, whose items choose between true and altered captions.

    The control, variants on unseen images and variants that are pooled over parts are none.
    """
    is_part = variant.is_altered and not (variant.alteration or variant.unseen or is_pooled)
    return variant.is_attack or is_part
