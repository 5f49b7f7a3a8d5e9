"""The memory of an agent: its last transitions, in one tensor."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Batch(NamedTuple):
    states: Tensor  # (2b, S): state and next state of each transition by turns
    actions: Tensor  # (b, 1) int64
    rewards: Tensor  # (b,)
    going_on: Tensor  # (b,): 0 where the game ended, else 1


class Replay:
    """The last `capacity` transitions; a sample is drawn with replacement.

    Example:
        >>> replay = Replay(10, num_features=2)
        >>> replay.add(torch.zeros(2), 1, 0.5, torch.ones(2), terminated=False)
        >>> len(replay), replay.sample(3, torch.Generator()).rewards
        (1, tensor([0.5000, 0.5000, 0.5000]))
    """

    def __init__(self, capacity: int, num_features: int) -> None:
        self.capacity, self.num_features = capacity, num_features
        self._rows = torch.zeros(capacity, 2 * num_features + 3)
        self._count = 0  # ever added

    def __len__(self) -> int:
        return min(self._count, self.capacity)

    def add(self, state: Tensor, action: int, reward: float, next_state: Tensor, *, terminated: bool) -> None:
        """An episode that was cut off by a time limit is not terminated: its last state has a future."""
        size = self.num_features
        row = self._rows[self._count % self.capacity]
        row[:size], row[size : 2 * size] = state, next_state
        row[2 * size :] = torch.tensor((float(action), reward, 0.0 if terminated else 1.0))
        self._count += 1

    def sample(self, count: int, generator: torch.Generator) -> Batch:
        rows = self._rows[torch.randint(len(self), (count,), generator=generator)]  # (b, 2S + 3)
        size = self.num_features
        actions, rewards, going_on = rows[:, 2 * size :].unbind(1)
        return Batch(rows[:, : 2 * size].reshape(2 * count, size), actions.long().unsqueeze(1), rewards, going_on)

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self._rows[: len(self)].clone(), "count": self._count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._rows[: len(state["rows"])] = state["rows"]
        self._count = state["count"]
