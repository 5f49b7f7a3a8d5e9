"""Batch prediction on Ray: Parquet in, Parquet out, a model that each worker loads once.

    python examples/ray_predict.py --data features/ --model model.krr --out predictions/ --workers 2
    python examples/ray_predict.py --data features/ --store postgresql://me@host/db#questions --out predictions/

The columns of the Parquet files are those that the model was fitted to, and others, which stay as they are. With a store the
workers hold no training rows, and the database has to be reachable from each of them.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import pandas as pd


class Predict:
    """An actor: made once in each worker, called with one batch after the other."""

    def __init__(self, model: str | None, store: str | None) -> None:
        import torch

        import torchkrr

        torch.set_num_threads(1)  # Ray gives each worker one core
        if store is None:
            self.model = torchkrr.load(str(model))
        else:  # a connection cannot travel between processes, so each worker opens its own
            self.model = torchkrr.stores.open_head(torchkrr.stores.open_store(store))

    def __call__(self, batch: pd.DataFrame) -> pd.DataFrame:
        rows = batch[list(self.model.feature_names_in_)]
        found = {"prediction": self.model.predict(rows), "worker": os.getpid()}
        if hasattr(self.model, "classes_"):
            found["probability"] = self.model.predict_proba(rows).max(1)
        return batch.assign(**found)


def predict(data: str, out: str, *, model: str | None, store: str | None, workers: int, batch_rows: int = 4096) -> int:
    """Predict every row below the folder `data`; how many there were."""
    import ray

    # A short job is shared too: otherwise the first worker that is up takes all of it, and small files become one block.
    ray.data.DataContext.get_current().wait_for_min_actors_s = 120
    rows: Any = ray.data.read_parquet(data).repartition(target_num_rows_per_block=batch_rows)
    found = rows.map_batches(
        Predict,
        fn_constructor_kwargs={"model": model and os.path.abspath(model), "store": store},
        batch_size=batch_rows,
        batch_format="pandas",
        compute=ray.data.ActorPoolStrategy(size=workers, max_tasks_in_flight_per_actor=2),
    )
    found.write_parquet(out)
    return int(rows.count())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, metavar="DIR", help="Parquet files")
    parser.add_argument("--out", required=True, metavar="DIR", help="where predictions go, as Parquet files")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch-rows", type=int, default=4096)
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--model", metavar="FILE", help="written by save() of an estimator, or by torchkrr fit")
    place.add_argument("--store", metavar="URI", help="where to_store or torchkrr fit --store put a head")
    args = parser.parse_args()
    import ray

    # Outside of a cluster: processes on this machine, one of which reads. Inside of one, `ray.init()` finds it.
    ray.init(**({} if "RAY_ADDRESS" in os.environ else {"num_cpus": args.workers + 1, "include_dashboard": False}))
    choices = {"model": args.model, "store": args.store, "workers": args.workers, "batch_rows": args.batch_rows}
    print(f"{predict(args.data, args.out, **choices)} rows predicted by {args.workers} workers: {args.out}")


if __name__ == "__main__":
    main()
