"""Packages that can be called like the one function they are named for.

`ludus.curation` and `ludus.evaluation` are packages. Python sets them as attributes of `ludus` when
they are imported, so functions of the same names would be shadowed from then on. Calling the
package calls its function instead.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class StageModule(ModuleType):
    """A module that passes calls on to its function of the same name."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        function = vars(self)[self.__name__.rpartition(".")[2]]
        return function(*args, **kwargs)


def make_callable(name: str) -> None:
    """Make the module of that name callable. To be called at its end, with its `__name__`."""
    sys.modules[name].__class__ = StageModule
