"""Libraries that take long to import, loaded when they are first used.

A module that must be quick to import, such as a plug-in, takes them from here. Type checkers see
the real ones.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__all__ = ["Tensor", "nn", "np", "requests", "torch", "urllib3"]


class LazyModule(ModuleType):
    """Stands for a module until one of its attributes is used, which imports it."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(import_module(self.__name__), name)
        setattr(self, name, value)  # from now on no slower than in the module itself
        return value


if TYPE_CHECKING:
    import numpy as np
    import requests
    import torch
    import urllib3
    from torch import Tensor, nn
else:
    np, requests = LazyModule("numpy"), LazyModule("requests")
    torch, nn = LazyModule("torch"), LazyModule("torch.nn")
    urllib3 = LazyModule("urllib3")
    Tensor = Any  # for annotations only
