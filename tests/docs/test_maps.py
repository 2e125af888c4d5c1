"""The packages that a newcomer reads by their map have each module on it, once."""

import re
from pathlib import Path

import pytest

import admission.controller
import admission.engine


@pytest.mark.parametrize("package", [admission.engine, admission.controller], ids=lambda one: one.__name__)
def test_every_module_is_on_the_map_of_its_package(package: object) -> None:
    there = sorted(path.stem for path in Path(package.__file__).parent.glob("*.py") if path.stem != "__init__")  # type: ignore[attr-defined]
    assert sorted(re.findall(r"`(\w+)`", package.__doc__ or "")) == there
