"""A GPU where there is none.

Its tensors are kept on the CPU and say "cuda". Code that mixes devices fails as on a real one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor
from torch._C import _ensureCUDADeviceGuardSet, _only_lift_cpu_tensors, _set_only_lift_cpu_tensors  # type: ignore[attr-defined]
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

GPU = torch.device("cuda", 0)
BETWEEN = {"aten::_to_copy", "aten::copy_"}  # take tensors of both devices
# A model's, which is not left on the CPU by mistake
PRODUCTS = {"aten::addmm", "aten::mm", "aten::bmm", "aten::convolution"}
# May have their indices on the CPU
INDICES = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}


class OnGPU(Tensor):
    """A tensor on the pretended GPU.

    To torch it lies on "meta", which no kernel computes on and the CPU never mixes with by itself.
    """

    kept: Tensor

    @staticmethod
    def __new__(cls, kept: Tensor) -> "OnGPU":
        size, stride, offset = kept.size(), kept.stride(), kept.storage_offset()
        return torch.Tensor._make_wrapper_subclass(
            cls,
            size,
            strides=stride,
            storage_offset=offset,
            dtype=kept.dtype,
            device=torch.device("meta"),
        )

    def __init__(self, kept: Tensor) -> None:
        self.kept = kept

    device = property(lambda self: GPU)  # type: ignore[assignment]
    is_cuda = property(lambda self: True)  # type: ignore[assignment]
    is_cpu = property(lambda self: False)  # type: ignore[assignment]
    is_meta = property(lambda self: False)  # type: ignore[assignment]

    def tolist(self) -> Any:
        """As a tensor on a GPU can."""
        return self.kept.tolist()

    def __repr__(self) -> str:  # type: ignore[override]
        return f"OnGPU({self.kept!r})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.kept.__reduce_ex__(protocol)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return execute(func, args, kwargs or {})


def execute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """What an operation gives, on the device it says or its tensors lie on.

    Raises RuntimeError: they lie on both.
    """
    name = func._schema.name
    given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    here = [leaf for leaf in given if not isinstance(leaf, OnGPU)]
    there = len(here) < len(given)
    if there and name not in BETWEEN:
        if name in INDICES:
            here = [leaf for leaf in (args[0], *args[2:3]) if not isinstance(leaf, OnGPU)]
        if any(leaf.ndim for leaf in here):
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found cuda:0 and cpu: {name}"
            )
    if not there and name in PRODUCTS:
        raise RuntimeError(f"{name} is computed on the CPU")
    if kwargs.get("device") is not None:
        # torch itself copies "meta" from its tensors
        there = torch.device(kwargs["device"]).type != "cpu"
        kwargs = kwargs | {"device": torch.device("cpu")}
        if "pin_memory" in kwargs:
            kwargs["pin_memory"] = False
    args_, kwargs_ = tree_map_only(OnGPU, lambda tensor: tensor.kept, (args, kwargs))
    out = func(*args_, **kwargs_)
    if name == "aten::copy_":
        return args[0]
    if not there or name == "aten::_local_scalar_dense":
        return out
    same = {
        id(leaf.kept): leaf for leaf in given if isinstance(leaf, OnGPU)
    }  # of operations in place
    return tree_map_only(
        Tensor, lambda tensor: same[id(tensor)] if id(tensor) in same else OnGPU(tensor), out
    )


class Creation(TorchDispatchMode):
    """Sees also operations that have no tensors yet."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return execute(func, args, kwargs or {})


@contextmanager
def pretended_gpu(there_is_one: bool = True) -> Iterator[None]:
    """Within it, this machine has one GPU."""
    if not there_is_one:
        yield
        return
    load = torch.load

    def onto(path: Any, map_location: Any = None, **options: Any) -> Any:
        found = load(path, map_location="cpu", **options)
        if map_location is None or torch.device(map_location).type != "cuda":
            return found
        return tree_map_only(Tensor, OnGPU, found)

    _ensureCUDADeviceGuardSet()
    with pytest.MonkeyPatch.context() as patch, Creation():
        found = {
            "is_available": True,
            "_lazy_init": None,
            "mem_get_info": (2**34, 2**34),
            "get_device_name": "a pretended GPU",
        }
        for name, answer in found.items():
            patch.setattr(torch.cuda, name, Mock(return_value=answer))
        patch.setattr(torch, "load", onto)
        # Tensors of inference have no version, which a wrapped one must have
        for name in ("__enter__", "__exit__"):
            patch.setattr(torch.inference_mode, name, getattr(torch.no_grad, name))
        before = (
            _only_lift_cpu_tensors(),
            torch.__future__.get_overwrite_module_params_on_conversion(),
        )
        _set_only_lift_cpu_tensors(True)  # torch.tensor(..., device="cuda") is seen
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        try:
            yield
        finally:
            _set_only_lift_cpu_tensors(before[0])
            torch.__future__.set_overwrite_module_params_on_conversion(before[1])
