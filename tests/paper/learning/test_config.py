"""Settings of learning with probes."""

import pytest
from paper.learning.config import Config, plan
from tests.paper.tiny import LEARNING

from torchkrr.errors import InputError


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"discard": 5}, "discard must be less than the 5 stages"),
        ({"head": "forest"}, "head"),
        ({"objective": "leaky"}, "objective"),
        ({"samples": 3}, "samples must be at least 8"),
        ({"batch_size": 2}, "batch_size must be at least 4"),
        ({"validation_share": 0.0}, "validation_share must lie between 0 and 1"),
        ({"ridge": 0.0}, "ridge"),
        ({"patience": -1}, "patience must not be negative"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        Config(**changes)


def test_the_linear_head_does_not_depend_on_what_is_the_kernels():
    first, second = (Config(head="linear", objective=name, ridge=r).settings() for name, r in (("loo", 0.1), ("split", 0.2)))
    assert first == second
    assert Config(objective="loo").settings() != Config(objective="split").settings()


def test_a_plan_has_every_run_seed_by_seed():
    found = plan(LEARNING, depths=[0, 2], seeds=2)
    assert [(run.seed, run.discard, run.head) for run in found[:4]] == [
        (0, 0, "kernel"),
        (0, 0, "linear"),
        (0, 2, "kernel"),
        (0, 2, "linear"),
    ]
    assert len(found) == 8
    with pytest.raises(InputError, match="at least one depth"):
        plan(LEARNING, depths=[], seeds=1)
