"""Names of a package that are imported when they are used.

Environments that need an extra use it: a missing extra is then reported where the environment is
used, and clients, which do not need it, can be imported without it. Worker processes start faster,
because importing a module of the package does not import the rest of it.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ludus.errors import MissingExtra


def lazy_names(
    package: str, modules: Mapping[str, str], *, extra: str, libraries: Sequence[str]
) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package, for names in these modules of it.

    Names of the module `environment` need the libraries, which are installed with the extra.
    """

    def load_name(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if modules[name] == "environment" and not all(map(importlib.util.find_spec, libraries)):
            raise MissingExtra.of(extra, f"The {package.rpartition('.')[2]} environment")
        return getattr(importlib.import_module(f"{package}.{modules[name]}"), name)

    return load_name
