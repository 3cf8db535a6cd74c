"""Run the commands of `docs/how-to/train-siglip.md` on a tiny SigLIP, step by step beside torch's own training."""

import json
import re
import shlex

import numpy as np
import pytest
import tokenizers
from PIL import Image

from rococo_jax.cli.main import main
from rococo_jax.data.augmentation import Augmentation
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.training.batch import training_preprocessing
from rococo_jax.training.config import default_config
from tests.support.paths import CHECKOUT
from tests.support.reference_models import saved, siglip, siglip2, torch, torch_ids, transformers
from tests.support.step_oracle import learning_rate
from tests.support.tiny_runs import changed, metrics_of
from tests.support.world import noise, write_pictures

PAIRS, STEPS, LENGTH, PEAK = 8, 10, 64, 1e-3
CONFIG = CHECKOUT / "configs" / "siglip_finetune.py"
PAGE = CHECKOUT / "docs" / "how-to" / "train-siglip.md"
SETTINGS = {"eos_token": "<eos>", "pad_token": "<pad>", "padding_side": "right"}
SMALLER = f"steps={STEPS} batch_size={PAIRS} optimizer.learning_rate={PEAK} dtype=float32 remat=none data.workers=0"


@pytest.fixture(scope="module", params=[siglip, pytest.param(siglip2, marks=pytest.mark.thorough)])
def material(request, tmp_path_factory):
    """A SigLIP, or a NaFlex SigLIP 2, with the scale and bias of `siglip-base-patch16-224`, pictures and a table of
    captions.
    """
    folder, random = tmp_path_factory.mktemp("siglip"), np.random.default_rng(0)
    torch.manual_seed(0)
    reference = request.param(text={"max_position_embeddings": LENGTH, "pad_token_id": 0, "eos_token_id": 1})
    with torch.no_grad():
        reference.logit_scale.fill_(4.7215)
        reference.logit_bias.fill_(-16.5)
    saved(reference, folder / "start")
    vocabulary = {word: number for number, word in enumerate(["<pad>", "<eos>", "<unk>", *"abcdefghijklmnop"])}
    rust = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [], unk_token="<unk>"))
    rust.post_processor = tokenizers.processors.TemplateProcessing(single="$A <eos>", special_tokens=[("<eos>", 1)])
    rust.save(str(folder / "start" / "tokenizer.json"))
    (folder / "start" / "tokenizer_config.json").write_text(json.dumps(SETTINGS))
    processor = transformers.SiglipImageProcessorPil(size={"height": 30, "width": 30})
    if request.param is siglip2:
        processor = transformers.Siglip2ImageProcessorPil(max_num_patches=9, patch_size=10)
    processor.save_pretrained(folder / "start")
    names = [f"{number}.png" for number in range(PAIRS)]
    paths = write_pictures(folder / "photos", names, lambda n, drawn: noise(3, 3)(n, drawn).resize((44 + 9 * n, 37)))
    captions = ["".join(random.choice(list("abcdefghijklmnop"), 3 + number)) for number in range(PAIRS)]
    rows = [f"{name},{caption}\n" for name, caption in zip(names, captions, strict=True)]
    (folder / "captions.csv").write_text("".join(["image,caption\n", *rows]))
    pixels = processor([Image.open(path) for path in paths], return_tensors="pt")
    rust.enable_padding(pad_id=0, length=LENGTH)
    return folder, reference, pixels, torch_ids(np.array([each.ids for each in rust.encode_batch(captions)]))


def losses_of_torch(model, pixels, ids) -> list[float]:
    """AdamW over matrices with decay and the rest without, a linear warmup and half a cosine, norms clipped at 1."""
    vectors = [each for name, each in model.named_parameters() if each.ndim < 2 or name.endswith("probe")]
    matrices = [each for name, each in model.named_parameters() if each.ndim >= 2 and not name.endswith("probe")]
    groups = [{"params": matrices, "weight_decay": 1e-4}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8)
    shape = {"warmup_fraction": 0.1, "final_lr_fraction": 0.0, "learning_rate": PEAK}
    settings, losses = {"steps": STEPS, **{f"optimizer.{key}": value for key, value in shape.items()}}, []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(settings, step)
        optimizer.zero_grad()
        loss = model(**pixels, input_ids=ids, return_loss=True).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
def test_ten_steps_of_siglip_with_a_logit_scale_of_112_match_torch(material, monkeypatch):
    folder, reference, pixels, ids = material
    monkeypatch.chdir(folder)
    commands = "".join(re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE))
    for place, stands_for in (("start", "google/siglip-base-patch16-224"), (f" {CONFIG}", " siglip_finetune")):
        assert stands_for in commands
        commands = commands.replace(stands_for, place)
    train, export = commands.replace("\\\n", "").splitlines()
    settings = [f"--config.{each}" for each in (*SMALLER.split(), "log.every=1", "log.tensorboard=false")]
    assert main([*shlex.split(train)[1:], *settings]) == main(shlex.split(export)[1:]) == 0
    lines, expected = metrics_of(folder / "runs" / "siglip"), losses_of_torch(reference, pixels, ids)
    np.testing.assert_allclose([line["loss"] for line in lines], expected, rtol=2e-5)
    assert expected[-1] < 0.9 * expected[0]
    # The scale moves freely around 112.3.
    assert lines[0]["logit_scale"] == pytest.approx(112.3, abs=0.1) and lines[-1]["logit_scale"] > 110
    exported = type(reference).from_pretrained(folder / "runs" / "siglip" / "huggingface")
    for name in ("logit_scale", "logit_bias"):
        assert getattr(exported, name).item() == pytest.approx(getattr(reference, name).item(), abs=1e-5)


NAFLEX = Preprocessing(exact_size=(30, 30), patch_size=10, max_patches=9)


def test_augmentations_are_applied_before_patches_are_cut_and_crops_keep_their_shape():
    image = noise(40, 90)(0, np.random.default_rng(0))
    augmentation = Augmentation((0.3, 1.0), (0.3, 3.0), flip=True, jitter=(0.4, 0.4, 0.4, 0.1), grayscale_prob=0.5)
    draws, grids = (np.random.default_rng(1), np.random.default_rng(1)), set()
    for _ in range(8):
        strip = augmentation.apply(image, NAFLEX, draws[0])
        rows, columns = strip[-10, :2, 1].tolist()
        # The same draws for a model that reads images of this size.
        whole = Preprocessing(exact_size=(10 * rows, 10 * columns))
        np.testing.assert_array_equal(strip, NAFLEX.packed(augmentation.apply(image, whole, draws[1])))
        grids.add((rows, columns))
    assert grids == {(2, 4), (3, 3)}


@pytest.mark.parametrize("settings", [{"losses__vc__weight": 1.0}, {"patch_dropout": 0.5}])
def test_mixed_images_and_patch_dropout_use_images_of_one_fixed_size(settings):
    assert training_preprocessing(default_config(), NAFLEX) == NAFLEX
    assert training_preprocessing(changed(default_config(), **settings), NAFLEX) == Preprocessing(exact_size=(30, 30))
