"""Libraries' models that score pairs: tiny random ones beside the library's own call, through `rococo evaluate`."""

import numpy as np
import pytest
from PIL import Image

from rococo_jax.encoders.adapters import load_adapted
from rococo_jax.encoders.adapters.pair_models import QUESTION
from rococo_jax.errors import InputError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.quick

WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] <image> Yes no a dog cat the mat on is".split()
# Sums in float32, one by one and padded in a batch.
TOLERANCE = 1e-5
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
VISION = {**SMALL, "image_size": 32, "patch_size": 16}
TEXTS = ["a dog on the mat", "the cat", "the dog is a cat on the mat"]


@pytest.fixture(scope="module")
def pictures():
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 256, (40, 48, 3), np.uint8)) for _ in TEXTS]


def bert_tokenizer(folder):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    return transformers.BertTokenizerFast(str(folder / "vocab.txt"), model_max_length=24)


def clear(model):
    """Weights so large that pairs differ by more than rounding."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for parameter in model.parameters():
            parameter.data = torch.randn(parameter.shape) * (0.4 if parameter.ndim > 1 else 0.1)
    return model.eval()


def blip2(folder):
    text = {**SMALL, "vocab_size": len(WORDS)}
    config = transformers.Blip2Config(
        vision_config=VISION, qformer_config={**text, "encoder_hidden_size": 16, "use_qformer_text_input": True},
        num_query_tokens=4, image_text_hidden_size=8, image_token_index=5,
    )  # fmt: skip
    images = transformers.BlipImageProcessor(size={"height": 32, "width": 32})
    processor = transformers.Blip2Processor(images, bert_tokenizer(folder), num_query_tokens=4)
    return transformers.Blip2ForImageTextRetrieval(config), processor, {"use_image_text_matching_head": True}


def blip(folder):
    text = {**SMALL, "vocab_size": len(WORDS), "encoder_hidden_size": 16}
    config = transformers.BlipConfig(text_config=text, vision_config=VISION, image_text_hidden_size=8)
    images = transformers.BlipImageProcessor(size={"height": 32, "width": 32})
    processor = transformers.BlipProcessor(images, bert_tokenizer(folder))
    return transformers.BlipForImageTextRetrieval(config), processor, {"use_itm_head": True}


def vilt(folder):
    config = transformers.ViltConfig(**VISION, vocab_size=len(WORDS), max_position_embeddings=24)
    images = transformers.ViltImageProcessor(size={"shortest_edge": 32}, size_divisor=16)
    return (
        transformers.ViltForImageAndTextRetrieval(config),
        transformers.ViltProcessor(images, bert_tokenizer(folder)),
        {},
    )


def bridgetower(folder):
    text = {**SMALL, "hidden_size": 64, "vocab_size": len(WORDS), "max_position_embeddings": 32, "pad_token_id": 0}
    vision = {"hidden_size": 64, "num_hidden_layers": 2, "image_size": 32, "patch_size": 16}  # a head has 64 numbers
    config = transformers.BridgeTowerConfig(
        text_config=text, vision_config=vision, hidden_size=64, num_attention_heads=2, num_hidden_layers=2
    )
    images = transformers.BridgeTowerImageProcessor(size={"shortest_edge": 32}, crop_size={"shortest_edge": 32})
    processor = transformers.BridgeTowerProcessor(images, bert_tokenizer(folder))
    return transformers.BridgeTowerForImageAndTextRetrieval(config), processor, {}


HEADS = {
    "bridgetower": (bridgetower, lambda output: output.logits[:, 1]),
    "blip2": (blip2, lambda output: output.logits_per_image[:, 1]),
    "blip": (blip, lambda output: output.itm_score[:, 1]),
    "vilt": (vilt, lambda output: output.logits[:, 0]),
}


@pytest.mark.parametrize("name", HEADS)
def test_matching_heads_of_transformers(name, tmp_path, pictures):
    make, of_output = HEADS[name]
    model, processor, arguments = make(tmp_path / "tokenizer")
    clear(model).save_pretrained(tmp_path / name)
    processor.save_pretrained(tmp_path / name)
    with torch.no_grad():
        expected = [
            float(of_output(model(**processor(images=image, text=text, return_tensors="pt"), **arguments))[0])
            for image, text in zip(pictures, TEXTS, strict=True)
        ]
    found = load_adapted(f"transformers:{tmp_path / name}").score_pairs(pictures, TEXTS)
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)
    assert np.ptp(expected) > 100 * TOLERANCE


@pytest.fixture(scope="module")
def answering(tmp_path_factory):
    """A tiny LLaVA, which answers."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("llava")
    plain = Tokenizer(models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="[UNK]", pad_token="[PAD]")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**VISION), image_token_index=5, image_seq_length=4,
        text_config=transformers.LlamaConfig(**SMALL, vocab_size=len(WORDS), num_key_value_heads=2),
    )  # fmt: skip
    images = transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    template = (
        "{% for m in messages %}{% for c in m['content'] %}"
        "{% if c['type'] == 'image' %}<image> {% else %}{{ c['text'] }}{% endif %}{% endfor %}{% endfor %}"
    )
    processor = transformers.LlavaProcessor(
        images, tokenizer, patch_size=16, vision_feature_select_strategy="default", chat_template=template,
        num_additional_image_tokens=1,
    )  # fmt: skip
    clear(transformers.LlavaForConditionalGeneration(config)).save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def test_vqascore_is_the_probability_that_the_next_token_is_yes(answering, pictures):
    model = transformers.LlavaForConditionalGeneration.from_pretrained(answering)
    processor = transformers.AutoProcessor.from_pretrained(answering)
    expected = []
    for image, text in zip(pictures, TEXTS, strict=True):
        asked = f"<image> {QUESTION.replace('{}', text)}"
        inputs = processor(images=image, text=asked, return_tensors="pt")
        made = model.generate(
            **inputs, max_new_tokens=1, do_sample=False, output_scores=True, return_dict_in_generate=True
        )
        expected.append(float(torch.softmax(made.scores[0], -1)[0, WORDS.index("Yes")]))
    found = load_adapted(f"vqascore:{answering}").score_pairs(pictures, TEXTS)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    assert len(set(np.round(expected, 6))) == len(TEXTS)


