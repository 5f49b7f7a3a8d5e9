"""The hot path: local and dense solves on embedded points, for every kernel.

Reading order: `factor` (Cholesky and when it can be trusted), `cells` (gather, distances, Gram), `solve` (weights, mean,
power function, path), `backward` (their gradient by hand), `local` (chunks and autograd), `dense` (one Gram matrix for
many queries), `fused_dense` (the small ones, compiled), `unresolved` (what happens to cells that are singular in their
dtype).
"""
