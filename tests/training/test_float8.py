"""Training in float8: what of the step is, what is kept and resumed, and what is refused."""

from unittest.mock import Mock

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from rococo_jax.cli.main import main
from rococo_jax.errors import InputError
from rococo_jax.models import fsdp
from rococo_jax.runtime import make_mesh
from rococo_jax.training import step as step_module
from rococo_jax.training.config import check_config
from rococo_jax.training.float8 import check_device
from rococo_jax.training.run import train
from rococo_jax.training.step import lower_step
from tests.support.tiny import tiny_encoder, tiny_spec
from tests.support.tiny_runs import (
    Stopped,
    changed,
    mesh_of,
    metrics_of,
    stop_after,
    tiny_config,
    trained_parameters,
    write_config_file,
    write_random_material,
)

PAIRS, STEPS = 8, 4
MAPS = {f"{side}.blocks.block.{name}" for side in ("vision", "text")
        for name in ("attention.qkv", "attention.out", "mlp.up", "mlp.down")}  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_random_material(tmp_path_factory.mktemp("data"), PAIRS)


@pytest.fixture(scope="module")
def config(data):
    return tiny_config(
        data, steps=STEPS, batch_size=PAIRS, dtype="bfloat16", float8=True, optimizer__warmup_fraction=0.5,
        checkpoint__every=2, data__workers=0, data__text_padding="whole",
    )  # fmt: skip


def test_a_step_has_float8_products_only_where_it_is_asked(config):
    def lowered(float8: bool, vision: str) -> str:
        changes = changed(config, float8=float8, train__vision=vision)
        return lower_step(changes, tiny_spec(), tiny_encoder().preprocessing, mesh_of(1), 24).as_text()

    text = {key: lowered(*key) for key in ((True, "all"), (True, "none"), (False, "all"))}

    def products(key: tuple[bool, str], left: str, right: str) -> int:
        lines = (line for line in text[key].splitlines() if "dot_general" in line)
        return sum(f"x{left}>" in line and f"x{right}>" in line.partition(f"x{left}>")[2] for line in lines)

    # Four maps a block, in the body of a loop over blocks; a tower that is not trained has none.
    assert products((True, "all"), "f8E4M3FN", "f8E4M3FN") == 8 == products((True, "all"), "f8E5M2", "f8E4M3FN")
    assert products((True, "none"), "f8E4M3FN", "f8E4M3FN") == 4 == products((True, "none"), "f8E5M2", "f8E4M3FN")
    assert "f8E" not in text[False, "all"]


def run_of(config, folder, mesh: Mesh):
    """The model of a run, the histories after every step, and its log."""
    histories = []
    done = train(config, folder / "run", mesh=mesh,
                 on_step=lambda _, state: histories.append(jax.device_get(state.moments[0])))  # fmt: skip
    return trained_parameters(done.model), histories, metrics_of(folder / "run")


@pytest.fixture(scope="module")
def whole(config, tmp_path_factory):
    return run_of(config, tmp_path_factory.mktemp("whole"), mesh_of(1))


def test_histories_are_of_every_map_and_change_with_the_steps(whole):
    parameters, histories, _ = whole
    assert {name.removeprefix("float8:").removesuffix(".kernel") for name in histories[0]} == MAPS
    for name, history in histories[0].items():
        assert history.shape == (2, 3, 128) and (history == 1024).sum(-1).min() == 1, name
        assert (histories[-1][name] > 0).sum() > (history > 0).sum() or (histories[-1][name] != history).any()
    assert not any("float8" in path for path in parameters), "a model has none"


def test_a_run_that_was_cut_resumes_with_its_bits(config, whole, tmp_path):
    with pytest.raises(Stopped):
        train(config, tmp_path / "run", mesh=mesh_of(1), on_step=stop_after(3))
    parameters, histories, _ = run_of(config, tmp_path, mesh_of(1))
    assert len(histories) == 2, "from step 2 on"
    for name, history in histories[-1].items():
        np.testing.assert_array_equal(history, whole[1][-1][name])
    for path, array in parameters.items():
        np.testing.assert_array_equal(array, whole[0][path])


