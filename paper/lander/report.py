"""Several runs compared: a table over seeds, how sure the differences are, and a figure; a game as an animated picture."""

from __future__ import annotations

import importlib
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from torchkrr.errors import InputError
from torchkrr.runs import Record, Table, markdown_report
from torchkrr.vision.figures import new_figure

from ..checkpoints import read_checkpoint, replacing, spread
from ..options import require
from .agent import Agent
from .config import Config
from .games import SHOWING, make, move, start
from .training import WINDOW

RESAMPLES = 10_000
COVERAGE = 0.95
NAMES = {"dqn": "Double DQN", "dqk": "with kernels"}
COLORS = ("#8a8a8a", "#0b6e99", "#d9730d", "#448361", "#9065b0", "#c14c8a", "#9f6b53", "#cb912f", "#337ea9")
LINES = ("-", "--", ":")  # for more agents than colors
FEWEST = 10  # games of a mean that is drawn
MEASURES: dict[str, Callable[[Record], float | None]] = {
    "mean reward of all games": lambda record: float(np.mean(record["rewards"])),
    f"mean reward of the last {WINDOW} games": lambda record: float(np.mean(record["rewards"][-WINDOW:])),
    "evaluation without exploration": lambda record: float(np.mean(record["evaluation"])) if record["evaluation"] else None,
}
ANIMATIONS = (".gif", ".webp", ".png")
WIDTH = 400  # pixels of an animation, at most
EVERY = 2  # moves from one picture to the next
MOST_PICTURES = 600
MILLISECONDS = 40


def running_mean(numbers: list[float], window: int = WINDOW) -> np.ndarray:
    """The mean of the last `window` numbers, or of all so far.

    Example:
        >>> running_mean([2.0, 4.0, 6.0], 2)
        array([2., 3., 5.])
    """
    sums = np.concatenate(([0.0], np.cumsum(numbers)))
    ends = np.arange(1, len(numbers) + 1)
    starts = np.maximum(ends - window, 0)
    return (sums[ends] - sums[starts]) / (ends - starts)


def first_above(numbers: list[float], level: float | None, window: int = WINDOW) -> int | None:
    """The first game, counted from 1, after which the mean of `window` games is above the level.

    Example:
        >>> first_above([0.0, 3.0, 4.0, 0.0], 3.0, window=2)
        3
    """
    if level is None:
        return None
    above = np.flatnonzero(running_mean(numbers, window)[window - 1 :] > level)
    return int(above[0]) + window if len(above) else None


def bootstrap_difference(
    ours: Sequence[float], theirs: Sequence[float], *, coverage: float = COVERAGE, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float, float]:
    """The difference of means and an interval for it, by resampling the runs of each side with replacement.

    Example:
        >>> bootstrap_difference([3.0, 3.0], [1.0, 1.0])
        (2.0, 2.0, 2.0)
    """
    rng = np.random.default_rng(seed)

    def means(numbers: Sequence[float]) -> np.ndarray:
        values = np.asarray(numbers, dtype=float)
        return values[rng.integers(len(values), size=(resamples, len(values)))].mean(1)  # type: ignore[no-any-return]

    differences = means(ours) - means(theirs)
    low, high = np.quantile(differences, [(1 - coverage) / 2, (1 + coverage) / 2])
    return float(np.mean(ours) - np.mean(theirs)), float(low), float(high)


def report(records: Sequence[Record], command: str) -> str:
    """Markdown: one row for each label, then the differences to the plain agent, or to the first label without it."""
    groups, first = by_label(records), records[0]
    level, config = first["solved_at"], first["config"]
    above = "first above the threshold, which this game does not name" if level is None else f"first above {level}"
    text = (
        f"Rewards of all games, of the last {WINDOW}, and of {len(first['evaluation'])} after training without exploration: "
        f"means over seeds, with the range over seeds in brackets. *{above.capitalize()}*: the game after which the mean of "
        f"{WINDOW} training games, with exploration, first exceeds it. A *step* is one of the optimizer, with sampling; a "
        "*move* has the game and the choice of an action as well."
    )
    if config["stop_when_solved"]:
        text += (
            f" A run ended once 100 further games without exploration reached {level} on average, or after "
            f"{config['episodes']} games."
        )
    rows = [["agent", "seeds", "games", "all games", f"last {WINDOW}", "evaluation", above, "parameters"]]
    rows[0] += ["ms per step", "per move"]
    for label, runs in groups.items():
        lengths = sorted({len(run["rewards"]) for run in runs})
        games = str(lengths[0]) if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]}"
        means = [_values(runs, measure) for measure in MEASURES.values()]
        solved = sorted(first_above(run["rewards"], level) or np.inf for run in runs)
        times = [_values(runs, lambda run, key=key: run[key]) for key in ("seconds_per_step", "seconds_per_move")]
        rows.append(
            [
                *(label, str(len(runs)), games),
                *(spread(values, ".1f") if values else "" for values in means),
                ", ".join("never" if game == np.inf else str(game) for game in solved),
                str(runs[0]["parameters"]),
                *(f"{1e3 * np.mean(values):.2f}" if values else "" for values in times),
            ]
        )
    title = f"Double DQN on {config['environment']}"
    return markdown_report(title, command, first["versions"], [text, Table(rows).markdown(), *differences(groups)])


