"""Parts of a table predicted by several processes: what torchrun has started shares out centers and rows by itself."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import torch

from ..distributed import launch
from ..distributed.estimators import shard

Query = TypeVar("Query")
Columns = Mapping[str, Any]


class Alone(launch.SingleProcess):
    """One process."""

    def share(self, model: Any) -> None:
        """Nothing to share."""

    def predicted(self, part: Any, read: Callable[[Any, int], Query], predict: Callable[[Query], Columns]) -> Columns:
        """Columns for a part of a table: `read` some of its rows, from the given one on, and `predict` them."""
        return predict(read(part, 0))


class Ranks(launch.AllRanks, Alone):
    """The processes that torchrun has started; each predicts some rows of every part, and gets the results of all."""

    def share(self, model: Any) -> None:
        shard(model)

    def predicted(self, part: Any, read: Callable[[Any, int], Query], predict: Callable[[Query], Columns]) -> Columns:
        own = self.own(part.num_rows)
        # A rank for which no row is left predicts the first one too: predictions are made by all ranks together.
        idle = own.start == own.stop
        taken = slice(0, 1) if idle else own
        query: list[Query] = []
        self.comm.agree([], lambda: query.append(read(part[taken], taken.start)))
        found = pa.table(dict(predict(query[0])))
        return self._joined(found[:0] if idle else found)

    def _joined(self, found: Any) -> Columns:
        """The rows of all ranks, in order."""
        memory = pa.BufferOutputStream()
        with pa.ipc.new_stream(memory, found.schema) as stream:
            stream.write_table(found)
        own = torch.from_numpy(np.frombuffer(memory.getvalue(), dtype=np.uint8).copy())
        counts = self.comm.table([len(own)]).squeeze(1).tolist()
        everyone = self.comm.gather(own, counts, "predictions").split(counts)
        tables = [pa.ipc.open_stream(pa.py_buffer(part.numpy())).read_all() for part in everyone]
        joined = pa.concat_tables(tables).combine_chunks()
        return {name: joined.column(name) for name in joined.column_names}


@contextlib.contextmanager
def ranks(timeout: float) -> Iterator[Alone]:
    """Those that torchrun has started, or one process."""
    with launch.team(timeout) as everyone:
        yield Ranks(timeout) if isinstance(everyone, launch.AllRanks) else Alone()
