"""Sentences to embeddings, by a frozen encoder of sentence-transformers."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import pathlib
import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ._checks import check_at_least_one, check_device, check_finite
from ._extras import import_extra, import_torchvision
from ._state import weights_hash
from .errors import FileError, InputError, InputTypeError, KernelRidgeWarning

__all__ = ["TextEncoder", "open_encoder"]

VERSION = 1  # of how embeddings are computed
EXPECTED = (
    "a folder saved by sentence-transformers, or a name on the Hugging Face hub (sentence-transformers/all-MiniLM-L6-v2)"
)
PROBE = "Zoë's naïve café bill: £1,234.50 (unaffordable)!"  # case, accents, numbers and signs: what tokenizers differ in


class TextEncoder(NamedTuple):
    """A frozen sentence encoder.

    Attributes:
        name: as given to `open_encoder`.
        model: the `SentenceTransformer`.
        fingerprint: a hash of weights, pooling and tokens. Another fingerprint means other embeddings.
        num_features: the size of an embedding.
    """

    name: str
    model: Any
    fingerprint: str
    num_features: int

    def encode(self, sentences: Sequence[str], *, batch_size: int = 32, progress: bool = False) -> Tensor:
        """Embed sentences, one row each.

        Sentences of similar length are computed together, so little is spent on padding. What a sentence has beyond the
        most tokens the encoder reads is left out, with a warning.

        Args:
            sentences: a list, array or column of strings.
            batch_size: sentences per forward pass. It moves embeddings by rounding only.
            progress: show a progress bar.

        Shape:
            `(n, num_features)`, float32, on the CPU.
        """
        check_at_least_one("batch_size", batch_size)
        checked = _check_sentences(sentences)
        if not checked:
            return torch.empty(0, self.num_features)
        if too_long := _num_too_long(self.model, checked):
            warnings.warn(
                f"{too_long} of {len(checked)} sentences are longer than the {self.model.max_seq_length} tokens that "
                f"{self.name} reads; the rest of each is left out. Split them, or use an encoder that reads more.",
                KernelRidgeWarning,
                stacklevel=2,
            )
        embeddings = _embed(self.model, checked, batch_size=batch_size, show_progress_bar=progress)
        check_finite(f"The embeddings of {self.name}", embeddings)
        return embeddings


def open_encoder(name_or_path: str | os.PathLike[str], *, device: str = "cpu") -> TextEncoder:
    """Load a sentence encoder. It needs the extra `text`.

    Args:
        name_or_path: a folder saved by sentence-transformers, or a name on the Hugging Face hub, which is downloaded once.
        device: where the encoder runs.

    Example:
        >>> encoder = open_encoder("sentence-transformers/all-MiniLM-L6-v2")  # doctest: +SKIP
        >>> encoder.encode(["Where is my card?", "My card has not arrived."]).shape  # doctest: +SKIP
        torch.Size([2, 384])
    """
    name = os.fspath(name_or_path)
    check_device(device)
    path = pathlib.Path(name).expanduser()
    if not name or (not path.is_dir() and (path.exists() or name.startswith((".", "~", os.sep)) or name.count("/") > 1)):
        came = "is a file" if path.is_file() else "is not there"
        raise FileError(f"The encoder {name!r} {came}. Expected {EXPECTED}.")
    library = import_library()
    try:
        model = library.SentenceTransformer(str(path) if path.is_dir() else name, device=device).eval()
        num_features = _embed(model, [PROBE]).shape[1]
    except Exception as error:  # the library and its downloads raise errors of many kinds
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise FileError(f"The encoder {name} cannot be loaded: {reason.rstrip('.')}. Expected {EXPECTED}.") from error
    return TextEncoder(name, model, _fingerprint(model), num_features)


def import_library() -> ModuleType:
    """`sentence_transformers`."""
    if importlib.util.find_spec("torchvision"):
        import_torchvision(user="sentence-transformers")  # which imports it
    return import_extra("sentence_transformers", "Text", extra="text")


def _embed(model: Any, sentences: list[str], **options: Any) -> Tensor:
    embeddings: Tensor = model.encode(sentences, convert_to_tensor=True, **options)
    return embeddings.float().cpu().clone()  # a tensor of inference mode could not be trained on


def _fingerprint(model: Any) -> str:
    """A hash of weights, modules and tokens; not of how a version of the library describes them."""
    modules = [f"{type(module).__name__} {getattr(module, 'pooling_mode', '')}" for module in model]
    tokens = model.preprocess([PROBE])["input_ids"].tolist()
    parts = [VERSION, weights_hash(model), modules, tokens, model.max_seq_length, model.default_prompt_name]
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()


def _check_sentences(sentences: Sequence[str]) -> list[str]:
    if isinstance(sentences, str | bytes):
        raise InputTypeError("sentences must be a list of strings, got a single string. Use [sentence].")
    found = list(sentences)
    for row, sentence in enumerate(found):
        if not isinstance(sentence, str):
            raise InputError(
                f"sentences[{row}] must be a string, got {sentence!r} ({type(sentence).__name__}). "
                "Leave out rows without text, or write '' there."
            )
    return found


def _num_too_long(model: Any, sentences: list[str]) -> int:
    """How many sentences have more tokens than the encoder reads."""
    most = model.max_seq_length
    if not isinstance(most, int):  # it reads any number
        return 0
    # A token takes at least one byte, and a sentence has two more: its beginning and its end.
    candidates = [sentence for sentence in sentences if len(sentence.encode()) + 2 > most]
    if not candidates:
        return 0
    tokens = model.tokenizer(candidates, truncation=False, padding=False, verbose=False)["input_ids"]
    return sum(len(row) > most for row in tokens)
