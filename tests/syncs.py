"""Operations for whose result the host waits on a card, counted on a CPU."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
WAITING = {
    aten._local_scalar_dense,
    aten.nonzero,
    aten.masked_select,
    aten.is_nonzero,
    aten.equal,
    aten.repeat_interleave,
    aten.unique_consecutive,
    aten._unique2,
    aten.unique_dim,
}
"""`item`, `int`, `float` and `bool` are the first; sizes of results that depend on data are the others."""
INDEXED = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_}
OUTSIDE = ("tolist", "cpu", "numpy")
"""Methods that take values to the host and pass no operator on a CPU."""


class _Watch(TorchDispatchMode):
    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet = func.overloadpacket
        named = packet is aten.repeat_interleave and (kwargs or {}).get("output_size") is not None
        if (packet in WAITING and not named) or (packet in INDEXED and any(map(_is_mask, args[1]))):
            self.found.append(f"{func} at {_where()}")
        return func(*args, **(kwargs or {}))


def _is_mask(index: Any) -> bool:
    return isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)


def _where() -> str:
    """The innermost line of this repository."""
    ours = [frame for frame in traceback.extract_stack() if "/pipeline/" in frame.filename]
    return f"{ours[-1].filename}:{ours[-1].lineno}" if ours else "?"


@contextmanager
def waiting() -> Iterator[list[str]]:
    """The operations within the block that a card would be waited for, with the line of ours that asked for each."""
    found: list[str] = []
    methods = {name: getattr(Tensor, name) for name in OUTSIDE}

    def counted(name: str) -> Any:
        def method(self: Tensor, *args: Any, **kwargs: Any) -> Any:
            found.append(f"{name} at {_where()}")
            return methods[name](self, *args, **kwargs)

        return method

    for name in OUTSIDE:
        setattr(Tensor, name, counted(name))
    try:
        with _Watch(found):
            yield found
    finally:
        for name, method in methods.items():
            setattr(Tensor, name, method)
