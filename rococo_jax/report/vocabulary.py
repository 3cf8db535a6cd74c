"""Labels, definitions and number formats of the page, and the order of names; unknown names are printed as they are."""

import re
import types
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from rococo_jax.benchmarks.variants import ALL, ALL_KINDS, CLEAN, CONTROL, MEAN, UNCORRUPTED, Variant
from rococo_jax.errors import is_whole
from rococo_jax.metrics import METRICS, metric_of

# In reading order. The control and the baseline of corruptions come after what they are compared with.
VARIANTS = {
    CLEAN: "Clean",
    "same_concept": "Same concept",
    "diff_concept": "Different concept",
    "rand_voca": "Random vocabulary",
    "danger": "Danger",
}
LAST_VARIANTS = {CONTROL: "Control", UNCORRUPTED: "Uncorrupted"}

TASKS = {"image_to_text": "Image to text", "text_to_image": "Text to image"}
# As their papers write them.
_BENCHMARKS = {
    "sugarcrepe": "SugarCrepe", "sugarcrepe_pp": "SugarCrepe++", "valse": "VALSE", "aro": "ARO", "crepe": "CREPE",
    "colorswap": "ColorSwap", "bivlc": "BiVLC", "eqben": "EqBen", "cola": "COLA",
    "mmvp": "MMVP", "svo_probes": "SVO-Probes", "negbench": "NegBench", "whatsup": "What'sUp", "cifar10": "CIFAR-10",
    "negbench_text_to_image": "NegBench, text to image", "negbench_image_to_text": "NegBench, image to text",
    "imagecode": "ImageCoDe",
}  # fmt: skip
QUESTIONS = {
    "image_to_text": "Each image is a query. It is answered correctly if one of its own captions ranks first among all "
    "captions, the altered ones included.",
    "text_to_image": "Each caption is a query. It is answered correctly if its own image ranks first among all images, "
    "the mixed ones included.",
}
# The queries of a task, and an altered item of its gallery.
QUERIES = {"image_to_text": "images", "text_to_image": "captions"}
ALTERED = {"image_to_text": "an altered caption", "text_to_image": "a mixed image"}

PROTOCOLS = {
    "paper": "files as they are, and the published mixing; ties are broken as in the published code, as far as that is "
    "defined",
    "strict": "altered captions that equal their original are excluded, letter case and final full stops are made the "
    "same on both sides, no image is mixed with itself, and a tie counts against the model",
    "control": "images are only resized to a square and saved again, with nothing mixed in, which separates the effect "
    "of mixing from that of preprocessing",
}

# How a caption is altered, as part of a sentence.
_DEFINITIONS = {
    "same_concept": "one noun is replaced by another of the same concept group, such as a dog by a cat",
    "diff_concept": "one noun is replaced by one of another concept group",
    "rand_voca": "one noun is replaced by a random word of a vocabulary",
    "danger": "one noun is replaced by a dangerous thing or act from a fixed list",
}

SPREAD = "_std"
# Control characters, lone surrogates and non-characters: HTML forbids them, and UTF-8 cannot write some.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def printable(text: str) -> str:
    """Replace every character that HTML cannot contain by U+FFFD."""
    return _UNPRINTABLE.sub("\ufffd", text)


def percent(value: float | int | None, digits: int = 1) -> str:
    """Format a number with one decimal (or `digits`) and a true minus sign; a dash stands for None.

    >>> percent(36.96), percent(-0.04), percent(-1.25), percent(None)
    ('37.0', '0.0', '−1.2', '–')
    """
    if value is None:
        return "–"
    text = f"{value:.{digits}f}"
    return text.replace("-", "−") if float(text) else text.removeprefix("-")


def sort_key(value: float | int) -> str:
    """Return a number as the page's script sorts by it: nine significant digits, at most nine decimals.

    That is at least six digits more than a table shows. The last digits of a result depend on the processor that
    computed it, and a page should not.

    >>> sort_key(100 / 3), sort_key(52.5), sort_key(-1e-16), sort_key(12_345_678_901)
    ('33.3333333', '52.5', '0', '12345678901')
    """
    return str(value) if is_whole(value) else f"{round(value, 9) + 0.0:.9g}"


def signed(points: float, digits: int = 1) -> str:
    """Format a difference with its sign.

    >>> signed(1.25), signed(-0.3), signed(0.01), signed(0.01, 2)
    ('+1.2', '−0.3', '0.0', '+0.01')
    """
    text = percent(points, digits)
    return text if not round(points, digits) or points < 0 else f"+{text}"


def count(number: object) -> str:
    """Format a whole number with thousands separators; a dash stands for anything else."""
    return f"{number:,}" if is_whole(number) else "–"


