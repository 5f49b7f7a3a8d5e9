"""The look of all figures, and where they and their numbers go."""

from __future__ import annotations

import io
import json
import pathlib
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

DOCS = pathlib.Path(__file__).resolve().parents[1]
BLUE, ORANGE, GREEN, GRAY, INK = "#0b6e99", "#d9730d", "#448361", "#8a8a8a", "#2f2f2f"

plt.rcParams.update(
    {
        "figure.dpi": 150,
        "savefig.dpi": 150,
        "font.size": 10,
        "axes.titlesize": 10.5,
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": GRAY,
        "axes.labelcolor": INK,
        "xtick.color": INK,
        "ytick.color": INK,
        "xtick.direction": "out",
        "lines.linewidth": 1.8,
        "legend.frameon": False,
        "legend.fontsize": 9,
        "grid.alpha": 0.25,
        "image.cmap": "Blues",
    }
)
torch.set_num_threads(1)


def save(figure: Figure, name: str, numbers: dict[str, Any]) -> None:
    """Write `docs/images/NAME.png` and `docs/results/NAME.json`."""
    for folder in ("images", "results"):
        (DOCS / folder).mkdir(exist_ok=True)
    drawn = io.BytesIO()
    figure.savefig(drawn)
    Image.open(drawn).convert("RGB").quantize(192).save(DOCS / "images" / f"{name}.png", optimize=True)
    (DOCS / "results" / f"{name}.json").write_text(json.dumps(numbers, indent=2) + "\n")
    print(json.dumps(numbers, indent=2))


def unit_square(axes: Axes) -> None:
    """Equal scales, three ticks and a full frame: a map, not a plot."""
    axes.set(xlim=(0, 1), ylim=(0, 1), xticks=(0, 0.5, 1), yticks=(0, 0.5, 1), aspect="equal")
    axes.spines[:].set_visible(True)
