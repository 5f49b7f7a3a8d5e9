"""Mend a deployed network: correct mistakes one by one, without training, and undo it to the bit.

    python examples/mend_resnet.py --weights resnet20-12fca82f.th

A ResNet-20 for CIFAR-10 gets 8 of 100 test pictures wrong. Its last layer becomes the prior of a kernel layer, and some of
its mistakes are corrected. Prints what that does to the corrected pictures, to copies of them that are moved by two pixels,
and to all others, for three lengthscales. The weights are those of github.com/akamaster/pytorch_resnet_cifar10 (BSD-2).
"""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from torchkrr.kernels import Gaussian
from torchkrr.nn import PriorKernelRidge
from torchkrr.vision import FeatureSet, Images, open_dataset

MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])


class Block(nn.Module):
    """Two convolutions beside a shortcut, which drops every second pixel and pads with zero channels where sizes differ."""

    def __init__(self, channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out_channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.stride, self.padding = stride, (out_channels - channels) // 2

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x[:, :, :: self.stride, :: self.stride]
        shortcut = nn.functional.pad(shortcut, (0, 0, 0, 0, self.padding, self.padding))
        return torch.relu(self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))) + shortcut)


class ResNet20(nn.Module):
    """He et al. (2016), for pictures of 32 x 32 pixels."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.layer1 = nn.Sequential(Block(16, 16, 1), Block(16, 16, 1), Block(16, 16, 1))
        self.layer2 = nn.Sequential(Block(16, 32, 2), Block(32, 32, 1), Block(32, 32, 1))
        self.layer3 = nn.Sequential(Block(32, 64, 2), Block(64, 64, 1), Block(64, 64, 1))
        self.linear: nn.Module = nn.Linear(64, num_classes)

    def pooled(self, pictures: Tensor) -> Tensor:
        """What the last layer sees, `(n, 3, 32, 32)` to `(n, 64)`."""
        x = torch.relu(self.bn1(self.conv1(pictures)))
        return self.layer3(self.layer2(self.layer1(x))).mean((2, 3))  # type: ignore[no-any-return]

    def forward(self, pictures: Tensor) -> Tensor:
        return self.linear(self.pooled(pictures))  # type: ignore[no-any-return]


def read_network(weights: pathlib.Path) -> ResNet20:
    state = torch.load(weights, map_location="cpu", weights_only=True)["state_dict"]
    network = ResNet20()
    network.load_state_dict({name.removeprefix("module."): tensor for name, tensor in state.items()})
    return network.eval()


def as_input(pictures: Tensor) -> Tensor:
    """`(n, 32, 32, 3)` uint8 to what the network takes, `(n, 3, 32, 32)`."""
    return ((pictures / 255 - MEAN) / STD).permute(0, 3, 1, 2)


def read_pictures(part: Images | FeatureSet, count: int | None = None) -> tuple[Tensor, Tensor]:
    """The first `count` pictures `(n, 32, 32, 3)`, uint8, and their labels."""
    if not isinstance(part, Images):
        raise SystemExit("The data must be pictures, such as cifar10.")
    labels = part.labels[:count]
    return torch.from_numpy(np.stack(part.read(range(len(labels))))), labels


def moved(pictures: Tensor, down: int, right: int) -> Tensor:
    """Pictures moved by some pixels; those at the edge are repeated."""
    rows, columns = ((torch.arange(32) - step).clamp(0, 31) for step in (down, right))
    return pictures[:, rows][:, :, columns]


def in_parts(function: Callable[[Tensor], Tensor], pictures: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([function(as_input(part)) for part in pictures.split(500)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=pathlib.Path, required=True)
    parser.add_argument("--data", default="cifar10", help="cifar10, or an .npz file like it")
    parser.add_argument("--corrections", type=int, default=300)
    parser.add_argument("--margin", type=float, default=10.0)
    parser.add_argument("--lengthscales", type=float, nargs="+", default=[0.6, 0.8, 1.0])
    chosen = parser.parse_args()

    network = read_network(chosen.weights)
    pictures, labels = read_pictures(open_dataset(chosen.data).test)
    before = in_parts(network, pictures)
    mistakes = (before.argmax(1) != labels).nonzero().squeeze(1)
    print(f"{len(mistakes)} of {len(labels)} pictures are wrong")
    generator = torch.Generator().manual_seed(0)
    corrected = mistakes[torch.randperm(len(mistakes), generator=generator)[: chosen.corrections]]
    others = torch.ones(len(labels), dtype=torch.bool)
    others[corrected] = False
    copies = moved(pictures[corrected], 0, 2)
    points = in_parts(network.pooled, pictures[corrected])

    last = network.linear
    for lengthscale in chosen.lengthscales:
        network.linear = layer = PriorKernelRidge(last, kernel=Gaussian(lengthscale))
        layer.correct(points, labels[corrected], margin=chosen.margin)
        after = in_parts(network, pictures)
        right = (after.argmax(1) == labels)[corrected].sum()
        right_copies = (in_parts(network, copies).argmax(1) == labels[corrected]).sum()
        changed = (after.argmax(1) != before.argmax(1))[others].sum()
        print(f"lengthscale {lengthscale:g}: {right} of {len(corrected)} corrected pictures are right", end=", ")
        print(f"{right_copies} if moved by two pixels; {changed} of {int(others.sum())} others are in another class")
        layer.remove(torch.arange(len(corrected)))
        print(f"    undone: {int((in_parts(network, pictures) != before).sum())} of {before.numel()} scores differ")


if __name__ == "__main__":
    main()
