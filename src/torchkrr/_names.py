"""What somebody may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Sequence


def nearest_name(name: str, known: Sequence[str], *, alike: float = 0.5) -> str | None:
    """The known name most like this one, whichever letters are capitals, if one is like it at all.

    Example:
        >>> nearest_name("bmi", ["age", "BMI", "bmj"])
        'BMI'
    """
    plain = [one.strip().casefold() for one in known]
    near = difflib.get_close_matches(name.strip().casefold(), plain, 1, cutoff=alike)
    return known[plain.index(near[0])] if near else None
