"""The hot path: local and dense solves on embedded points, for every kernel.

Reading order: `factor` (Cholesky and when it can be trusted), `cells` (gather, distances, Gram), `solve` (weights, mean,
power function, path), `backward` (their gradient by hand), `sharing` (queries with the same neighbors), `fused` (all of
this compiled), `local` (chunks and autograd), `unresolved` (what happens to cells that are singular in their dtype),
`expansion` (regressors that are solved once and evaluated often); `dense` (one Gram matrix for many queries),
`fused_dense` (the small ones, compiled), `unresolved_dense`.
"""
