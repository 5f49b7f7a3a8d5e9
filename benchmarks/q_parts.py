"""What do the kernel parts of trained agents contribute to their action values, and on what scale do they see the states?

    python -m benchmarks.q_parts runs/lander/*.pt

Reads checkpoints of `python -m paper.lander`. On states of each agent's memory: the size of the first kernel part beside the
layer it is added to, the spread of the last part beside that of the action values, the spread of states in lengthscales, and
the distance of a state to the nearest center in lengthscales. Writes `q_parts.jsonl`.
"""

from __future__ import annotations

import argparse
import functools
import pathlib

import torch
from paper.checkpoints import read_checkpoint
from paper.lander.agent import Agent
from paper.lander.config import Config
from paper.lander.games import Replay, make

from benchmarks import harness
from torchkrr.models import KernelQNetwork

STATES = 4000


@torch.no_grad()
def measure(path: pathlib.Path) -> harness.Record:
    checkpoint = read_checkpoint(path, "lander")
    config = Config(**checkpoint["config"])
    if config.agent != "dqk":
        return {"label": config.label, "seed": config.seed, "kernels": "none"}
    game = make(config.environment)
    agent, replay = Agent(config, game), Replay(config.replay_size, game.num_features)
    agent.load_state_dict(checkpoint["agent"])
    replay.load_state_dict(checkpoint["replay"])
    network = agent.online
    assert isinstance(network, KernelQNetwork)
    states = replay.sample(STATES, torch.Generator().manual_seed(0)).states[::2]
    found: harness.Record = {"label": config.label, "seed": config.seed, "games": len(checkpoint["episodes"])}
    if network.first_kernel is not None:
        layer, part = torch.relu(network.first(states)), network.first_kernel(states)
        found["first_share"] = float(part.norm(dim=1).mean() / layer.norm(dim=1).mean())
        # What is the same for all states is a bias, which the layer has already.
        found["first_constant"] = float(part.mean(0).norm() / part.square().sum(1).mean().sqrt())
    if network.last_kernel is not None and network.last_on == "state":
        found["last_share"] = float(network.last_kernel(states).std() / network(states).std())
    for name, kernel_part in (("first", network.first_kernel), ("last", network.last_kernel)):
        if kernel_part is None or (name == "last" and network.last_on == "hidden"):
            continue
        seen, centers = (kernel_part.kernel.embed(points) for points in (states, kernel_part.centers))
        found[f"{name}_spread_in_lengthscales"] = float(seen.std(0).norm())
        found[f"{name}_center_distance"] = float(torch.cdist(seen, centers).amin(1).median())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoints", type=pathlib.Path, nargs="+", help="of agents with kernels")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("benchmarks/results"))
    chosen = parser.parse_args()
    cases = [(str(path), functools.partial(measure, path)) for path in chosen.checkpoints]
    harness.record(chosen.out / "q_parts.jsonl", cases)


if __name__ == "__main__":
    main()
