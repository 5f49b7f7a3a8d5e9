r"""Double DQN: the online network chooses the next action, the target network says what it is worth.

$$ \inf_\theta\ \mathbb E\,\mathcal L\bigl(r + \gamma\,Q(s', a^*; \theta^-) - Q(s, a; \theta)\bigr), \qquad
   a^* = \arg\max_{a'} Q(s', a'; \theta) $$
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from torchkrr.functional import gromov_monge
from torchkrr.models import KernelQNetwork, QNetwork

from .config import Config
from .games import Batch, Game, random_policy_states


def double_dqn_target(
    online_next: Tensor, target_next: Tensor, rewards: Tensor, going_on: Tensor, discount: float
) -> Tensor:
    """Rewards plus the discounted value of the next state, `(b,)`; the action is the online network's choice.

    Shape:
        - online_next, target_next: `(b, A)`, action values in the next states; rewards, going_on: `(b,)`

    Example:
        >>> online, target = torch.tensor([[1.0, 2.0]]), torch.tensor([[9.0, 5.0]])
        >>> double_dqn_target(online, target, torch.tensor([1.0]), torch.tensor([1.0]), 0.5)
        tensor([3.5000])
    """
    best = online_next.argmax(1, keepdim=True)
    return rewards + discount * going_on * target_next.gather(1, best).squeeze(1)


def make_network(config: Config, game: Game) -> QNetwork:
    """A fresh network for the game; with the same seed, both agents start with the same layers."""
    states = random_policy_states(game, config.random_states, config.seed) if config.agent == "dqk" else None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        if states is None:
            return QNetwork(game.num_features, game.num_actions, hidden=config.hidden)
        return KernelQNetwork(
            states,
            game.num_actions,
            hidden=config.hidden,
            num_centers=config.num_centers,
            parts=config.parts,
            last_on=config.last_on,
            placing=config.placing,
            lengthscale=config.lengthscale,
            ridge=config.ridge,
            learn_centers=config.learn_centers,
            learn_values=config.learn_values,
            learn_lengthscale=config.learn_lengthscale,
        )


def make_optimizer(config: Config, network: QNetwork) -> torch.optim.Optimizer:
    rates = {"first_kernel": config.first_learning_rate, "last_kernel": config.last_learning_rate}
    # Parameters with the same rate and decay share a group: groups take time, more tensors in a group hardly any.
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in network.named_parameters():
        part = name.partition(".")[0]
        rate, decay = config.learning_rate, config.weight_decay
        if part in rates:
            rate, decay = rates[part], config.kernel_weight_decay
            if name.endswith(".centers"):
                rate = config.center_learning_rate
        groups.setdefault((rate, decay), []).append(parameter)
    options = [{"params": group, "lr": rate, "weight_decay": decay} for (rate, decay), group in groups.items()]
    return torch.optim.AdamW(options, fused=True)


class Agent:
    """An online and a target network, and the step that learns from a batch."""

    def __init__(self, config: Config, game: Game) -> None:
        self.config = config
        self.online = make_network(config, game)
        self.target = copy.deepcopy(self.online).requires_grad_(False)
        self.optimizer = make_optimizer(config, self.online)
        self._learned: list[Tensor] = [parameter for parameter in self.online.parameters() if parameter.requires_grad]
        followers = dict(self.target.named_parameters())
        self._followers: list[Tensor] = [followers[name] for name, p in self.online.named_parameters() if p.requires_grad]

    @torch.no_grad()
    def best_action(self, state: Tensor) -> int:
        return int(self.online(state.unsqueeze(0)).argmax())

    def learn(self, batch: Batch) -> Tensor:
        """One step of the optimizer; the temporal-difference loss before it, a scalar without graph."""
        config = self.config
        count = len(batch.rewards)
        values = self.online(batch.states).view(count, 2, -1)  # state and next state in one pass
        with torch.no_grad():
            target_next = self.target(batch.states[1::2])  # (b, A)
            expected = double_dqn_target(values[:, 1], target_next, batch.rewards, batch.going_on, config.discount)
        chosen = values[:, 0].gather(1, batch.actions).squeeze(1)
        loss = nn.functional.smooth_l1_loss(chosen, expected)
        total = loss + self._regularizer() if config.gromov_monge else loss
        self.optimizer.zero_grad()
        total.backward()
        nn.utils.clip_grad_value_(self._learned, config.gradient_clip)
        self.optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(self._followers, self._learned, config.polyak)
        return loss.detach()

    def _regularizer(self) -> Tensor:
        """The paper's $GM(\\theta_x, \\theta_y)$, a mean over pairs of centers, in the metric of each kernel."""
        if not isinstance(self.online, KernelQNetwork):
            return torch.zeros(())
        terms = [
            gromov_monge(part.kernel.embed(part.centers), part.values) / part.num_centers**2
            for part in self.online.kernel_parts()
        ]
        return self.config.gromov_monge * torch.stack(terms).sum()

    def state_dict(self) -> dict[str, Any]:
        return {
            "online": self.online.state_dict(),
            "target": self.target.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.online.load_state_dict(state["online"])
        self.target.load_state_dict(state["target"])
        self.optimizer.load_state_dict(state["optimizer"])