@pytest.mark.parametrize(
    ("argument", "message"), [({"question": "a dog?"}, "with {} in"), ({"answer": "Yes no"}, "2 tokens")]
)
def test_a_question_has_a_place_and_an_answer_one_token(argument, message, answering):
    with pytest.raises(InputError, match=message):
        load_adapted(f"vqascore:{answering}", argument)


def test_fingerprints_tell_questions_and_weights_apart(answering):
    one = load_adapted(f"vqascore:{answering}").fingerprint()
    assert load_adapted(f"vqascore:{answering}").fingerprint() == one
    assert load_adapted(f"vqascore:{answering}", {"question": "is it {} ?"}).fingerprint() != one


@pytest.fixture(scope="module")
def reranker(answering, tmp_path_factory):
    """A model that answers as a reranker: the log-odds of "Yes" and "no"."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.cross_encoder.modules import LogitScore

    asked = Transformer(str(answering), transformer_task="any-to-any")
    made = sentence_transformers.CrossEncoder(modules=[asked, LogitScore(6, 7)], prompts={"find": "is a cat on "})
    made.save_pretrained(str(folder := tmp_path_factory.mktemp("reranker")))
    return folder


@pytest.mark.parametrize("query", ["text", "image"])
def test_rerankers_of_sentence_transformers(query, reranker, pictures):
    import sentence_transformers

    theirs = sentence_transformers.CrossEncoder(str(reranker))
    pairs = list(zip(TEXTS, pictures, strict=True) if query == "text" else zip(pictures, TEXTS, strict=True))
    model = load_adapted(f"cross_encoder:{reranker}", {"query": query})
    expected = theirs.predict(pairs)
    np.testing.assert_allclose(model.score_pairs(pictures, TEXTS), expected, rtol=0, atol=TOLERANCE)
    assert np.ptp(expected) > 100 * TOLERANCE
    # A prompt by its name, or as it is.
    for prompt in ("find", "is a cat on "):
        prompted = model.with_prompt(prompt, "query")
        np.testing.assert_allclose(
            prompted.score_pairs(pictures, TEXTS), theirs.predict(pairs, prompt="is a cat on "), rtol=0, atol=TOLERANCE
        )
        assert prompted.fingerprint() != model.fingerprint()
