"""Kernels by name: in layers, and in compiled programs."""

import pytest
import torch

from torchkrr import kernels
from torchkrr.errors import InputError
from torchkrr.kernels.names import BY_NAME, PLAIN_NAMES, kernel_class, kernel_from_name, name_of_kernel


def test_every_kernel_has_a_name():
    exported = {getattr(kernels, name) for name in kernels.__all__ if name not in ("Kernel", "default_kernel")}
    assert set(BY_NAME.values()) == exported
    assert set(PLAIN_NAMES.values()) == exported - {kernels.Wendland}


@pytest.mark.parametrize("name", BY_NAME)
def test_a_kernel_is_found_again_by_its_name(name):
    kernel = BY_NAME[name](dimension=5, smoothness=2) if name == "Wendland" else BY_NAME[name]()
    again = kernel_from_name(name_of_kernel(kernel), list(kernel.profile_tensors().values()))
    distance = torch.linspace(0, 2, 21, dtype=torch.float64)
    assert torch.equal(again.profile(distance), kernel.profile(distance))


def test_names_are_those_of_scipy():
    assert PLAIN_NAMES["thin_plate_spline"] is kernels.ThinPlateSpline
    assert PLAIN_NAMES["inverse_quadratic"] is kernels.InverseQuadratic
    with pytest.raises(InputError, match="Did you mean 'thin_plate_spline'"):
        kernel_class("thin_plate")
