"""Test what errors tell users to do."""

import configparser
import re
from pathlib import Path

import pytest

from rococo_jax.errors import as_input_error, missing_library

PACKAGE = Path(__file__).parents[1]


def test_no_message_recommends_installing_this_package_from_an_index():
    """Whoever registers this project's name on an index could run code on the machine of everybody who follows it."""
    commands = re.compile(r"pip install [^\n]*rococo[-_]jax(?! @)")
    for path in (PACKAGE / "rococo_jax").rglob("*.py"):
        assert not commands.search(path.read_text()), path


@pytest.mark.parametrize("extra", ["wandb", "pandas", "datasets", "tfds", "open-clip", "transformers", "mteb"])
def test_the_message_for_a_missing_library_lists_all_requirements_of_its_extra(extra):
    settings = configparser.ConfigParser()
    settings.read(PACKAGE / "setup.cfg")
    requirements = settings["options.extras_require"][extra].split()
    message = str(missing_library("source", "library", "module", extra))
    command = message.partition("pip install ")[2].replace("'", "")
    assert "source: library: found no module installed; wanted" in message
    assert sorted(command.split()) == sorted(requirements)


@pytest.mark.parametrize("order", ["{spec}{code}", "{code}{spec}", "{code}"])
def test_the_file_of_a_full_disk_is_found_in_every_form_of_the_message_of_tensorstore(order):
    """The order of the properties at the end differs by process."""
    code = " [os_error_code='27']"
    spec = r""" [tensorstore_spec='{\"path\":\"/b/\",\"store_data_equal_to_fill_value\":true}']"""
    text = 'OUT_OF_RANGE: Error writing "a" in OCDBT database at local file "/b/": Failed writing: "/b/d/f": Too large'
    error = as_input_error(ValueError(text + order.format(spec=spec, code=code)))
    assert str(error) == "/b/d/f: file system: found File too large; wanted room for the output"
