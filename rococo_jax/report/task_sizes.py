"""Size of a task in one sentence: queries and gallery, or images, or items."""

from collections.abc import Sequence

from rococo_jax.benchmarks.variants import ALL, MEAN
from rococo_jax.errors import is_whole
from rococo_jax.report.blocks import Note
from rococo_jax.report.collection import Run, label_of, variants_of
from rococo_jax.report.vocabulary import count, variant_label


def sizes(runs: Sequence[Run], task: str) -> Note | None:
    """Return the number of queries and gallery items, or of images or items; None where the results do not say."""
    task_sizes = runs[0].sizes(task)
    if not task_sizes:
        return None
    first = next(iter(task_sizes.values()))
    if "items" in first:
        variants = [name for name in runs[0].variants(task) if "items" in task_sizes.get(name, {})]
        over_all = [name for name in variants if "parts" in task_sizes[name] and name.rpartition("/")[2] == ALL]
        variants = [name for name in variants if name != MEAN and name not in over_all]
        parts = [f"{count(task_sizes[name]['items'])} {label_of(runs[:1], task, name)}" for name in variants]
        return Note(f"Items: {', '.join(parts)}.")
    if "outside" in first:
        parts = [f"{count(each['outside'])} of {variant_label(name)}" for name, each in task_sizes.items()]
        return Note(f"{count(first['inside'])} images of the classes, against {', '.join(parts)}.")
    if "classes" in first:
        return Note(f"{count(first.get('images'))} images of {count(first['classes'])} classes.")
    if "gallery" not in first:
        return None
    galleries = {name: each["gallery"] for name, each in task_sizes.items() if is_whole(each.get("gallery"))}
    altered = variants_of(runs[:1], task, condition=lambda each: not each.is_clean)
    altered = sorted(galleries[name] for name in altered if name in galleries)
    parts = [f"{count(galleries['clean'])} items clean"] if "clean" in galleries else []
    if altered:
        span = count(altered[0]) if altered[0] == altered[-1] else f"{count(altered[0])} to {count(altered[-1])}"
        parts.append(f"{span} with altered ones")
    return Note(f"{count(first.get('queries'))} queries; gallery: {', '.join(parts)}.")
