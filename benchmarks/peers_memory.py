"""Peak extra memory of one pipeline from centers to predictions, in a process of its own.

python -m benchmarks.peers_memory "scipy RBFInterpolator" 10000 10000 32 100    # queries, centers, features, neighbors
"""

from __future__ import annotations

import json
import sys

import torch

from benchmarks import optional, pipelines
from benchmarks.harness import peak_megabytes


def main(name: str, num_queries: int, num_centers: int, features: int, num_neighbors: int) -> None:
    pipeline = pipelines.PIPELINES[name]
    small = pipelines.make_problem(20, 200, features, min(num_neighbors, 50))
    problem = pipelines.make_problem(num_queries, num_centers, features, num_neighbors)
    with torch.no_grad():
        try:
            pipeline(small)(small.query)  # loading code and starting threads is not the task's memory
        except optional.NotInstalledError as error:
            print(json.dumps({"missing": {name: str(error)}}))
            return
        before = peak_megabytes()
        pipeline(problem)(problem.query)
    print(json.dumps({"megabytes": peak_megabytes() - before}))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:6]))
