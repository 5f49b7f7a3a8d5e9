"""The mathematics, stateless: tensors and indices in, tensors out."""

from .blended import blended_kernel_ridge, blended_power_function, blending_weights
from .bounds import error_bound, error_indicator, local_error_bound, local_rkhs_norm
from .greedy import farthest_points, power_greedy, residual_greedy
from .hierarchical import hierarchical_kernel_ridge
from .local import Path, local_cardinal_weights, local_kernel_ridge, local_path, local_power_function
from .ridge import cardinal_weights, kernel_ridge, leave_one_out, power_function, rkhs_norm
from .transport import assignment, gromov_monge, monge_cost

__all__ = [
    "Path",
    "assignment",
    "blended_kernel_ridge",
    "blended_power_function",
    "blending_weights",
    "cardinal_weights",
    "error_bound",
    "error_indicator",
    "farthest_points",
    "gromov_monge",
    "hierarchical_kernel_ridge",
    "kernel_ridge",
    "leave_one_out",
    "local_cardinal_weights",
    "local_error_bound",
    "local_kernel_ridge",
    "local_path",
    "local_power_function",
    "local_rkhs_norm",
    "monge_cost",
    "power_function",
    "power_greedy",
    "residual_greedy",
    "rkhs_norm",
]


def __getattr__(name: str) -> object:
    if name == "hierarchical_power_function":
        raise AttributeError("hierarchical_power_function is now local_power_function(..., fade=True).")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
