"""The members of a fitted estimator, from its rows."""

from __future__ import annotations

from .choose_dense import MOST_ROWS, choose_dense
from .choose_local import choose_local
from .members import Member
from .rows import Centers
from .wanted import Wanted

FEWEST_LOCAL = 4


def choose(centers: Centers, wanted: Wanted) -> tuple[Member, ...]:
    """Every center takes part in each prediction where they are few, the nearest ones where they are many."""
    count = len(centers.points)
    everyone = wanted.num_neighbors is None or wanted.num_neighbors >= count
    few = count <= MOST_ROWS and everyone and wanted.metric != "linear"
    if wanted.dense or few or count < FEWEST_LOCAL:
        found = choose_dense(centers, wanted)
        # More rows may come than there are neighbors asked for.
        return tuple(member._replace(num_neighbors=wanted.num_neighbors) for member in found)
    return choose_local(centers, wanted)
