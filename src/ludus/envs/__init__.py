"""The environments that ship, each registered like a stranger's package."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence

from ludus.errors import MissingExtra


def lazy_environment(
    package: str, *names: str, extra: str, libraries: Sequence[str]
) -> Callable[[str], object]:
    """Return the `__getattr__` of a package: it imports these names of its module `environment`.

    A missing extra is then reported where the environment is used, and clients, which do not need
    it, can be imported without it.
    """

    def load_name(name: str) -> object:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if not all(map(importlib.util.find_spec, libraries)):
            raise MissingExtra.of(extra, f"The {package.rpartition('.')[2]} environment")
        return getattr(importlib.import_module(f"{package}.environment"), name)

    return load_name
