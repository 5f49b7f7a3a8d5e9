"""The small convolutional network for digits whose weights come with the package."""

from __future__ import annotations

import pathlib

from torch import Tensor, nn

SIZE = 8  # pixels of an edge, as those of scikit-learn's digits
NUM_FEATURES = 128
LAYERS = ("stem", "middle.0", "middle", "top.0", "top")  # five depths
WEIGHTS = pathlib.Path(__file__).parent / "weights" / "digits.safetensors"


class DigitNetwork(nn.Module):
    """Three stages of convolutions on grey pictures of 8 x 8 pixels; the three channels of its input are averaged.

    Example:
        >>> DigitNetwork().eval()(torch.zeros(2, 3, 8, 8)).shape
        torch.Size([2, 128])
    """

    def __init__(self, num_features: int = NUM_FEATURES) -> None:
        super().__init__()
        self.stem = _block(1, 32)
        self.middle = nn.Sequential(_block(32, 48), nn.MaxPool2d(2))
        self.top = nn.Sequential(_block(48, 64), _block(64, num_features))

    def forward(self, x: Tensor) -> Tensor:
        maps: Tensor = self.top(self.middle(self.stem(x.mean(1, keepdim=True))))
        return maps.mean((2, 3))


def _block(channels_in: int, channels_out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False), nn.BatchNorm2d(channels_out), nn.ReLU()
    )
