"""Bad input to kernels and transforms."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.bad_input.tables import FIT, INF, NAN, POINTS, check_refused
from torch import Tensor

from torchkrr import kernels, transforms
from torchkrr.errors import InputError, InputTypeError, NotFittedError, ShapeError

KERNELS = {
    "Exponential": kernels.Exponential,
    "Matern32": kernels.Matern32,
    "Matern52": kernels.Matern52,
    "Gaussian": kernels.Gaussian,
    "RationalQuadratic": kernels.RationalQuadratic,
    "InverseMultiquadric": kernels.InverseMultiquadric,
    "Wendland": lambda *arguments, **choices: kernels.Wendland(*arguments, dimension=3, **choices),
}


POSITIVE = r"lengthscale must be positive and finite, got {}"


LENGTHSCALES = {
    "zero": (0.0, InputError, POSITIVE.format(r"0\.0")),
    "negative": (-1.0, InputError, POSITIVE.format(r"-1\.0")),
    "nan": (NAN, InputError, POSITIVE.format("nan")),
    "inf": (INF, InputError, POSITIVE.format("inf")),
    "one_negative": ([1.0, -1.0], InputError, POSITIVE.format(r"-1\.0")),
    "one_nan": ([1.0, NAN], InputError, POSITIVE.format("nan")),
    "empty": ([], ShapeError, r"lengthscale must be a number or one per feature, got shape \(0,\)"),
    "two_dimensions": (torch.ones(2, 2), ShapeError, r"lengthscale must be a number or one per feature, got shape \(2, 2\)"),
}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("case", LENGTHSCALES)
def test_lengthscale_is_refused(name, case):
    lengthscale, error, pattern = LENGTHSCALES[case]
    check_refused(lambda: KERNELS[name](lengthscale), error, pattern)


def test_infinite_lengthscale_among_finite_ones():
    check_refused(lambda: kernels.Exponential([1.0, INF]), InputError, POSITIVE.format("inf"))


@pytest.mark.parametrize("lengthscale", [None, "1", 1j], ids=repr)
def test_lengthscale_of_another_type(lengthscale):
    check_refused(lambda: kernels.Exponential(lengthscale), InputTypeError, "lengthscale must be")


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("transform", ["StandardMean", transforms.StandardMean, abs], ids=["string", "class", "function"])
def test_input_transform_is_refused(name, transform):
    pattern = r"input_transform must be a transform such as StandardMean\(\)\.fit\(x\), got \w+"
    check_refused(lambda: KERNELS[name](input_transform=transform), InputTypeError, pattern)


@pytest.mark.parametrize("alpha", [0.0, -1.0, NAN, INF])
def test_alpha_is_refused(alpha):
    pattern = rf"alpha must be positive and finite, got {alpha}"
    check_refused(lambda: kernels.RationalQuadratic(alpha=alpha), InputError, pattern)


@pytest.mark.parametrize("alpha", [None, "1", [1.0, 2.0], torch.ones(3)], ids=["none", "string", "list", "vector"])
def test_alpha_of_another_type(alpha):
    with pytest.raises(InputError, match="alpha must be"):
        kernels.RationalQuadratic(alpha=alpha)


@pytest.mark.parametrize("smoothness", [-1, 4, 1.5, None])
def test_smoothness_is_refused(smoothness):
    pattern = rf"smoothness must be one of 0, 1, 2, 3, got {re.escape(repr(smoothness))}"
    check_refused(lambda: kernels.Wendland(dimension=2, smoothness=smoothness), InputError, pattern)


@pytest.mark.parametrize("dimension", [0, -1, NAN])
def test_dimension_is_refused(dimension):
    check_refused(lambda: kernels.Wendland(dimension=dimension), InputError, r"dimension must be positive and finite, got")


@pytest.mark.parametrize("dimension", [2.5, None, "2"])
def test_dimension_of_another_type(dimension):
    with pytest.raises(InputTypeError, match="dimension must be"):
        kernels.Wendland(dimension=dimension)


def test_wendland_sees_the_features_of_the_embedding():
    transform = transforms.Linear(torch.ones(3, 2))
    kernel = kernels.Wendland(dimension=2, input_transform=transform)
    pattern = r"Wendland\(dimension=2\) is not positive definite in 3 .*dimension=3, or reduce the features"
    check_refused(lambda: kernel(torch.rand(4, 2), torch.rand(4, 2)), InputError, pattern)


ACCEPTED = ("nan", "inf", "minus_inf", "three_dimensions", "more_features", "no_rows")
OPERANDS = [name for name in POINTS if name not in ACCEPTED]


def operand_cases() -> Iterator[Any]:
    for argument in ("a", "b"):
        for defect in OPERANDS:
            yield pytest.param(argument, defect, id=f"{argument}-{defect}")


@pytest.mark.parametrize(("argument", "defect"), list(operand_cases()))
def test_operand_of_a_kernel_is_refused(argument, defect):
    spoil, error, pattern = POINTS[defect]
    operands = {"a": torch.rand(3, 2), "b": torch.rand(6, 2)}
    operands[argument] = spoil(operands[argument])
    check_refused(lambda: kernels.Gaussian()(**operands), error, pattern.replace("{name}", argument))


def test_operands_of_a_kernel_have_the_same_features():
    pattern = r"a has 2 features but b has 3\..*the same feature space"
    check_refused(lambda: kernels.Gaussian()(torch.rand(3, 2), torch.rand(3, 3)), ShapeError, pattern)


def test_operands_of_a_kernel_whose_leading_dimensions_do_not_broadcast():
    pattern = "leading dimensions must broadcast"
    check_refused(lambda: kernels.Gaussian()(torch.rand(3, 2, 2), torch.rand(2, 2, 2)), ShapeError, pattern)


@pytest.mark.parametrize("spoil", [Tensor.tolist, Tensor.long], ids=["list", "integer"])
def test_what_a_kernel_embeds_is_refused(spoil):
    pattern = r"x must .*(torch\.as_tensor\(x\)|x\.float\(\))"
    check_refused(lambda: kernels.Gaussian().embed(spoil(torch.rand(3, 2))), InputTypeError, pattern)


TRANSFORMS = {
    "Standardize": transforms.Standardize,
    "UnitCube": transforms.UnitCube,
    "ErfInv": transforms.ErfInv,
    "MeanDistance": transforms.MeanDistance,
    "MinDistance": transforms.MinDistance,
    "UnitNorm": transforms.UnitNorm,
    "SignedRoot": transforms.SignedRoot,
    "StandardMean": transforms.StandardMean,
    "Compose": lambda: transforms.Compose(transforms.UnitNorm(), transforms.Standardize()),
    "Linear": lambda: transforms.Linear(torch.eye(2)),
}


FITTED = ["Standardize", "UnitCube", "MeanDistance", "MinDistance"]


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("defect", FIT)
def test_points_to_fit_are_refused(name, defect):
    spoil, error, pattern = POINTS[defect]
    check_refused(lambda: TRANSFORMS[name]().fit(spoil(torch.rand(6, 2))), error, pattern.replace("{name}", "x"))


@pytest.mark.parametrize("name", FITTED)
def test_unfitted_transform(name):
    pattern = rf"{name} is not fitted\. Call {name}\(\)\.fit\(x\) on the training points, or load a state"
    check_refused(lambda: TRANSFORMS[name]()(torch.rand(3, 2)), NotFittedError, pattern)


@pytest.mark.parametrize("name", ["Standardize", "UnitCube", "StandardMean"])
def test_transform_of_other_features(name):
    fitted = TRANSFORMS[name]().fit(torch.rand(6, 2))
    pattern = r"x has 3 features but the data \w+ was fitted on has 2\..*the same feature space"
    check_refused(lambda: fitted(torch.rand(3, 3)), ShapeError, pattern)


def test_linear_of_other_features():
    linear = transforms.Linear(torch.ones(4, 5))
    pattern = r"x has 2 features but the weight of Linear has 5\. Both must come from"
    check_refused(lambda: linear(torch.rand(3, 2)), ShapeError, pattern)


@pytest.mark.parametrize("defect", FIT)
def test_weight_of_linear_is_refused(defect):
    spoil, error, pattern = POINTS[defect]
    check_refused(lambda: transforms.Linear(spoil(torch.rand(6, 2))), error, pattern.replace("{name}", "weight"))


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("spoil", [Tensor.tolist, lambda x: (9 * x).long()], ids=["list", "integer"])
def test_what_a_transform_is_called_on_is_refused(name, spoil):
    fitted = TRANSFORMS[name]().fit(torch.rand(6, 2))
    check_refused(lambda: fitted(spoil(torch.rand(3, 2))), InputTypeError, "x must")


@pytest.mark.parametrize("name", ["Standardize", "UnitCube", "StandardMean"])
def test_transform_on_another_device(name):
    fitted = TRANSFORMS[name]().fit(torch.rand(6, 2))
    check_refused(lambda: fitted(torch.rand(3, 2, device="meta")), InputError, "device")


@pytest.mark.parametrize("part", ["UnitNorm", transforms.UnitNorm, [transforms.UnitNorm()]], ids=["string", "class", "list"])
def test_part_of_compose_is_refused(part):
    check_refused(lambda: transforms.Compose(part), InputTypeError, "transform")
