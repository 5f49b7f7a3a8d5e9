"""Rewards and losses of several agents: running means over games, mean and range over seeds."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._files import replacing
from .extras import needed
from .figures import new_figure
from .lander_records import WINDOW, Record, running_mean
from .lander_report import by_label

NAMES = {"dqn": "Double DQN", "dqk": "with kernels"}
COLORS = ("#8a8a8a", "#0b6e99", "#d9730d", "#448361", "#9065b0", "#c14c8a", "#9f6b53", "#cb912f", "#337ea9")
LINES = ("-", "--", ":")  # for more agents than colors
FEWEST = 10  # games of a mean that is drawn


def draw(records: Sequence[Record], path: pathlib.Path) -> None:
    """One panel for rewards, one for temporal-difference losses; the file's ending decides its kind."""
    groups = by_label(records)
    figure = new_figure((11, 4.2), extra="rl")
    panels = figure.subplots(1, 2)
    for number, (label, runs) in enumerate(groups.items()):
        color, line = COLORS[number % len(COLORS)], LINES[number // len(COLORS) % len(LINES)]
        for panel, key in zip(panels, ("rewards", "losses"), strict=True):
            curves = [running_mean(run[key]) for run in runs]
            _band(panel, curves, color, line, f"{NAMES.get(label, label)} ({len(runs)} seed{'s' * (len(runs) != 1)})")
    first = records[0]
    if first["solved_at"] is not None:
        panels[0].axhline(first["solved_at"], color="#222222", linewidth=0.8, linestyle=":")
    panels[0].set(title=f"Rewards in {first['config']['environment']}", xlabel="game", ylabel=f"mean of {WINDOW} games")
    learned = any(loss > 0 for record in records for loss in record["losses"])
    panels[1].set(title="Temporal-difference losses", xlabel="game")
    if learned:
        _decimals(panels[1])
    panels[0].legend(frameon=False, fontsize=9)
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.25)
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=150, format=path.suffix[1:] or "png")


def _decimals(panel: Any) -> None:
    """A logarithmic axis with ticks such as 0.2, 0.5, 1."""
    ticker = needed("matplotlib.ticker", "A figure", extra="rl")
    panel.set_yscale("log")
    panel.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    panel.yaxis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
    panel.yaxis.set_minor_formatter(ticker.NullFormatter())


def _band(panel: Any, curves: list[np.ndarray], color: str, line: str, label: str) -> None:
    length = min(map(len, curves))
    stacked = np.stack([curve[:length] for curve in curves])  # (seeds, games)
    # Means of fewer games jump, and would stretch the axes; a short run has nothing else.
    begin = FEWEST - 1 if length > 2 * FEWEST else 0
    stacked, games = stacked[:, begin:], np.arange(begin + 1, length + 1)
    panel.plot(games, stacked.mean(0), color=color, label=label, linewidth=1.8, linestyle=line)
    panel.fill_between(games, stacked.min(0), stacked.max(0), color=color, alpha=0.18, linewidth=0)
