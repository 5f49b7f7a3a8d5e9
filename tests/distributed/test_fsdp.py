"""Parameters of kernel layers, sharded by torch itself."""

from __future__ import annotations

import pathlib

import pytest
import torch.distributed
from tests.distributed.launching import torchrun

PROGRAM = pathlib.Path(__file__).with_name("fully_sharded.py")


@pytest.mark.timeout(280)
@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed")
@pytest.mark.parametrize("parts", ["each", "whole"])
@pytest.mark.parametrize("kind", ["dense", "local"])
def test_two_ranks_train_what_one_process_does(kind, parts):
    done = torchrun(PROGRAM, kind, parts)
    assert done["code"] == 0, done["err"]
