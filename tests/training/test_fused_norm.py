"""Training with `kernels="fused"`: a step is that of the compiler's norms, and what is refused."""

import functools
from unittest.mock import Mock

import jax
import numpy as np
import pytest

from rococo_jax.cli.main import main
from rococo_jax.errors import InputError
from rococo_jax.models.fused_norm import FusedNorm
from rococo_jax.training import step as step_module
from rococo_jax.training.config import check_config
from rococo_jax.training.run import train
from rococo_jax.training.step import check_kernels, lower_step
from tests.support.tiny import tiny_encoder, tiny_spec
from tests.support.tiny_runs import changed, mesh_of, metrics_of, tiny_config, write_config_file, write_random_material

PAIRS = 8


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_random_material(tmp_path_factory.mktemp("data"), PAIRS)


@pytest.fixture(scope="module")
def config(data):
    return tiny_config(
        data, steps=1, batch_size=PAIRS, dtype="bfloat16", kernels="fused", remat="full", data__workers=0,
        data__text_padding="whole", optimizer__schedule="constant",
    )  # fmt: skip


@pytest.fixture
def interpreted(monkeypatch):
    monkeypatch.setattr(step_module, "check_kernels", lambda device: None)
    monkeypatch.setattr(step_module, "FusedNorm", functools.partial(FusedNorm, interpret=True))


@pytest.mark.parametrize("devices", [2, *(pytest.param(count, marks=pytest.mark.thorough) for count in (1, 8))])
def test_a_step_is_that_of_the_compiler(config, tmp_path, interpreted, devices):
    logs = []
    for kernels in ("fused", "xla"):
        train(changed(config, kernels=kernels), tmp_path / kernels, mesh=mesh_of(devices))
        logs.append(metrics_of(tmp_path / kernels))
    for fused, plain in zip(*logs, strict=True):
        np.testing.assert_allclose(fused["loss"], plain["loss"], rtol=2e-3)
        np.testing.assert_allclose(fused["gradient_norm"], plain["gradient_norm"], rtol=2e-2)


def test_a_config_in_float32_is_refused(config):
    with pytest.raises(InputError, match=r"config\.kernels: found 'fused'; wanted 'xla', or config\.dtype 'bfloat16'"):
        check_config(changed(config, dtype="float32"))


def device(kind: str, platform: str, **capability: str) -> Mock:
    return Mock(spec=jax.Device, device_kind=kind, platform=platform, **capability)


def test_chips_that_run_them():
    check_kernels(device("NVIDIA H100 80GB HBM3", "gpu", compute_capability="9.0"))
    for chip in (
        device("NVIDIA T4", "gpu", compute_capability="7.5"),
        device("AMD Instinct MI300X", "gpu", compute_capability="gfx942"),
        device("TPU v5p", "tpu"),
    ):
        with pytest.raises(InputError, match=f"config.kernels: found 'fused' on {chip.device_kind}; wanted 'xla'"):
            check_kernels(chip)


def test_a_cpu_is_one_line(data, tmp_path, capsys):
    path = write_config_file(data, steps=1, batch_size=PAIRS, dtype="bfloat16") / "config.py"
    arguments = ["train", "--config", str(path), "--workdir", str(tmp_path / "run"), "--config.kernels=fused"]
    assert main(arguments) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "rococo: config: config.kernels: found 'fused' on cpu; wanted 'xla', or one of NVIDIA's GPUs from the A100 on"
    )
    assert not (tmp_path / "run").exists()


def test_towers_without_such_norms_are_refused(config, monkeypatch):
    monkeypatch.setattr(step_module, "check_kernels", lambda device: None)
    monkeypatch.setattr(step_module, "use_fused_norms", lambda model, kernel: False)
    with pytest.raises(InputError, match=r"config\.kernels: found 'fused'; wanted 'xla', or a tower whose blocks norm"):
        lower_step(config, tiny_spec(), tiny_encoder().preprocessing, mesh_of(1), 24)
