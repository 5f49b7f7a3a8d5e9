// What one call asks for: pointers and sizes.

#pragma once

#include <cstdint>

// Shared with native.py, field by field; numbers behind the pointers are float or double. Outputs not wanted are null.
struct Task {
    const void *query, *centers, *values, *ridge;                // (Q, E), (N, E), (N, C), by steps
    const int64_t *indices, *starts, *order;                     // (cells, M); queries order[starts[c]:starts[c + 1]] share
                                                                 // cell c; null: one query each
    void *mean, *power, *weights;                                // (Q, C), (Q), (Q, M); of a path (Q, M, C) and (Q, M)
    void *adjoint, *multiples;                                   // (Q, M, C), (Q, C): as in solve.py
    void *cache;                                                 // of factors, see cache.h; needs one ridge for all cells
    uint8_t *resolved;                                           // (Q)
    const void *grad_mean, *grad_power;                          // (Q, C), (Q)
    void *grad_query, *grad_centers, *grad_values, *grad_ridge;  // (Q, E), (N, E), (N, C), (Q, M)
    int64_t cells, neighbors, features, outputs, ridge_cell, ridge_neighbor, threads, profile, trend, path;
    void *factor;              // of a dense task: U with A = U'U (N, N), kept for the gradient
    const double *log_scales;  // points are divided by exp of these, one or one per feature; null: they are embedded
    int64_t scale_step;        // zero: one for all features
    double shape[2];    // parameters of the profile
    double limits[5];   // largest errors that are trusted, as in trust.py: mean, power, weights, system, doubt
    double system_limit;  // the fourth of them in float64, whatever the task is in
    double least_norm;  // norms of weights are taken to be at least this
    const void *value_scale;  // (C): the size of what is predicted, where that is more than the values; or null
    int64_t tail;       // monomials of a trend that borders the system, or zero; then `multiples` has (Q, tail, C + 1)
    double precision;   // relative rounding of the points as they were given, for a tail
    int64_t points;     // N, if their inner products may be formed once for all cells; or zero
};

namespace {

template <class T> T *at(void *p, int64_t offset) { return p ? static_cast<T *>(p) + offset : nullptr; }
template <class T> const T *at(const void *p, int64_t offset) { return p ? static_cast<const T *>(p) + offset : nullptr; }

}  // namespace
