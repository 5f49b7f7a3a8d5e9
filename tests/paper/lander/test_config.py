"""Settings of the reinforcement learning experiment."""

import math

import pytest
from paper.lander.config import VARIANTS, Config, study
from tests.paper.tiny import LANDER

from torchkrr.errors import InputError


def test_epsilon_decays_exponentially():
    config = Config(epsilon_start=0.8, epsilon_end=0.2, epsilon_decay=100)
    assert config.epsilon(0) == pytest.approx(0.8)
    assert config.epsilon(100) == pytest.approx(0.2 + 0.6 / math.e)
    assert config.epsilon(10**6) == pytest.approx(0.2)


def test_study_has_every_variant_asked_for():
    configs = study(LANDER, [0, 1])
    assert len(configs) == 2 * len(VARIANTS)
    assert [config.seed for config in configs[: len(VARIANTS)]] == [0] * len(VARIANTS)
    labels = {config.label: config for config in configs}
    assert set(labels) == set(VARIANTS)
    assert labels["first-only"].parts == "first"
    assert labels["last-only"].parts == "last"
    assert not labels["values-only"].learn_centers
    assert labels["gromov-monge"].gromov_monge > 0
    assert labels["dqn"].agent == "dqn"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"agent": "ppo"}, "agent must be one of"),
        ({"episodes": 0}, "episodes must be at least 1"),
        ({"discount": 1.5}, "discount must lie between 0 and 1"),
        ({"batch_size": 10, "replay_size": 5}, "batch_size"),
        ({"num_centers": 64, "random_states": 10}, "random_states"),
        ({"variant": "../other"}, "variant is part of file names"),
        ({"seed": -1}, "seed must not be negative"),
        ({"learning_rate": 0.0}, "learning_rate must be positive"),
        ({"parts": "none"}, "parts must be one of"),
        ({"last_on": "values"}, "last_on must be one of"),
        ({"placing": "grid"}, "placing must be one of"),
    ],
)
def test_bad_settings(arguments, message):
    with pytest.raises(InputError, match=message):
        Config(**arguments)