def variant_label(name: str) -> str:
    """Return the label of a variant.

    >>> variant_label("same_concept"), variant_label("mix_0.9"), variant_label("corruptions_3")
    ('Same concept', 'Mix 0.9', 'All kinds, severity 3')
    >>> variant_label("replace_rel/fog_3")
    'Replace rel, fog 3'
    """
    part, _, images = name.rpartition("/")
    if part:
        label = variant_label(images)
        return f"{variant_label(part)}, {label[:1].lower()}{label[1:]}"
    if name.startswith(f"{ALL_KINDS}_"):
        return f"All kinds, severity {name.removeprefix(f'{ALL_KINDS}_')}"
    spaced = name.replace("_", " ").strip()
    return (VARIANTS | LAST_VARIANTS).get(name) or (spaced[:1].upper() + spaced[1:]).replace("Jpeg", "JPEG")


def task_label(name: str) -> str:
    """Return the label of a task: the proper name of a known benchmark.

    >>> task_label("svo_probes"), task_label("text_to_image"), task_label("word_game")
    ('SVO-Probes', 'Text to image', 'Word game')
    """
    return (TASKS | _BENCHMARKS).get(name) or variant_label(name)


class Place(NamedTuple):
    """Metric of a variant of a task; for a column of a table of scores, only its name."""

    task: str
    variant: str = ""
    metric: str = ""

    @property
    def path(self) -> str:
        """Name in results and options: "image_to_text/danger/fr1"; for a column, only its name."""
        return "/".join(filter(None, self))

    @property
    def label(self) -> str:
        """Name for readers: "Image to text, danger: FR@1"; for a column, its name."""
        if not self.metric:
            return self.task
        variant = variant_label(self.variant)
        return f"{task_label(self.task)}, {variant[:1].lower()}{variant[1:]}: {metric_of(self.metric).label}"


def in_reading_order(names: Iterable[str], order: Iterable[str]) -> list[str]:
    """Return each name once: those in `order` first, then the rest in their given order."""
    present, ordered = dict.fromkeys(names), dict.fromkeys(order)
    return [name for name in ordered if name in present] + [name for name in present if name not in ordered]


def order_variants(names: Iterable[str], described: Mapping[str, Variant] = types.MappingProxyType({})) -> list[str]:
    """Return variants in reading order: `all` and `mean` as they come, then `clean`; the control last.

    A variant over some of the items, such as those on unseen images, follows its variant over all of them.

    Args:
        described: the fields of variants, by name; one that is absent is an alteration.

    >>> unseen = {"clean/unseen": Variant(alteration="clean", unseen=True)}
    >>> order_variants(["control", "danger", "clean", "clean/unseen"], unseen)
    ['clean', 'clean/unseen', 'danger', 'control']
    >>> order_variants(["swap_att", "mean", "all"]), order_variants(["all", "mean", "swap_att"])
    (['mean', 'all', 'swap_att'], ['all', 'mean', 'swap_att'])
    """
    variants = {name: described.get(name) or Variant(alteration=name) for name in names}
    over_parts = [name for name in variants if name in (ALL, MEAN)]
    whole_names = in_reading_order((each.whole for each in variants.values()), (*over_parts, *VARIANTS))
    whole_names = sorted(whole_names, key=lambda name: name in LAST_VARIANTS)
    place_of = {name: place for place, name in enumerate(whole_names)}
    return sorted(variants, key=lambda name: (place_of[variants[name].whole], variants[name].is_subset))


def order_metrics(names: Iterable[str]) -> list[str]:
    """Return metrics in reading order, without spreads (`r1_std`), which are printed with their metric."""
    return [name for name in in_reading_order(names, METRICS) if not name.endswith(SPREAD)]


def variant_definition(variant: str) -> str:
    """Return how the items of a variant are altered, as part of a sentence; an empty text where that is unknown.

    >>> variant_definition("same_concept"), variant_definition("mix_0.9")
    ('one noun is replaced by another of the same concept group, such as a dog by a cat', '10 % of another image is \
blended in')
    """
    mixing = Variant(alteration=variant).mixing
    if mixing is None:
        return _DEFINITIONS.get(variant, "")
    method, ratio = mixing
    share = f"{100 * (1 - ratio):.10g} %"
    if method == "mix":
        return f"{share} of another image is blended in"
    return f"a box of another image is pasted in, with {share} of the area"


def variant_note(variant: str) -> str | None:
    """Return a note on a mixed gallery; None for other variants.

    >>> variant_note("danger") is None, "0.1 of another image" in variant_note("mix_0.9")
    (True, True)
    """
    if variant == CONTROL:
        return (
            "every image a second time, only resized to a square and compressed, with nothing mixed in. It shows what "
            "preprocessing alone does: original and copy have the same content, so which of them ranks first is close "
            "to chance. Compare a mixed variant with this one to see the effect of mixing"
        )
    mixing = Variant(alteration=variant).mixing
    if mixing is None:
        return None
    method, ratio = mixing
    other = f"{1 - ratio:.10g}"
    if method == "mix":
        return f"every image a second time, as {ratio:.10g} of itself blended with {other} of another image"
    return (
        f"every image a second time, with a box of another image pasted in: {other} of the area, before the box is "
        "clipped at the border"
    )
