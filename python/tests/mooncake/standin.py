"""The little of PyTorch that tensors are stored and made with, over numpy, for where PyTorch is not installed."""

from types import SimpleNamespace
from typing import Any

import numpy


class Kind:
    """A kind of element."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return f"torch.{self.name}"

    @property
    def numpy(self) -> Any:
        return numpy.dtype(self.name)


NAMES = ("float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool", "float16")
KINDS = {name: Kind(name) for name in NAMES}
globals().update(KINDS)


class Tensor:
    """An array."""

    layout = "torch.strided"
    device = SimpleNamespace(type="cpu")

    def __init__(self, array: Any) -> None:
        self.array = array
        self.shape = array.shape
        self.dtype = KINDS[array.dtype.name]

    def detach(self) -> "Tensor":
        return self

    cpu = detach

    def contiguous(self) -> "Tensor":
        return Tensor(numpy.ascontiguousarray(self.array).reshape(self.shape))

    def t(self) -> "Tensor":
        return Tensor(self.array.T)

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    def view(self, kind: Kind) -> "Tensor":
        return Tensor(self.array.view(kind.numpy))

    def reshape(self, shape: Any) -> "Tensor":
        return Tensor(self.array.reshape(shape))

    def narrow(self, dimension: int, start: int, length: int) -> "Tensor":
        return Tensor(self.array.take(range(start, start + length), dimension))

    def numpy(self) -> Any:
        return self.array


def from_numpy(array: Any) -> Tensor:
    return Tensor(array)


def frombuffer(memory: Any, *, dtype: Kind, count: int, offset: int) -> Tensor:
    return Tensor(numpy.frombuffer(memoryview(memory).cast("B"), dtype.numpy, count, offset))


def empty(shape: Any, *, dtype: Kind) -> Tensor:
    return Tensor(numpy.empty(shape, dtype.numpy))


def cat(tensors: Any, dimension: int) -> Tensor:
    return Tensor(numpy.concatenate([one.array for one in tensors], dimension))
