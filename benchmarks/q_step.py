"""What does a step of the kernel agent cost beside one of the plain agent?

    OMP_NUM_THREADS=1 python -m benchmarks.q_step

Both agents of `python -m paper.lander` learn from the same memory, by turns, on one thread: sampling, both networks,
gradient, optimizer, target network. Median and best of all steps, and the same for choosing an action. Writes
`q_step.jsonl`.
"""

from __future__ import annotations

import argparse
import functools
import pathlib
import time

import numpy as np
import torch
from paper.lander.agent import Agent
from paper.lander.config import AGENTS, Config
from paper.lander.games import TRAINING, Game, Replay, make, move, start

from benchmarks import harness

WARM_UP = 50


def filled(game: Game, count: int) -> Replay:
    """Transitions of a random policy."""
    replay, rng, episode = Replay(count, game.num_features), np.random.default_rng(0), 0
    while len(replay) < count:
        state, over = start(game, 0, TRAINING, episode), False
        episode += 1
        while not over and len(replay) < count:
            action = int(rng.integers(game.num_actions))
            after, reward, terminated, truncated = move(game, action)
            replay.add(state, action, reward, after, terminated=terminated)
            state, over = after, terminated or truncated
    return replay


def measure(environment: str, steps: int) -> harness.Record:
    game = make(environment)
    replay, generator = filled(game, 5000), torch.Generator().manual_seed(0)
    agents = {
        "dqn": Agent(Config(agent="dqn", environment=environment), game),
        "dqk": Agent(Config(agent="dqk", environment=environment), game),
    }
    learning: dict[str, list[float]] = {name: [] for name in AGENTS}
    acting: dict[str, list[float]] = {name: [] for name in AGENTS}
    state = replay.sample(1, generator).states[0]
    for _ in range(WARM_UP + steps):
        for name, agent in agents.items():
            began = time.perf_counter()
            agent.learn(replay.sample(agent.config.batch_size, generator))
            learned = time.perf_counter()
            agent.best_action(state)
            learning[name].append(learned - began)
            acting[name].append(time.perf_counter() - learned)
    found: harness.Record = {"environment": environment, "steps": steps}
    for what, times in (("step", learning), ("action", acting)):
        for kind, statistic in (("median", np.median), ("best", np.min)):
            plain, kernel = (float(statistic(times[name][WARM_UP:])) for name in AGENTS)
            found |= {f"dqn_{what}_{kind}_us": 1e6 * plain, f"dqk_{what}_{kind}_us": 1e6 * kernel}
            found[f"ratio_{what}_{kind}"] = kernel / plain
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("benchmarks/results"))
    parser.add_argument("--steps", type=int, default=5000)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    games = ("LunarLander-v3", "CartPole-v1")
    cases = [(f"{name}, {chosen.steps} steps", functools.partial(measure, name, chosen.steps)) for name in games]
    harness.record(chosen.out / "q_step.jsonl", cases)


if __name__ == "__main__":
    main()
