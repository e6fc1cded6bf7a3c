"""docs/trainer.md lists every key of a config with its default."""

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import yaml

from harness.trainer_processes import PROJECT
from train.core.config import Config

ROW = re.compile(r"^\| `([a-z0-9_.]+)` \| `(.*?)` \| \S.* \|$", re.MULTILINE)


def defaults(section: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        if dataclasses.is_dataclass(value):
            yield from defaults(value, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, list(value) if isinstance(value, tuple) else value


def test_every_option_is_documented_with_its_default():
    rows = ROW.findall(
        (PROJECT / "docs" / "trainer.md").read_text().partition("## Every option")[2]
    )
    assert {key: yaml.safe_load(text) for key, text in rows} == dict(defaults(Config()))
