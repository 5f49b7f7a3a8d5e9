"""What the commands say of data and models, in lines that begin with a word."""

from __future__ import annotations

import collections
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .data import Data

SHOWN = 20  # classes
BEST = 3  # candidates
TITLES = {"images": "pictures", "features": "features file", "table": "table", "text": "table"}


def say(title: str, text: str) -> None:
    print(f"{title:10}{text}")


def say_found(data: Data, rows: int) -> None:
    """What was read, and what of it could not be used."""
    from ..vision.features import warn_of_broken

    missing = f"; {data.missing} values are missing" if data.missing else ""
    skipped = f"; {data.skipped} could not be read" if data.skipped else ""
    say("data", f"{TITLES[data.kind]} {data.path}: {rows} {data.unit}, {data.describe()}{missing}{skipped}")
    if data.broken:
        warn_of_broken(data.broken, rows + data.skipped)


def say_chosen(model: Any) -> None:
    """What was chosen, and the leave-one-out loss of that and of the next best."""
    say("chosen", describe_choice(model))
    tried = getattr(model, "candidates_", None) or []
    if tried:
        say("tried", ", ".join(f"{name} {loss:.4g}" for name, loss in tried[:BEST]) + f" (left out, best of {len(tried)})")


def say_next(*words: str) -> str:
    """A line that can be pasted, and uses the result."""
    line = shlex.join(words)
    say("next", line)
    return line


def say_prediction(row: Mapping[str, Any], number: int) -> None:
    """One row of predictions, whose name is in its first column, or else its number."""
    rest = {key: value for key, value in row.items() if not key.startswith(("because_", "row_", "weight_"))}
    name = rest.pop("image", None) or f"row {number}"
    label = rest.pop("prediction", None)
    words = [
        f"{key.replace('_', ' ')} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in rest.items()
    ]
    shown = f"{label:.6g}" if isinstance(label, float) else "" if label is None else str(label)
    print("  ".join(word for word in (f"{name}: {shown}", ", ".join(words)) if word))
    reasons = ", ".join(_reasons(row))
    if reasons:
        print(f"    because of {reasons}")


def _reasons(row: Mapping[str, Any]) -> Iterator[str]:
    for at in range(1, len(row)):
        name, label, weight = (row.get(key) for key in (f"because_{at}", f"because_{at}_label", f"because_{at}_weight"))
        if name is None and row.get(f"row_{at}") is not None:
            name, weight = f"row {row[f'row_{at}']}", row[f"weight_{at}"]
        if name is not None:
            yield f"{name}{'' if label is None else f' ({label})'} {weight:+.2f}"


def describe_choice(model: Any) -> str:
    """In words; of several kernels the one with the largest share."""
    members = model.predictor_.members
    name, rest = type(model.kernel_).__name__, f"alpha {model.alpha_:.3g}, {model.n_neighbors_} neighbors"
    prior = "" if model.predictor_.prior is None else ", on what a prior leaves over"
    if len(members) == 1:
        return f"{name} kernel, {rest}{prior}"
    return f"mix of {len(members)} kernels, of which {name} counts most ({100 * members[0].share:.0f} %): {rest}{prior}"


def describe_model(model: Any) -> str:
    what = "classification" if hasattr(model, "classes_") else "regression"
    targets = model.notes_.get("targets")
    of = f" of {', '.join(targets)}" if targets else ""
    return f"{what}{of}, {model.n_samples_fit_} training rows"


def count_classes(labels: Sequence[Any], classes: Sequence[Any] = ()) -> dict[str, int]:
    """How many rows each class has, in the order of the classes."""
    counts = collections.Counter(str(label) for label in labels)
    names = dict.fromkeys([*map(str, classes), *sorted(counts)])
    return {name: counts[name] for name in names}


def describe_classes(counts: Mapping[str, int]) -> str:
    shown = [f"{name} {count}" for name, count in list(counts.items())[:SHOWN]]
    return ", ".join(shown) + (f" and {len(counts) - SHOWN} more" if len(counts) > SHOWN else "")
