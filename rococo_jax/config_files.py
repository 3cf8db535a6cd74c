"""Find the config files that come with the project by name: `scenes_tiny`, `ablations/batch_size`.

They are in the folder `configs` of a checkout, which is installed as `rococo_jax/configs`. This module needs the
standard library alone, since launchers use it where nothing is installed.
"""

import difflib
import os
from pathlib import Path

from rococo_jax.errors import InputError

_PACKAGE = Path(__file__).parent


def config_folder() -> Path:
    """Return the folder of the config files that come with the project."""
    installed = _PACKAGE / "configs"
    return installed if installed.is_dir() else _PACKAGE.parent / "configs"


def config_names() -> list[str]:
    """Return the names of the config files that come with the project, without the suffix."""
    folder = config_folder()
    return sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.py"))


def find_config(config: str | os.PathLike) -> Path:
    """Return the path of a config file, given as a path or by its name in the folder `configs`.

    Raises InputError: there is no such file, and no config of that name.
    """
    path = Path(config)
    if path.is_file():
        return path
    names = config_names()
    if str(config) in names:
        return config_folder() / f"{config}.py"
    name = path.name.removesuffix(".py")
    similar = difflib.get_close_matches(name, names, 1, cutoff=0.5)
    hint = f"; did you mean {similar[0]}?" if similar else ""
    expected = (
        f"a Python file with get_config(), or one of {', '.join(each for each in names if '/' not in each)}{hint}"
    )
    raise InputError(path, "config", "nothing there", expected)
