"""The number of threads that torch uses in the calling thread, without side effects on the others.

`torch.set_num_threads` also tells MKL, for the whole process and for good, to use exactly that many threads, after which
`torch.linalg.solve`, `inv` and `lu_factor` of batches return garbage (pytorch/pytorch#142815). A library must not do that to
its callers. OpenMP and MKL have counts of their own for each thread, which are set here where torch's build exports them.
"""

from __future__ import annotations

import ctypes
import functools
import pathlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch


class _Runtime(NamedTuple):
    set_openmp: Callable[[int], object]
    set_mkl: Callable[[int], int]  # returns the previous count
    pool: int | None  # the address of GOMP_parallel


def set_threads(count: int, *, mkl: int | None = None) -> int:
    """From now on torch uses `count` threads for operators called in this thread.

    MKL uses as many, or `mkl`; the return value is what it used before, where 0 stands for no count of this thread.
    """
    runtime = _runtime()
    if runtime is None:
        torch.set_num_threads(count)
        return count
    torch.get_num_threads()  # torch initializes its count on first use in a thread, over what was set before
    runtime.set_openmp(count)
    return runtime.set_mkl(count if mkl is None else mkl)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Within the context torch uses `count` threads for operators called in this thread.

    Example:
        >>> before = torch.get_num_threads()
        >>> with threads(1):
        ...     torch.get_num_threads()
        1
        >>> torch.get_num_threads() == before
        True
    """
    before = torch.get_num_threads()
    mkl = set_threads(count)
    try:
        yield
    finally:
        set_threads(before, mkl=mkl)


def per_thread() -> bool:
    """Whether the count can be set for one thread alone."""
    return _runtime() is not None


def pool() -> int | None:
    """The address of the function that runs another on the threads that torch's operators use; `None` where it has none."""
    runtime = _runtime()
    return None if runtime is None else runtime.pool


@functools.cache
def _runtime() -> _Runtime | None:
    """The functions of the OpenMP that torch is linked with, and of its MKL if it has one; `None` where neither is found."""
    libraries = sorted((pathlib.Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*"))
    if not libraries or "ATen parallel backend: OpenMP" not in torch.__config__.parallel_info():
        return None
    try:
        library = ctypes.CDLL(str(libraries[0]))
        set_openmp = library.omp_set_num_threads
    except (OSError, AttributeError):
        return None
    set_openmp.argtypes, set_openmp.restype = [ctypes.c_int], None
    entrance = getattr(library, "GOMP_parallel", None)
    address = None if entrance is None else ctypes.cast(entrance, ctypes.c_void_p).value
    try:
        set_mkl = library.MKL_Set_Num_Threads_Local
    except AttributeError:
        return _Runtime(set_openmp, lambda count: 0, address)
    set_mkl.argtypes, set_mkl.restype = [ctypes.c_int], ctypes.c_int
    return _Runtime(set_openmp, set_mkl, address)
