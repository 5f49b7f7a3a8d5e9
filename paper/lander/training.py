"""One run: games played and learned from, with checkpoints from which an interrupted run goes on as if it had not been.

All randomness of an episode comes from the seed of the run and the number of the episode, so a checkpoint between two
episodes is complete.
"""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from torchkrr.errors import FileError, InputError, KernelRidgeError
from torchkrr.runs import Record, Report, fingerprint, versions

from ..checkpoints import Job, check_same_run, complete, read_checkpoint, write_checkpoint
from .agent import Agent
from .config import Config
from .games import EVALUATION, TRAINING, VALIDATION, Game, Replay, episode_seed, make, move, start

EXPLORING, SAMPLING = 101, 102  # streams of seeds beside those of the games
WINDOW = 50  # games of a running mean, the paper's
VALIDATION_GAMES = (20, 100)  # that tell whether a game is solved: so many at first, and all if these are won


@dataclasses.dataclass(frozen=True)
class Episode:
    reward: float  # the sum of all
    loss: float  # mean over its optimizer steps
    moves: int
    steps: int  # of the optimizer
    seconds: float
    seconds_learning: float  # in those steps, sampling included


Watch = Callable[[int, Episode], None]  # the number of an episode, counted from 1


class Run:
    """A run in progress; `path` is its checkpoint, found or to be written."""

    def __init__(self, config: Config, path: str | os.PathLike[str]) -> None:
        self.config, self.path = config, pathlib.Path(path)
        self.game = make(config.environment)
        self.agent = Agent(config, self.game)
        self.replay = Replay(config.replay_size, self.game.num_features)
        self.moves = 0
        self.episodes: list[Episode] = []
        if config.stop_when_solved and self.threshold is None:
            raise InputError(f"{config.environment} names no reward at which it is solved. Leave out stop_when_solved.")
        if self.path.exists():
            self._restore(read_checkpoint(self.path, "lander"))

    def train(self, watch: Watch | None = None) -> None:
        """Play on until `config.episodes` have been played, or the game is solved if that is enough."""
        written = len(self.episodes)
        while len(self.episodes) < self.config.episodes and not (self.config.stop_when_solved and self.is_solved()):
            self.episodes.append(self._episode(len(self.episodes)))
            if watch is not None:
                watch(len(self.episodes), self.episodes[-1])
            if len(self.episodes) % self.config.checkpoint_every == 0:
                self.save()
                written = len(self.episodes)
        if written < len(self.episodes):
            self.save()

    @property
    def threshold(self) -> float | None:
        """The mean reward at which the environment counts as solved, if it names one."""
        spec = self.game.environment.spec
        return None if spec is None else spec.reward_threshold

    def is_solved(self) -> bool:
        """Whether the last game, and 100 more without exploration, which are neither for training nor for evaluation,
        are above the threshold on average; fewer of these games if they tell already that it is not."""
        if self.threshold is None or not self.episodes or self.episodes[-1].reward < self.threshold:
            return False
        rewards: list[float] = []
        for count in VALIDATION_GAMES:
            games = range(len(rewards), count)
            rewards += [play(self.agent, self.game, self.config.seed, n, stream=VALIDATION) for n in games]
            if np.mean(rewards) < self.threshold:
                return False
        return True

    def _episode(self, number: int) -> Episode:
        config, agent, replay = self.config, self.agent, self.replay
        exploring = np.random.default_rng((config.seed, EXPLORING, number))
        sampling = torch.Generator().manual_seed(episode_seed(config.seed, SAMPLING, number))
        began = time.perf_counter()
        state, over = start(self.game, config.seed, TRAINING, number), False
        total = losses = seconds_learning = 0.0
        first_move, steps = self.moves, 0
        while not over:
            explores = exploring.random() < config.epsilon(self.moves)
            action = int(exploring.integers(self.game.num_actions)) if explores else agent.best_action(state)
            next_state, reward, terminated, truncated = move(self.game, action)
            replay.add(state, action, reward, next_state, terminated=terminated)
            state, over = next_state, terminated or truncated
            total += reward
            self.moves += 1
            if len(replay) >= config.batch_size:
                before = time.perf_counter()
                losses += float(agent.learn(replay.sample(config.batch_size, sampling)))
                seconds_learning += time.perf_counter() - before
                steps += 1
        seconds, loss = time.perf_counter() - began, losses / max(steps, 1)
        if not math.isfinite(loss):
            raise KernelRidgeError(f"The loss of game {number + 1} is {loss}. Try a smaller learning_rate.")
        return Episode(total, loss, self.moves - first_move, steps, seconds, seconds_learning)

    def evaluate(self) -> list[float]:
        """Rewards of games without exploration."""
        return [play(self.agent, self.game, self.config.seed, number) for number in range(self.config.evaluation_episodes)]

    def save(self) -> None:
        state = {
            "config": dataclasses.asdict(self.config),
            "identity": self.config.identity(),
            "agent": self.agent.state_dict(),
            "replay": self.replay.state_dict(),
            "moves": self.moves,
            "episodes": [dataclasses.astuple(episode) for episode in self.episodes],
        }
        write_checkpoint(self.path, state, "lander")

    def _restore(self, state: dict[str, Any]) -> None:
        check_same_run(self.path, state["identity"], self.config.identity())
        if len(state["episodes"]) > self.config.episodes:
            raise FileError(
                f"{self.path} has {len(state['episodes'])} games, more than the {self.config.episodes} asked for. "
                "Choose another folder, or remove it."
            )
        if self.config.stop_when_solved and state["episodes"] and not state["config"]["stop_when_solved"]:
            raise FileError(f"{self.path} is of a run that did not look whether it was solved. Choose another folder.")
        self.agent.load_state_dict(state["agent"])
        self.replay.load_state_dict(state["replay"])
        self.moves = state["moves"]
        self.episodes = [Episode(*fields) for fields in state["episodes"]]


