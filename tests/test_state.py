"""Fixed and learned tensors under one name, and modules with other tensors in them."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from torchkrr import _state


def test_settings_are_float64_where_they_are_fixed_and_parameters_where_they_are_learned():
    module = nn.Module()
    _state.register_setting(module, "fixed", torch.tensor(2.0), learn=False)
    _state.register_setting(module, "learned", torch.tensor([2.0]), learn=True)
    assert (module.fixed.dtype, module.fixed.shape) == (torch.float64, (1,))
    assert isinstance(module.learned, nn.Parameter)
    assert module.learned.dtype == torch.get_default_dtype()


def test_tensors_of_inference_mode_become_usable():
    with torch.inference_mode():
        tensor = torch.ones(2)
    assert not _state.usable(tensor).is_inference()
    kept = torch.ones(2)
    assert _state.usable(kept) is kept


def test_a_module_with_other_tensors_leaves_the_first_as_it_was():
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    weight = module[0].weight
    other = _state.with_tensors(module, {id(weight): torch.zeros(2, 2)})
    assert module[0].weight is weight
    assert not other[0].weight.any()
    assert other[0].bias is module[0].bias


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda lock: pickle.loads(pickle.dumps(lock))], ids=["copy", "pickle"])
def test_a_copied_lock_is_another_one(copied):
    lock = _state.OwnLock()
    with lock, lock, copied(lock) as nothing:
        assert nothing is None
