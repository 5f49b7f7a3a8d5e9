"""Every error and warning of the library, in one small tree.

Catch `KernelRidgeError` for anything the library raises on purpose, `InputError` for anything
wrong with the arguments. The built-in bases (`ValueError`, `TypeError`, `ImportError`) are there
so that generic handlers keep working.
"""


class KernelRidgeError(Exception):
    """Base of all errors raised by torchkrr."""


class InputError(KernelRidgeError, ValueError):
    """An argument has a value that cannot be used."""


class ShapeError(InputError):
    """A tensor has the wrong number of dimensions, or sizes that do not fit together."""


class InputTypeError(InputError, TypeError):
    """An argument has the wrong type, or a tensor the wrong dtype."""


class NotFittedError(KernelRidgeError, RuntimeError):
    """A transform or an index is used before `fit` or `build`."""


class SearchError(KernelRidgeError, RuntimeError):
    """An approximate index cannot find as many neighbors as were asked for."""


class SolveError(KernelRidgeError, RuntimeError):
    """A Gram matrix cannot be solved in the available precision (`on_singular="raise"`)."""


class BackendError(KernelRidgeError, RuntimeError):
    """The backend that was asked for cannot do what was asked."""


class DistributedError(KernelRidgeError, RuntimeError):
    """Another process of a distributed run has died, does not answer, or does something else; the message says what."""


class StoreError(KernelRidgeError, RuntimeError):
    """A database cannot be reached, may not be used, or does not hold what is expected; the message says what to do."""


class FileError(InputError):
    """A file is missing, damaged, of another kind or version, or cannot be written; the message says which."""


class MissingExtraError(KernelRidgeError, ImportError):
    """An optional dependency is not installed; the message names the extra."""


class KernelRidgeWarning(UserWarning):
    """Base of all warnings raised by torchkrr."""


class RidgeRaisedWarning(KernelRidgeWarning):
    """Some cells were singular even in float64 and were solved with a larger ridge."""


class TrendWarning(KernelRidgeWarning):
    """Some neighborhoods do not determine the polynomial of their trend; the one of the smallest norm was taken."""
