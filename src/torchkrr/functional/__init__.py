"""The mathematics, stateless: tensors and indices in, tensors out."""

from .local import Path, local_cardinal_weights, local_kernel_ridge, local_path, local_power_function
from .ridge import cardinal_weights, kernel_ridge, leave_one_out, power_function, rkhs_norm

__all__ = [
    "Path",
    "cardinal_weights",
    "kernel_ridge",
    "leave_one_out",
    "local_cardinal_weights",
    "local_kernel_ridge",
    "local_path",
    "local_power_function",
    "power_function",
    "rkhs_norm",
]
