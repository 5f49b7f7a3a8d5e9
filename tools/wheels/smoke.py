"""A few lines for each extra: they work where it is installed, and elsewhere the error names it."""

from __future__ import annotations

import re

from .building import ROOT

# All in one process: torch takes longer to import than most of them to run. Spawned processes import this file again.
RUNNER = """
import contextlib, io, json, pathlib, sys, traceback

def attempt(code):
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            exec(compile(code, "smoke", "exec"), {"__name__": "__main__"})
    except BaseException:
        return said.getvalue() + traceback.format_exc()
    return None

if __name__ == "__main__":
    codes = json.loads(pathlib.Path(sys.argv[1]).read_text())
    pathlib.Path(sys.argv[2]).write_text(json.dumps({name: attempt(code) for name, code in codes.items()}))
"""
START = """
import pathlib, sys, tempfile
import torch, torchkrr
from torchkrr.cli import main
torch.manual_seed(0)
points, values = torch.rand(60, 3), torch.rand(60, 1)
folder = pathlib.Path(tempfile.mkdtemp())
def command(*words):
    if main([str(word) for word in words]):
        raise SystemExit(1)
"""
CORE = """
head = torchkrr.nn.LocalKernelRidge(points, values, num_neighbors=10)
assert torch.allclose(head(points), values, atol=1e-3)
typed = pathlib.Path(torchkrr.__file__).with_name("py.typed")
assert typed.exists() and "site-packages" in torchkrr.__file__, torchkrr.__file__
"""
TABLE = """
rows = [f"{a},{b},{a + b}" for a in range(9) for b in range(9)]
(folder / "t.csv").write_text("a,b,y\\n" + "\\n".join(rows) + "\\n")
"""
# The paper's experiments stay in the repository: no wheel has them.
PAPER = f"""
sys.path.insert(0, {str(ROOT)!r})
"""
EXTRAS = {
    "faiss": """
index = torchkrr.neighbors.FaissIndex("Flat").build(points)
assert index.search(points, 2).indices[:, 0].tolist() == list(range(60))
""",
    "ot": """
assert torchkrr.functional.assignment(points, points.flip(0)).tolist() == list(range(59, -1, -1))
""",
    "sklearn": """
model = torchkrr.estimators.LocalKernelRidgeRegressor(10, kernel="matern32", metric=None, alpha=0.01)
assert model.fit(points.numpy(), values[:, 0].numpy()).predict(points.numpy()).shape == (60,)
""",
    "storage": """
model = torchkrr.estimators.LocalKernelRidgeRegressor(10, kernel="matern32", metric=None, alpha=0.01)
model.fit(points.numpy(), values[:, 0].numpy()).save(folder / "m.krr")
assert torchkrr.estimators.load(folder / "m.krr").alpha == 0.01
""",
    "pgvector": """
try:  # there is no server
    torchkrr.stores.PgVectorStore("postgresql://127.0.0.1:1/none", tries=1)
except torchkrr.errors.StoreError as error:
    assert "could not be reached" in str(error)
""",
    "lance": """
store = torchkrr.stores.LanceStore(folder, kernel=torchkrr.kernels.Exponential(1.0))
store.add(points, values)
assert torchkrr.stores.StoredKernelRidge(store, 10)(points[:3]).shape == (3, 1)
""",
    "cli": TABLE
    + """
fixed = ("--kernel", "matern32", "--metric", "none", "--alpha", "0.01", "--neighbors", "10")
command("fit", folder / "t.csv", "--target", "y", "--out", folder / "m.krr", *fixed)
command("predict", folder / "t.csv", folder / "m.krr", "--out", folder / "p.parquet", "--interval", "0.9")
command("evaluate", folder / "t.csv", folder / "m.krr", "--json")
""",
    "plot": """
import os
os.environ["MPLBACKEND"] = "agg"
torchkrr.select(points, values, lengthscales=[0.5, 1.0], num_neighbors=[10]).plot().savefig(folder / "p.png")
""",
    "text": """
from torchkrr import text
modules = text.import_library().sentence_transformer.modules
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer, models
words = Tokenizer(models.WordLevel({"card": 0, "lost": 1}, unk_token="lost"))
SentenceTransformer(modules=[modules.StaticEmbedding(words, embedding_dim=4)]).save(str(folder / "encoder"))
assert text.open_encoder(folder / "encoder").encode(["card", "lost"]).shape == (2, 4)
""",
    "vision": """
from torchkrr.vision import open_backbone
backbone = open_backbone("resnet18", random_weights=True, size=32)
backbone = open_backbone("timm/resnet10t", random_weights=True, size=32)
""",
    "rl": PAPER
    + """
from paper.lander.__main__ import main as lander
small = ("--hidden", "16", "--num-centers", "8", "--random-states", "100", "--evaluation-episodes", "1")
game = ("--environment", "LunarLander-v3", "--processes", "1", "--seeds", "1", "--episodes", "1")
if lander([*game, *small, "--agent", "dqk", "--out", str(folder / "lander")]):
    raise SystemExit(1)
""",
    "demo": """
command("transfer", "digits", "--budgets", "30", "--seeds", "1", "--readouts", "sk", "--out", folder / "demo")
assert (folder / "demo" / "head.safetensors").exists()
""",
    "tensorboard": PAPER
    + """
from paper.learning.runs import tensorboard
with tensorboard(folder / "curves", 0, shown=True):
    pass
assert list((folder / "curves").iterdir())
""",
}
# Where an extra is missing, the error may name another that brings the same.
ALSO_NAMED = {"storage": {"sklearn"}, "demo": {"vision"}}


def ten_lines() -> str:
    """The first block of code in the README."""
    found = re.search(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), flags=re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def named_extras(text: str) -> set[str]:
    """
    Example:
        >>> named_extras('Plots need matplotlib: pip install "torchkrr[plot]".')
        {'plot'}
    """
    return set(re.findall(r'pip install "torchkrr\[(\w+)\]"', text))
