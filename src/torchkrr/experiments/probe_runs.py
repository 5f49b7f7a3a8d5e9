"""Readouts at every depth, one record each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from .._progress import Progress
from ..nn import LocalKernelRidge
from ..vision.features import Inputs
from ..vision.readouts import readout_named
from .config import Config
from .probe_network import Depth
from .records import Record, fingerprint
from .transfer import Case, case_key, cases, solve


class Results(NamedTuple):
    records: list[Record]
    reused: int  # that were there already


def probe_depths(
    config: Config,
    depths: Sequence[Depth],
    at: Callable[[Depth], Inputs],
    *,
    num_train: int,
    found: Callable[[str], Record | None] = lambda key: None,
    keep: Callable[[Record], None] = lambda record: None,
    progress: bool = False,
) -> Results:
    """Every readout, at every size and seed, at every depth; the depth with all stages first.

    Args:
        at: the inputs at a depth, which are let go before the next is asked for.
        found: a record that is there already, by its key.
        keep: called with each new record, at once.
    """
    wanted = list(cases(config, num_train))
    results: list[Record] = []
    reused = 0
    with Progress("probes", len(wanted) * len(depths), shown=progress) as bar:
        for depth in depths:
            inputs = at(depth)
            for case in wanted:
                words = f"{readout_named(case.readout).title}, {case.budget:,} examples, {depth.discarded} discarded"
                bar.advance(0, note=words)
                record = found(depth_key(case, depth, inputs))
                if record is None:
                    record = solve_at(case, depth, inputs)
                    keep(record)
                else:
                    reused += 1
                results.append(record)
                bar.advance(note=f"{words}: {100 * record['accuracy']:.1f} %")
    return Results(results, reused)


def solve_at(case: Case, depth: Depth, inputs: Inputs) -> Record:
    """One readout at one depth: what `transfer` records, and of local kernel ridge the mean local error indicator.

    The indicator is the power function at the test examples, between 0 at a training example and 1 far from all.
    """
    record, fitted = solve(case, inputs)
    indicator = None
    assert fitted is not None
    if isinstance(fitted.layer, LocalKernelRidge):
        with torch.no_grad():
            indicator = float(fitted.layer.power_function(inputs.test.features).double().mean())
    return {
        **record,
        "key": depth_key(case, depth, inputs),
        "discarded": depth.discarded,
        "layer": depth.layer,
        "shape": list(depth.shape),
        "indicator": indicator,
    }


def depth_key(case: Case, depth: Depth, inputs: Inputs) -> str:
    return fingerprint({"case": case_key(case, inputs), "discarded": depth.discarded, "layer": depth.layer})
