"""Test names and fields of variants: corruptions, their means and baselines, unseen images, and names of users."""

import dataclasses

import pytest

from rococo_jax.benchmarks.variants import ALL_KINDS, UNCORRUPTED, Variant

VARIANTS = {
    "clean": Variant(alteration="clean"),
    "mix_0.9": Variant(alteration="mix_0.9"),
    "uncorrupted": Variant(corruption=UNCORRUPTED),
    "corruptions_3": Variant(corruption=ALL_KINDS, severity=3),
    "fog_3": Variant(corruption="fog", severity=3),
    "a/b": Variant("a/b"),
    "a/b/fog_3": Variant("a/b", corruption="fog", severity=3),
    "few/uncorrupted": Variant("few", corruption=UNCORRUPTED),
    "mean": Variant(pooled="mean"),
    "replace/all": Variant(pooled="replace/all"),
}


@pytest.mark.parametrize("unseen", [False, True])
@pytest.mark.parametrize("name", VARIANTS)
def test_names_of_variants_are_made_from_their_fields_and_fields_survive_json(name, unseen):
    variant = dataclasses.replace(VARIANTS[name], unseen=unseen)
    assert variant.name == name + "/unseen" * unseen and variant.whole == name
    assert Variant.of(variant.fields) == variant
    assert variant.is_clean == (name == "clean") and variant.is_attack == (name == "mix_0.9" and not unseen)


def test_fields_of_another_type_are_ignored():
    assert Variant.of({"part": 3, "severity": True, "unseen": 1, "corruption": "fog"}) == Variant(corruption="fog")
