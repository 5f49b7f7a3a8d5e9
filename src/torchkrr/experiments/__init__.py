"""Stubs for the modules of 0.1.0: a name imported from one of them raises an error that says where it is now."""

import sys
from types import ModuleType

MOVED = {
    "paper.checkpoints": "checkpoints",
    "paper.lander.agent": "lander_agent",
    "paper.lander.config": "lander_config lander_study",
    "paper.lander.games": "lander_games lander_replay",
    "paper.lander.report": "lander_figure lander_report lander_watch",
    "paper.lander.training": "lander_records lander_runs lander_training",
    "paper.learning.config": "learn_config",
    "paper.learning.data": "learn_data",
    "paper.learning.heads": "learn_heads learn_optimizer",
    "paper.learning.networks": "learn_networks small_networks",
    "paper.learning.report": "learn_figure learn_report learn_summary",
    "paper.learning.runs": "learn_board learn_records learn_runs",
    "paper.learning.training": "learn_bank learn_training",
    "torchkrr.runs": "folders processes records text_tables",
    "torchkrr.vision": "archives backbones datasets digit_network features image_files pictures preparing probing",
    "torchkrr.vision.backbones": "_torchvision catalog",
    "torchkrr.vision.depths": "probe probe_config probe_inputs probe_network probe_runs",
    "torchkrr.vision.features": "feature_files inputs",
    "torchkrr.vision.figures": "figures pages probe_figure",
    "torchkrr.vision.heads": "asked_images classify head_examples heads",
    "torchkrr.vision.readouts": "lazy lineup readouts sharded trained",
    "torchkrr.vision.report": "examining probe_report report thumbnails",
    "torchkrr.vision.sampling": "splitting subsamples",
    "torchkrr.vision.summary": "probe_summary summary",
    "torchkrr.vision.weights": "weight_files",
    "torchkrr.vision.transfer": "command_lines config extras transfer",
}
RENAMED = {"config.Config": "TransferConfig", "asked_images.read_asked": "read_images", "lineup.LINEUP": "READOUTS"}


class _Stub(ModuleType):
    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):  # looked up by the import system and by inspect
            raise AttributeError(name)
        old = self.__name__.rpartition(".")[2]
        raise ImportError(f"{self.__name__}.{name} is now {PLACES[old]}.{RENAMED.get(f'{old}.{name}', name)}.")


PLACES = {old: new for new, names in MOVED.items() for old in names.split()}
sys.modules.update({f"{__name__}.{old}": _Stub(f"{__name__}.{old}") for old in PLACES})
