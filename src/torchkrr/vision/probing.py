"""Probing in one call: a network, labeled batches, and how good a readout is at each depth."""

from __future__ import annotations

import html
import time
from collections.abc import Iterable, Sequence, Sized
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from tqdm import tqdm

from .._checks import check_finite
from ..errors import InputError, InputTypeError, ShapeError
from ..models.features import Depths, Pooling, in_mode
from ..runs import Record
from .depths import DepthInputs, as_depths, read_depths, solve_depths
from .features import Part
from .figures import LIGHT, draw_depths
from .images import FeatureSet
from .report import depths_html
from .sampling import held_out
from .summary import Cell, findings, grids, summarize, text_tables
from .transfer import TransferConfig


class ProbeResult(NamedTuple):
    """Accuracy and mean error indicator of each readout at each depth; printed, it is a table."""

    cells: list[Cell]
    records: list[Record]  # one for each readout, size, seed and depth
    pooling: str

    @property
    def table(self) -> str:
        """Accuracies in percent, a table for each size."""
        return text_tables(self.cells)

    @property
    def best(self) -> Cell:
        """The most accurate cell of the largest size."""
        last = grids(self.cells)[-1]
        return max(map(last.best, last.rows), key=lambda cell: cell.accuracy)

    def plot(self) -> Any:
        """A matplotlib figure: accuracy against the stages discarded, a panel for each size, and the error indicator."""
        return draw_depths(self.cells, LIGHT)

    def __repr__(self) -> str:
        return "\n".join([self.table, "", *findings(self.cells), f"pooling: {self.pooling}"])

    def _repr_html_(self) -> str:
        sentences = [*findings(self.cells), f"Pooling: {self.pooling}."]
        return depths_html(self.cells) + "".join(f"<p>{html.escape(sentence)}</p>" for sentence in sentences)


def probe(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    layers: Sequence[str] | None = None,
    test: Iterable[Any] | None = None,
    sizes: Sequence[int | None] = (1000, None),
    seeds: int = 5,
    readouts: Sequence[str] = ("sk", "linear", "knn"),
    pooling: Pooling = "mean",
    test_share: float = 0.2,
    progress: bool = False,
) -> ProbeResult:
    """Which layer of a network is the best basis for a kernel readout? Readouts on its frozen features at several depths.

    The network is called in eval mode, once for each batch, and not past the last of the layers.

    Args:
        model: any `nn.Module`, on any device; it is left as it was.
        loader: batches `(inputs, labels)`, such as a `DataLoader`; labels are whole numbers from 0.
        layers: names as in `model.named_modules()`, in the order they are called; each is one depth. `None` is the ends of
            the five stages of a network known to `torchkrr.models.known_layers`.
        test: batches to evaluate on; `None` holds back `test_share` of those of `loader`, stratified.
        sizes: numbers of training examples; `None` is all of them, with a single run.
        seeds: subsamples of each size below all.
        readouts: `"sk"` (local kernel ridge regression with 100 neighbors), `"head"` (the classifier of
            `torchkrr.estimators`, which needs scikit-learn), `"linear"`, `"mlp"`, `"logistic"`, `"knn"` and others of
            `torchkrr transfer`.
        pooling: of maps and tokens to vectors, see `torchkrr.models.pool`.
        progress: show progress bars.

    Example:
        >>> network = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4), torch.nn.Tanh())
        >>> x = torch.randn(300, 2)
        >>> batches = [(x[rows], (x[rows].prod(1) > 0).long()) for rows in torch.arange(300).split(100)]
        >>> result = torchkrr.probe(network, batches, layers=["1", "3"], sizes=[None], readouts=["sk"])
        >>> [(cell.discarded, cell.layer, cell.num_features) for cell in result.cells]
        [(0, '3', 4), (1, '1', 16)]
        >>> result.best.accuracy > 0.8
        True
    """
    if not 0 < test_share < 1:
        raise InputError(f"test_share must lie between 0 and 1, got {test_share}.")
    config = TransferConfig(budgets=tuple(sizes), seeds=seeds, readouts=tuple(readouts))
    network = read_depths(model, layers, pooling)
    (features, labels, seconds), widths, shapes = _extract(network, loader, "features", progress)
    if test is None:
        split = held_out(labels, test_share, seed=0)
        halves = [(features[rows], labels[rows], seconds * len(rows) / len(labels)) for rows in split]
    else:
        other, test_widths, _ = _extract(network, test, "test features", progress)
        if test_widths != widths:
            raise ShapeError(
                f"Layers give {widths} features for batches of loader, but {test_widths} for those of test. Use "
                'inputs of one size, or another pooling than "flatten".'
            )
        halves = [(features, labels, seconds), other]
    if len(halves[0][1]) < 2:
        raise InputError("One example is left to train on, at least 2 are needed.")
    classes = [str(label) for label in range(max(int(half[1].max()) for half in halves) + 1)]
    train, test_part = (Part(*half, FeatureSet("loader", classes, *half[:2])) for half in halves)
    depths = as_depths(network.layers, widths, shapes)
    inputs = DepthInputs(type(model).__name__, classes, train, test_part, depths)
    records, _ = solve_depths(config, inputs, progress=progress)
    return ProbeResult(summarize(records), records, str(pooling))


def _extract(
    model: Depths, loader: Iterable[Any], title: str, progress: bool
) -> tuple[tuple[Tensor, Tensor, float], list[int], list[tuple[int, ...]]]:
    """All batches of a loader through the network.

    Returns:
        Features of all depths side by side, labels and seconds; the number of features at each depth; shapes before pooling.
    """
    features: list[Tensor] = []
    labels: list[Tensor] = []
    widths: list[int] = []
    shapes: list[tuple[int, ...]] = []
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    start = time.perf_counter()
    total = len(loader) if isinstance(loader, Sized) else None
    with torch.no_grad(), in_mode(model.network, training=False):
        for batch in tqdm(loader, desc=title, total=total, disable=not progress):
            inputs, truth = _checked_batch(batch)
            vectors, shapes = model.vectors_and_shapes(inputs.to(device) if isinstance(inputs, Tensor) else inputs)
            before, widths = widths, [vector.shape[1] for vector in vectors]
            if features and widths != before:
                raise ShapeError(f"Layers give {widths} features for a batch, but {before} for those before. Use one size.")
            joined = torch.cat(vectors, dim=1).float().cpu()
            if len(joined) != len(truth):
                raise ShapeError(f"A batch of the loader has {len(truth)} labels, but features of {len(joined)} inputs.")
            check_finite("The features of a batch", joined)
            features.append(joined)
            labels.append(truth.long().cpu())
    if not features:
        raise InputError("The loader has no batches.")
    everything = torch.cat(labels)
    if everything.min() < 0:
        raise InputError(f"Labels must be whole numbers from 0, the least one is {int(everything.min())}.")
    return (torch.cat(features), everything, time.perf_counter() - start), widths, shapes


def _checked_batch(batch: Any) -> tuple[Any, Tensor]:
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise InputTypeError(f"The loader must give batches (inputs, labels), got {type(batch).__name__}.")
    inputs, labels = batch
    if not isinstance(labels, Tensor) or labels.ndim != 1 or labels.is_floating_point() or labels.is_complex():
        shown = f"{labels.dtype} of shape {tuple(labels.shape)}" if isinstance(labels, Tensor) else type(labels).__name__
        raise InputTypeError(f"Labels must be a tensor (B,) of whole numbers, got {shown}.")
    return inputs, labels
