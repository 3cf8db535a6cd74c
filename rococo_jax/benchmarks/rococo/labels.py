"""Labels and notes for the names in RoCOCO's results: tasks, variants and protocols.

clean, same_concept, diff_concept, rand_voca, danger      altered captions
mix_0.9, patch_0.9, control                               mixed galleries
fog_3, uncorrupted, corruptions_3                         corrupted images, their baseline, the mean of a severity
"""

import re

CLEAN, CONTROL, UNCORRUPTED = "clean", "control", "uncorrupted"

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
QUESTIONS = {
    "image_to_text": "Each image looks for one of its own captions among all captions, altered ones included.",
    "text_to_image": "Each caption looks for its own image among all images, mixed ones included.",
}
# What asks, and what a wrong first choice is.
QUERIES = {"image_to_text": "images", "text_to_image": "captions"}
ALTERED = {"image_to_text": "an altered caption", "text_to_image": "a mixed image"}

PROTOCOLS = {
    "paper": "the published files and the published way of mixing; a tie counts as the published code has it, as near "
    "as that can be defined",
    "strict": "altered captions that change nothing are left out, letter case and the final full stop are evened out "
    "on both sides, no image is mixed with itself, and a tie counts against the right answer",
    "control": "images are only squashed and saved again, nothing is mixed in, which separates the effect of mixing "
    "from that of preprocessing",
}

_MIX = re.compile(r"(mix|patch)_(\d*\.?\d+)")


def variant_note(variant: str) -> str | None:
    """Note on a mixed gallery; None for other variants.

    >>> variant_note("danger") is None, "0.1 of another image" in variant_note("mix_0.9")
    (True, True)
    """
    if variant == CONTROL:
        return (
            "every image once more, squashed to a square and compressed only, nothing mixed in: what preprocessing "
            "alone does. It shows the same as its original, so the first place between the two is close to chance, and "
            "a mixed variant says something about mixing only beside it"
        )
    match = _MIX.fullmatch(variant)
    if match is None:
        return None
    ratio, other = float(match[2]), f"{1 - float(match[2]):.10g}"
    if match[1] == "mix":
        return f"every image once more, {ratio:.10g} of it blended with {other} of another image, beside the originals"
    return (
        f"every image once more with a box of another image, {other} of the area before it is clipped at the border, "
        "beside the originals"
    )
