"""Is the local solve as fast as it was? This tree beside another commit, in one run.

    python -m benchmarks.versions --commit 2fc1805 --out benchmarks/results

The other commit is checked out and compiled in a folder of its own. Both are measured in processes of their own, by turns,
and the best time of each counts. M = 100, C = 10, float32; smooth kernels on data like a table's: eight correlated columns,
a smooth function with noise. Writes `versions.md` and `versions.jsonl`.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable

ROUNDS, REPEATS = 6, 7
QUERIES, CENTERS, NEIGHBORS, OUTPUTS = 2000, 20_000, 100, 10
TREE = pathlib.Path(__file__).parent.parent


def best(function: Callable[[], object]) -> float:
    """Microseconds a query."""
    function()
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times) / QUERIES * 1e6


def measure() -> dict[str, float]:
    import torch

    from torchkrr import functional as F
    from torchkrr import kernels, neighbors

    warnings.simplefilter("ignore")
    found = {}
    for features in (8, 32, 512):
        torch.manual_seed(0)
        query, centers, values = (torch.randn(*s) for s in ((QUERIES, features), (CENTERS, features), (CENTERS, OUTPUTS)))
        indices, kernel = neighbors.nearest(query, centers, NEIGHBORS), kernels.Exponential(features**0.5)
        leaves = [tensor.clone().requires_grad_() for tensor in (query, centers, values)]

        def forward(given=(query, centers, values), indices=indices, kernel=kernel):  # type: ignore[no-untyped-def]
            query, centers, values = given
            return F.local_kernel_ridge(query, centers, values, indices, kernel=kernel)

        def both(leaves=leaves, forward=forward):  # type: ignore[no-untyped-def]
            forward(leaves).sum().backward()
            for leaf in leaves:
                leaf.grad = None

        found[f"Exponential, D={features}, forward"] = best(forward)
        found[f"Exponential, D={features}, forward + backward"] = best(both)
    torch.manual_seed(0)
    mixing = torch.randn(8, 8)
    query, centers = torch.randn(QUERIES, 8) @ mixing, torch.randn(CENTERS, 8) @ mixing
    center, spread = centers.mean(0), centers.std(0)
    query, centers = (query - center) / spread, (centers - center) / spread
    values = torch.sin(centers[:, :1]) + centers[:, 1:2] * centers[:, 2:3] + 0.1 * torch.randn(CENTERS, 1)
    indices = neighbors.nearest(query, centers, NEIGHBORS)
    for kind in (kernels.Gaussian, kernels.Matern52):
        for lengthscale, ridge in ((2.0, 1e-2), (2.0, 1e-4), (8.0, 1e-4)):
            solve = functools.partial(F.local_kernel_ridge, kernel=kind(lengthscale), ridge=ridge)
            name = f"{kind.__name__}({lengthscale:g}), table, ridge {ridge:g}, forward"
            found[name] = best(functools.partial(solve, query, centers, values, indices))
    return found


def checked_out(commit: str, folder: pathlib.Path) -> pathlib.Path:
    """The commit, compiled."""
    subprocess.run(["git", "worktree", "add", "--detach", str(folder), commit], cwd=TREE, check=True, capture_output=True)
    subprocess.run([sys.executable, "setup.py", "build_ext", "--inplace"], cwd=folder, check=True, capture_output=True)
    return folder


def run(tree: pathlib.Path) -> dict[str, float]:
    program = [sys.executable, str(TREE / "benchmarks" / "versions.py"), "--measure"]
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    done = subprocess.run(program, cwd=tree, env=environment, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commit", default="2fc1805", help="what to compare with (default: 0.1.0)")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("benchmarks/results"))
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure()))
        return
    here = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=TREE, check=True, capture_output=True, text=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch) / "other"
        try:
            other = checked_out(arguments.commit, folder)
            rounds = [(run(other), run(TREE)) for _ in range(ROUNDS)]
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(folder)], cwd=TREE, check=False, capture_output=True)
    rows = []
    for name in rounds[0][1]:
        old, new = (min(pair[i][name] for pair in rounds) for i in (0, 1))
        rows.append({"case": name, "old": old, "new": new, "ratio": new / old})
    command = f"python -m benchmarks.versions --commit {arguments.commit}"
    lines = [
        "# The local solve beside an earlier commit",
        "",
        f"`{command}`: {arguments.commit} beside {here.stdout.strip()}, by turns, best of {ROUNDS} processes with {REPEATS} "
        f"repeats each. Microseconds a query, Q={QUERIES}, N={CENTERS}, M={NEIGHBORS}.",
        "",
        f"| case | {arguments.commit} | now | ratio |",
        "|---|---|---|---|",
        *(f"| {row['case']} | {row['old']:.1f} | {row['new']:.1f} | {row['ratio']:.2f} |" for row in rows),
        "",
    ]
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "versions.md").write_text("\n".join(lines))
    (arguments.out / "versions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
