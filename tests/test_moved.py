"""Names documented in 0.1.0 are where they were, or an error says where they are now."""

import importlib
import re

import pytest

import torchkrr.experiments

KEPT = {
    "torchkrr": (
        "__version__ backend_report calibrate distributed errors estimators functional kernels learn_metric losses "
        "models neighbors nn probe select transforms tune tuning"
    ),
    "torchkrr.functional": (
        "Path assignment blended_kernel_ridge blended_power_function blending_weights cardinal_weights error_bound "
        "error_indicator farthest_points gromov_monge hierarchical_kernel_ridge "
        "kernel_ridge leave_one_out local_cardinal_weights local_error_bound local_kernel_ridge local_path "
        "local_power_function local_rkhs_norm monge_cost power_function power_greedy residual_greedy rkhs_norm"
    ),
    "torchkrr.nn": (
        "BlendedKernelRidge Explanation GromovMongeLoss HierarchicalKernelRidge KernelRidge LocalKernelRidge MongeLoss"
    ),
    "torchkrr.kernels": (
        "Exponential Gaussian InverseMultiquadric Kernel Matern32 Matern52 RationalQuadratic Wendland default_kernel"
    ),
    "torchkrr.transforms": (
        "Compose ErfInv Linear MeanDistance MinDistance StandardMean Standardize Transform UnitCube UnitNorm"
    ),
    "torchkrr.neighbors": ("AutoIndex Choice ExactIndex FaissIndex NeighborIndex Neighbors StreamedIndex nearest recall"),
    "torchkrr.tuning": (
        "Calibration Interval LearnedMetric LeftOut Progressed Selection Trial calibrate learn_metric "
        "local_leave_one_out select tune"
    ),
    "torchkrr.losses": "Reduction episodic_cross_entropy leave_one_out_cross_entropy",
    "torchkrr.models": (
        "Depths KernelQNetwork KernelReadout QNetwork Staged Tapped cut_stages features_at known_layers pool tap "
        "typical_scales"
    ),
    "torchkrr.estimators": (
        "Explanation Interval KernelRidgeRegressor LocalKernelRidgeClassifier LocalKernelRidgeRegressor load"
    ),
    "torchkrr.distributed": (
        "Launched ShardedLocalKernelRidge Shards checkpoint costs even_shards is_launched launched own_rows"
    ),
    "torchkrr.distributed.costs": "operations_per_query traffic_per_query",
    "torchkrr.errors": (
        "BackendError DistributedError FileError InputError InputTypeError KernelRidgeError KernelRidgeWarning "
        "MissingExtraError NotFittedError RidgeRaisedWarning SearchError ShapeError SolveError"
    ),
}
# Every name below torchkrr.experiments in the pages, examples and benchmarks of 0.1.0.
MOVED = {
    "asked_images.read_asked": "torchkrr.vision.heads.read_images",
    "backbones.open_backbone": "torchkrr.vision.open_backbone",
    "checkpoints.read_checkpoint": "paper.checkpoints.read_checkpoint",
    "classify.classify": "torchkrr.vision.heads.classify",
    "config.Config": "torchkrr.vision.transfer.TransferConfig",
    "datasets.open_dataset": "torchkrr.vision.open_dataset",
    "digit_network.DigitNetwork": "torchkrr.vision.DigitNetwork",
    "features.extract": "torchkrr.vision.extract",
    "head_examples.with_examples": "torchkrr.vision.heads.with_examples",
    "head_examples.without_examples": "torchkrr.vision.heads.without_examples",
    "heads.Head": "torchkrr.vision.heads.Head",
    "heads.read_head": "torchkrr.vision.heads.read_head",
    "heads.write_head": "torchkrr.vision.heads.write_head",
    "lander_agent.Agent": "paper.lander.agent.Agent",
    "lander_agent.double_dqn_target": "paper.lander.agent.double_dqn_target",
    "lander_config.Config": "paper.lander.config.Config",
    "lander_games.make": "paper.lander.games.make",
    "lander_replay.Replay": "paper.lander.games.Replay",
    "learn_config.Config": "paper.learning.config.Config",
    "learn_heads.KernelHead": "paper.learning.heads.KernelHead",
    "learn_networks.cut_network": "paper.learning.networks.cut_network",
    "learn_optimizer.make_optimizer": "paper.learning.heads.make_optimizer",
    "learn_records.reopen": "paper.learning.runs.reopen",
    "learn_runs.run_all": "paper.learning.runs.run_all",
    "lineup.LINEUP": "torchkrr.vision.readouts.READOUTS",
    "probe.run": "torchkrr.vision.depths.run",
    "probe_config.ProbeConfig": "torchkrr.vision.depths.ProbeConfig",
    "probing.probe": "torchkrr.vision.probe",
    "readouts.Training": "torchkrr.vision.readouts.Training",
    "transfer.run": "torchkrr.vision.transfer.run",
}


@pytest.mark.parametrize("module", KEPT)
def test_documented_names_are_where_they_were(module):
    for name in KEPT[module].split():
        assert hasattr(importlib.import_module(module), name), f"{module}.{name}"


@pytest.mark.parametrize(("old", "new"), MOVED.items(), ids=MOVED)
def test_an_old_import_names_the_new_place(old, new):
    module, name = old.rsplit(".", 1)
    with pytest.raises(ImportError, match=re.escape(f"torchkrr.experiments.{old} is now {new}.")):
        exec(f"from torchkrr.experiments.{module} import {name}")
    place, renamed = new.rsplit(".", 1)
    assert hasattr(importlib.import_module(place), renamed)


@pytest.mark.parametrize("place", torchkrr.experiments.MOVED)
def test_every_new_place_exists(place):
    assert importlib.import_module(place).__name__ == place


@pytest.mark.parametrize("statement", ["import torchkrr.experiments.nothing", "from torchkrr.experiments import nothing"])
def test_what_never_existed_is_an_ordinary_import_error(statement):
    with pytest.raises(ImportError, match="nothing"):
        exec(statement)


def test_the_power_function_of_the_former_hierarchical_form_names_its_successor():
    with pytest.raises(AttributeError, match=r"is now local_power_function\(\.\.\., fade=True\)"):
        _ = torchkrr.functional.hierarchical_power_function
