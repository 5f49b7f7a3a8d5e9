"""Records of several seeds as one cell for each readout, size and depth, and as tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from .records import Record
from .summary import Cell, percent, summarize
from .text_tables import aligned


class DepthCell(NamedTuple):
    """One readout with so many training examples (`cell.budget`) at one depth, over its seeds."""

    discarded: int  # stages
    layer: str
    num_features: int
    cell: Cell
    indicator: float | None  # mean local error indicator at the test examples; None of readouts without one
    indicator_lowest: float | None  # of the seeds
    indicator_highest: float | None


class Grid(NamedTuple):
    """The cells of one size: a row for each readout, a column for each depth."""

    size: int
    num_seeds: int
    columns: list[DepthCell]  # any cell of each depth, for what they share
    rows: dict[str, list[DepthCell | None]]  # by the title of the readout

    def indicators(self) -> dict[str, list[DepthCell | None]]:
        """The rows of readouts that have an indicator."""
        return {title: row for title, row in self.rows.items() if any(cell and cell.indicator is not None for cell in row)}

    def best(self, title: str) -> DepthCell:
        """The depth of largest accuracy, the one with more stages of equal ones."""
        row = [cell for cell in self.rows[title] if cell is not None]
        return max(row, key=lambda cell: (cell.cell.accuracy, -cell.discarded))


def summarize_depths(records: Sequence[Record]) -> list[DepthCell]:
    """One cell for each depth, the least discarded first, readout, in the order they come, and size, ascending."""
    found = []
    for discarded in sorted({record["discarded"] for record in records}):
        own = [record for record in records if record["discarded"] == discarded]
        for cell in summarize(own):
            seeds = [record for record in own if (record["readout"], record["budget"]) == (cell.readout, cell.budget)]
            indicators = [record["indicator"] for record in seeds if record["indicator"] is not None]
            known = len(indicators) == len(seeds)
            found.append(
                DepthCell(
                    discarded,
                    own[0]["layer"],
                    own[0]["num_features"],
                    cell,
                    math.fsum(indicators) / len(seeds) if known else None,
                    min(indicators) if known else None,
                    max(indicators) if known else None,
                )
            )
    return found


def grids(cells: Sequence[DepthCell]) -> list[Grid]:
    """One for each size, ascending."""
    result = []
    depths = sorted({cell.discarded for cell in cells})
    titles = list(dict.fromkeys(cell.cell.title for cell in cells))
    for size in sorted({cell.cell.budget for cell in cells}):
        own = [cell for cell in cells if cell.cell.budget == size]
        at = {(cell.cell.title, cell.discarded): cell for cell in own}
        columns = [next(cell for cell in own if cell.discarded == depth) for depth in depths]
        rows = {title: [at.get((title, depth)) for depth in depths] for title in titles}
        result.append(Grid(size, max(cell.cell.num_seeds for cell in own), columns, rows))
    return result


def text_tables(cells: Sequence[DepthCell]) -> str:
    """A table for each size: accuracies in percent with their standard errors, and mean indicators."""
    return "\n\n".join(_text_table(grid) for grid in grids(cells))


def accuracy_text(cell: DepthCell | None) -> str:
    return "" if cell is None else percent(cell.cell)


def indicator_text(cell: DepthCell | None) -> str:
    return "" if cell is None or cell.indicator is None else f"{cell.indicator:.3f}"


def findings(cells: Sequence[DepthCell]) -> list[str]:
    """What the numbers say, a sentence for each size and readout."""
    found = []
    for grid in grids(cells):
        for title, row in grid.rows.items():
            best, whole = grid.best(title), row[0]
            words = f"With {grid.size:,} training examples {title} is best "
            if best.discarded == 0 or whole is None:
                found.append(f"{words}with {_stages(best.discarded)} discarded: {percent(best.cell)} %.")
            else:
                found.append(
                    f"{words}with {_stages(best.discarded)} discarded (up to {best.layer}): {percent(best.cell)} %, against "
                    f"{percent(whole.cell)} % with none discarded."
                )
    return found


def _stages(count: int) -> str:
    return "no stage" if count == 0 else "1 stage" if count == 1 else f"{count} stages"


def _text_table(grid: Grid) -> str:
    return f"{grid_title(grid)}\n{aligned(grid_rows(grid))}"


def grid_title(grid: Grid) -> str:
    seeds = f", means of {grid.num_seeds} subsamples" if grid.num_seeds > 1 else ""
    return f"accuracy in % with {grid.size:,} training examples{seeds}"


def grid_rows(grid: Grid) -> list[list[str]]:
    """A head, layers and features, then a row for each readout, and its indicator if it has one."""
    rows = [["stages discarded", *(str(column.discarded) for column in grid.columns)]]
    rows += [["last layer", *(column.layer for column in grid.columns)]]
    rows += [["features", *(str(column.num_features) for column in grid.columns)]]
    rows += [[title, *map(accuracy_text, row)] for title, row in grid.rows.items()]
    return rows + [[f"indicator of {title}", *map(indicator_text, row)] for title, row in grid.indicators().items()]
