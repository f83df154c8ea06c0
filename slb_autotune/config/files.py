"""Files: read strictly and safely, and written so that none is ever seen half-written."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path
from typing import Any

import yaml

from slb_autotune.errors import ConfigError


class _Loader(yaml.SafeLoader):
    """YAML as people write it: 1e-3 is a number, and a key may not stand twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: list[Any] = []
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} stands twice", key_node.start_mark
                )
            seen.append(key)
        return super().construct_mapping(node, deep=deep)


class YamlDumper(yaml.SafeDumper):
    """Quotes the texts that `_Loader` would read as numbers."""


for _kind in (_Loader, YamlDumper):
    _kind.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"),
        list("-+.0123456789"),
    )


def parse_yaml(text: str, source: str) -> dict[str, Any]:
    """A mapping from YAML text, read safely."""
    try:
        values = yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        raise ConfigError(f"{source} is not YAML: {' '.join(str(error).split())}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(
            f"{source} must be a mapping of fields; got a {type(values).__name__}",
            "write one `field: value` a line.",
        )
    return values


def read_text(path: Path) -> str:
    """The text of a file that a user named."""
    try:
        return path.read_text()
    except FileNotFoundError:
        raise ConfigError(f"there is no file {path}", "check the path.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None


def write_atomically(path: Path, content: bytes | memoryview) -> None:
    """Write a file so that it is never seen half-written."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