@pytest.mark.parametrize(
    ("devices", "parts", "shards"),
    [(4, 2, 2), *(pytest.param(*each, marks=pytest.mark.thorough) for each in ((8, 1, 1), (1, 4, 1)))],
)
def test_scales_do_not_depend_on_devices_and_micro_batches(
    config, whole, tmp_path, monkeypatch, devices, parts, shards
):
    """Those after the first step; later ones see parameters that differ by rounding."""
    monkeypatch.setattr(fsdp, "LEAST_SHARDED", 64)
    mesh = make_mesh(jax.devices()[:devices], fsdp=shards)
    settings = {"steps": 1, "micro_batches": parts, "fsdp": shards, "optimizer__schedule": "constant"}
    _, histories, _ = run_of(changed(config, **settings), tmp_path, mesh)
    for name, history in histories[0].items():
        np.testing.assert_array_equal(bounds(history), bounds(whole[1][0][name]), err_msg=name)


def bounds(history: np.ndarray) -> np.ndarray:
    """The place of the largest exponent that counts; micro-batches see smaller ones beside it."""
    return np.where(history > 0, np.arange(history.shape[-1]), -1).max(-1)


def test_it_is_not_bfloat16_and_near_it(config, whole, tmp_path):
    """In the second step, whose parameters are those of the start (a warmup begins at 0) and whose scales are known."""
    _, _, plain = run_of(changed(config, float8=False), tmp_path, mesh_of(1))
    for name, near in (("loss", 0.02), ("gradient_norm", 0.1)):
        assert 0 < abs(whole[2][1][name] / plain[1][name] - 1) < near, name


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({"dtype": "float32"}, "config.float8: found True; wanted false, or config.dtype 'bfloat16'"),
        (
            {"train__vision": "last:1", "train__text": "none"},
            "config.float8: found True; wanted false, or a transformer",
        ),
    ],
)
def test_a_run_without_such_products_is_refused(config, tmp_path, changes, refused):
    with pytest.raises(InputError, match=refused):
        check_config(changed(config, **changes))
        train(changed(config, **changes), tmp_path / "run", mesh=mesh_of(1))


def device(kind: str, capability: str | None = None) -> Mock:
    platform = "tpu" if kind.startswith("TPU") else "gpu"
    return Mock(spec=jax.Device, device_kind=kind, platform=platform,
                **({} if capability is None else {"compute_capability": capability}))  # fmt: skip


def test_chips_that_multiply_float8():
    check_device(jax.devices()[0])  # a CPU emulates it
    for kind, capability in (("NVIDIA H100 80GB HBM3", "9.0"), ("NVIDIA L4", "8.9"), ("NVIDIA B200", "10.0"),
                             ("TPU7x", None)):  # fmt: skip
        check_device(device(kind, capability))
    # An MI300X has another format of the same size (e4m3fnuz).
    for kind, capability in (("NVIDIA A100-SXM4-80GB", "8.0"), ("AMD Instinct MI300X", "gfx942"), ("TPU v5p", None)):
        with pytest.raises(InputError, match=f"config.float8: found true on {kind}; wanted false, an NVIDIA GPU"):
            check_device(device(kind, capability))


def test_a_chip_without_it_is_one_line(data, tmp_path, monkeypatch, capsys):
    settings = {"steps": 1, "batch_size": PAIRS, "dtype": "bfloat16"}
    path = write_config_file(data, **settings) / "config.py"
    monkeypatch.setattr(step_module, "check_device", lambda _: check_device(device("NVIDIA A100-SXM4-80GB", "8.0")))
    arguments = ["train", "--config", str(path), "--workdir", str(tmp_path / "run"), "--config.float8=true"]
    assert main(arguments) == 2
    assert capsys.readouterr().err.splitlines()[2:] == [  # after "training in" and what is read
        "rococo: config: config.float8: found true on NVIDIA A100-SXM4-80GB; wanted false, an NVIDIA GPU from compute "
        "capability 8.9 on (as the H100), or a TPU7x; CPUs emulate it"
    ]
    assert not (tmp_path / "run").exists()
