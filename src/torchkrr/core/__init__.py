"""The hot path: local and dense solves on embedded points, for every kernel.

Reading order: `options` (how a problem is solved), `trust` (which numbers are resolved, and what happens to the others),
`factor` (Cholesky), `cells` (gather, distances, Gram, weights, mean, power function, path), `backward` (their gradient by
hand), `dense` (one Gram matrix for many queries), `compiled` (all of this in C++), `local` (chunks, precision
and autograd), `traced` (inside `torch.func` and `torch.compile`), `expansion` (regressors solved once, evaluated often).
"""
