"""Former names of config keys and values are read everywhere, and one line on stderr names the present one."""

import json

import pytest

import rococo_jax
from rococo_jax.errors import InputError
from rococo_jax.sweep.plan import make_plan
from rococo_jax.training import config_renames
from rococo_jax.training.config import MAY_CHANGE, default_config, flat, read_config, refuse_other_config, write_config

# Former key, a value of it, present key, the same value.
RENAMED = [
    ("data.crop", 0.5, "data.random_crop_min_scale", 0.5),
    ("data.squash", 0.25, "data.resize_prob", 0.25),
    ("data.on_broken_image", "stop", "data.on_decode_error", "raise"),
    ("data.cached_altered", 6, "data.feature_pool.captions", 6),
    ("data.cached_mixed", 3, "data.feature_pool.mixed", 3),
    ("data.cached_views", 2, "data.feature_pool.views", 2),
    ("init.head_hidden", 16, "init.residual_head_width", 16),
    (
        "init.tokenizer",
        "rococo_jax.demo.make_tokenizer:make_tokenizer",
        "init.tokenizer",
        "demo:plain",
    ),
    ("losses.sc.scope", "own", "losses.sc.scope", "local"),
    ("losses.vc.scope", "batch", "losses.vc.scope", "global"),
    ("losses.vc.methods", "mix,patch", "losses.vc.methods", "mixup,cutmix"),
    ("losses.vc.methods", "patch", "losses.vc.methods", "cutmix"),
    ("losses.vc.views", "cropped,squashed", "losses.vc.views", "crop,resize"),
    ("losses.vc.group", 4, "losses.vc.partner_group", 4),
    ("optimizer.clip", 0.5, "optimizer.grad_clip_norm", 0.5),
    ("optimizer.final", 0.1, "optimizer.final_lr_fraction", 0.1),
    ("optimizer.warmup", 0.2, "optimizer.warmup_fraction", 0.2),
    ("optimizer.tower_rate", 0.3, "optimizer.tower_lr_scale", 0.3),
    ("remat", True, "remat", "full"),
    ("remat", False, "remat", "none"),
    ("similarities.route", "gather", "logits.strategy", "all_gather"),
    ("similarities.route", "ring", "logits.strategy", "ring"),
    ("similarities.tile_rows", 8, "logits.block_rows", 8),
]
PLAIN = "from rococo_jax.training.config import default_config\n\n\ndef get_config():\n    config = default_config()\n"


@pytest.fixture(autouse=True)
def nothing_told_yet():
    config_renames._tell.cache_clear()


@pytest.fixture
def plain(tmp_path):
    """A config file that sets nothing."""
    path = tmp_path / "plain.py"
    path.write_text(f"{PLAIN}    return config\n")
    return path


def test_every_rename_is_tested():
    assert {former for former, *_ in RENAMED} >= config_renames.KEYS.keys()
    assert {key for _, _, key, _ in RENAMED} >= config_renames.VALUES.keys()
    assert {*config_renames.KEYS.values(), *config_renames.VALUES} <= flat(default_config()).keys()


@pytest.mark.parametrize(("former", "value", "key", "present"), RENAMED)
def test_former_names_are_read_in_files_overrides_and_kept_configs(
    former, value, key, present, tmp_path, plain, capsys
):
    named = former if former != key else value
    (tmp_path / "file.py").write_text(f"{PLAIN}    config.{former} = {value!r}\n    return config\n")
    of_file = read_config(tmp_path / "file.py")
    assert flat(of_file)[key] == present
    assert flat(of_file).keys() == flat(default_config()).keys()
    told = capsys.readouterr().err.splitlines()
    assert sum(repr(named) in line for line in told) == 1 and all(line.startswith("rococo: config ") for line in told)
    assert repr(key) in told[0] if former != key else repr(present) in told[0]
    of_override = read_config(plain, [f"--config.{former}={value}"])
    assert flat(of_override) == flat(of_file)
    assert capsys.readouterr().err == ""  # each is told once
    kept = flat(default_config())
    del kept[key]
    (tmp_path / "config.json").write_text(json.dumps({**kept, former: value}))
    refuse_other_config(tmp_path / "config.json", of_file)
    other = flat(read_config(plain))[key]
    if other != present and not key.startswith(MAY_CHANGE):
        with pytest.raises(InputError, match=f"config.{key}"):
            refuse_other_config(tmp_path / "config.json", read_config(plain))


def test_present_names_are_silent_and_hashes_see_the_former_ones(plain, tmp_path, capsys):
    overrides = [f"config.{key}={value}" for _, _, key, value in dict((case[2], case) for case in RENAMED).values()]
    config = read_config(plain, overrides)
    write_config(tmp_path / "config.json", config)
    refuse_other_config(tmp_path / "config.json", config)
    assert capsys.readouterr().err == ""
    former = config_renames.former_leaves(flat(config))
    assert config_renames.current_leaves(former) == flat(config)
    assert {case[0]: case[1] for case in RENAMED}.items() <= former.items()


def test_a_sweep_reads_former_names_of_what_it_varies(plain, capsys):
    plans = [
        make_plan(plain, over=[f"{scope}={values}"], arms=[f"a: {group}=4"])
        for scope, values, group in (
            ("losses.sc.scope", "own,batch", "losses.vc.group"),
            ("losses.sc.scope", "local,global", "losses.vc.partner_group"),
        )
    ]
    assert [point.config for point in plans[0].points] == [point.config for point in plans[1].points]
    assert [point.run for point in plans[0].points] == ["a-sc.scope_local-0", "a-sc.scope_global-0"]
    assert "'losses.vc.partner_group'" in capsys.readouterr().err
    with pytest.raises(InputError, match="a key that the sweep does not set"):
        make_plan(plain, ["--config.optimizer.clip=1.0"], over=["optimizer.grad_clip_norm=1,2"])


def test_train_in_python_reads_former_names_and_leaves_the_config_alone(tmp_path, capsys):
    config = default_config()
    config.optimizer.clip = "high"
    with pytest.raises(InputError, match=r"optimizer\.grad_clip_norm"):
        rococo_jax.train(config, tmp_path)
    config = default_config()
    config.optimizer.clip = 0.5
    with pytest.raises(InputError, match=r"data\.images"):
        rococo_jax.train(config, tmp_path)
    assert config.optimizer.clip == 0.5 and config.optimizer.grad_clip_norm == 1.0
    assert "'optimizer.grad_clip_norm'" in capsys.readouterr().err
