"""Everything that is chosen from the data, by leave-one-out: kernel and metric, number of neighbors, ridge, intervals."""

from .learned import LearnedMetric, Progressed
from .leave_one_out import LeftOut, local_leave_one_out
from .metric import learn_metric
from .select import select
from .selection import Selection, Trial

__all__ = ["LearnedMetric", "LeftOut", "Progressed", "Selection", "Trial", "learn_metric", "local_leave_one_out", "select"]
