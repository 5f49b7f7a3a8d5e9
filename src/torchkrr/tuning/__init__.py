"""Choose kernel, metric, number of neighbors, ridge and prediction intervals from the data, by leave-one-out."""

from ..functional.left_out import LeftOut, local_leave_one_out
from .intervals import Calibration, Interval, calibrate
from .metric import LearnedMetric, Progressed, learn_metric
from .select import Selection, Trial, select, tune

__all__ = [
    "Calibration",
    "Interval",
    "LearnedMetric",
    "LeftOut",
    "Progressed",
    "Selection",
    "Trial",
    "calibrate",
    "learn_metric",
    "local_leave_one_out",
    "select",
    "tune",
]
