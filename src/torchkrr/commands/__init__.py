"""What the command line does: tables from files, models, tables of predictions."""

import importlib

from ..errors import MissingExtraError

try:
    for name in ("sklearn", "pandas", "pyarrow", "safetensors"):
        importlib.import_module(name)
except ImportError as error:
    raise MissingExtraError(
        f'The command line needs {error.name}, which is not installed: pip install "torchkrr[cli]".'
    ) from None
