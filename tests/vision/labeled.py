"""Small real data: scikit-learn's digits as features, and as pictures in folders."""

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits

from torchkrr.vision.readouts import Training


def digits(count, start=0):
    """Pixels between 0 and 1, `(count, 64)`, and labels."""
    found = load_digits()
    rows = slice(start, start + count)
    return torch.from_numpy(found.data[rows] / 16).float(), torch.from_numpy(found.target[rows]).long()


def training(count, seed=0):
    features, labels = digits(count)
    return Training(features, labels, 10, seed)


def write_features(path, count=400):
    features, labels = digits(count)
    np.savez(path, features=features.numpy(), labels=labels.numpy())
    return path


def write_folder(root, count=300):
    """One PNG for each digit, in the folder of its class."""
    features, labels = digits(count)
    for row, (pixels, label) in enumerate(zip(features, labels.tolist(), strict=True)):
        folder = root / f"digit {label}"
        folder.mkdir(parents=True, exist_ok=True)
        picture = (255 * pixels.reshape(8, 8)).byte().numpy()
        Image.fromarray(picture).resize((24, 24)).save(folder / f"{row:04}.png")
    return root
