"""Probing in one call: a network, labelled batches, and how good a readout is at each depth."""

from __future__ import annotations

import html
import time
from collections.abc import Iterable, Sequence, Sized
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .._checks import check_finite
from .._progress import Progress
from ..errors import InputError, InputTypeError, ShapeError
from ..models.features import Depths, Pooling, in_mode
from ..vision.features import Inputs, Part, inputs_fingerprint
from ..vision.images import FeatureSet
from ..vision.sampling import held_out
from .config import Config
from .figures import LIGHT
from .probe_figure import draw_depths
from .probe_network import Depth, as_depths, depths_of
from .probe_report import html_tables
from .probe_runs import probe_depths
from .probe_summary import DepthCell, findings, grids, summarize_depths, text_tables
from .records import Record


class ProbeResult(NamedTuple):
    """Accuracy and mean error indicator of each readout at each depth; printed, it is a table."""

    cells: list[DepthCell]
    records: list[Record]  # one for each readout, size, seed and depth
    pooling: str

    @property
    def table(self) -> str:
        """Accuracies in percent, a table for each size."""
        return text_tables(self.cells)

    @property
    def best(self) -> DepthCell:
        """The most accurate cell of the largest size."""
        last = grids(self.cells)[-1]
        return max((last.best(title) for title in last.rows), key=lambda cell: cell.cell.accuracy)

    def plot(self) -> Any:
        """A matplotlib figure: accuracy against the stages discarded, a panel for each size, and the error indicator."""
        return draw_depths(self.cells, LIGHT)

    def __repr__(self) -> str:
        return "\n".join([self.table, "", *findings(self.cells), f"pooling: {self.pooling}"])

    def _repr_html_(self) -> str:
        words = [*findings(self.cells), f"Pooling: {self.pooling}."]
        return html_tables(self.cells) + "".join(f"<p>{html.escape(sentence)}</p>" for sentence in words)


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
        test: batches to be judged by; `None` holds back `test_share` of those of `loader`, stratified.
        sizes: numbers of training examples; `None` is all of them, with a single run.
        seeds: subsamples of each size below all.
        readouts: `"sk"` (local kernel ridge regression with 100 neighbors), `"sk-select"` (its settings chosen by
            leave-one-out), `"linear"`, `"mlp"`, `"logistic"`, `"knn"` and others of `torchkrr transfer`.
        pooling: of maps and tokens to vectors, see `torchkrr.models.pool`.
        progress: show lines with what is done.

    Example:
        >>> network = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4), torch.nn.Tanh())
        >>> x = torch.randn(300, 2)
        >>> batches = [(x[rows], (x[rows].prod(1) > 0).long()) for rows in torch.arange(300).split(100)]
        >>> result = torchkrr.probe(network, batches, layers=["1", "3"], sizes=[None], readouts=["sk"])
        >>> [(cell.discarded, cell.layer, cell.num_features) for cell in result.cells]
        [(0, '3', 4), (1, '1', 16)]
        >>> result.best.cell.accuracy > 0.8
        True
    """
    if not 0 < test_share < 1:
        raise InputError(f"test_share must lie between 0 and 1, got {test_share}.")
    config = Config(budgets=tuple(sizes), seeds=seeds, readouts=tuple(readouts))
    depths_model = depths_of(model, layers, pooling)
    found = _passed(depths_model, loader, "features", progress)
    if test is None:
        fit, judge = held_out(found.labels, test_share, seed=0)
        train, judged = found.rows(fit), found.rows(judge)
    else:
        train, judged = found, _passed(depths_model, test, "test features", progress)
        if judged.sizes != found.sizes:
            raise ShapeError(
                f"Layers give {found.sizes} features for batches of loader, but {judged.sizes} for those of test. Use "
                'inputs of one size, or another pooling than "flatten".'
            )
    if len(train.labels) < 2:
        raise InputError("One example is left to train on, at least 2 are needed.")
    depths = as_depths(depths_model.layers, found.sizes, found.shapes)
    classes = [str(label) for label in range(int(torch.cat([train.labels, judged.labels]).max()) + 1)]

    def at(depth: Depth) -> Inputs:
        parts = [features.part(depth, classes) for features in (train, judged)]
        return Inputs(type(model).__name__, classes, parts[0], parts[1], None, inputs_fingerprint(*parts))

    records = probe_depths(config, depths, at, num_train=len(train.labels), progress=progress).records
    return ProbeResult(summarize_depths(records), records, str(pooling))


class _Features(NamedTuple):
    """Those of all depths side by side."""

    features: Tensor  # (N, sum of sizes) float32
    labels: Tensor  # (N,) int64
    sizes: list[int]
    shapes: list[tuple[int, ...]]
    seconds: float

    def rows(self, rows: Tensor) -> _Features:
        seconds = self.seconds * len(rows) / len(self.labels)
        return self._replace(features=self.features[rows], labels=self.labels[rows], seconds=seconds)

    def part(self, depth: Depth, classes: list[str]) -> Part:
        own = self.features[:, depth.columns[0] : depth.columns[1]].contiguous()
        return Part(own, self.labels, self.seconds, FeatureSet("loader", classes, own, self.labels))


def _passed(model: Depths, loader: Iterable[Any], title: str, progress: bool) -> _Features:
    """All batches of a loader through the network."""
    features: list[Tensor] = []
    labels: list[Tensor] = []
    sizes: list[int] = []
    shapes: list[tuple[int, ...]] = []
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    began = time.perf_counter()
    total = len(loader) if isinstance(loader, Sized) else 0
    with (
        torch.no_grad(),
        in_mode(model.network, training=False),
        Progress(title, total, shown=progress and total > 0) as bar,
    ):
        for batch in loader:
            inputs, truth = _pair(batch)
            inputs = inputs.to(device) if isinstance(inputs, Tensor) else inputs
            vectors, shapes = model.vectors_and_shapes(inputs)
            widths = [vector.shape[1] for vector in vectors]
            if features and widths != sizes:
                raise ShapeError(f"Layers give {widths} features for a batch, but {sizes} for those before. Use one size.")
            sizes = widths
            joined = torch.cat(vectors, dim=1).float().cpu()
            if len(joined) != len(truth):
                raise ShapeError(f"A batch of the loader has {len(truth)} labels, but features of {len(joined)} inputs.")
            check_finite("The features of a batch", joined)
            features.append(joined)
            labels.append(truth.long().cpu())
            bar.advance()
    if not features:
        raise InputError("The loader has no batches.")
    everything = torch.cat(labels)
    if everything.min() < 0:
        raise InputError(f"Labels must be whole numbers from 0, the least one is {int(everything.min())}.")
    return _Features(torch.cat(features), everything, sizes, shapes, time.perf_counter() - began)


def _pair(batch: Any) -> tuple[Any, Tensor]:
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise InputTypeError(f"The loader must give batches (inputs, labels), got {type(batch).__name__}.")
    inputs, labels = batch
    if not isinstance(labels, Tensor) or labels.ndim != 1 or labels.is_floating_point() or labels.is_complex():
        shown = f"{labels.dtype} of shape {tuple(labels.shape)}" if isinstance(labels, Tensor) else type(labels).__name__
        raise InputTypeError(f"Labels must be a tensor (B,) of whole numbers, got {shown}.")
    return inputs, labels
