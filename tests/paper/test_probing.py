"""The paper's settings for `torchkrr probe`."""

from paper import probing
from torchkrr.runs import read_records


def test_smoke(tmp_path, capsys):
    assert probing.main(["--smoke", "--out", str(tmp_path)]) == 0
    records = read_records(tmp_path / "probe-smoke" / "records.jsonl")
    assert {record["readout"] for record in records} == {"sk", "knn"}
    assert (tmp_path / "probe-smoke" / "figure.png").exists()