def play(agent: Agent, game: Game, seed: int, number: int, stream: int = EVALUATION) -> float:
    """The sum of rewards of one game without exploration."""
    state, over, total = start(game, seed, stream, number), False, 0.0
    while not over:
        state, reward, terminated, truncated = move(game, agent.best_action(state))
        total += reward
        over = terminated or truncated
    return total


def run_all(
    configs: Sequence[Config],
    folder: str | os.PathLike[str],
    *,
    processes: int = 1,
    seconds: float | None = None,
    progress: bool = False,
) -> list[Record]:
    """The records of these runs, in order; what is finished is read, what was begun goes on."""
    runs = {fingerprint(config.record_identity()): config for config in configs}
    return complete(
        run_one,
        runs,
        folder,
        steps=lambda config: config.episodes,
        unit="games",
        processes=processes,
        seconds=seconds,
        progress=progress,
    )


def run_one(job: Job, report: Report | None = None) -> Record:
    """Train, evaluate and describe one run, from its checkpoint if there is one."""
    config, rewards, shown = job.config, list[float](), 0

    def watch(number: int, episode: Episode) -> None:
        nonlocal shown
        rewards.append(episode.reward)
        if report is not None:
            mean, rate = np.mean(rewards[-WINDOW:]), episode.moves / episode.seconds
            of_game = f"game {number}, reward {episode.reward:.0f}, mean {mean:.0f}, {rate:.0f} steps/s"
            report(number - shown, f"{config.label} seed {config.seed}: {of_game}")
        shown = number

    run = Run(config, job.folder / f"{config.label}-seed{config.seed}.pt")
    run.train(watch)
    return make_record(run, job.key)


def make_record(run: Run, key: str) -> Record:
    """What is kept of a run that is trained: settings, every reward and loss, times."""
    episodes = run.episodes
    steps, moves = sum(e.steps for e in episodes), sum(e.moves for e in episodes)
    seconds = sum(e.seconds for e in episodes)
    return {
        "key": key,
        "label": run.config.label,
        "config": dataclasses.asdict(run.config),
        "solved_at": run.threshold,
        "parameters": sum(p.numel() for p in run.agent.online.parameters() if p.requires_grad),
        "moves": moves,
        "seconds": seconds,
        "seconds_per_step": sum(e.seconds_learning for e in episodes) / steps if steps else None,
        "seconds_per_move": seconds / moves,
        "rewards": [e.reward for e in episodes],
        "losses": [e.loss for e in episodes],
        "lengths": [e.moves for e in episodes],
        "evaluation": run.evaluate(),
        "versions": versions(("torch", "gymnasium", "Box2D", "numpy")),
    }
