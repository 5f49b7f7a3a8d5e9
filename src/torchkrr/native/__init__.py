"""Loads and calls the compiled library.

The install compiles it where there is a C++ compiler, once for each instruction set. Without it, torch does the work.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from .. import _threads
from ..errors import BackendError

Backend = Literal["auto", "fused", "torch"]
FOLDER = Path(__file__).parent
# Best first; what the processor can do is torch's own finding.
INSTRUCTION_SETS = {"AVX512": ("avx512", "avx2", "baseline"), "AVX2": ("avx2", "baseline")}
NAMES = {torch.float32: "float", torch.float64: "double"}
NO_MEMORY = "the tensors are more than their memory, as inside torch.func and in forward mode"
OUT_OF_MEMORY = 1  # what a function returns then, as in fused.cpp
INTERFACE = 5  # what the fields of a task mean, as in fused.cpp
NO_TENSORS: Mapping[str, Tensor] = MappingProxyType({})
MISSING = "it was not compiled: reinstall torchkrr where a C++ compiler (g++ or clang++) is on the PATH"


class Task(ctypes.Structure):
    """`struct Task` of task.h, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("query", "centers", "values", "ridge", "indices", "starts", "order")),
        *((name, ctypes.c_void_p) for name in ("mean", "power", "weights", "adjoint", "multiples")),
        *((name, ctypes.c_void_p) for name in ("cache", "resolved")),
        *((name, ctypes.c_void_p) for name in ("grad_mean", "grad_power")),
        *((name, ctypes.c_void_p) for name in ("grad_query", "grad_centers", "grad_values", "grad_ridge")),
        *((name, ctypes.c_int64) for name in ("cells", "neighbors", "features", "outputs", "ridge_cell", "ridge_neighbor")),
        *((name, ctypes.c_int64) for name in ("threads", "profile", "trend", "path")),
        ("factor", ctypes.c_void_p),
        ("log_scales", ctypes.c_void_p),
        ("scale_step", ctypes.c_int64),
        ("shape", ctypes.c_double * 2),
        ("limits", ctypes.c_double * 5),
        ("system_limit", ctypes.c_double),
        ("least_norm", ctypes.c_double),
        ("value_scale", ctypes.c_void_p),
        ("tail", ctypes.c_int64),
        ("precision", ctypes.c_double),
        ("points", ctypes.c_int64),
    )


class SearchTask(ctypes.Structure):
    """`struct SearchTask` of search.h, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("query", "points", "squares", "exclude", "pool", "bound", "filled")),
        *((name, ctypes.c_void_p) for name in ("distances", "worst", "indices")),
        *((name, ctypes.c_int64) for name in ("queries", "block", "features", "start", "count", "capacity", "wanted")),
        ("threads", ctypes.c_int64),
        ("exact", ctypes.c_int64),
    )


class QuantizedTask(ctypes.Structure):
    """`struct QuantizedTask` of quantized.h, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("points", "query", "mean", "exclude", "codes", "numbers")),
        *((name, ctypes.c_void_p) for name in ("distances", "indices", "lower", "upper")),
        *((name, ctypes.c_int64) for name in ("queries", "start", "count", "features", "wanted", "capacity", "threads")),
    )


class HashTask(ctypes.Structure):
    """`struct HashTask` of hash.h, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("rows", "weights", "sums")),
        *((name, ctypes.c_int64) for name in ("count", "features", "lowered", "threads")),
    )


class Library(NamedTuple):
    instruction_set: str
    path: Path
    functions: ctypes.CDLL
    quick_products: bool  # of integers of 8 bits: whether the processor has an instruction for sums of them


@functools.cache
def library() -> Library | None:
    """The compiled solver for this processor, or `None` where the package was installed without a compiler."""
    for name in INSTRUCTION_SETS.get(torch.backends.cpu.get_cpu_capability(), ("baseline",)):
        for path in sorted(FOLDER.glob(f"fused_{name}.*")):
            found = opened(name, path)
            if found is not None:
                return found
    return None


def opened(name: str, path: Path) -> Library | None:
    """The library at `path`, unless it was built for another platform or from another version of the source."""
    try:
        functions = ctypes.CDLL(str(path))
    except OSError:
        return None
    for question, answer in (
        ("torchkrr_interface", INTERFACE),
        ("torchkrr_task_size", ctypes.sizeof(Task)),
        ("torchkrr_search_task_size", ctypes.sizeof(SearchTask)),
        ("torchkrr_quantized_task_size", ctypes.sizeof(QuantizedTask)),
        ("torchkrr_hash_task_size", ctypes.sizeof(HashTask)),
    ):
        if not hasattr(functions, question) or functions[question]() != answer:
            return None
    functions.torchkrr_use_pool(ctypes.c_void_p(_threads.pool()))
    functions.torchkrr_cache_new.restype = ctypes.c_void_p
    functions.torchkrr_cache_hits.restype = ctypes.c_int64
    return Library(name, path, functions, bool(functions.torchkrr_quick_products()))


def chosen(backend: Backend, obstacle: str | None, task: str) -> bool:
    """Whether the compiled code does the task; an error where it was asked for and cannot."""
    if obstacle is not None and backend == "fused":
        raise BackendError(f'backend="fused" cannot {task}: {obstacle}. backend="auto" takes the torch path then.')
    return backend != "torch" and obstacle is None


def plain(tensor: Tensor) -> Tensor:
    """As it lies in memory: contiguous, and with the sign it shows."""
    if tensor.is_contiguous() and not tensor.is_neg():
        return tensor
    return tensor.detach().resolve_neg().contiguous()


def call(name: str, dtype: torch.dtype, task: ctypes.Structure, tensors: Mapping[str, Tensor] = NO_TENSORS) -> None:
    """Run `torchkrr_{name}` for numbers of that type; other Python threads go on meanwhile.

    `tensors` are fields of the task: what it reads may have any layout, what it writes is contiguous.
    """
    memory = [(field, plain(tensor)) for field, tensor in tensors.items() if tensor.numel()]  # copies live until the end
    for field, tensor in memory:
        setattr(task, field, tensor.data_ptr())
    found = library()
    assert found is not None
    code = getattr(found.functions, f"torchkrr_{name}_{NAMES[dtype]}")(ctypes.byref(task))
    if code == OUT_OF_MEMORY:
        raise MemoryError(f"Not enough memory for the workspace of {name!r}.")
    if code:
        raise BackendError(f'The compiled library failed in {name!r} (code {code}). backend="torch" does without it.')
