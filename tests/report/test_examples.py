"""The examples of the report: chosen by a rule, marked word by word, with pictures where there are any."""

import base64
import io
import random

import pytest
from PIL import Image

from rococo_jax.benchmarks.rococo.annotations import AlteredCaptions, write_annotation
from rococo_jax.report.archive import Archive
from rococo_jax.report.charts import short_labels
from rococo_jax.report.examples import Fooled, choose_examples, compare_words
from rococo_jax.report.gallery import cards
from rococo_jax.report.markup import element, isolated, join


def fooled(image: str, lead: float, variant: str = "danger", **changed) -> Fooled:
    made = {"caption": "a man", "chosen": "a criminal", "kind": "own_altered"} | changed
    return Fooled(variant=variant, image=image, chosen_score=0.3 + lead, true_score=0.3, **made)


def changed_words(first: str, second: str) -> tuple[list[str], list[str]]:
    one, other = compare_words(first, second)
    return [word.text for word in one if word.changed], [word.text for word in other if word.changed]


def test_most_confidently_fooled_come_first():
    chosen = choose_examples([fooled(str(place), place / 100) for place in range(10)], 3)
    assert [each.image for each in chosen] == ["9", "8", "7"]


def test_an_image_is_shown_once_and_variants_take_turns():
    many = [fooled("best", 0.9), fooled("best", 0.8, "same_concept"), fooled("second", 0.7), fooled("third", 0.6)]
    many += [fooled("weak", 0.1, "same_concept"), fooled("weaker", 0.05, "mix_0.9")]
    chosen = choose_examples(many, 3)
    assert len({each.image for each in chosen}) == 3
    assert sorted(each.variant for each in chosen) == ["danger", "mix_0.9", "same_concept"]


def test_choice_does_not_depend_on_the_order_of_the_table():
    many = [fooled(f"image {place % 7}", (place % 3) / 10, ("danger", "rand_voca")[place % 2]) for place in range(60)]
    wanted = choose_examples(many, 6)
    for seed in range(5):
        random.Random(seed).shuffle(many)
        assert choose_examples(many, 6) == wanted


def test_fewer_fooled_than_asked_for_gives_them_all_and_none_gives_none():
    assert len(choose_examples([fooled("a", 0.1), fooled("a", 0.2), fooled("b", 0.1)], 10)) == 2
    assert choose_examples([], 10) == []


@pytest.mark.parametrize(
    ("original", "altered", "old", "new"),
    [
        ("A man riding a horse.", "a criminal riding a horse", ["man"], ["criminal"]),
        ("Cats on the back of a truck.", "Cats on the backfrance of a truck .", ["back"], ["backfrance"]),
        ("a dog and a dog", "a cat and a cat", ["dog", "dog"], ["cat", "cat"]),
        ("a child watching birds", "a child commiting crime birds", ["watching"], ["commiting", "crime"]),
        ("A same caption, here.", "a same caption here", [], []),
        ("something else entirely is said", "a yellow bus near the river bank", [], []),
        ("", "a cat", [], []),
    ],
)
def test_changed_words_are_found_whatever_case_and_punctuation(original, altered, old, new):
    assert changed_words(original, altered) == (old, new)


def test_comparing_loses_no_word():
    for caption in ("A  man ,  riding a horse .", "«ein Pferd»", "<b>x</b> &amp;"):
        for words in compare_words(caption, "a man riding"):
            assert [word.text for word in words] in (caption.split(), ["a", "man", "riding"])


def test_an_altered_caption_is_traced_to_its_original_even_evened_out(tmp_path):
    items = (
        AlteredCaptions("x.jpg", ("A man on a bench.",), ("A criminal on a bench .",)),
        AlteredCaptions("y.jpg", ("A boy on a bench.", "two birds"), ("A criminal on a bench .", None)),
    )
    write_annotation(tmp_path / "danger.json", "danger", items, made_by={})
    archive, data = Archive(), {"annotations": str(tmp_path)}
    evened_out = fooled("y.jpg", 0.1, chosen="a criminal on a bench")
    assert archive.source_caption(data, evened_out) == "A boy on a bench."
    assert archive.source_caption(data, fooled("z.jpg", 0.1, chosen="a criminal on a bench")) == "A man on a bench."
    assert archive.source_caption(data, fooled("y.jpg", 0.1, chosen="never seen")) is None
    assert archive.source_caption({"annotations": str(tmp_path / "gone")}, evened_out) is None


