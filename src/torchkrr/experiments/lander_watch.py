"""A game of a trained agent as an animated picture."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import numpy as np

from .._files import replacing, writable
from ..errors import InputError
from .checkpoints import read_checkpoint
from .extras import needed
from .lander_agent import Agent
from .lander_config import Config
from .lander_games import SHOWING, make, move, start

WIDTH = 400  # pixels, at most
EVERY = 2  # moves from one picture to the next
MOST_PICTURES = 600
MILLISECONDS = 40
KINDS = (".gif", ".webp", ".png")


def watch(checkpoint: str | os.PathLike[str], out: str | os.PathLike[str], *, game_number: int = 0) -> float:
    """Play one game with the agent of a checkpoint, without exploration, into an animated file; its reward."""
    path = pathlib.Path(out)
    if path.suffix.lower() not in KINDS:
        raise InputError(f"{path} must end in {', '.join(KINDS)} to be an animated picture.")
    writable(path)
    needed("PIL.Image", "An animated file", extra="rl")  # before a game is played for it
    state = read_checkpoint(checkpoint, "lander")
    config = Config(**state["config"])
    agent = Agent(config, make(config.environment))
    agent.load_state_dict(state["agent"])
    pictures, reward = _pictures(agent, config, game_number)
    first, *others = [_smaller(picture) for picture in pictures]
    with replacing(path) as temporary:
        kind = path.suffix[1:].upper()
        first.save(temporary, format=kind, save_all=True, append_images=others, duration=MILLISECONDS, loop=0)
    return reward


def _pictures(agent: Agent, config: Config, number: int) -> tuple[list[np.ndarray], float]:
    game = make(config.environment, render_mode="rgb_array")
    try:
        observed, over, reward, moves = start(game, config.seed, SHOWING, number), False, 0.0, 0
        pictures = [game.environment.render()]
        while not over:
            observed, gained, terminated, truncated = move(game, agent.best_action(observed))
            reward, moves, over = reward + gained, moves + 1, terminated or truncated
            if over or (moves % EVERY == 0 and len(pictures) < MOST_PICTURES):
                pictures.append(game.environment.render())
    finally:
        game.environment.close()
    return pictures, reward


def _smaller(picture: np.ndarray) -> Any:
    image = needed("PIL.Image", "An animated file", extra="rl").fromarray(picture)
    share = min(1.0, WIDTH / image.width)
    return image.resize((round(image.width * share), round(image.height * share))).quantize(64).convert("RGB")
