"""A fitted estimator as tensors and plain values, and back: what a file can hold without pickle."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import kernels, transforms
from ..errors import InputError
from ..kernels import Kernel
from ..transforms import Compose, Linear, Transform
from . import embeddings
from .members import Member
from .predictor import Predictor
from .rows import Rows

Plain = dict[str, Any]
Tensors = dict[str, Tensor]
TRANSFORMS: dict[str, type[Transform]] = {
    **{name: getattr(transforms, name) for name in transforms.__all__ if name != "Transform"},
    **{kind.__name__: kind for kind in (embeddings.Staircase, embeddings.Ranks, embeddings.Beside, embeddings.Columns)},
}
KERNELS: dict[str, type[Kernel]] = {
    name: getattr(kernels, name) for name in kernels.__all__ if name not in ("Kernel", "default_kernel")
}


def predictor_state(predictor: Predictor) -> tuple[Tensors, Plain]:
    predictor.check_whole()
    rows = predictor.rows
    tensors = {"points": rows.points, "values": rows.values, "weights": rows.weights}
    tensors |= {"offset": predictor.offset, "unit": predictor.unit}
    members = []
    for at, member in enumerate(predictor.members):
        tensors |= {f"members.{at}.{name}": tensor.detach() for name, tensor in member.kernel.state_dict().items()}
        members.append(
            {
                "kernel": kernel_plan(member.kernel),
                "ridge": member.ridge,
                "num_neighbors": member.num_neighbors,
                "share": member.share,
                "single": member.search_in_single,
            }
        )
    # Two names must not share memory in a file.
    return {name: tensor.clone().contiguous() for name, tensor in tensors.items()}, {
        "members": members,
        "seed": predictor.seed,
    }


def predictor_from(tensors: Tensors, plain: Plain) -> Predictor:
    members = []
    for at, member in enumerate(plain["members"]):
        start = f"members.{at}."
        kernel = kernel_from(
            member["kernel"], {name[len(start) :]: tensor for name, tensor in tensors.items() if name.startswith(start)}
        )
        members.append(Member(kernel, member["ridge"], member["num_neighbors"], member["share"], member["single"]))
    rows = Rows(tensors["points"], tensors["values"], tensors["weights"])
    return Predictor(rows, tuple(members), tensors["offset"], tensors["unit"], plain["seed"])


def kernel_plan(kernel: Kernel) -> Plain:
    """The classes a kernel is made of; its numbers are in its `state_dict`."""
    name = type(kernel).__name__
    if KERNELS.get(name) is not type(kernel):
        raise InputError(f"A kernel of the class {name} cannot be saved. Use one of {', '.join(KERNELS)}, or pickle.")
    plan: Plain = {"class": name, "transform": _transform_plan(kernel.input_transform)}
    if isinstance(kernel, kernels.Wendland):
        plan["arguments"] = {"dimension": kernel.dimension, "smoothness": kernel.smoothness}
    return plan


def kernel_from(plan: Plain, tensors: Tensors) -> Kernel:
    if plan["class"] not in KERNELS:
        raise InputError(f"The kernel {plan['class']!r} is not one of {', '.join(KERNELS)}.")
    kernel = KERNELS[plan["class"]](input_transform=_transform_from(plan["transform"]), **plan.get("arguments", {}))
    kernel.load_state_dict(tensors)
    return kernel


def _transform_plan(transform: Transform | None) -> Plain | None:
    if transform is None:
        return None
    name = type(transform).__name__
    if TRANSFORMS.get(name) is not type(transform):
        raise InputError(f"A transform of the class {name} cannot be saved. Use one of {', '.join(TRANSFORMS)}, or pickle.")
    plan: Plain = {"class": name}
    if type(transform) in (Compose, embeddings.Beside):
        plan["parts"] = [_transform_plan(part) for part in transform.transforms]  # type: ignore[union-attr]
    return plan


def _transform_from(plan: Plain | None) -> Transform | None:
    if plan is None:
        return None
    if plan["class"] not in TRANSFORMS:
        raise InputError(f"The transform {plan['class']!r} is not one of {', '.join(TRANSFORMS)}.")
    kind = TRANSFORMS[plan["class"]]
    if kind is Linear:
        return Linear(torch.zeros(1, 1))
    return kind(*(_transform_from(part) for part in plan.get("parts", [])))


def plain_parameters(parameters: Plain) -> Plain:
    """Constructor arguments as JSON can hold them; a kernel becomes its plan, since the fitted one is kept anyway."""
    plain: Plain = {}
    for name, value in parameters.items():
        if isinstance(value, Kernel):
            plain[name] = {"kernel": kernel_plan(value), "numbers": {k: v.tolist() for k, v in value.state_dict().items()}}
        elif isinstance(value, np.ndarray):
            plain[name] = value.tolist()
        elif isinstance(value, np.generic):
            plain[name] = value.item()
        elif isinstance(value, np.random.RandomState):
            plain[name] = None  # its state is not a choice
        else:
            plain[name] = list(value) if isinstance(value, tuple) else value
    return plain


def parameters_from(plain: Plain) -> Plain:
    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        numbers = {name: torch.tensor(number, dtype=torch.float64) for name, number in value["numbers"].items()}
        return kernel_from(value["kernel"], numbers)

    return {name: read(value) for name, value in plain.items()}
