"""Config files that come with the project: found by name, installed with the package, and refused with a hint."""

import configparser

import pytest

from rococo_jax.config_files import config_folder, config_names, find_config
from rococo_jax.errors import InputError
from rococo_jax.training.config import default_config, read_config
from tests.support.paths import CHECKOUT


def test_a_config_is_found_by_name_and_by_path():
    path = CHECKOUT / "configs" / "scenes_tiny.py"
    assert find_config("scenes_tiny") == find_config(path) == path
    assert find_config("ablations/batch_size") == CHECKOUT / "configs" / "ablations" / "batch_size.py"
    assert read_config("scenes_tiny", ["config.steps=7"]).steps == 7


def test_a_file_in_the_current_folder_takes_precedence_over_a_shipped_config(tmp_path, monkeypatch):
    (tmp_path / "scenes_tiny").write_text("")
    monkeypatch.chdir(tmp_path)
    assert find_config("scenes_tiny").absolute() == tmp_path / "scenes_tiny"


def test_an_unknown_config_is_refused_with_the_nearest_name():
    with pytest.raises(InputError, match=r"found nothing there; wanted .* web_unmasked; did you mean scenes_tiny\?"):
        find_config("scenes_tinny.py")


def test_every_config_is_installed_with_the_package():
    setup = configparser.ConfigParser()
    setup.read(CHECKOUT / "setup.cfg")
    modules = setup["options"]["py_modules"].split()
    assert config_folder() == CHECKOUT / "configs"
    assert sorted(modules) == sorted(f"rococo_jax.configs.{name.replace('/', '.')}" for name in config_names())


def test_an_unknown_key_is_refused_with_its_line_and_the_nearest_key(tmp_path):
    lines = ["from rococo_jax.training.config import default_config", "", "def get_config():"]
    lines += ["    config = default_config()", "    config.losses.sc.weigth = 1.0", "    return config"]
    path = tmp_path / "config.py"
    path.write_text("\n".join(lines))
    with pytest.raises(
        InputError, match=r"found 'weigth' \(line 5\); wanted a key of the config; did you mean 'weight'"
    ):
        read_config(path)


def test_the_default_config_accepts_new_keys_only_in_the_spec_of_new_towers():
    config = default_config()
    with pytest.raises(AttributeError, match='Did you mean "steps"'):
        config.stepz = 5
    config.init.spec = {"vision": {"width": 8}}
    config.init.spec.vision.layers = 2
    config.init.preprocessing.mean = [0.5, 0.5, 0.5]
    assert config.init.spec.vision.layers == 2
