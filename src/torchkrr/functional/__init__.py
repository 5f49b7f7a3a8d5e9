"""The mathematics, stateless: tensors and indices in, tensors out."""

from .local import Path, local_cardinal_weights, local_kernel_ridge, local_path, local_power_function

__all__ = ["Path", "local_cardinal_weights", "local_kernel_ridge", "local_path", "local_power_function"]
