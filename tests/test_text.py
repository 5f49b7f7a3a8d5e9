"""Sentences to embeddings: the same numbers however they are batched, and errors that say what came."""

import importlib.util
import subprocess
import sys
import textwrap
import warnings

import numpy as np
import pytest
import torch

from torchkrr import text
from torchkrr.errors import FileError, InputError, InputTypeError, KernelRidgeWarning
from torchkrr.text import open_encoder

SENTENCES = ["where is my card", "my card is here", "lost", "", "where where where is is is my my my card", "Héré"]
WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "where",
    "is",
    "my",
    "card",
    "here",
    "lost",
    ".",
    "!",
    ":",
    "1",
    "##s",
    "cafe",
]
READS = 12  # tokens


@pytest.fixture(scope="module")
def library():
    if importlib.util.find_spec("sentence_transformers") is None:
        pytest.skip("needs sentence-transformers")
    return text.import_library()


@pytest.fixture(scope="module")
def make_encoder(library, tmp_path_factory):
    """Save a tiny BERT with random weights; its folder."""

    transformers = importlib.import_module("transformers")

    def make(seed=0, pooling="mean", lower_case=True):
        folder = tmp_path_factory.mktemp("encoder")
        (folder / "vocab.txt").write_text("\n".join(WORDS))
        tokenizer = transformers.BertTokenizerFast(vocab=str(folder / "vocab.txt"), do_lower_case=lower_case)
        config = transformers.BertConfig(
            vocab_size=len(WORDS), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
            max_position_embeddings=READS,
        )  # fmt: skip
        torch.manual_seed(seed)
        transformers.BertModel(config).save_pretrained(folder / "bert")
        tokenizer.save_pretrained(folder / "bert")
        modules = library.sentence_transformer.modules
        bert = modules.Transformer(str(folder / "bert"), max_seq_length=READS)
        model = library.SentenceTransformer(modules=[bert, modules.Pooling(16, pooling_mode=pooling)], device="cpu")
        model.save(str(folder / "saved"))
        return folder / "saved"

    return make


@pytest.fixture(scope="module")
def folder(make_encoder):
    return make_encoder()


@pytest.fixture(scope="module")
def encoder(folder):
    return open_encoder(folder)


def test_a_row_for_each_sentence_in_their_order(encoder):
    embeddings = encoder.encode(SENTENCES)
    assert embeddings.shape == (len(SENTENCES), encoder.num_features)
    assert embeddings.dtype == torch.float32
    for sentence, row in zip(SENTENCES, embeddings, strict=True):
        torch.testing.assert_close(encoder.encode([sentence])[0], row, rtol=1e-5, atol=1e-6)
    assert torch.cdist(embeddings, embeddings).fill_diagonal_(1).min() > 1e-3


def test_rows_do_not_depend_on_the_batch_size(encoder):
    expected = encoder.encode(SENTENCES)
    for batch_size in (1, 2, 100):
        torch.testing.assert_close(encoder.encode(SENTENCES, batch_size=batch_size), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [tuple, np.array, lambda rows: np.array(rows, dtype=object)])
def test_sentences_come_as_any_sequence(encoder, kind):
    assert torch.equal(encoder.encode(kind(SENTENCES)), encoder.encode(SENTENCES))


def test_a_column_of_a_table(encoder):
    pandas = pytest.importorskip("pandas")
    column = pandas.Series(SENTENCES, index=range(5, 5 + len(SENTENCES)))
    assert torch.equal(encoder.encode(column), encoder.encode(SENTENCES))


def test_embeddings_can_be_trained_on(encoder):
    embeddings = encoder.encode(SENTENCES)
    weight = torch.ones(16, requires_grad=True)
    (embeddings @ weight).sum().backward()
    torch.testing.assert_close(weight.grad, embeddings.sum(0))


def test_no_sentences_give_no_rows(encoder):
    assert encoder.encode([]).shape == (0, 16)


def test_a_progress_bar_only_where_it_is_wanted(encoder, capsys):
    encoder.encode(SENTENCES)
    assert capsys.readouterr().err == ""
    encoder.encode(SENTENCES, progress=True)
    assert "100%" in capsys.readouterr().err


