"""The examples of the report: marked word by word, escaped, cut, with pictures where there are any."""

import dataclasses

import pytest

from rococo_jax.evaluation.examples import Side
from rococo_jax.report.blocks import Cell, Head, Note, Table, jpeg_size, render_block, rich
from rococo_jax.report.charts import short_labels
from rococo_jax.report.examples import ERROR, choose_examples, compare_words, example_cards
from tests.support.pages import example

# An application segment and the frame header of 320 x 128.
JPEG = bytes.fromhex("ffd8ffe000040000ffc0000b080080014001011100ffd9")


def changed_words(first: str, second: str) -> tuple[list[str], list[str]]:
    one, other = compare_words(first, second)
    return [word.text for word in one if word.is_changed], [word.text for word in other if word.is_changed]


def drawn(*examples) -> str:
    return render_block(example_cards(examples))


def test_the_first_examples_are_shown_by_variant():
    order = [("danger", 3), ("same_concept", 1), ("danger", 0), ("mix_0.9", 2), ("danger", 4)]
    many = [example(variant=variant, order=place) for variant, place in order]
    many += [example(task="text_to_image", order=0), example(role="won_blind", order=0)]
    found = choose_examples(many, "image_to_text", ERROR, 4)
    assert [(each.variant, each.order) for each in found] == [
        ("same_concept", 1), ("danger", 0), ("danger", 3), ("mix_0.9", 2),
    ]  # fmt: skip
    assert choose_examples([], "image_to_text", ERROR, 4) == []


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
def test_changed_words_are_found_regardless_of_case_and_punctuation(original, altered, old, new):
    assert changed_words(original, altered) == (old, new)


def test_comparing_captions_loses_no_word():
    for caption in ("A  man ,  riding a horse .", "«ein Pferd»", "<b>x</b> &amp;"):
        for words in compare_words(caption, "a man riding"):
            assert [word.text for word in words] in (caption.split(), ["a", "man", "riding"])


def test_a_card_shows_both_captions_with_the_changed_word_and_both_scores():
    one = example(right=Side("A man on a bench."), wrong=Side("a criminal on a bench"), right_score=0.3,
                  wrong_score=0.3625)  # fmt: skip
    shown = drawn(one)
    assert "a <mark>criminal</mark> on a bench" in shown
    assert "A <del>man</del> on a bench." in shown
    assert "0.362" in shown and "0.300" in shown
    assert "a.jpg" in shown and "<img" not in shown  # without a picture its name stands


def test_an_altered_caption_is_compared_with_its_original():
    wrong = Side("a criminal on a bench", note="altered from: A man on a bench.")
    shown = drawn(example(kind="other_altered", right=Side("two dogs"), wrong=wrong))
    assert "a <mark>criminal</mark> on a bench" in shown and "A <del>man</del> on a bench." in shown
    assert "altered from another image" in shown and "two dogs" in shown


def test_the_score_of_the_true_caption_is_shown_even_if_its_text_is_missing():
    shown = drawn(example(right=Side(""), right_score=0.3))
    assert "the best of its own captions" in shown and "0.300" in shown


def test_a_very_long_caption_is_truncated():
    for caption in ("word " * 5000, "w" * 20000):
        shown = drawn(example(right=Side(caption), wrong=Side(caption)))
        assert len(shown) < 3000 and "…" in shown


def test_text_to_image_examples_show_the_true_image_and_the_mixed_one():
    query, right = Side("a man"), Side(image="a.png", jpeg=JPEG)
    wrong = Side(image="b.png", jpeg=JPEG, note="c.png mixed in; 90 % is its own")
    shown = drawn(example(task="text_to_image", variant="mix_0.9", seed=10, query=query, right=right, wrong=wrong))
    assert shown.count("<img ") == 2 and shown.count('width="320" height="128"') == 2
    assert "c.png mixed in; 90 % is its own" in shown and "seed 10" in shown


def test_an_example_of_a_choice_shows_the_image_and_both_texts():
    one = example(
        task="sugarcrepe", variant="swap_att", kind="wrong", right=Side("a red cat"), wrong=Side("a blue cat")
    )
    shown = drawn(dataclasses.replace(one, query=Side(image="a.png", jpeg=JPEG)))
    assert "a <mark>blue</mark> cat" in shown and "a <del>red</del> cat" in shown and "the wrong text" in shown
    assert shown.count("<img ") == 1


def test_sizes_of_images_are_read_from_their_headers():
    assert jpeg_size(JPEG) == (320, 128)
    assert jpeg_size(b"no picture") == jpeg_size(b"") == jpeg_size(None) == jpeg_size(JPEG[:12]) == (0, 0)
    header = JPEG.index(b"\xff\xc0") + 1
    for marker in range(0xC0, 0xD0):  # of which three are no frames
        expected = (0, 0) if marker in (0xC4, 0xC8, 0xCC) else (320, 128)
        assert jpeg_size(JPEG[:header] + bytes([marker]) + JPEG[header + 1 :]) == expected


def test_templates_escape_only_text():
    table = Table("x<y", [Head("a & b", title='"x"')], [[Cell("<th>")], [Cell("<th>"), Cell("<td>", title="'")]])
    shown = render_block(table)
    assert "&lt;th&gt;" in shown and "&lt;td&gt;" in shown and "a &amp; b" in shown and "&#34;x&#34;" in shown
    assert rich("<b>{}</b>", "<") == "<b>&lt;</b>"
    assert render_block(Note(rich("<b>{}</b>", "\x07<"))) == '<p class="note"><b>\ufffd&lt;</b></p>'
    assert "\x00" not in render_block(Note("\x00\ud800")) and "\ud800" not in render_block(Note("\x00\ud800"))


def test_long_labels_stay_distinct():
    labels = ["openai/clip-vit-large-patch14-336", "google/siglip-base-patch16-224", "short"]
    assert short_labels(labels, 26) == ["clip-vit-large-patch14-336", "siglip-base-patch16-224", "short"]
    same_end = ["first-organisation/a-model-of-this-name", "other-organisation/a-model-of-this-name"]
    assert len(set(short_labels(same_end))) == 2
    assert all(len(label) <= 26 for label in short_labels([*labels, *same_end, "x" * 400], 26))
