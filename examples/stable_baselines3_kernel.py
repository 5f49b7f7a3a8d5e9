"""A kernel layer in Stable-Baselines3: learned centers and values inside the features extractor of any policy.

    pip install ".[rl]" stable-baselines3
    python examples/stable_baselines3_kernel.py --steps 50000

`features_extractor_class` is where Stable-Baselines3 takes other networks. Here it is the first layer of the kernel agent: a
linear layer and ReLU, plus a kernel ridge regressor that starts at zero. The policy stays as it is.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import Tensor

import torchkrr
from torchkrr.models import typical_scales


class KernelFeatures(BaseFeaturesExtractor):
    """ReLU of a linear layer plus a kernel perturbation; centers are states, values start at zero."""

    def __init__(
        self, observation_space: spaces.Box, states: np.ndarray, num_centers: int = 64, features_dim: int = 64
    ) -> None:
        super().__init__(observation_space, features_dim)
        points = torch.as_tensor(states, dtype=torch.float32)
        centers = points[torch.randperm(len(points))[:num_centers]]
        self.linear = torch.nn.Linear(points.shape[1], features_dim)
        self.kernel = torchkrr.nn.KernelRidge(
            centers,
            torch.zeros(num_centers, features_dim),
            kernel=torchkrr.kernels.Exponential(typical_scales(points)),
            ridge=1e-2,
            learn_centers=True,
            learn_values=True,
        )

    def forward(self, observations: Tensor) -> Tensor:
        perturbation: Tensor = self.kernel(observations)
        return torch.relu(self.linear(observations)) + perturbation


def random_states(name: str, count: int) -> np.ndarray:
    environment = gymnasium.make(name)
    environment.action_space.seed(0)
    state, _ = environment.reset(seed=0)
    states = [state]
    while len(states) < count:
        state, _, terminated, truncated, _ = environment.step(environment.action_space.sample())
        states.append(environment.reset()[0] if terminated or truncated else state)
    return np.stack(states)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environment", default="CartPole-v1")
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--evaluation-games", type=int, default=20)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    states = random_states(chosen.environment, 1000)
    kernel = {"features_extractor_class": KernelFeatures, "features_extractor_kwargs": {"states": states}, "net_arch": [64]}
    for name, policy in (("layers", {"net_arch": [64, 64]}), ("with kernels", kernel)):
        settings: dict[str, Any] = {
            "learning_rate": 1e-3,
            "learning_starts": 1000,
            "target_update_interval": 500,
            "exploration_fraction": 0.2,
        }
        model = DQN(
            "MlpPolicy", chosen.environment, policy_kwargs=policy, seed=0, train_freq=4, gradient_steps=4, **settings
        )
        began = time.perf_counter()
        model.learn(chosen.steps)
        seconds = time.perf_counter() - began
        games = gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make(chosen.environment))
        mean, deviation = evaluate_policy(model, games, n_eval_episodes=chosen.evaluation_games)
        print(f"{name}: reward {mean:.1f} +- {deviation:.1f} after {chosen.steps} moves, {seconds:.0f} s")


if __name__ == "__main__":
    main()