def test_what_an_encoder_does_not_read_is_left_out_with_a_warning(encoder):
    fits, beyond = "card " * (READS - 2), "card " * (READS - 2) + "lost"
    with pytest.warns(KernelRidgeWarning, match=f"^1 of 3 sentences are longer than the {READS} tokens that .* reads"):
        embeddings = encoder.encode([fits, beyond, "card"])
    torch.testing.assert_close(embeddings[0], embeddings[1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encoder.encode([fits])


def test_a_fingerprint_is_that_of_what_decides_the_embeddings(make_encoder, encoder, folder, tmp_path):
    assert open_encoder(str(folder)).fingerprint == encoder.fingerprint
    moved = tmp_path / "moved"
    folder.rename(moved)
    try:
        assert open_encoder(moved).fingerprint == encoder.fingerprint
    finally:
        moved.rename(folder)
    others = [make_encoder(seed=1), make_encoder(pooling="cls"), make_encoder(lower_case=False)]
    assert len({encoder.fingerprint, *(open_encoder(other).fingerprint for other in others)}) == 4


def test_a_name_is_the_one_that_was_given(encoder, folder):
    assert encoder.name == str(folder)


@pytest.mark.parametrize(
    ("sentences", "error", "words"),
    [
        ("where is my card", InputTypeError, r"got a single string\. Use \[sentence\]"),
        (["card", None], InputError, r"sentences\[1\] must be a string, got None \(NoneType\)"),
        (["card", "lost", float("nan")], InputError, r"sentences\[2\] must be a string, got nan \(float\)"),
    ],
)
def test_sentences_that_are_none_are_an_error(encoder, sentences, error, words):
    with pytest.raises(error, match=words):
        encoder.encode(sentences)


def test_a_batch_size_is_at_least_one(encoder):
    with pytest.raises(InputError, match="batch_size"):
        encoder.encode(SENTENCES, batch_size=0)


def test_embeddings_that_are_not_finite_are_an_error(folder):
    broken = open_encoder(folder)
    with torch.no_grad():
        broken.model[0].model.embeddings.word_embeddings.weight[WORDS.index("lost")] = float("nan")
    broken.encode(["card"])
    with pytest.raises(InputError, match="The embeddings of "):
        broken.encode(["card", "lost"])


@pytest.mark.parametrize("name", ["", "/no/such/folder", "./no-such-folder", "~/no-such-folder", "no/such/folder"])
def test_a_folder_that_is_not_there_is_an_error(name):
    with pytest.raises(FileError, match=r"is not there\. Expected a folder saved by sentence-transformers, or a name"):
        open_encoder(name)


def test_a_file_is_no_encoder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(FileError, match=r"The encoder 'model\.safetensors' is a file\. Expected a folder"):
        open_encoder("model.safetensors")


@pytest.mark.parametrize("damage", ["empty", "config", "weights"])
def test_a_folder_that_holds_no_encoder_is_an_error(library, make_encoder, damage, tmp_path):
    broken = tmp_path if damage == "empty" else make_encoder()
    if damage == "config":
        (broken / "config.json").write_text("{")
    elif damage == "weights":
        content = (broken / "model.safetensors").read_bytes()
        (broken / "model.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.raises(FileError, match=r"The encoder .* cannot be loaded: .+\. Expected a folder saved by"):
        open_encoder(broken)


def test_a_download_that_fails_is_an_error_that_says_what_else_can_be_done(monkeypatch):
    class Library:
        def SentenceTransformer(self, name, device):
            assert (name, device) == ("owner/no-such-encoder", "cpu")
            raise OSError("We couldn't connect\nto the hub.")

    monkeypatch.setattr(text, "import_library", Library)
    with pytest.raises(FileError, match=r"owner/no-such-encoder cannot be loaded: We couldn't connect to the hub\. Exp"):
        open_encoder("owner/no-such-encoder")


def test_without_the_extra_the_error_names_it():
    script = """
    import sys
    sys.modules["sentence_transformers"] = None
    from torchkrr.errors import MissingExtraError
    from torchkrr.text import open_encoder
    try:
        open_encoder("owner/name")
    except MissingExtraError as error:
        print(error)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True)
    assert done.stdout.startswith('Text needs sentence_transformers, which is not installed: pip install "torchkrr[text]"')


def test_a_device_must_be_one():
    with pytest.raises(InputError, match="device"):
        open_encoder("owner/name", device="no device")
