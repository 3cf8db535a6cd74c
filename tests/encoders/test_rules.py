"""Check the settings of source libraries in `rococo inspect`: the value, and the file and key that contains it."""

import json

import pytest

from rococo_jax.checkpoints import save_model
from rococo_jax.encoders.inspection import library_settings
from tests.support.models import change_json, encoder_of, read_model, read_towers
from tests.support.open_clip_files import open_clip_folder
from tests.support.openai_files import openai_file
from tests.support.reference_models import bert, clip, saved, transformers
from tests.support.tiny import tiny_spec

pytestmark = pytest.mark.quick
IMAGES = {"image activation", "image heads", "image pooling", "image size"}
PIXELS = {"resize", "crop", "interpolation", "rescale factor", "mean", "std", "colours"}
TEXTS = {"text activation", "text heads", "text pooling"}
TOKENS = {"cleaning", "lower case", "text length", "padding id", "end id", "start id"}


def write(folder, name, values):
    (folder / name).write_text(json.dumps(values))


def rule(value, place):
    return {"value": value, "from": place}


def save_tokenizer(folder, kind, words, **settings):
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = getattr(transformers, kind)(vocab=vocabulary, **settings)
    tokenizer.save_pretrained(folder)
    return tokenizer


def test_settings_of_a_transformers_folder_name_their_file_and_key(tmp_path):
    text = {"max_position_embeddings": 30, "eos_token_id": 2, "hidden_act": "gelu"}
    folder = saved(clip(text=text), tmp_path / "clip")
    words = ["a</w>", "<|startoftext|>", "<|endoftext|>"]
    tokenizer = save_tokenizer(folder, "CLIPTokenizer", words, merges=[], model_max_length=20)
    crop = {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 40}, "crop_size": 30, "resample": 2}
    write(folder, "preprocessor_config.json", crop)
    encoder = read_model(folder)
    rules = library_settings(encoder)
    assert rules.keys() == IMAGES | PIXELS | TEXTS | TOKENS
    expected = {
        "text activation": ("gelu", "config.json: text_config.hidden_act"),
        "image heads": (3, "config.json: vision_config.num_attention_heads"),
        "text pooling": ("highest_id", "config.json: text_config.eos_token_id"),
        "image size": (30, "preprocessor_config.json: crop_size"),
        "resize": ("shortest edge to 40", "preprocessor_config.json: size"),
        "interpolation": ("bilinear", "preprocessor_config.json: resample"),
        "mean": (pytest.approx([0.4815, 0.4578, 0.4082], abs=1e-4), "the library's default"),
        "text length": (20, "tokenizer_config.json: model_max_length"),
        "lower case": (True, "tokenizer.json"),
        "end id": (tokenizer.eos_token_id, "tokenizer_config.json: eos_token"),
        "start id": (tokenizer.bos_token_id, "tokenizer.json"),
    }
    assert {rule: (rules[rule]["value"], rules[rule]["from"]) for rule in expected} == expected
    assert "white" in rules["colours"]["value"]
    # A model directory keeps all of it, and a size that is asked for is said to be so.
    save_model(tmp_path / "ours", encoder)
    assert library_settings(read_model(tmp_path / "ours")) == rules
    larger = library_settings(read_model(tmp_path / "ours", image_size=50))
    assert larger["image size"] == rule(50, "the argument image_size")
    assert larger["positions"] == rule("3 x 3, interpolated: bicubic", "the library's rule")


def test_settings_of_sentence_transformers_and_a_requested_pooling_are_listed(tmp_path):
    folder = saved(bert(), tmp_path / "bert")
    save_tokenizer(folder, "BertTokenizer", ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"], do_lower_case=False)
    change_json(folder / "config.json", lambda config: config.update(eos_token_id=2))
    rules = library_settings(read_model(folder))
    assert rules["lower case"] == rule(False, "tokenizer_config.json: do_lower_case")
    assert rules["text pooling"] == rule("cls", "the library's default")
    write(folder, "sentence_bert_config.json", {"max_seq_length": 7, "do_lower_case": True})
    (folder / "1_Pooling").mkdir()
    write(folder / "1_Pooling", "config.json", {"pooling_mode_mean_tokens": True})
    rules = library_settings(read_model(folder))
    assert rules["text length"] == rule(7, "sentence_bert_config.json: max_seq_length")
    assert rules["lower case"] == rule(True, "sentence_bert_config.json: do_lower_case")
    assert rules["text pooling"] == rule("mean", "1_Pooling/config.json")
    assert library_settings(read_model(folder, pooling="cls"))["text pooling"] == rule("cls", "the argument pooling")


def test_settings_of_open_clip_folders_and_openai_files_name_their_source(tmp_path):
    def change(config, tensors):
        config["preprocess_cfg"] = {"interpolation": "bilinear", "resize_mode": "squash", "mean": [0.5, 0.5, 0.5]}

    rules = library_settings(
        read_towers(open_clip_folder("vit_gelu", tmp_path / "CLIP-ViT-B-32-laion2B-s34B-b79K", change))
    )
    assert rules.keys() == IMAGES | PIXELS | TEXTS
    assert rules["text activation"] == rule(
        "gelu", "'CLIP-ViT-B-32-laion2B-s34B-b79K' in open_clip's table of published models"
    )
    assert rules["resize"] == rule("resized to 32 x 32", "open_clip_config.json: preprocess_cfg.resize_mode")
    assert rules["std"]["from"] == "open_clip's default"
    assert "dropped" in rules["colours"]["value"]
    rules = library_settings(read_towers(openai_file("vit_quick_gelu", tmp_path / "m.pt", "state_dict")))
    assert rules.keys() == IMAGES | PIXELS | TEXTS and "model.json" not in {each["from"] for each in rules.values()}
    assert rules["image heads"] == rule(2, "64 wide, OpenAI's archive")
    assert rules["crop"] == rule("centre 32 x 32, after it", "OpenAI's code and the shapes of the tensors")


def test_settings_that_few_towers_have_are_listed(tmp_path):
    rules = library_settings(read_towers(open_clip_folder("eva02", tmp_path / "eva02")))
    rotary = {"grid": 16, "from_one": False, "columns_first": False}
    assert rules["image rotary"] == rule(rotary, "the tower's kind")
    assert rules["image inner_norms"]["value"] is True


def test_a_trained_model_keeps_the_sources_of_its_settings():
    encoder = encoder_of(tiny_spec())
    assert library_settings(encoder)["image heads"]["from"] == "model.json"
    encoder.provenance |= {"trained": {}, "started_from": {"read_from": {"image heads": "config.json: heads"}}}
    assert library_settings(encoder)["image heads"]["from"] == "config.json: heads"
