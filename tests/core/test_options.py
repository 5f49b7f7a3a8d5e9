"""Options that several functions share: signatures show them, type checkers know them, and no other is taken."""

import inspect

import pytest
import torch

from torchkrr import functional, losses, nn, tuning
from torchkrr.core.options import BackendOptions, DenseOptions, LayerOptions, LocalOptions
from torchkrr.kernels import Exponential

LOCAL = [
    functional.local_cardinal_weights,
    functional.local_power_function,
    functional.local_path,
    tuning.local_leave_one_out,
]
DENSE = [
    functional.cardinal_weights,
    functional.power_function,
    functional.leave_one_out,
    functional.rkhs_norm,
    functional.error_bound,
    functional.local_error_bound,
    functional.local_rkhs_norm,
    functional.blended_kernel_ridge,
    functional.blended_power_function,
]
SHARING = [
    *((function, LocalOptions, functional.local_kernel_ridge) for function in LOCAL),
    *((function, DenseOptions, functional.kernel_ridge) for function in DENSE),
    (functional.hierarchical_kernel_ridge, BackendOptions, functional.kernel_ridge),
    (nn.KernelRidge, LayerOptions, nn.LocalKernelRidge),
    (nn.BlendedKernelRidge, LayerOptions, nn.LocalKernelRidge),
    (nn.HierarchicalKernelRidge, LayerOptions, nn.LocalKernelRidge),
    (losses.episodic_cross_entropy, losses.LossOptions, losses.leave_one_out_cross_entropy),
]


@pytest.mark.parametrize(("function", "options", "owner"), SHARING, ids=lambda value: getattr(value, "__name__", None))
def test_signatures_show_what_type_checkers_know(function, options, owner):
    shown, owned = inspect.signature(function).parameters, inspect.signature(owner).parameters
    for name in options.__annotations__:
        assert shown[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert shown[name].default == owned[name].default
    assert not any(each.kind is inspect.Parameter.VAR_KEYWORD for each in shown.values())


def test_other_options_are_an_error_that_names_the_function():
    points = torch.rand(5, 2)
    with pytest.raises(TypeError, match=r"^power_function\(\) got an unexpected keyword argument 'fade'$"):
        functional.power_function(points, points, kernel=Exponential(), fade=True)
    with pytest.raises(TypeError, match=r"^local_path\(\) got an unexpected keyword argument 'cache'$"):
        functional.local_path(points, points, points, torch.zeros(5, 1).long(), kernel=Exponential(), cache=None)
    with pytest.raises(TypeError, match="unexpected keyword argument 'fade'"):
        nn.KernelRidge(points, points, fade=True)
