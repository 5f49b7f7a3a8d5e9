"""The paper's settings for `torchkrr transfer`."""

from paper import transfer
from torchkrr.runs import read_records


def test_smoke(tmp_path, capsys):
    assert transfer.main(["--smoke", "--out", str(tmp_path)]) == 0
    assert {record["readout"] for record in read_records(tmp_path / "transfer-smoke" / "records.jsonl")} == {"sk", "knn"}
    assert (tmp_path / "transfer-smoke" / "figure.png").exists()


def test_missing_weights_are_told(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(transfer.SETTINGS["transfer-cifar10"], "dataset", "digits")  # which need no download
    assert transfer.main(["--weights", str(tmp_path), "--out", str(tmp_path)]) == 1
    assert "tf_efficientnet_lite0.imagenet.safetensors" in capsys.readouterr().err
