"""What three ranks do, of which the second first hangs and then dies: python -m tests.distributed.failing."""

from __future__ import annotations

import datetime
import json
import os
import signal
import time

import torch
import torch.distributed as dist

from torchkrr import kernels
from torchkrr.distributed import ShardedLocalKernelRidge
from torchkrr.distributed.launch import AllRanks
from torchkrr.errors import DistributedError

SECONDS = 3.0


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=200))
    rank = dist.get_rank()
    hanging = dist.new_group(timeout=datetime.timedelta(seconds=SECONDS))
    dying = dist.new_group(timeout=datetime.timedelta(seconds=200))
    torch.manual_seed(rank)
    centers, values, query = torch.randn(30, 3), torch.randn(30, 1), torch.randn(5, 3)
    found: dict[str, object] = {}
    layers = [
        ShardedLocalKernelRidge(centers, values, 8, kernel=kernels.Matern32(), ridge=1e-2, process_group=group)
        for group in (hanging, dying)
    ]
    for layer in layers:
        layer(query)
    AllRanks(SECONDS, hanging).first(time.sleep, 2 * SECONDS)  # a rank that works may take longer than the timeout
    found["works"] = True
    for name, layer in zip(("hangs", "dies"), layers, strict=True):
        dist.barrier()
        if rank == 1:
            if name == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(2 * SECONDS)
            continue
        start = time.monotonic()
        try:
            layer(query)
        except DistributedError as error:
            found[name] = [str(error), time.monotonic() - start]
    print(json.dumps(found), flush=True)
    os._exit(0)  # there is nobody left to say goodbye to


if __name__ == "__main__":
    main()
