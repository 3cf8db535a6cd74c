"""The words of the attention page: what its numbers are, all of them ours, and what they do not say."""

from collections.abc import Sequence

from rococo_jax.report.markup import Markup, element
from rococo_jax.studies.attention.pairs import Pair

_DEFINITIONS = (
    (
        "Share on the box",
        "The part of the attention over patches that falls on the mixed-in box; a patch that the box covers in part "
        "counts in part.",
    ),
    (
        "Ratio",
        "That share by the box's share of the area that the model sees. 1: the model looks at the box no more than "
        "elsewhere; 2: twice as much.",
    ),
    (
        "Same place before",
        "The ratio for the same patches of the unmixed image: what the place alone attracts. A box matters by how far "
        "it leaves this figure.",
    ),
    (
        "Overlap",
        "The sum over patches of the smaller of the two weights, before and after mixing: 100 % where the model looks "
        "exactly where it did.",
    ),
)
_CAUTION = (
    "Attention says what the last layer takes in, not what decides the vector: earlier layers have mixed the patches "
    "already, and a few patches without content can serve as a store and draw much attention."
)


def how_to_read(pairs: Sequence[Pair]) -> Markup:
    """What each number is, and what attention does not say."""
    wanted = _DEFINITIONS if any(pair.has_box for pair in pairs) else _DEFINITIONS[-1:]
    entries = [
        element("div", element("dt", term, " ", element("span", "ours", class_="ours")), element("dd", text))
        for term, text in wanted
    ]
    squashed = (
        "Both images are squashed to the square of the published mixing first (and compressed where that is), then "
        "resized and cropped as the model does it, so that they differ in what was mixed in and in nothing else."
    )
    entries.append(element("div", element("dt", "Images"), element("dd", squashed)))
    entries.append(element("div", element("dt", "Caution"), element("dd", _CAUTION)))
    return element(
        "section",
        element("h2", "How to read this page"),
        element("dl", entries, class_="reading"),
        id="how-to-read",
        class_="group",
    )
