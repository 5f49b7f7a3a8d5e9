"""Records of several seeds as one cell for each readout and budget, and as a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from .records import Record
from .text_tables import aligned


class Cell(NamedTuple):
    """One readout at one budget, over its seeds."""

    readout: str
    title: str
    budget: int
    num_seeds: int
    accuracy: float  # mean
    lowest: float
    highest: float
    standard_error: float | None  # of the mean; None for a single seed
    log_loss: float | None  # mean
    fit: float  # mean seconds
    predict: float  # mean seconds

    @property
    def seconds(self) -> float:
        return self.fit + self.predict


def summarize(records: Sequence[Record]) -> list[Cell]:
    """One cell for each readout, in the order they come, and budget, ascending."""
    groups: dict[tuple[str, int], list[Record]] = {}
    for record in records:
        groups.setdefault((record["readout"], record["budget"]), []).append(record)
    order = list(dict.fromkeys(record["readout"] for record in records))
    return [_cell(groups[key]) for key in sorted(groups, key=lambda key: (order.index(key[0]), key[1]))]


def text_table(cells: Sequence[Cell]) -> str:
    """Accuracies in percent with their standard errors, a column for each budget, and the seconds of the largest."""
    head, *rows = accuracy_rows(cells)
    shown = [[*head, "fit", "predict"]]
    for row, own in zip(rows, _by_readout(cells).values(), strict=True):
        last = next(cell for cell in reversed(own) if cell is not None)
        shown.append([*row, f"{last.fit:.2f} s", f"{last.predict:.2f} s"])
    return aligned(shown)


def accuracy_rows(cells: Sequence[Cell]) -> list[list[str]]:
    """A head, then a row for each readout with its accuracies in percent."""
    rows = [[own[0], *map(percent, own[1])] for own in _titled(cells)]
    return [["accuracy in %", *(f"{budget:,} labels" for budget in _budgets(cells))], *rows]


def second_rows(cells: Sequence[Cell]) -> list[list[str]]:
    """The same of the seconds to fit and to predict."""
    rows = [
        [title, *("" if cell is None else f"{cell.fit:.2f} + {cell.predict:.2f}" for cell in own)]
        for title, own in _titled(cells)
    ]
    return [["seconds, fit + predict", *(f"{budget:,} labels" for budget in _budgets(cells))], *rows]


def _budgets(cells: Sequence[Cell]) -> list[int]:
    return sorted({cell.budget for cell in cells})


def _by_readout(cells: Sequence[Cell]) -> dict[str, list[Cell | None]]:
    """Of each readout, its cells by ascending budget."""
    found = {(cell.readout, cell.budget): cell for cell in cells}
    readouts = dict.fromkeys(cell.readout for cell in cells)
    return {readout: [found.get((readout, budget)) for budget in _budgets(cells)] for readout in readouts}


def _titled(cells: Sequence[Cell]) -> list[tuple[str, list[Cell | None]]]:
    titles = {cell.readout: cell.title for cell in cells}
    return [(titles[readout], own) for readout, own in _by_readout(cells).items()]


def percent(cell: Cell | None) -> str:
    """The mean accuracy, with its standard error over seeds where there are several."""
    if cell is None:
        return ""
    error = "" if cell.standard_error is None else f" ± {100 * cell.standard_error:.1f}"
    return f"{100 * cell.accuracy:.1f}{error}"


def _cell(records: list[Record]) -> Cell:
    first, count = records[0], len(records)
    accuracies = [record["accuracy"] for record in records]
    mean = math.fsum(accuracies) / count
    spread = math.fsum((accuracy - mean) ** 2 for accuracy in accuracies)
    losses = [record["log_loss"] for record in records if record["log_loss"] is not None]
    return Cell(
        readout=first["readout"],
        title=first["title"],
        budget=first["budget"],
        num_seeds=count,
        accuracy=mean,
        lowest=min(accuracies),
        highest=max(accuracies),
        standard_error=math.sqrt(spread / (count - 1) / count) if count > 1 else None,
        log_loss=math.fsum(losses) / len(losses) if len(losses) == count else None,
        fit=math.fsum(record["seconds"]["fit"] for record in records) / count,
        predict=math.fsum(record["seconds"]["predict"] for record in records) / count,
    )
