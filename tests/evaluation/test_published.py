"""Known checkpoints: their published figures beside a result."""

import pytest

from rococo_jax.evaluation.summary import print_summary
from rococo_jax.metrics.published import compare_with_published, published_values


def result(source="openai/clip-vit-base-patch32", r1=50.14, images=5000, **changes):
    """Return the published numbers that the results file of a converted checkpoint contains."""
    provenance = {"source": source, "format": "huggingface", "weights_sha256": "ab"}
    clean = {
        "image_to_text": {"clean": {"r1": r1, "r5": 75.02, "r10": 83.5}},
        "text_to_image": {"clean": {"r1": 30.45, "r5": 55.95, "r10": 66.9}},
    }
    queries = {"image_to_text": images, "text_to_image": 5 * images + 10}
    made = {
        "model": "b32", "protocol": "paper", "tasks": clean, "kinds": dict.fromkeys(clean, "rank"), "intervals": {},
        "sizes": {task: {"clean": {"queries": count, "images": images}} for task, count in queries.items()},
        "fingerprint": {"model": {"dtype": "float32"}},
        "about": {"provenance": provenance, "weights_sha256": "ab", "warnings": []},
    }  # fmt: skip
    return made | changes


def test_a_known_checkpoint_is_compared_with_its_published_results(capsys):
    texts, images, log = compare_with_published(result())
    assert texts.startswith("image_to_text, clean: R@1 50.1, published 50.1; R@5 75.0, published 75.0; R@10 83.5, ")
    assert texts.endswith("(open_clip's table of retrieval results): within 0.3 points") and "30.4" in images
    # The log's figures are of ten more captions: R@5 of 74.7.
    assert "R@5 75.0, published 74.7" in log and "RoCOCO" in log and "up to 0.5 points away; usual reasons" in log
    print_summary([result()])
    assert f"b32, {texts}" in capsys.readouterr().out


def test_the_openai_model_is_compared_with_its_published_log_on_mixed_images():
    made = result()
    made["tasks"]["text_to_image"]["mix_0.9"] = {"r1": 19.9, "r5": 46.3, "r10": 57.3, "fr1": 37.0}
    made["sizes"]["text_to_image"]["mix_0.9"] = {"queries": 25_010, "images": 5000}
    last = compare_with_published(made)[-1]
    assert last.startswith("text_to_image, mix_0.9: ") and "FR@1 37.0, published 37.0" in last
    assert last.endswith("(RoCOCO's log, arXiv 2304.10727): within 0.3 points")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"fingerprint": {"model": {"dtype": "bfloat16"}}}, "bfloat16"),
        ({"protocol": "strict"}, "the protocol is strict"),
        ({}, "usual reasons are the activation"),
    ],
)
def test_a_difference_from_published_results_names_its_explanation(changes, reason):
    first, *_ = compare_with_published(result(r1=47.0, **changes))
    assert "up to 3.1 points away; " in first and reason in first


def test_other_images_or_other_weights_are_not_compared_with_published_results():
    assert compare_with_published(result(images=281)) == []
    assert compare_with_published(result(source="me/mine")) == []
    trained = result()
    trained["about"]["weights_sha256"] = "cd"  # as after training on from the checkpoint
    assert compare_with_published(trained) == []


@pytest.mark.parametrize(
    ("provenance", "r1"),
    [
        ({"source": "hf-hub:laion/CLIP-ViT-B-32-laion2B-s34B-b79K", "format": "open_clip"}, 56.32),
        ({"source": "/models/ViT-L-14-336px.pt", "format": "openai", "model_type": "ViT-L/14@336px"}, 57.94),
        ({"source": "ViT-B-32.pt", "format": "openai", "model_type": "ViT-B/32"}, 50.12),
        ({"source": "/home/me/openai/clip-vit-base-patch32", "format": "huggingface"}, 50.12),
        ({"source": "ViT-B-32.pt", "format": "openai", "model_type": "clip"}, None),
    ],
)
def test_a_checkpoint_is_recognised_by_its_name_on_the_hub_or_by_its_hash(provenance, r1):
    known = published_values({"provenance": {**provenance, "weights_sha256": "ab"}, "weights_sha256": "ab"})
    assert [line["r1"] for line in known][:1] == ([] if r1 is None else [str(r1)])
