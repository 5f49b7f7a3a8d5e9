"""The paper's experiments, on public names of torchkrr only; README.md says which command makes which figure."""
