"""A device that is not the CPU, in Python alone: its tensors hold tensors of the CPU.

What mixes tensors of two devices fails, as on a GPU, and what it computes are the numbers of the
CPU. It cannot show what another device computes differently, nor its memory or speed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _setup_privateuseone_for_python_backend,
)

from clipnoise import seeds
from clipnoise.core import step
from clipnoise.run import setup

NAME = "pretend"
DEVICE = f"{NAME}:0"
MOVES = {"aten::_to_copy", "aten::copy_", "aten::_copy_from", "aten::_copy_from_and_resize"}
INDEXES = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")
_tensor = torch.tensor


class Held(Tensor):
    """A tensor of the device."""

    raw: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, raw: Tensor) -> Held:
        made: Held = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            raw.size(),
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device=torch.device(DEVICE),
        )
        made.raw = raw
        return made

    def __repr__(self, **_: object) -> str:  # type: ignore[override]
        return f"Held({self.raw})"

    def tolist(self) -> Any:
        return self.raw.tolist()

    @property
    def data(self) -> Tensor:  # type: ignore[override]
        held: Tensor = Tensor.data.__get__(self)  # type: ignore[attr-defined]
        return held

    @data.setter
    def data(self, value: Tensor) -> None:
        self.raw = _raw(value)
        Tensor.data.__set__(self, value)  # type: ignore[attr-defined]

    def new_tensor(self, data: Any, *, dtype: Any = None, **_: Any) -> Tensor:  # type: ignore[override]
        return Held(_tensor(data, dtype=dtype or self.dtype))

    def __getitem__(self, index: Any) -> Tensor:
        """Take a list as indices, which PyTorch would put onto the device in a way of its own."""
        chosen: Tensor = super().__getitem__(_tensor(index) if isinstance(index, list) else index)
        return chosen

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return carry_out(func, args, kwargs or {})


def carry_out(func: Any, args: Any, kwargs: Any) -> Any:
    """Carry an operation out on the CPU, for tensors of one device."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    ours, name = any(isinstance(one, Held) for one in tensors), func._schema.name
    if ours and name not in MOVES:
        _require_one_device(name, args, tensors)
    target = kwargs.get("device")
    if target is not None:
        target = torch.device(target)
        kwargs = {**kwargs, "device": torch.device("cpu")}
    held = ours if target is None else target.type == NAME
    if name in ("aten::copy_", "aten::_copy_from"):
        into, source = args[:2] if name == "aten::copy_" else (args[1], args[0])
        _raw(into).copy_(_raw(source))
        return into
    out = func(*tree_map_only(Held, _raw, args), **tree_map_only(Held, _raw, kwargs))
    if func._schema.is_mutable and isinstance(out, Tensor) and isinstance(args[0], Held):
        return args[0]
    return tree_map(lambda one: Held(one) if held and type(one) is Tensor else one, out)


def _raw(tensor: Tensor) -> Tensor:
    return tensor.raw if isinstance(tensor, Held) else tensor


def _require_one_device(name: str, args: Any, tensors: list[Tensor]) -> None:
    """Refuse tensors of two devices; numbers may be on the CPU, and so may indices."""
    for one in tensors:
        if not isinstance(one, Held) and one.dim() > 0 and name not in INDEXES:
            raise RuntimeError(f"{name}: tensors on two devices")
    if name in INDEXES and not isinstance(args[0], Held):
        raise RuntimeError(f"{name}: indices on the device for a tensor elsewhere")


class _Module(_DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


@cache
def _registered() -> Any:
    _setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
    library = torch.library.Library("_", "IMPL")
    library.fallback(lambda func, *args, **kwargs: carry_out(func, args, kwargs), "PrivateUse1")
    return library


@contextmanager
def pretend_device() -> Iterator[str]:
    """Let there be such a device, whose random numbers are those of the CPU; yield its name."""
    _registered()

    def tensor(data: Any, *, device: Any = None, **more: Any) -> Tensor:
        made = _tensor(data, **more)
        return made if device is None else made.to(device)

    def generator(purpose: Any, seed: int, device: str = "cpu") -> torch.Generator:
        return seeds.generator(purpose, seed)

    def kind(value: object) -> type:
        """Return the type of a value; a tensor of a real device has no class of its own."""
        return Tensor if type(value) is Held else type(value)

    with (
        patch.object(torch, "tensor", tensor),
        patch.object(setup, "generator", generator),
        patch.object(step, "type", kind, create=True),
    ):
        yield DEVICE
