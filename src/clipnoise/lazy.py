"""Libraries that take long to import, loaded when they are first used.

A module that must be quick to import, such as a plug-in, takes them from here and imports the real
ones for type checkers only.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any


class LazyModule(ModuleType):
    """Stands for a module until one of its attributes is used, which imports it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self.__name__), name)


np = LazyModule("numpy")
torch = LazyModule("torch")
nn = LazyModule("torch.nn")
requests = LazyModule("requests")
urllib3 = LazyModule("urllib3")
