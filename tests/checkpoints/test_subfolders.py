"""Old sentence-transformers folders, whose model lies in a subfolder, and classes of `transformers` for other tasks."""

import json
import shutil

import pytest

from rococo_jax.checkpoints.families import FAMILIES
from rococo_jax.encoders import load_model
from tests.support import reference_models as hf
from tests.support.models import assert_same_model, read_model
from tests.support.reference_models import transformers
from tests.support.refusals import refused

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def modules_of(*modules):
    return json.dumps([
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (kind, path) in enumerate(modules)
    ])  # fmt: skip


@pytest.fixture(scope="module")
def clip_folder(tmp_path_factory):
    """Write the layout of the first `clip-ViT-B-32`: weights of torch, all files of the model in `0_CLIPModel`."""
    folder = tmp_path_factory.mktemp("clip")
    inner = hf.saved(hf.clip(), folder / "0_CLIPModel")
    hf.torch.save(hf.safetensors_torch.load_file(inner / "model.safetensors"), inner / "pytorch_model.bin")
    (inner / "model.safetensors").unlink()
    processor = {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 30}, "crop_size": 30}
    (inner / "preprocessor_config.json").write_text(json.dumps({**processor, "image_mean": [0.5, 0.4, 0.3]}))
    (folder / "modules.json").write_text(modules_of(("CLIPModel", "0_CLIPModel")))
    return folder


def test_the_model_of_the_subfolder_is_read(clip_folder):
    model = read_model(clip_folder)
    assert_same_model(model, read_model(clip_folder / "0_CLIPModel"))
    assert model.preprocessing.mean == (0.5, 0.4, 0.3) and model.spec.text is not None


def test_a_repository_with_subfolders_is_read_from_the_hub(clip_folder, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    snapshot = tmp_path / "models--o--n" / "snapshots" / COMMIT
    shutil.copytree(clip_folder, snapshot)
    model = read_model(f"o/n@{COMMIT}")
    assert_same_model(model, read_model(clip_folder))
    assert model.provenance["commit"] == COMMIT
    (snapshot / "0_CLIPModel/pytorch_model.bin").unlink()
    refused("no 0_CLIPModel/model.*in the cache, and the hub answers", read_model, f"o/n@{COMMIT}")


def test_a_text_model_of_a_subfolder_is_pooled_as_its_folder_specifies(tmp_path):
    hf.saved(hf.bert(), tmp_path / "0_Transformer")
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling/config.json").write_text(
        '{"pooling_mode_mean_tokens": true, "pooling_mode_cls_token": false}'
    )
    (tmp_path / "modules.json").write_text(modules_of(("Transformer", "0_Transformer"), ("Pooling", "1_Pooling")))
    model = read_model(tmp_path)
    assert model.spec.text.pooling == "mean"
    assert model.provenance["read_from"]["text pooling"] == "1_Pooling/config.json"
    # As the same files in the layout of newer releases.
    flat = tmp_path / "flat"
    shutil.copytree(tmp_path / "0_Transformer", flat)
    shutil.copytree(tmp_path / "1_Pooling", flat / "1_Pooling")
    (flat / "modules.json").write_text(modules_of(("Transformer", ""), ("Pooling", "1_Pooling")))
    assert_same_model(model, read_model(flat))


@pytest.mark.parametrize(
    ("modules", "said"),
    [
        ('[{"type": "sentence_transformers.models.WordEmbeddings", "path": "0_WordEmbeddings"}]', "first module"),
        (modules_of(("CLIPModel", "../other")), "path of the first module: found '../other'"),
        (modules_of(("CLIPModel", "/tmp")), "path of the first module: found '/tmp'"),
        (modules_of(("CLIPModel", "0_CLIPModel"), ("Dense", "1_Dense")), "Dense after CLIPModel"),
        ("{}", "modules: found dict"),
        ("[", "JSON"),
    ],
)
def test_unsupported_modules_are_refused(modules, said, clip_folder, tmp_path):
    shutil.copytree(clip_folder, tmp_path / "folder")
    (tmp_path / "folder/modules.json").write_text(modules)
    refused(f"modules.json: .*{said}", read_model, tmp_path / "folder")


def test_a_dense_module_after_a_clip_is_refused_in_the_newer_layout(clip_folder, tmp_path):
    shutil.copytree(clip_folder / "0_CLIPModel", tmp_path / "folder")
    (tmp_path / "folder/modules.json").write_text(modules_of(("CLIPModel", ""), ("Normalize", "1_Normalize")))
    read_model(tmp_path / "folder")
    (tmp_path / "folder/modules.json").write_text(modules_of(("CLIPModel", ""), ("Dense", "1_Dense")))
    refused("modules.json: modules: found Dense after CLIPModel", read_model, tmp_path / "folder")


@pytest.mark.parametrize(("config", "kind"), [("CLIPConfig", "CLIP"), ("SiglipConfig", "Siglip")])
def test_the_error_for_a_model_of_another_task_names_its_class(config, kind, tmp_path):
    config = getattr(transformers, config)(vision_config=hf.VISION, text_config={**hf.TEXT, "projection_size": 24})
    model = getattr(transformers, f"{kind}ForImageClassification")(config)
    found = f"architectures: found {kind}ForImageClassification, not the towers of a {kind.lower()} alone: .*missing"
    refused(f"config.json: {found}.*transformers:NAME", load_model, hf.saved(model, tmp_path / "classifier"))


@pytest.mark.parametrize("kind", ["altclip", "chinese_clip", "clipseg", "groupvit", "x_clip"])
def test_the_error_for_an_unsupported_type_names_its_class_and_an_alternative(kind, tmp_path):
    config = {"model_type": kind, "architectures": ["TheModel"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    said = rf"model_type: found '{kind}' \(TheModel\); wanted one of {', '.join(FAMILIES)}; transformers:NAME runs"
    refused(said, load_model, tmp_path)
