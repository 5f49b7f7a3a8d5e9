"""Train the small backbone for digits that comes with the package.

    python examples/train_digit_backbone.py --mnist FOLDER

Reads the four idx files of MNIST, draws each digit the way scikit-learn's digits are drawn (it fills the height of 32 x 32
black or white pixels; each of 8 x 8 numbers counts 4 x 4 of them), trains a classifier on that, and writes the weights of
all but its last layer, with their provenance beside them.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import math
import pathlib
import platform

import numpy as np
import sklearn
import torch
from safetensors.torch import save_file
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.nn import functional as F

import torchkrr
from torchkrr.kernels import Exponential
from torchkrr.transforms import Compose, MeanDistance, UnitNorm
from torchkrr.vision import DigitNetwork, open_backbone, open_dataset

WEIGHTS = pathlib.Path(torchkrr.__file__).parent / "vision" / "data" / "digits.safetensors"
SIZE = 8  # pixels of an edge, as those of scikit-learn's digits
FINE = 4 * SIZE  # black or white pixels of an edge
FILES = {
    part: (f"{part}-images-idx3-ubyte.gz", f"{part}-labels-idx1-ubyte.gz")
    for part in ("train", "t10k")
}  # fmt: skip


def read_idx(path: pathlib.Path) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    contents = gzip.decompress(path.read_bytes())
    dimensions = contents[3]
    shape = np.frombuffer(contents, dtype=">i4", count=dimensions, offset=4)
    return np.frombuffer(contents, dtype=np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def read_mnist(folder: pathlib.Path, part: str) -> tuple[Tensor, Tensor]:
    images, labels = (read_idx(folder / name) for name in FILES[part])
    return torch.from_numpy(images.copy()).float().div_(255)[:, None], torch.from_numpy(labels.astype(np.int64))


def ink_boxes(images: Tensor) -> Tensor:
    """Centers and half sizes `(N, 4)` of what is drawn, x before y, in the coordinates of `grid_sample`."""
    boxes = []
    for axis in (2, 1):
        drawn = images[:, 0].amax(3 - axis) > 0.2
        places = torch.arange(drawn.shape[1])
        first = torch.where(drawn, places, drawn.shape[1]).amin(1)
        last = torch.where(drawn, places, -1).amax(1)
        boxes.append(torch.stack(((first + last + 1) / drawn.shape[1] - 1, (last + 1 - first) / drawn.shape[1]), 1))
    return torch.stack((boxes[0][:, 0], boxes[1][:, 0], boxes[0][:, 1], boxes[1][:, 1]), 1)


def redraw(images: Tensor, boxes: Tensor, generator: torch.Generator | None) -> Tensor:
    """`(B, 1, 28, 28)` to `(B, 1, 8, 8)` as scikit-learn's digits; with a generator, turned and stretched a little."""
    count = len(images)

    def drawn(spread: float, middle: float = 0.0) -> Tensor:
        if generator is None:
            return torch.full((count,), middle)
        return middle + spread * (2 * torch.rand(count, generator=generator) - 1)

    angle, shear = drawn(0.2), drawn(0.25, -0.12)  # MNIST leans to the right, those do not
    # The height is filled; widths keep their proportion, up to most of the square.
    high = boxes[:, 3] * torch.exp(drawn(0.06, 0.02))
    wide = torch.maximum(high, boxes[:, 2] * 1.25) * torch.exp(drawn(0.25, 0.08))
    across, along = torch.cos(angle), torch.sin(angle)
    rows = [
        torch.stack((across * wide, (shear - along) * high, boxes[:, 0] + drawn(0.04)), 1),
        torch.stack((along * wide, across * high, boxes[:, 1] + drawn(0.02)), 1),
    ]
    grid = F.affine_grid(torch.stack(rows, 1), [count, 1, FINE, FINE], align_corners=False)
    pixels = F.grid_sample(images, grid, align_corners=False)
    # A low threshold makes broad strokes, and so does spreading what is drawn to the next pixels.
    ink = (pixels > drawn(0.2, 0.35).view(-1, 1, 1, 1)).float()
    broad = (drawn(1.0, 0.0) > 0).view(-1, 1, 1, 1)
    return F.avg_pool2d(torch.where(broad, F.max_pool2d(ink, 3, stride=1, padding=1), ink), 4)