def differences(groups: dict[str, list[Record]]) -> list[str]:
    base = "dqn" if "dqn" in groups else next(iter(groups))
    others = [label for label in groups if label != base]
    if not others:
        return []
    text = (
        f"Difference of the means over seeds, and its {COVERAGE:.0%} bootstrap interval ({RESAMPLES} resamples of the seeds "
        "of both sides). With few seeds such intervals are too narrow rather than too wide."
    )
    rows = [["agent", *MEASURES]]
    for label in others:
        pairs = [(_values(groups[label], measure), _values(groups[base], measure)) for measure in MEASURES.values()]
        rows.append([label, *(_difference(ours, theirs) for ours, theirs in pairs)])
    parts = [f"## Differences to {base}", text, Table(rows).markdown()]
    times = {label: _values(runs, lambda run: run["seconds_per_step"]) for label, runs in groups.items()}
    if all(times.values()):
        ratios = ", ".join(f"{label} {np.mean(times[label]) / np.mean(times[base]):.2f}" for label in others)
        parts.append(f"Time per optimizer step relative to {base}: {ratios}.")
    return parts


def by_label(records: Sequence[Record]) -> dict[str, list[Record]]:
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record["label"], []).append(record)
    return groups


def draw(records: Sequence[Record], path: pathlib.Path) -> None:
    """One panel for rewards, one for temporal-difference losses: running means over games, mean and range over seeds."""
    figure = new_figure((11, 4.2), extra="rl")
    rewards, losses = panels = figure.subplots(1, 2)
    for number, (label, runs) in enumerate(by_label(records).items()):
        style = {"color": COLORS[number % len(COLORS)], "linestyle": LINES[number // len(COLORS) % len(LINES)]}
        name = f"{NAMES.get(label, label)} ({len(runs)} seed{'s' * (len(runs) != 1)})"
        for panel, key in ((rewards, "rewards"), (losses, "losses")):
            _draw_band(panel, [running_mean(run[key]) for run in runs], label=name, **style)
    first = records[0]
    if first["solved_at"] is not None:
        rewards.axhline(first["solved_at"], color="#222222", linewidth=0.8, linestyle=":")
    rewards.set(title=f"Rewards in {first['config']['environment']}", xlabel="game", ylabel=f"mean of {WINDOW} games")
    losses.set(title="Temporal-difference losses", xlabel="game")
    if any(loss > 0 for record in records for loss in record["losses"]):
        # A logarithmic axis with ticks such as 0.2, 0.5, 1.
        ticker = importlib.import_module("matplotlib.ticker")
        losses.set_yscale("log")
        losses.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        losses.yaxis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
        losses.yaxis.set_minor_formatter(ticker.NullFormatter())
    rewards.legend(frameon=False, fontsize=9)
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.25)
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=150, format="png")


def watch(checkpoint: str | os.PathLike[str], out: str | os.PathLike[str], *, game_number: int = 0) -> float:
    """Play one game with the agent of a checkpoint, without exploration, into an animated file; its reward."""
    path = pathlib.Path(out)
    if path.suffix.lower() not in ANIMATIONS:
        raise InputError(f"{path} must end in {', '.join(ANIMATIONS)} to be an animated picture.")
    if not path.parent.is_dir():
        raise InputError(f"The folder {path.parent} for the file {path.name} does not exist. Create it first.")
    require(["PIL.Image"], "An animated file", extra="rl")  # before a game is played for it
    state = read_checkpoint(checkpoint, "lander")
    config = Config(**state["config"])
    game = make(config.environment, render_mode="rgb_array")
    try:
        agent = Agent(config, game)
        agent.load_state_dict(state["agent"])
        observed, over, reward, moves = start(game, config.seed, SHOWING, game_number), False, 0.0, 0
        pictures = [_small(game.environment.render())]
        while not over:
            observed, gained, terminated, truncated = move(game, agent.best_action(observed))
            reward, moves, over = reward + gained, moves + 1, terminated or truncated
            if over or (moves % EVERY == 0 and len(pictures) < MOST_PICTURES):
                pictures.append(_small(game.environment.render()))
    finally:
        game.environment.close()
    kind = path.suffix[1:].upper()
    with replacing(path) as temporary:
        pictures[0].save(temporary, format=kind, save_all=True, append_images=pictures[1:], duration=MILLISECONDS, loop=0)
    return reward


def _small(picture: np.ndarray) -> Any:
    image = importlib.import_module("PIL.Image").fromarray(picture)
    share = min(1.0, WIDTH / image.width)
    return image.resize((round(image.width * share), round(image.height * share))).quantize(64).convert("RGB")


def _values(runs: Sequence[Record], measure: Callable[[Record], float | None]) -> list[float]:
    """The measure of every run, or nothing if some run does not have it."""
    values = [measure(run) for run in runs]
    return [value for value in values if value is not None] if None not in values else []


def _difference(ours: Sequence[float], theirs: Sequence[float]) -> str:
    if not ours or not theirs:  # no evaluation was asked for
        return ""
    difference, low, high = bootstrap_difference(ours, theirs)
    if min(len(ours), len(theirs)) == 1:  # the resamples of a single run are all the same
        return f"{difference:+.1f}"
    return f"{difference:+.1f} ({low:+.1f} to {high:+.1f})"


def _draw_band(panel: Any, curves: list[np.ndarray], *, color: str, linestyle: str, label: str) -> None:
    length = min(map(len, curves))
    stacked = np.stack([curve[:length] for curve in curves])  # (seeds, games)
    # Means of fewer games jump, and would stretch the axes; a short run has nothing else.
    begin = FEWEST - 1 if length > 2 * FEWEST else 0
    stacked, games = stacked[:, begin:], np.arange(begin + 1, length + 1)
    panel.plot(games, stacked.mean(0), color=color, label=label, linewidth=1.8, linestyle=linestyle)
    panel.fill_between(games, stacked.min(0), stacked.max(0), color=color, alpha=0.18, linewidth=0)
