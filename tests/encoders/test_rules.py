"""What `rococo inspect` says of each rule of a source library: its value, and the file and key that it stands at."""

import json

import jax
import pytest
import transformers

from rococo_jax.checkpoints import save_model
from rococo_jax.encoders import Encoder, load_model
from rococo_jax.encoders.inspection import rules_of
from rococo_jax.runtime import make_mesh
from tests.data.test_tokenizers import bert_folder, clip_folder, sentences  # noqa: F401
from tests.support.open_clip_files import golden, open_clip_folder
from tests.support.openai_files import openai_file
from tests.support.reference_models import bert, clip, saved
from tests.support.tiny import tiny_encoder

MESH = make_mesh(jax.devices()[:1])
pytestmark = pytest.mark.quick
IMAGES = {"image activation", "image heads", "image pooling", "image size"}
PIXELS = {"resize", "crop", "interpolation", "rescale factor", "mean", "std", "colours"}
TEXTS = {"text activation", "text heads", "text pooling"}
TOKENS = {"cleaning", "lower case", "text length", "padding id", "end id", "start id"}


def write(folder, name, values):
    (folder / name).write_text(json.dumps(values))


def test_a_folder_of_transformers_says_each_file_and_key(clip_folder, tmp_path):  # noqa: F811
    text = {"vocab_size": 1000, "max_position_embeddings": 30, "eos_token_id": 2, "hidden_act": "gelu"}
    folder = saved(clip(text=text), tmp_path / "clip")
    tokenizer = transformers.CLIPTokenizer.from_pretrained(clip_folder, model_max_length=20)
    tokenizer.save_pretrained(folder)
    crop = {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 40}, "crop_size": 30, "resample": 2}
    write(folder, "preprocessor_config.json", crop)
    encoder = load_model(folder, mesh=MESH)
    rules = rules_of(encoder)
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
    assert rules_of(load_model(tmp_path / "ours", mesh=MESH)) == rules
    larger = rules_of(load_model(tmp_path / "ours", mesh=MESH, image_size=50))
    assert larger["image size"] == {"value": 50, "from": "the argument image_size"}
    assert larger["positions"] == {"value": "3 x 3, interpolated: bicubic", "from": "the library's rule"}


def test_settings_of_sentence_transformers_and_the_pooling_by_the_caller_are_said(bert_folder, tmp_path):  # noqa: F811
    folder = saved(bert(vocab_size=900), tmp_path / "bert")
    transformers.BertTokenizer.from_pretrained(bert_folder, do_lower_case=False).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    write(folder, "config.json", {**config, "eos_token_id": 2})
    rules = rules_of(load_model(folder, mesh=MESH))
    assert rules["lower case"] == {"value": False, "from": "tokenizer_config.json: do_lower_case"}
    assert rules["text pooling"] == {"value": "cls", "from": "the library's default"}
    write(folder, "sentence_bert_config.json", {"max_seq_length": 7, "do_lower_case": True})
    (folder / "1_Pooling").mkdir()
    write(folder / "1_Pooling", "config.json", {"pooling_mode_mean_tokens": True})
    rules = rules_of(load_model(folder, mesh=MESH))
    assert rules["text length"] == {"value": 7, "from": "sentence_bert_config.json: max_seq_length"}
    assert rules["lower case"] == {"value": True, "from": "sentence_bert_config.json: do_lower_case"}
    assert rules["text pooling"] == {"value": "mean", "from": "1_Pooling/config.json"}
    rules = rules_of(load_model(folder, mesh=MESH, pooling="cls"))
    assert rules["text pooling"] == {"value": "cls", "from": "the argument pooling"}


def test_a_folder_of_open_clip_and_a_file_of_openai_say_theirs(clip_folder, tmp_path):  # noqa: F811
    def change(config, tensors):
        config["preprocess_cfg"] = {"interpolation": "bilinear", "resize_mode": "squash", "mean": [0.5, 0.5, 0.5]}

    folder = open_clip_folder(golden("vit_gelu"), tmp_path / "ViT-laion2b", change)
    rules = rules_of(load_model(folder, mesh=MESH, tokenizer="none"))
    assert rules.keys() == IMAGES | PIXELS | TEXTS
    assert rules["text activation"] == {"value": "gelu", "from": "'laion2b' in the name"}
    assert rules["resize"] == {
        "value": "squashed to 32 x 32",
        "from": "open_clip_config.json: preprocess_cfg.resize_mode",
    }
    assert rules["std"]["from"] == "open_clip's default"
    assert "dropped" in rules["colours"]["value"]
    rules = rules_of(
        load_model(openai_file("vit_quick_gelu", tmp_path / "m.pt", "state_dict"), mesh=MESH, tokenizer="none")
    )
    assert rules.keys() == IMAGES | PIXELS | TEXTS and "model.json" not in {rule["from"] for rule in rules.values()}
    assert rules["image heads"] == {"value": 2, "from": "64 wide, OpenAI's archive"}
    assert rules["crop"] == {"value": "centre 32 x 32, after it", "from": "OpenAI's code and the shapes of the tensors"}


def test_parts_that_few_towers_have_are_said(tmp_path):
    rules = rules_of(load_model(open_clip_folder(golden("eva02"), tmp_path / "eva02"), mesh=MESH, tokenizer="none"))
    rotary = {"grid": 16, "from_one": False, "columns_first": False}
    assert rules["image rotary"] == {"value": rotary, "from": "the tower's kind"}
    assert rules["image inner_norms"]["value"] is True


def test_a_trained_model_keeps_where_the_rules_of_its_start_were_read():
    start = tiny_encoder()
    provenance = {"trained": {}, "started_from": {"read_from": {"image heads": "config.json: heads"}}}
    trained = Encoder(start.model, start.preprocessing, start.tokenizer, provenance, "t", MESH)
    assert rules_of(trained)["image heads"]["from"] == "config.json: heads"
    assert rules_of(start)["image heads"]["from"] == "model.json"
