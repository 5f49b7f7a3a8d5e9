"""One run: a cut network trained under a head, with checkpoints from which an interrupted run goes on as if it had not been.

All randomness of an epoch comes from the seed of the run and the number of the epoch, so a checkpoint between two epochs is
complete.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import os
import pathlib
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import torchkrr
from torchkrr.errors import KernelRidgeError
from torchkrr.vision import Images, Preparation, Split
from torchkrr.vision.readouts import Quality, quality
from torchkrr.vision.sampling import stratified_order
from torchkrr.vision.weights import file_hash

from ..checkpoints import check_same_run, read_checkpoint, write_checkpoint
from .config import Config
from .data import choose_rows, data_fingerprint, num_batches, training_batches
from .heads import CentersHead, KernelHead, LinearHead, anneal, make_optimizer
from .networks import cut_network

BATCH = 256
STREAMS = 1_000_003  # seeds of epochs lie this far apart for neighboring seeds of runs


@dataclasses.dataclass(frozen=True)
class Epoch:
    loss: float  # mean over its batches
    accuracy: float  # on the validation part, after it
    log_loss: float  # likewise
    seconds: float  # of all its steps, with reading and augmenting
    seconds_validation: float  # with the features of all rows that predictions are made from


Watch = Callable[[int, Epoch], None]  # the number of an epoch, counted from 1


@torch.no_grad()
def features_of(backbone: nn.Module, images: Images, rows: Tensor, prepare: Preparation) -> Tensor:
    """`(N, D)`, without gradient and in eval mode; the mode is afterwards what it was."""
    training = backbone.training
    backbone.eval()
    try:
        return torch.cat([backbone(prepare(images.read(batch.tolist()))) for batch in rows.split(BATCH)])
    finally:
        backbone.train(training)


class Run:
    """A run in progress; `path` is its checkpoint, found or to be written, `None` for a run that is not to be trained."""

    def __init__(self, config: Config, data: Split, path: str | os.PathLike[str] | None) -> None:
        self.config, self.data, self.path = config, data, None if path is None else pathlib.Path(path)
        self.rows = choose_rows(data.train.labels, config)
        self.cut = cut_network(config)
        self.identity = identity(config, data_fingerprint(data))
        self.head = self._make_head()
        self.optimizer = make_optimizer(config, self.cut.backbone, self.head)
        self.epochs: list[Epoch] = []
        self.best = 0  # epoch, counted from 1
        self.best_state: dict[str, Any] = {}
        if self.path is not None and self.path.exists():
            self._restore(read_checkpoint(self.path, "learn"))

    @property
    def steps_per_epoch(self) -> int:
        return num_batches(len(self.rows.fit), self.config.batch_size)

    @property
    def finished(self) -> bool:
        waited = len(self.epochs) - self.best
        return len(self.epochs) >= self.config.epochs or (0 < self.config.patience <= waited)

    def train(self, watch: Watch | None = None) -> None:
        """Go on to the last epoch, or until patience is at its end; then take the weights of the best epoch."""
        written = len(self.epochs)
        while not self.finished:
            self.epochs.append(self._epoch(len(self.epochs)))
            if self.best == 0 or self._rank(len(self.epochs)) > self._rank(self.best):
                self.best, self.best_state = len(self.epochs), copy.deepcopy(self._weights())
            if watch is not None:
                watch(len(self.epochs), self.epochs[-1])
            if len(self.epochs) % self.config.checkpoint_every == 0:
                self.save()
                written = len(self.epochs)
        if written < len(self.epochs):
            self.save()
        self.load_weights(self.best_state)

    def _rank(self, number: int) -> tuple[bool, float, float]:
        """Larger is better, of the epoch counted from 1: mean accuracy of the last ones, then loss.

        One with fewer epochs to average over comes after all that have enough: a lucky first one would be hard to beat.
        """
        last = self.epochs[max(0, number - self.config.smoothing) : number]
        accuracy, log_loss = (math.fsum(getattr(epoch, name) for epoch in last) for name in ("accuracy", "log_loss"))
        return number >= self.config.smoothing, accuracy / len(last), -log_loss / len(last)

    def _epoch(self, number: int) -> Epoch:
        config, began = self.config, time.perf_counter()
        generator = torch.Generator().manual_seed(STREAMS * config.seed + number)
        total = self.config.epochs * self.steps_per_epoch
        losses = []
        self.cut.backbone.train()
        with torch.random.fork_rng(devices=[]):  # dropout draws from the global generator
            torch.manual_seed(STREAMS * config.seed + number)
            batches = training_batches(self.data.train, self.rows.fit, self.cut.prepare, config, generator)
            for step, (images, labels) in enumerate(batches, start=number * self.steps_per_epoch):
                anneal(self.optimizer, step / total)
                losses.append(self.learn(images, labels))
        loss = float(torch.stack(losses).mean())
        if not math.isfinite(loss):
            raise KernelRidgeError(f"The loss of epoch {number + 1} is {loss}. Try a smaller learning_rate.")
        half = time.perf_counter()
        validated = self.validate()
        assert validated.log_loss is not None
        return Epoch(loss, validated.accuracy, validated.log_loss, half - began, time.perf_counter() - half)

    def features(self, rows: Tensor) -> Tensor:
        """Of these rows of the training part, under the network as it is, `(N, D)`."""
        return features_of(self.cut.backbone, self.data.train, rows, self.cut.prepare)

    def learn(self, images: Tensor, labels: Tensor) -> Tensor:
        """One step of the optimizer; the loss before it, a scalar without graph."""
        loss: Tensor = self.head.loss(self.cut.backbone(images), labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    @torch.no_grad()
    def validate(self) -> Quality:
        """On the part that was held out; a kernel predicts from the other rows under the network as it is."""
        query, labels = self.features(self.rows.validation), self.data.train.labels[self.rows.validation]
        if isinstance(self.head, LinearHead):
            return quality(self.head(query), labels, 1.0)
        readout = self.head.readout(self.features(self.rows.fit), self.data.train.labels[self.rows.fit])
        return quality(readout(query), labels, float(self.head.temperature))

    def _make_head(self) -> LinearHead | KernelHead:
        config, num_classes = self.config, len(self.data.train.classes)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            if config.head == "linear":
                return LinearHead(self.cut.num_features, num_classes)
            if config.objective != "centers":
                return KernelHead(config, num_classes)
            labels = self.data.train.labels[self.rows.fit]
            order = stratified_order(labels, config.seed)[: config.num_centers]
            return CentersHead(config, num_classes, self.features(self.rows.fit)[order], labels[order])

    def _weights(self) -> dict[str, Any]:
        return {"backbone": self.cut.backbone.state_dict(), "head": self.head.state_dict()}

    def load_weights(self, state: dict[str, Any]) -> None:
        self.cut.backbone.load_state_dict(state["backbone"])
        self.head.load_state_dict(state["head"])

    def save(self) -> None:
        assert self.path is not None
        state = {
            "config": dataclasses.asdict(self.config),
            "identity": self.identity,
            "weights": self._weights(),
            "optimizer": self.optimizer.state_dict(),
            "epochs": [dataclasses.astuple(epoch) for epoch in self.epochs],
            "best": self.best,
            "best_weights": self.best_state,
        }
        write_checkpoint(self.path, state, "learn")

    def save_model(self, path: pathlib.Path) -> None:
        """The weights as they are, with the configuration: what `runs.reopen` reads."""
        state = {"config": dataclasses.asdict(self.config), "weights": self._weights()}
        write_checkpoint(path, {**state, "identity": self.identity}, "learn")

    def _restore(self, state: dict[str, Any]) -> None:
        assert self.path is not None
        check_same_run(self.path, state["identity"], self.identity)
        self.load_weights(state["weights"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.epochs = [Epoch(*fields) for fields in state["epochs"]]
        self.best, self.best_state = state["best"], state["best_weights"]


def identity(config: Config, data_fingerprint: str) -> dict[str, Any]:
    """All that the numbers of a run depend on: contents of files, not where they lie on this machine."""
    settings = {**config.settings(), "dataset": data_fingerprint, "torchkrr": torchkrr.__version__}
    if config.weights not in (None, "pretrained"):
        settings["weights"] = file_hash(config.weights)
    return settings
