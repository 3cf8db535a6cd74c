"""Test lists of names: every name of every family and format is in a reference checkpoint, and mistakes are refused."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from rococo_jax.checkpoints.families import FAMILIES, spec_from_config
from rococo_jax.checkpoints.fields import Section, fields
from rococo_jax.checkpoints.formats.big_vision import BIG_VISION_NAMES, flattened, open_npz, spec_of_arrays
from rococo_jax.checkpoints.formats.open_clip import towers_of_open_clip
from rococo_jax.checkpoints.formats.openai_names import openai_table
from rococo_jax.checkpoints.names import KINDS, check_tensors, name_table, names
from rococo_jax.checkpoints.parameters import parameter_shapes
from rococo_jax.checkpoints.tensors import Tensors, open_safetensors
from rococo_jax.storage import read_json_object
from tests.checkpoints.test_families import big_vision_arrays, blip
from tests.support import reference_models as hf
from tests.support.open_clip_files import CASES, golden
from tests.support.openai_files import tensors_of
from tests.support.reference_models import transformers
from tests.support.refusals import refused


def metaclip2():
    config = transformers.MetaClip2Config(text_config=hf.TEXT, vision_config=hf.VISION, projection_dim=16)
    return transformers.MetaClip2Model(config)


# Models of `transformers` that together have every parameter of their family.
REFERENCES = {
    "clip": [hf.clip],
    "metaclip2": [metaclip2],
    "siglip": [hf.siglip],
    "siglip2": [hf.siglip2],
    "dinov2": [lambda: hf.dinov2(), lambda: hf.dinov2(use_swiglu_ffn=True)],
    "dinov2_with_registers": [hf.dinov2_with_registers, lambda: hf.dinov2_with_registers(use_swiglu_ffn=True)],
    "dinov3_vit": [hf.dinov3, lambda: hf.dinov3(use_gated_mlp=True, query_bias=True, value_bias=True)],
    "tipsv2": [hf.tipsv2, lambda: hf.tipsv2(vision={"use_swiglu_ffn": True, "num_register_tokens": 2})],
    "bert": [hf.bert],
    "roberta": [hf.roberta],
    "blip": [blip],
}


def family_tables(name, tmp_path):
    family = next(family for family in FAMILIES.values() if family.name == name)
    for number, make in enumerate(REFERENCES[name]):
        folder = hf.saved(make(), tmp_path / str(number))
        tensors = open_safetensors(folder / "model.safetensors")
        config = read_json_object(folder / "config.json", "config.json")
        spec = spec_from_config(config, folder / "config.json", tensors.names)
        prefixes = (p if any(n.startswith(p) for n in tensors.names) else "" for p in family.prefixes)
        yield family.table(spec, *prefixes), tensors.renamed(family.aliases)


def open_clip_tables(tmp_path):
    for case in CASES:
        record = golden(case)
        info = {name: (tuple(shape), "F32") for name, shape in record["shapes"].items()}
        tensors = Tensors(Path(case), info, lambda name: np.zeros(()))
        config = record["model_cfg"]
        _, table, _ = towers_of_open_clip(config, config, Path(case), tensors, case, "gelu", record["text_config"])
        yield table, tensors


def openai_tables(tmp_path):
    """Return the tables of OpenAI's own form, whose names are those of open_clip, and of Long-CLIP's two tables."""
    for case in ("vit_quick_gelu", "resnet_quick_gelu"):
        state = {name: tuple(tensor.shape) for name, tensor in tensors_of(case).items()}
        tensors = Tensors(
            Path(case), {name: (shape, "F32") for name, shape in state.items()}, lambda name: np.zeros(())
        )
        record = golden(case)["model_cfg"]
        spec = towers_of_open_clip(record, record, Path(case), tensors, case, "gelu", None)[0]
        yield openai_table(spec), tensors
        if case == "vit_quick_gelu":
            long_clip = {**state, "positional_embedding_res": state["positional_embedding"]}
            info = {name: (shape, "F32") for name, shape in long_clip.items()}
            yield openai_table(spec, long_clip=True), Tensors(Path(case), info, lambda name: np.zeros(()))


def big_vision_tables(tmp_path):
    np.savez(tmp_path / "siglip.npz", **big_vision_arrays(hf.siglip(), stacked=False))
    tensors = open_npz(tmp_path / "siglip.npz")
    rows = BIG_VISION_NAMES.rows(vision="img/Transformer/", text="txt/Encoder_0/")
    yield name_table(rows, parameter_shapes(spec_of_arrays(tensors, None)[0])), flattened(tensors)


TABLES = {
    **{name: lambda tmp_path, name=name: family_tables(name, tmp_path) for name in REFERENCES},
    "open_clip": open_clip_tables,
    "openai": openai_tables,
    "big_vision": big_vision_tables,
}


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """The tables of all families and formats, each with the tensors of its reference checkpoint."""
    return {name: list(tables_of(tmp_path_factory.mktemp(name))) for name, tables_of in TABLES.items()}


@pytest.mark.parametrize("name", TABLES)
def test_every_name_is_in_a_reference_checkpoint(name, tables):
    """Theirs: the source library gives exactly these tensors. Ours: every name is a parameter of some model."""
    parameters = {row.ours for family in tables.values() for table, _ in family for row in table.rows}
    for table, tensors in tables[name]:
        check_tensors(tensors, table)
        assert not {row.ours for row in table.unused} - parameters


def test_every_family_has_a_reference():
    assert {family.name for family in FAMILIES.values()} == REFERENCES.keys()


def test_lines_of_absent_parameters_are_ignored_and_later_lines_replace_earlier_ones():
    listed = names("text.norm {text}norm norm\nlogit_scale scale") + names("text.norm {text}other norm")
    rows = {row.ours: row.theirs for row in listed.rows(text="t.")}
    assert rows == {
        "text.norm.scale": ("t.other.weight",), "text.norm.bias": ("t.other.bias",), "logit_scale": ("scale",),
    }  # fmt: skip
    table = name_table(listed.rows(), {"logit_scale": ()})
    assert [row.ours for row in table.rows] == ["logit_scale"] and len(table.unused) == 2


def test_a_line_with_a_placeholder_applies_to_both_towers_or_to_the_named_one():
    listed = names("{tower}.blocks.block.mlp.up {prefix}{layer}.{gate,up} kernel\nvision_head.kernel proj")
    rows = {row.ours: row.theirs for row in listed.rows(vision="v.", text="t.")}
    assert rows["vision.blocks.block.mlp.up"] == ("v.{layer}.gate", "v.{layer}.up")
    assert rows["text.blocks.block.mlp.up"] == ("t.{layer}.gate", "t.{layer}.up")
    assert {row.ours for row in listed.rows(vision=None)} == {"text.blocks.block.mlp.up"}


@pytest.mark.parametrize("text", ["text.norm norm nrom", "text.norm", "text.norm a\ntext.norm b", "a b norm more"])
def test_a_line_that_cannot_be_read_is_an_error_at_import(text):
    assert "nrom" not in KINDS
    with pytest.raises(ValueError):
        names(text)


def test_a_table_names_each_parameter_once():
    with pytest.raises(AssertionError, match=r"without a name: \['text.words'\]"):
        name_table(names("text.wrods words").rows(), {"text.words": (2, 3)})
    with pytest.raises(AssertionError, match=r"with two names: \['text.norm.scale'\]"):
        listed = names("text.norm a norm\ntext.norm.scale b")
        name_table(listed.rows(), {"text.norm.scale": (2,), "text.norm.bias": (2,)})


def test_fields_are_read_and_written_by_one_list_and_refused_by_their_key():
    listed = fields("width hidden_size whole\nbias q_bias flag\nbias v_bias flag\n- channels rgb")
    values = {"hidden_size": 8, "q_bias": True, "v_bias": True}
    assert listed.read(Section("f", "part", values, {})) == {"width": 8, "bias": True}
    written = listed.write(type("Spec", (), {"width": 8, "bias": True}))
    assert written == values
    for key, value in {"hidden_size": 0, "v_bias": False, "q_bias": 1, "channels": 4}.items():
        refused(
            f"f: part.{key if key != 'q_bias' else '(q|v)_bias'}: found",
            listed.read,
            Section("f", "part", {**values, key: value}, {}),
        )
    with pytest.raises(ValueError, match="wanted a check"):
        fields("width hidden_size whole_number")
