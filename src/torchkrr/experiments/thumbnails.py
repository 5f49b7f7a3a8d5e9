"""Small pictures inside a page."""

from __future__ import annotations

import base64
import io

from ..vision.images import Array
from .extras import needed

LARGEST = 128  # pixels of the longer side
FEW_PIXELS = 64  # below it a picture is kept as it is, and shown with its pixels


def data_uri(picture: Array) -> tuple[str, bool]:
    """A picture `(H, W, 3)` as the address of an image, and whether its pixels should show."""
    image = needed("PIL.Image", "Pictures in a report", extra="demo").fromarray(picture)
    small = max(image.size) <= FEW_PIXELS
    image.thumbnail((LARGEST, LARGEST))
    drawn = io.BytesIO()
    if small:
        image.save(drawn, format="PNG", optimize=True)
    else:
        image.save(drawn, format="JPEG", quality=85)
    return f"data:image/{'png' if small else 'jpeg'};base64,{base64.b64encode(drawn.getvalue()).decode()}", small
