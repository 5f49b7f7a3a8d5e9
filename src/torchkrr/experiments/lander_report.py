"""Several runs compared: a table over seeds, and how sure the differences are."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Sequence

import numpy as np

from .._files import replacing
from .lander_records import WINDOW, Record, first_above

RESAMPLES = 10_000
COVERAGE = 0.95
Measure = Callable[[Record], float]

MEASURES: dict[str, Measure] = {
    "mean reward of all games": lambda record: float(np.mean(record["rewards"])),
    f"mean reward of the last {WINDOW} games": lambda record: float(np.mean(record["rewards"][-WINDOW:])),
    "evaluation without exploration": lambda record: float(np.mean(record["evaluation"] or [np.nan])),
}


def by_label(records: Sequence[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record["label"], []).append(record)
    return found


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
    """Markdown: one row for each label, then the differences to the first label (the plain agent, if it is there)."""
    groups = by_label(records)
    first = records[0]
    level = first["solved_at"]
    above = "first above the threshold, which this game does not name" if level is None else f"first above {level}"
    lines = [
        f"# Double DQN on {first['config']['environment']}",
        "",
        f"Made by `{command}`; records in `lander.jsonl`.",
        "Versions: " + ", ".join(f"{name} {version}" for name, version in first["versions"].items()) + ".",
        f"Rewards of all games, of the last {WINDOW}, and of {len(first['evaluation'])} after training without exploration: "
        f"means over seeds, with the range over seeds in brackets. *{above.capitalize()}*: the game after which the mean of "
        f"{WINDOW} training games, with exploration, first exceeds it. A *step* is one of the optimizer, with sampling; a "
        "*move* has the game and the choice of an action as well." + _ended(first["config"], level),
        "",
        f"| agent | seeds | games | all games | last {WINDOW} | evaluation | {above} | parameters | ms per step "
        "| per move |",
        "|---" * 10 + "|",
    ]
    for label, runs in groups.items():
        shown = [_spread([measure(run) for run in runs]) for measure in MEASURES.values()]
        solved = [first_above(run["rewards"], level) for run in runs]
        lines.append(
            f"| {label} | {len(runs)} | {_games(runs)} | {' | '.join(shown)} | {_solved(solved)} | "
            f"{runs[0]['parameters']} | {_milliseconds(runs, 'seconds_per_step')} | "
            f"{_milliseconds(runs, 'seconds_per_move')} |"
        )
    return "\n".join([*lines, *differences(groups)]) + "\n"


def differences(groups: dict[str, list[Record]]) -> list[str]:
    base = "dqn" if "dqn" in groups else next(iter(groups))
    others = [label for label in groups if label != base]
    if not others:
        return []
    lines = [
        "",
        f"## Differences to {base}",
        "",
        f"Difference of the means over seeds, and its {COVERAGE:.0%} bootstrap interval ({RESAMPLES} resamples of the seeds "
        "of both sides). With few seeds such intervals are too narrow rather than too wide.",
        "",
        "| agent | " + " | ".join(MEASURES) + " |",
        "|---" * (1 + len(MEASURES)) + "|",
    ]
    for label in others:
        cells = []
        for measure in MEASURES.values():
            ours, theirs = ([measure(run) for run in groups[name]] for name in (label, base))
            cells.append(_difference(ours, theirs))
        lines.append(f"| {label} | {' | '.join(cells)} |")
    times = {label: _mean_seconds(runs, "seconds_per_step") for label, runs in groups.items()}
    if None in times.values():
        return lines
    ratios = ", ".join(f"{label} {times[label] / times[base]:.2f}" for label in others)  # type: ignore[operator]
    return [*lines, "", f"Time per optimizer step relative to {base}: {ratios}."]


def write_report(folder: pathlib.Path, records: Sequence[Record], command: str) -> str:
    """`lander.jsonl`, one line for each run, and `lander.md`."""
    text = report(records, command)
    with replacing(folder / "lander.jsonl") as temporary:
        temporary.write_text("".join(json.dumps(record, allow_nan=False) + "\n" for record in records))
    with replacing(folder / "lander.md") as temporary:
        temporary.write_text(text)
    return text


def _difference(ours: Sequence[float], theirs: Sequence[float]) -> str:
    if np.isnan([*ours, *theirs]).any():  # no evaluation was asked for
        return ""
    difference, low, high = bootstrap_difference(ours, theirs)
    if min(len(ours), len(theirs)) == 1:  # the resamples of a single run are all the same
        return f"{difference:+.1f}"
    return f"{difference:+.1f} ({low:+.1f} to {high:+.1f})"


def _spread(numbers: Sequence[float]) -> str:
    if np.isnan(numbers).any():
        return ""
    mean = f"{np.mean(numbers):.1f}"
    return mean if len(numbers) == 1 else f"{mean} ({min(numbers):.1f} to {max(numbers):.1f})"


def _ended(config: Record, level: float | None) -> str:
    if not config["stop_when_solved"]:
        return ""
    return (
        f" A run ended once 100 further games without exploration reached {level} on average, or after {config['episodes']} "
        "games."
    )


def _games(runs: Sequence[Record]) -> str:
    counts = sorted(len(run["rewards"]) for run in runs)
    return str(counts[0]) if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"


def _solved(games: Sequence[int | None]) -> str:
    return ", ".join("never" if game is None else str(game) for game in sorted(games, key=lambda g: (g is None, g)))


def _milliseconds(runs: Sequence[Record], key: str) -> str:
    mean = _mean_seconds(runs, key)
    return "" if mean is None else f"{1e3 * mean:.2f}"


def _mean_seconds(runs: Sequence[Record], key: str) -> float | None:
    """`None` if some run ended before the optimizer made a step."""
    seconds = [run[key] for run in runs]
    return None if None in seconds else float(np.mean(seconds))
