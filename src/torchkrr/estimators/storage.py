"""Estimators in the files of `torchkrr.storage`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from ..errors import FileError, InputError
from ..kernels import Kernel
from ..storage import (
    TRANSFORMS,
    Plain,
    Stored,
    Tensors,
    kernel_from,
    kernel_plan,
    read_model,
    transform_from,
    transform_plan,
    whole,
    write_model,
)
from .encoding import Concatenate, RankTransform, Rows, SelectColumns, Staircase, TableEncoder
from .predictor import Member, Predictor
from .prior import KernelFeatures, ModelPrior, RidgePrior

HEAD = "transfer head"  # the class of files that torchkrr transfer of 0.1.0 wrote
PRIOR = "prior."
TRANSFORMS |= {
    "Staircase": Staircase,
    "Ranks": RankTransform,
    "Beside": Concatenate,
    "Columns": SelectColumns,
    "KernelFeatures": KernelFeatures,
}


def save_estimator(estimator: Any, path: str | os.PathLike[str]) -> None:
    """Write everything that was given and fitted; `load_estimator` is the inverse."""
    write_model(path, stored_estimator(estimator))


def stored_estimator(estimator: Any) -> Stored:
    """Everything that was given and fitted; `restored` is the inverse."""
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
    return Stored(type(estimator).__name__, tensors, plain)


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
            f"{path} holds a {stored.kind}, not a {' or '.join(classes)}. torchkrr.load reads every layer "
            "and estimator of torchkrr; a class of your own has its own load(path)."
        )
    with whole(path, stored):
        return restored(classes[stored.kind], stored.tensors, stored.plain)


def restored(kind: Any, tensors: Tensors, plain: Plain) -> Any:
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
    return None if prior is None else {**prior._asdict(), "features": transform_plan(prior.features)}


def _prior_from(plan: Plain | None, tensors: Tensors) -> RidgePrior | None:
    if plan is None:
        return None
    features = transform_from(plan["features"])
    assert features is not None
    features.load_state_dict(tensors)
    return RidgePrior(**{**plan, "features": features})


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
