"""Libraries' models that score pairs: tiny random ones beside the library's own call, through `rococo evaluate`."""

import json

import numpy as np
import pytest
from PIL import Image

from rococo_jax.encoders.adapters import load_adapted
from rococo_jax.encoders.adapters.pair_models import QUESTION, torch_pair_scorer
from rococo_jax.encoders.adapters.torch_module import TorchOptions
from rococo_jax.encoders.foreign_model import ForeignModel
from rococo_jax.errors import InputError
from tests.support.world import noise, write_world

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.quick

WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] <image> Yes no a dog cat the mat on is <s> </s>".split()
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
def test_matching_heads_give_the_scores_of_transformers(name, tmp_path, pictures):
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


def word_tokenizer(begins=False, more=()):
    """A tokenizer of `WORDS` and of more special tokens; with `begins`, <s> comes before every text."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = [*WORDS, *more]
    plain = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    named = {"unk_token": "[UNK]", "pad_token": "[PAD]", "eos_token": "</s>"}
    if begins:
        plain.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", WORDS.index("<s>"))]
        )
        named["bos_token"] = "<s>"
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=plain, **named)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>", *more]})
    return tokenizer


TEMPLATE = (
    "{% for m in messages %}{% for c in m['content'] %}"
    "{% if c['type'] == 'image' %}<image> {% else %}{{ c['text'] }}{% endif %}{% endfor %}{% endfor %}"
)


def save_llava(folder, tokenizer, template):
    """Save a tiny LLaVA, which answers."""
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**VISION), image_token_index=5, image_seq_length=4,
        text_config=transformers.LlamaConfig(**SMALL, vocab_size=len(WORDS), num_key_value_heads=2),
    )  # fmt: skip
    images = transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    processor = transformers.LlavaProcessor(
        images, tokenizer, patch_size=16, vision_feature_select_strategy="default", chat_template=template,
        num_additional_image_tokens=1,
    )  # fmt: skip
    clear(transformers.LlavaForConditionalGeneration(config)).save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def save_aya(folder):
    """Save a tiny Aya Vision, whose processor pads on the left."""
    marks = ["<|START_OF_IMG|>", "<|END_OF_IMG|>", "<|IMG_PATCH|>", "<|IMG_LINE_BREAK|>", "TILE", "TILE_GLOBAL"]
    tokenizer = word_tokenizer(more=marks)
    config = transformers.AyaVisionConfig(
        vision_config=transformers.SiglipVisionConfig(**VISION), downsample_factor=1, vision_feature_layer=-1,
        image_token_index=tokenizer.convert_tokens_to_ids("<|IMG_PATCH|>"),
        text_config=transformers.Cohere2Config(**SMALL, vocab_size=len(WORDS) + 6, num_key_value_heads=2,
                                               sliding_window=64, bos_token_id=15, eos_token_id=16),
    )  # fmt: skip
    images = transformers.GotOcr2ImageProcessorPil(size={"height": 32, "width": 32}, crop_to_patches=False)
    processor = transformers.AyaVisionProcessor(images, tokenizer, patch_size=16, img_size=32, chat_template=TEMPLATE)
    clear(transformers.AyaVisionForConditionalGeneration(config)).save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def save_blip2_t5(folder):
    """Save a tiny BLIP-2 with T5, an encoder-decoder, without a chat template."""
    text = {"model_type": "t5", "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 2, "num_heads": 2}
    text |= {"vocab_size": len(WORDS), "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 16}
    asking = {**SMALL, "vocab_size": len(WORDS), "encoder_hidden_size": 16, "cross_attention_frequency": 1}
    config = transformers.Blip2Config(
        vision_config=VISION, qformer_config=asking, text_config=text, num_query_tokens=4, image_token_index=5
    )
    images = transformers.BlipImageProcessor(size={"height": 32, "width": 32})
    processor = transformers.Blip2Processor(images, word_tokenizer(), num_query_tokens=4)
    clear(transformers.Blip2ForConditionalGeneration(config)).save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def save_git(folder):
    """Save a tiny GIT, which has no token for the image and puts its logits before those of the text."""
    text = {**SMALL, "vocab_size": len(WORDS), "pad_token_id": 0, "bos_token_id": 15, "eos_token_id": 16}
    images = transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    clear(transformers.GitForCausalLM(transformers.GitConfig(vision_config=VISION, **text))).save_pretrained(folder)
    transformers.GitProcessor(images, word_tokenizer()).save_pretrained(folder)
    return folder


BEGINNING = "{{ bos_token }}" + TEMPLATE
ANSWERING = {
    "a template that begins the sequence": lambda folder: save_llava(folder, word_tokenizer(True), BEGINNING),
    "a tokenizer that begins the sequence": lambda folder: save_llava(folder, word_tokenizer(True), TEMPLATE),
    "a processor that pads on the left": save_aya,
    "an encoder-decoder without a template": save_blip2_t5,
    "a model without a token for the image": save_git,
}


@pytest.mark.parametrize("name", ANSWERING)
def test_vqascore_matches_the_generation_of_the_library(name, tmp_path, pictures):
    folder = ANSWERING[name](tmp_path)
    model = transformers.AutoModelForImageTextToText.from_pretrained(folder).eval()
    processor = transformers.AutoProcessor.from_pretrained(folder)

    def inputs_of(image, text):
        if processor.chat_template is None:
            return processor(images=image, text=text, return_tensors="pt")
        content = [{"type": "image", "image": image}, {"type": "text", "text": text}]
        call = {"tokenize": True, "return_dict": True, "return_tensors": "pt", "add_generation_prompt": True}
        return processor.apply_chat_template([{"role": "user", "content": content}], **call)

    call = {"max_new_tokens": 1, "do_sample": False, "output_scores": True, "return_dict_in_generate": True}
    expected = []
    for image, text in zip(pictures, TEXTS, strict=True):
        inputs = inputs_of(image, QUESTION.replace("{}", text))
        assert (inputs["input_ids"] == WORDS.index("<s>")).sum() == ("begins" in name)
        made = model.generate(**inputs, **call)
        expected.append(float(torch.softmax(made.scores[0], -1)[0, WORDS.index("Yes")]))
    found = load_adapted(f"vqascore:{folder}").score_pairs(pictures, TEXTS)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert np.ptp(np.log(expected)) > 1e-3


@pytest.fixture(scope="module")
def answering(tmp_path_factory):
    """A tiny LLaVA, which answers."""
    return save_llava(tmp_path_factory.mktemp("llava"), word_tokenizer(), TEMPLATE)


def test_vqascore_is_the_probability_of_yes_as_the_next_token(answering, pictures):
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


def test_a_model_without_a_template_is_refused_when_it_is_loaded(tmp_path, pictures):
    source = f"vqascore:{save_llava(tmp_path, word_tokenizer(), None)}"
    with pytest.raises(InputError, match=r"chat template: found none; wanted a chat template that writes .* <image>"):
        load_adapted(source)
    # A question of one's own may hold the image's token.
    asked = load_adapted(source, {"question": f"<image> {QUESTION}"}).score_pairs(pictures, TEXTS)
    with_template = save_llava(tmp_path, word_tokenizer(), TEMPLATE)
    np.testing.assert_allclose(asked, load_adapted(f"vqascore:{with_template}").score_pairs(pictures, TEXTS), rtol=1e-4)


@pytest.mark.parametrize("token", ["<image>", "</s>"])
def test_a_caption_that_contains_a_special_token_is_refused_before_scoring(token, answering, tmp_path, refusal):
    captions = [[f"a dog {image} {place}" for place in range(4)] + [f"the {token} cat"] for image in range(3)]
    folder = write_world(tmp_path, captions, picture=noise(40, 48), altered={"danger": "{} on a mat".format})
    inputs = ("--images", folder / "images", "--annotations", folder / "annotations")
    error = refusal("evaluate", f"vqascore:{answering}", *inputs, "--out", tmp_path / "out")
    expected = f"caption: found 'the {token} cat'; wanted a text without {token}, a token of the model"
    assert error.splitlines()[-1].endswith(expected) and "scoring" not in error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("wrong", "in_logs"), [(1.02, True), (0.98, True), (1.02, False)])
def test_a_scorer_whose_scores_depend_on_the_batch_is_refused(wrong, in_logs, pictures):
    """Small probabilities count as much as large ones, and every row but the first may be the wrong one."""
    right = np.array([1e-6, 2e-5, 3e-7]) if in_logs else np.array([-4.0, 5.0, 9.0])

    def score(images, texts):
        scores = np.array([right[TEXTS.index(text)] for text in texts])
        return scores if len(texts) == 1 else scores * np.where(np.arange(len(texts)) == np.argmax(scores), wrong, 1.0)

    def scores(batch_size):
        options = TorchOptions(batch_size=batch_size)
        model = torch_pair_scorer(torch.nn.Linear(1, 1), options, {}, score, in_logs)
        places = np.arange(len(TEXTS))
        return ForeignModel(model).score(pictures, TEXTS, (places, places), lambda count: None)

    np.testing.assert_array_equal(scores(1), right)
    with pytest.raises(InputError, match=r"in a batch of 3, .* alone; wanted one score .*batch_size=1"):
        scores(32)


def test_a_warning_reports_small_probabilities_that_depend_on_the_batch(pictures, capsys):
    class Padded:
        def score_pairs(self, images, texts):
            return np.array([1e-7 if len(text) < max(map(len, texts)) else 1e-6 for text in texts])

    places = np.arange(len(TEXTS))
    ForeignModel(Padded(), "padded").score(pictures, TEXTS, (places, places), lambda count: None)
    assert "padded: score_pairs returned other scores" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["blip2", "vilt"])
def test_the_max_length_of_a_saved_tokenizer_has_no_effect(name, tmp_path, pictures):
    """Write settings of tokenizer_config.json in old sentence-transformers folders."""
    make, _ = HEADS[name]
    model, processor, _ = make(tmp_path / "tokenizer")
    if name == "blip2":
        processor.num_query_tokens = None
    texts = [*TEXTS[:2], "a dog on the mat " * 20]  # more than the model reads
    clear(model).save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    expected = load_adapted(f"transformers:{tmp_path}").score_pairs(pictures, texts)
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "max_length": 128}))
    found = load_adapted(f"transformers:{tmp_path}").score_pairs(pictures, texts)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("argument", "message"), [({"question": "a dog?"}, "with {} in"), ({"answer": "Yes no"}, "2 tokens")]
)
def test_a_question_needs_a_placeholder_and_an_answer_one_token(argument, message, answering):
    with pytest.raises(InputError, match=message):
        load_adapted(f"vqascore:{answering}", argument)


def test_fingerprints_depend_on_questions_and_weights(answering):
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
def test_rerankers_give_the_scores_of_sentence_transformers(query, reranker, pictures):
    import sentence_transformers

    theirs = sentence_transformers.CrossEncoder(str(reranker))
    pairs = list(zip(TEXTS, pictures, strict=True) if query == "text" else zip(pictures, TEXTS, strict=True))
    model = load_adapted(f"cross_encoder:{reranker}", {"query": query})
    logits = {"activation_fn": torch.nn.Identity()}
    expected = theirs.predict(pairs, **logits)
    np.testing.assert_allclose(model.score_pairs(pictures, TEXTS), expected, rtol=0, atol=TOLERANCE)
    assert np.ptp(expected) > 100 * TOLERANCE
    # A prompt by its name, or as it is.
    for prompt in ("find", "is a cat on "):
        prompted = model.with_prompt(prompt, "query")
        np.testing.assert_allclose(
            prompted.score_pairs(pictures, TEXTS),
            theirs.predict(pairs, prompt="is a cat on ", **logits),
            atol=TOLERANCE,
        )
        assert prompted.fingerprint() != model.fingerprint()


def test_rerankers_distinguish_pairs_whose_sigmoids_are_equal(reranker, pictures):
    model = load_adapted(f"cross_encoder:{reranker}")
    with torch.no_grad():
        for name, parameter in model.module.named_parameters():
            if name.endswith("lm_head.weight"):
                parameter.mul_(-300)
    pairs = list(zip(TEXTS, pictures, strict=True))
    assert len(set(model.module.predict(pairs).tolist())) == 1
    places = np.arange(len(TEXTS))
    scores = ForeignModel(model).score(pictures, TEXTS, (places, places), lambda count: None)
    logits = model.module.predict(pairs, activation_fn=torch.nn.Identity())
    assert len(set(scores.tolist())) == len(TEXTS) and (np.argsort(scores) == np.argsort(logits)).all()
