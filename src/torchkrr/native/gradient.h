// The gradient of the cells of a task, by the formulas of backward.py: no second factorization, no M x M matrix kept.

#pragma once

#include "cell.h"
#include "task.h"

namespace {

template <class T> class Gradient {
    static constexpr int64_t W = WIDTH<T>;
    static constexpr int64_t LINE = 64 / int64_t(sizeof(T));  // features that are written together: a line of the cache
    const Task &task;
    const int64_t M, E, C;
    const Radial<T, true> slope;
    Cell<T> cell;
    Buffer<T> weights, beta, pull, row_sums;  // [member] each

  public:
    explicit Gradient(const Task &task)
        : task(task), M(task.neighbors), E(task.features), C(task.outputs), slope(task.profile, task.shape),
          cell(M, E, 0, task.log_scales, task.scale_step), weights(cell.columns), beta(cell.columns), pull(cell.columns),
          row_sums(cell.columns) {}

    // All but what is added to centers and values; `members` (M, E) receives what the centers of cell q are to get.
    void run(int64_t q, T *members) {
        const T gamma = *at<T>(task.grad_power, q), *arriving = at<T>(task.grad_mean, q * C);
        std::copy_n(at<T>(task.weights, q * M), M, weights.data());
        for (int64_t i = 0; i < M; ++i) {
            const T *adjoint = at<T>(task.adjoint, (q * M + i) * C);
            T sum = -gamma * weights[i];
            for (int64_t c = 0; c < C; ++c) sum += adjoint[c] * arriving[c];
            beta[i] = sum;
            if (task.grad_ridge) *at<T>(task.grad_ridge, q * M + i) = -weights[i] * sum;
        }
        if (!task.grad_query && !task.grad_centers) return;
        cell.gather(at<T>(task.centers, 0), task.indices + q * M, at<T>(task.query, q * E));
        for (int64_t j = 0; j < cell.columns; j += W) {
            Vec<T> v = load(cell.cross_squares.data() + j);
            slope(&v, 1);
            store(pull.data() + j, v * (load(beta.data() + j) - gamma * load(weights.data() + j)));
        }
        if (T *grad = at<T>(task.grad_query, q * E))
            for (int64_t e = 0; e < E; ++e) {
                Vec<T> sums{};
                for (int64_t j = 0; j < cell.columns; j += W)
                    sums -= load(pull.data() + j) * load(cell.offsets.data() + e * cell.offset_stride + j);
                grad[e] = total<T>(sums) * cell.factors[e];
            }
        if (task.grad_centers) move_members(members);
    }

  private:
    void move_members(T *members) {
        cell.center();
        cell.gram(0, cell.rows);
        coefficients();
        const int64_t stride = cell.offset_stride;
        tiles<T>(0, cell.columns, [&](auto n, int64_t j) {
            for (int64_t start = 0; start < E; start += LINE) {
                Vec<T> moved[LINE][n()];  // [feature][member]
                for (int64_t e = start; e < std::min(start + LINE, E); e += ROWS) {
                    Vec<T> sums[ROWS][n()] = {};
                    product<T, n()>(cell.offsets.data() + e * stride, stride, 1, cell.matrix.data() + j, cell.stride, M, sums);
                    for (int r = 0; r < ROWS && e + r < E; ++r)
                        for (int v = 0; v < n(); ++v) {
                            const int64_t k = j + v * W;
                            const Vec<T> offset = load(cell.offsets.data() + (e + r) * stride + k);
                            const Vec<T> by_query = load(pull.data() + k) * (offset + cell.shift[e + r]);
                            const Vec<T> force = load(row_sums.data() + k) * offset - sums[r][v] + by_query;
                            moved[e - start + r][v] = force * cell.factors[e + r];
                        }
                }
                for (int v = 0; v < n(); ++v)
                    for (int64_t e = start; e < std::min(start + LINE, E); e += W)
                        put<n()>(moved + (e - start), v, j + v * W, e, members);
            }
        });
    }

    // W features from e on of W members from j on, vector v of each row, to [member][feature].
    template <int N> INLINE void put(const Vec<T> (*moved)[N], int v, int64_t j, int64_t e, T *members) const {
        const int64_t count = std::min(W, M - j);
        if (e + W <= E) {
            Vec<T> block[W];
            for (int64_t k = 0; k < W; ++k) block[k] = moved[k][v];
            transpose<T>(block);
            for (int64_t k = 0; k < count; ++k) store(members + (j + k) * E + e, block[k]);
        } else {
            for (int64_t f = e; f < E; ++f)
                for (int64_t k = 0; k < count; ++k) members[(j + k) * E + f] = moved[f - e][v][k];
        }
    }

    // C_ij = -(w_i b_j + b_i w_j) phi'(d_ij) / d_ij, all of it, and its row sums.
    void coefficients() {
        for (int64_t i = 0; i < cell.rows; i += ROWS)
            cell.upper_tiles(i, [&](auto n, int64_t j) {
                Vec<T> tile[ROWS][n()];
                cell.template pair_squares<n()>(i, j, tile);
                slope(&tile[0][0], ROWS * n());
                for (int r = 0; r < ROWS; ++r)
                    for (int v = 0; v < n(); ++v) {
                        const int64_t k = j + v * W;
                        tile[r][v] *= -(weights[i + r] * load(beta.data() + k) + beta[i + r] * load(weights.data() + k));
                    }
                cell.put(cell.matrix.data() + i * cell.stride + j, tile);
            });
        cell.mirror(row_sums.data());
    }
};

// Adds what the cells from `first` to `last` give to columns `from` to `to` of their centers: in the order of the cells, so that
// the sums do not depend on the threads.
template <class T>
void scatter(const Task &task, int64_t first, int64_t last, int64_t from, int64_t to, const T *members) {
    const int64_t end = last * task.neighbors;
    for (int64_t i = first * task.neighbors; i < end; ++i) {
        T *center = at<T>(task.grad_centers, task.indices[i] * task.features);
        const T *member = members + (i - first * task.neighbors) * task.features;
        const T *next = at<T>(task.grad_centers, task.indices[std::min(i + 1, end - 1)] * task.features);
        for (int64_t e = from; e < to; e += 64 / int64_t(sizeof(T))) __builtin_prefetch(next + e, 1);
        for (int64_t e = from; e < to; ++e) center[e] += member[e];
    }
}

// Likewise for columns of the values.
template <class T> void scatter_values(const Task &task, int64_t first, int64_t last, int64_t from, int64_t to) {
    for (int64_t i = first * task.neighbors; i < last * task.neighbors; ++i) {
        T *value = at<T>(task.grad_values, task.indices[i] * task.outputs);
        const T weight = at<T>(task.weights, 0)[i], *arriving = at<T>(task.grad_mean, i / task.neighbors * task.outputs);
        for (int64_t c = from; c < to; ++c) value[c] += weight * arriving[c];
    }
}

}  // namespace
