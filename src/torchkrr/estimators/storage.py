"""One file for a fitted estimator: tensors and JSON in the safetensors format, with a checksum. No pickle.

The header names the format, its version and the class; the tensor `state` holds the rest as JSON in UTF-8, where its size
is not limited as that of a header is. Version 1 is the first.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
import safetensors
import torch
from safetensors.torch import save as to_bytes
from torch import Tensor

from .. import kernels, transforms
from .._files import first_bytes, replacing
from ..errors import FileError, InputError
from ..kernels import Kernel
from ..transforms import Compose, Linear, Transform
from .encoding import Concatenate, RankTransform, Rows, SelectColumns, Staircase, TableEncoder
from .predictor import Member, Predictor
from .prior import KernelFeatures, ModelPrior, RidgePrior

Plain = dict[str, Any]
Tensors = dict[str, Tensor]
FORMAT = "torchkrr"
VERSION = 1
STATE = "state"
HEAD = "transfer head"  # the class of files that torchkrr transfer writes
MOST_HEADER = 100_000_000  # bytes, in the safetensors format
EXPECTED = "Expected a model written by save() of a torchkrr estimator"
SIGNATURES = {
    b"\x89PNG": "a PNG picture",
    b"\xff\xd8\xff": "a JPEG picture",
    b"PK\x03\x04": "a ZIP archive (such as a torch or NumPy file)",
    b"PAR1": "a Parquet table",
    b"%PDF": "a PDF",
    b"\x1f\x8b": "a gzip archive",
    **{bytes((0x80, protocol)): "a pickle" for protocol in (2, 3, 4, 5)},
}
# Classes by their names in files.
KERNELS: dict[str, type[Kernel]] = {
    name: getattr(kernels, name) for name in kernels.__all__ if name not in ("Kernel", "default_kernel")
}
TRANSFORMS: dict[str, type[Transform]] = {
    **{name: getattr(transforms, name) for name in transforms.__all__ if name != "Transform"},
    "Staircase": Staircase,
    "Ranks": RankTransform,
    "Beside": Concatenate,
    "Columns": SelectColumns,
    "KernelFeatures": KernelFeatures,
}
PRIOR = "prior."


class Stored(NamedTuple):
    kind: str  # class
    tensors: Tensors
    plain: Plain


def write_model(path: str | os.PathLike[str], stored: Stored) -> None:
    """Write the file atomically."""
    state = np.frombuffer(json.dumps(stored.plain).encode(), dtype=np.uint8).copy()
    tensors = {**stored.tensors, STATE: torch.from_numpy(state)}
    header = {"format": FORMAT, "version": VERSION, "class": stored.kind, "sha256": _checksum(stored.kind, tensors)}
    # Not save_file: where it writes, and what it leaves after an error, is its own affair.
    content = to_bytes(tensors, metadata={FORMAT: json.dumps(header)})
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def read_model(path: str | os.PathLike[str]) -> Stored:
    """Read a file and check that it is whole, of this format, and of a version known here."""
    start = first_bytes(path, 9, kind="model", remedy=f" {EXPECTED}.")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            header = _header(path, file.metadata())
            # Copies: the library maps the file, which may change or go away.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except safetensors.SafetensorError as error:
        raise FileError(f"{path} is {_description(pathlib.Path(path), start)} ({error}). {EXPECTED}.") from error
    if STATE not in tensors or header.get("sha256") != _checksum(str(header.get("class")), tensors):
        raise FileError(f"{path} is damaged: its contents do not match their checksum. {EXPECTED}; copy or write it again.")
    return Stored(str(header["class"]), tensors, json.loads(tensors.pop(STATE).numpy().tobytes()))


def _header(path: str | os.PathLike[str], metadata: dict[str, str] | None) -> Plain:
    try:
        header: Plain = json.loads((metadata or {})[FORMAT])
        version = header["version"] if header["format"] == FORMAT else None
    except (KeyError, TypeError, ValueError):
        version = None
    if not isinstance(version, int):
        raise FileError(f"{path} is a safetensors file, but not a torchkrr model: its header does not say so. {EXPECTED}.")
    if version > VERSION:
        raise FileError(
            f"{path} is a torchkrr model of version {version}, written by a newer torchkrr; this one reads up to version "
            f"{VERSION}. Upgrade torchkrr: pip install --upgrade torchkrr."
        )
    return header


def _checksum(kind: str, tensors: Tensors) -> str:
    digest = hashlib.sha256(f"{VERSION} {kind}".encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _description(path: pathlib.Path, start: bytes) -> str:
    text = start[:8]
    readable = text.isascii() and "".join(text.decode().split()).isprintable()
    # The length of a header may begin with the very bytes that another format begins with.
    length = int.from_bytes(start[:8], "little")
    if not readable and 0 < length <= MOST_HEADER and start[8:] in (b"", b"{"):
        return "cut off, or not a model" if path.stat().st_size < 8 + length else "damaged, or not a model"
    for signature, name in SIGNATURES.items():
        if start.startswith(signature):
            return f"{name}, not a model"
    return f"not a model: it begins with the text {text.decode()!r}" if readable else "damaged, or not a model"


def save_estimator(estimator: Any, path: str | os.PathLike[str]) -> None:
    """Write everything that was given and fitted; `load_estimator` is the inverse."""
    predictor, names = estimator.predictor_, getattr(estimator, "feature_names_in_", None)
    predictor.check_whole()
    tensors = {**predictor.rows._asdict(), "offset": predictor.offset, "unit": predictor.unit}
    for at, member in enumerate(predictor.members):
        tensors |= {f"members.{at}.{name}": tensor.detach() for name, tensor in member.kernel.state_dict().items()}
    members = [{**member._asdict(), "kernel": kernel_plan(member.kernel)} for member in predictor.members]
    if isinstance(predictor.prior, RidgePrior):
        tensors |= {PRIOR + name: tensor for name, tensor in predictor.prior.features.state_dict().items()}
    plain = {
        "parameters": {name: _plain(value) for name, value in estimator.get_params(deep=False).items()},
        "predictor": {"members": members, "seed": predictor.seed, "prior": _prior_plan(predictor.prior)},
        "ids": None if estimator._ids is None else estimator._ids.tolist(),
        "group_names": list(estimator._group_names),
        "encoder": asdict(estimator.encoder_),
        "dtype": str(estimator._dtype).removeprefix("torch."),
        "n_features_in": estimator.n_features_in_,
        "feature_names_in": None if names is None else [str(name) for name in names],
        **estimator._own_state(),
        "candidates": estimator.candidates_,
        "notes": getattr(estimator, "notes_", {}),
    }
    # Two names must not share memory in a file.
    tensors = {name: tensor.clone().contiguous() for name, tensor in tensors.items()}
    write_model(path, Stored(type(estimator).__name__, tensors, plain))


def load_estimator(path: str | os.PathLike[str], kinds: Sequence[type]) -> Any:
    """The estimator in a file, of one of these classes."""
    stored = read_model(path)
    if stored.kind == HEAD:
        raise FileError(
            f"{path} is a head that torchkrr transfer of version 0.1.0 wrote; this version reads its own alone. "
            "Write it again: torchkrr transfer DATA, or torchkrr fit DATA --backbone NAME --out FILE."
        )
    classes = {kind.__name__: kind for kind in kinds}
    if stored.kind not in classes:
        raise FileError(
            f"{path} holds a {stored.kind}, not a {' or '.join(classes)}. torchkrr.estimators.load reads every estimator "
            "of torchkrr; a class of your own has its own load(path)."
        )
    try:
        return _restored(classes[stored.kind], stored.tensors, stored.plain)
    except (KeyError, TypeError, RuntimeError, ValueError) as error:
        raise FileError(f"{path} does not hold what a {stored.kind} is made of: {error!r}.") from error


def _restored(kind: Any, tensors: Tensors, plain: Plain) -> Any:
    estimator = kind(**{name: _from_plain(value) for name, value in plain["parameters"].items()})
    members = []
    for at, member in enumerate(plain["predictor"]["members"]):
        start = f"members.{at}."
        own = {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}
        members.append(Member(**{**member, "kernel": kernel_from(member["kernel"], own)}))
    points = tensors["points"]
    groups = tensors.get("groups", torch.full((len(points),), -1))  # files of 0.1.0 have neither groups nor a prior
    rows = Rows(points, tensors["values"], tensors["weights"], groups)
    own = {name.removeprefix(PRIOR): tensor for name, tensor in tensors.items() if name.startswith(PRIOR)}
    prior = _prior_from(plain["predictor"].get("prior"), own)
    seed = plain["predictor"]["seed"]
    estimator.predictor_ = Predictor(rows, tuple(members), tensors["offset"], tensors["unit"], seed, prior)
    ids = plain.get("ids")
    estimator._ids = None if ids is None else np.array([*ids, None], dtype=object)[:-1]
    estimator._group_names = {name: at for at, name in enumerate(plain.get("group_names", []))}
    estimator.encoder_ = TableEncoder.from_state(plain["encoder"])
    estimator._dtype = {"float32": torch.float32, "float64": torch.float64}[plain["dtype"]]
    estimator.n_features_in_ = plain["n_features_in"]
    if plain["feature_names_in"] is not None:
        estimator.feature_names_in_ = np.array(plain["feature_names_in"], dtype=object)
    estimator._take_own_state(plain)
    estimator._describe()
    estimator.candidates_ = [(name, loss) for name, loss in plain.get("candidates", [])]
    estimator.notes_ = dict(plain["notes"])
    return estimator


def _prior_plan(prior: RidgePrior | ModelPrior | None) -> Plain | None:
    if isinstance(prior, ModelPrior):
        raise InputError(
            "An estimator whose prior is a model cannot be saved: the format holds no models. Save the model in its own "
            "way, keep the rows, and fit again; or pickle the estimator."
        )
    return None if prior is None else {**prior._asdict(), "features": _transform_plan(prior.features)}


def _prior_from(plan: Plain | None, tensors: Tensors) -> RidgePrior | None:
    if plan is None:
        return None
    features = _transform_from(plan["features"])
    assert features is not None
    features.load_state_dict(tensors)
    return RidgePrior(**{**plan, "features": features})


def kernel_plan(kernel: Kernel) -> Plain:
    """The classes a kernel is made of; its numbers are in its `state_dict`."""
    plan: Plain = {"class": _file_name("kernel", kernel, KERNELS), "transform": _transform_plan(kernel.input_transform)}
    if isinstance(kernel, kernels.Wendland):
        plan["arguments"] = {"dimension": kernel.dimension, "smoothness": kernel.smoothness}
    return plan


def kernel_from(plan: Plain, tensors: Tensors) -> Kernel:
    kernel = _unfilled_kernel(plan)
    kernel.load_state_dict(tensors)
    return kernel


def _unfilled_kernel(plan: Plain) -> Kernel:
    kind = _class("kernel", plan, KERNELS)
    kernel: Kernel = kind(input_transform=_transform_from(plan["transform"]), **plan.get("arguments", {}))
    return kernel


def _transform_plan(transform: Transform | None) -> Plain | None:
    if transform is None:
        return None
    plan: Plain = {"class": _file_name("transform", transform, TRANSFORMS)}
    if type(transform) in (Compose, Concatenate):  # a class of its own, such as StandardMean, knows its parts
        plan["parts"] = [_transform_plan(part) for part in transform.transforms]  # type: ignore[union-attr]
    if isinstance(transform, KernelFeatures):
        plan["kernel"] = kernel_plan(transform.kernel)  # type: ignore[arg-type]
    return plan


def _transform_from(plan: Plain | None) -> Transform | None:
    if plan is None:
        return None
    kind = _class("transform", plan, TRANSFORMS)
    if kind is Linear:
        return Linear(torch.zeros(1, 1))
    if kind is KernelFeatures:
        return KernelFeatures(_unfilled_kernel(plan["kernel"]))
    transform: Transform = kind(*(_transform_from(part) for part in plan.get("parts", [])))
    return transform


def _file_name(what: str, module: Any, classes: dict[str, Any]) -> str:
    name = {kind: name for name, kind in classes.items()}.get(type(module))
    if name is None:
        own = type(module).__name__
        raise InputError(f"A {what} of the class {own} cannot be saved. Use one of {', '.join(classes)}, or pickle.")
    return name


def _class(what: str, plan: Plain, classes: dict[str, Any]) -> Any:
    if plan["class"] not in classes:
        raise InputError(f"The {what} {plan['class']!r} is not one of {', '.join(classes)}.")
    return classes[plan["class"]]


def _plain(value: Any) -> Any:
    """A constructor argument as JSON can hold it; a kernel becomes its plan, since the fitted one is kept anyway."""
    if isinstance(value, Kernel):
        return {"kernel": kernel_plan(value), "numbers": {k: v.tolist() for k, v in value.state_dict().items()}}
    if isinstance(value, np.random.RandomState):
        return None  # its state is not a choice
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _from_plain(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    numbers = {name: torch.tensor(number, dtype=torch.float64) for name, number in value["numbers"].items()}
    return kernel_from(value["kernel"], numbers)