def train(images: Tensor, labels: Tensor, epochs: int, batch_size: int, seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    boxes = ink_boxes(images)
    model = nn.Sequential(DigitNetwork(), nn.Dropout(0.2), nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.02)
    steps = epochs * math.ceil(len(images) / batch_size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    for epoch in range(epochs):
        total = 0.0
        for rows in torch.randperm(len(images), generator=generator).split(batch_size):
            batch = redraw(images[rows], boxes[rows], generator).expand(-1, 3, -1, -1)
            loss = F.cross_entropy(model(batch), labels[rows], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item() * len(rows)
        print(f"epoch {epoch + 1} of {epochs}: loss {total / len(images):.4f}", flush=True)
    return model.eval()


@torch.inference_mode()
def mnist_accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    batch = redraw(images, ink_boxes(images), None).expand(-1, 3, -1, -1)
    right = [model(part).argmax(1) == truth for part, truth in zip(batch.split(500), labels.split(500), strict=True)]
    return float(torch.cat(right).double().mean())


@torch.inference_mode()
def digits_accuracy(name: str, weights: str | None = None) -> dict[str, float]:
    """Of a linear probe and of a kernel head on scikit-learn's digits, from all training pictures."""
    backbone, split = open_backbone(name, size=SIZE, weights=weights), open_dataset("digits")
    train_features, test_features = (backbone.model(backbone.prepare(part.read(range(len(part))))) for part in split)  # type: ignore[union-attr]
    linear = LogisticRegression(max_iter=5000).fit(train_features.numpy(), split.train.labels.numpy())
    transform = Compose(UnitNorm(), MeanDistance()).fit(train_features)
    values = F.one_hot(split.train.labels).float()
    head = torchkrr.nn.LocalKernelRidge(train_features, values, 100, kernel=Exponential(input_transform=transform))
    right = head(test_features).argmax(1) == split.test.labels
    return {
        "linear probe": float(linear.score(test_features.numpy(), split.test.labels.numpy())),
        "local kernel ridge, M=100": float(right.double().mean()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mnist", type=pathlib.Path, required=True, help="folder with the four idx files, gzipped")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, default=None, help="use so many digits only")
    parser.add_argument("--out", type=pathlib.Path, default=WEIGHTS)
    args = parser.parse_args()
    images, labels = (column[: args.limit] for column in read_mnist(args.mnist, "train"))
    model = train(images, labels, args.epochs, args.batch_size, args.seed)
    held_out = mnist_accuracy(model, *read_mnist(args.mnist, "t10k"))
    print(f"MNIST test digits, redrawn: {held_out:.4f}")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    kept = {name: tensor for name, tensor in model[0].state_dict().items() if not name.endswith("num_batches_tracked")}
    save_file({name: tensor.half().contiguous() for name, tensor in kept.items()}, args.out)
    print(f"wrote {args.out} ({args.out.stat().st_size / 1000:.0f} kB)")
    accuracy = {"MNIST test part, redrawn": held_out}
    for name, title, weights in (("digits", "these features", str(args.out)), ("identity", "pixels", None)):
        scores = digits_accuracy(name, weights)
        accuracy |= {f"scikit-learn's digits, {title}, {head}": score for head, score in scores.items()}
        print(title, scores)
    provenance = {
        "what": "Weights of torchkrr.vision.DigitNetwork, in half precision.",
        "command": f"python examples/train_digit_backbone.py --mnist FOLDER --epochs {args.epochs} "
        f"--batch-size {args.batch_size} --seed {args.seed}" + (f" --limit {args.limit}" if args.limit else ""),
        "data": {
            "name": "MNIST, training part (Y. LeCun, C. Cortes, C. J. C. Burges), redrawn at 8 x 8 as the script says",
            "licence": "CC BY-SA 3.0",
            "sha256": {
                name: hashlib.sha256((args.mnist / name).read_bytes()).hexdigest()
                for names in FILES.values()
                for name in names
            },
        },
        "licence": "MIT, as the package",
        "sha256": hashlib.sha256(args.out.read_bytes()).hexdigest(),
        "accuracy": accuracy,
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "scikit-learn": sklearn.__version__},
    }
    args.out.with_suffix(".json").write_text(json.dumps(provenance, indent=1) + "\n")


if __name__ == "__main__":
    main()
