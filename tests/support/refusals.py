"""Bad input is refused by a function; the fixture `refusal` (tests/conftest.py) is for commands."""

from collections.abc import Callable

import pytest

from rococo_jax.errors import InputError


def refused(message: str, function: Callable, *arguments, **options) -> None:
    """Call a function, which raises an `InputError` of one line that matches `message`, a regular expression."""
    assert message
    with pytest.raises(InputError, match=message) as error:
        function(*arguments, **options)
    assert "\n" not in str(error.value)