def test_a_card_shows_both_captions_with_the_changed_word_and_both_scores():
    one = fooled("a.jpg", 0.0625, caption="A man on a bench.", chosen="a criminal on a bench")
    drawn = cards([one], "image_to_text", {}, Archive())
    assert "a <mark>criminal</mark> on a bench" in drawn
    assert "A <del>man</del> on a bench." in drawn
    assert "0.362" in drawn and "0.300" in drawn
    assert "names stand instead" in drawn


def test_without_the_true_caption_in_the_table_its_score_still_stands():
    drawn = cards([fooled("a.jpg", 0.1, caption="")], "image_to_text", {}, Archive())
    assert "the best of its own captions" in drawn and "0.300" in drawn


def test_an_endless_caption_is_cut():
    for caption in ("word " * 5000, "w" * 20000):
        drawn = cards([fooled("a.jpg", 0.1, caption=caption, chosen=caption)], "image_to_text", {}, Archive())
        assert len(drawn) < 3000 and "…" in drawn


def test_text_to_image_shows_the_true_image_and_the_one_that_was_mixed(tmp_path):
    for name, colour in (("a.png", "red"), ("b.png", "blue")):
        Image.new("RGB", (64, 48), colour).save(tmp_path / name)
    one = fooled("a.png", 0.1, "mix_0.9", chosen="b.png", kind="other_altered")
    drawn = cards([one], "text_to_image", {"images": str(tmp_path)}, Archive())
    assert drawn.count("<img ") == 2
    assert "before it was mixed" in drawn


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA", "CMYK", "1", "I;16", "LA"])
def test_pictures_of_every_mode_become_small_jpegs(tmp_path, mode):
    path = tmp_path / ("x.tif" if mode in ("CMYK", "I;16") else "x.png")
    Image.new(mode, (1000, 400)).save(path)
    picture = Archive().picture({"images": str(tmp_path)}, path.name)
    assert (picture.width, picture.height) == (320, 128)
    kind, _, content = picture.uri.partition(",")
    assert kind == "data:image/jpeg;base64"
    assert Image.open(io.BytesIO(base64.b64decode(content))).size == (320, 128)


def test_a_picture_that_is_gone_damaged_or_outside_the_folder_is_left_out(tmp_path):
    inside = tmp_path / "images"
    inside.mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "secret.png")
    (inside / "damaged.png").write_bytes((tmp_path / "secret.png").read_bytes()[:40])
    (inside / "link.png").symlink_to(tmp_path / "secret.png")
    archive, data = Archive(), {"images": str(inside)}
    for name in ("gone.png", "damaged.png", "../secret.png", str(tmp_path / "secret.png"), "link.png", ""):
        assert archive.picture(data, name) is None
    assert archive.picture({}, "a.png") is None
    assert archive.picture({"images": str(tmp_path / "nowhere")}, "a.png") is None


def test_markup_escapes_text_and_only_text():
    assert element("p", "a < b & 'c'", element("br"), 3, None, title='"x"') == (
        '<p title="&quot;x&quot;">a &lt; b &amp; &#x27;c&#x27;<br>3</p>'
    )
    assert join("<", isolated("<")) == "&lt;<bdi>&lt;</bdi>"
    assert element("input", disabled=True, hidden=False, value=None) == "<input disabled>"
    assert "\x00" not in element("p", "\x00\ud800", title="\x07")


def test_long_labels_stay_different():
    labels = ["openai/clip-vit-large-patch14-336", "google/siglip-base-patch16-224", "short"]
    assert short_labels(labels) == ["clip-vit-large-patch14-336", "siglip-base-patch16-224", "short"]
    same_end = ["first-organisation/a-model-of-this-name", "other-organisation/a-model-of-this-name"]
    assert len(set(short_labels(same_end))) == 2
    assert all(len(label) <= 26 for label in short_labels([*labels, *same_end, "x" * 400]))
