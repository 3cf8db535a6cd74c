"""Names of variants: corruptions, their means and baselines, unseen images, and names that users choose."""

import dataclasses

import pytest

from rococo_jax.benchmarks.variants import ALL_KINDS, UNCORRUPTED, Variant, parse_variants
from rococo_jax.perturb.images.corruptions import CORRUPTIONS

OF_RANKING = ("clean", "danger", "mix_0.9", "control", "uncorrupted", "corruptions_3", "fog_3", "fog_6", "fog_of_war_2")
OF_CHOICES = ("mean", "fog_3", "a/b", "night_2", "a/b/uncorrupted", "a/b/fog_3", "night_2/fog_3", "corruptions_3")


@pytest.mark.parametrize("suffix", ["", "/unseen"])
@pytest.mark.parametrize(
    ("names", "name", "expected"),
    [
        (OF_RANKING, "clean", Variant(alteration="clean")),
        (OF_RANKING, "mix_0.9", Variant(alteration="mix_0.9")),
        (OF_RANKING, "uncorrupted", Variant(corruption=UNCORRUPTED)),
        (OF_RANKING, "corruptions_3", Variant(corruption=ALL_KINDS, severity=3)),
        (OF_RANKING, "fog_3", Variant(corruption="fog", severity=3)),
        (OF_RANKING, "fog_6", Variant(alteration="fog_6")),
        (OF_RANKING, "fog_of_war_2", Variant(alteration="fog_of_war_2")),
        # Parts of a benchmark of one's own.
        (OF_CHOICES, "fog_3", Variant(alteration="fog_3")),
        (OF_CHOICES, "corruptions_3", Variant(alteration="corruptions_3")),
        (OF_CHOICES, "a/b", Variant(alteration="a/b")),
        (OF_CHOICES, "a/b/fog_3", Variant("a/b", corruption="fog", severity=3)),
        (OF_CHOICES, "night_2/fog_3", Variant(alteration="night_2/fog_3")),
        (("seen", "x/unseen"), "x/unseen", Variant(alteration="x/unseen")),
    ],
)
def test_a_name_is_read_beside_the_others_of_its_task(names, name, expected, suffix):
    found = parse_variants([*names, f"{name}/unseen"] if suffix else names)[name + suffix]
    assert found == dataclasses.replace(expected, unseen=bool(suffix))
    assert found.name == name + suffix and found.whole == name


def test_every_kind_and_severity_is_known():
    expected = [(kind, severity) for kind in CORRUPTIONS for severity in range(1, 6)]
    parsed = parse_variants(["clean", "uncorrupted", *(f"{kind}_{severity}" for kind, severity in expected)])
    assert [(each.corruption, each.severity) for each in parsed.values()][2:] == expected
