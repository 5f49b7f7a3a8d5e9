// The gradient of the cells of a task, by the formulas of backward.py: no second factorisation, no M x M matrix kept.

#pragma once

#include "cell.h"
#include "task.h"

namespace {

template <class T> class Gradient {
    static constexpr int64_t W = WIDTH<T>;
    const Task &task;
    const int64_t M, E, C;
    const Radial<T, true> slope;
    Cell<T> cell;
    Buffer<T> weights, beta, pull, row_sums, moved;  // [member] each; moved is [feature][member]

  public:
    explicit Gradient(const Task &task)
        : task(task), M(task.neighbors), E(task.features), C(task.outputs), slope(task.profile, task.shape),
          cell(M, E, 0, task.log_scales, task.scale_step),
          weights(cell.columns), beta(cell.columns), pull(cell.columns), row_sums(cell.columns),
          moved(task.grad_centers ? round_up(E, ROWS) * cell.offset_stride : 0) {}

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
        cell.gram();
        coefficients();
        const int64_t stride = cell.offset_stride;
        tiles<T>(0, cell.columns, [&](auto n, int64_t j) {
            for (int64_t e = 0; e < E; e += ROWS) {
                Vec<T> sums[ROWS][n()] = {};
                product<T, n()>(cell.offsets.data() + e * stride, stride, 1, cell.matrix.data() + j, cell.stride, M, sums);
                for (int r = 0; r < ROWS && e + r < E; ++r)
                    for (int v = 0; v < n(); ++v) {
                        const int64_t k = j + v * W;
                        const Vec<T> offset = load(cell.offsets.data() + (e + r) * stride + k);
                        const Vec<T> by_query = load(pull.data() + k) * (offset + cell.shift[e + r]);
                        const Vec<T> force = load(row_sums.data() + k) * offset - sums[r][v] + by_query;
                        store(moved.data() + (e + r) * stride + k, force * cell.factors[e + r]);
                    }
            }
        });
        transpose_into(members);
    }

    // C_ij = -(w_i b_j + b_i w_j) phi'(d_ij) / d_ij, all of it, and its row sums.
    void coefficients() {
        for (int64_t i = 0; i < cell.rows; i += ROWS)
            tiles<T>(i / W * W, cell.columns, [&](auto n, int64_t j) {
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
        std::fill_n(row_sums.data(), cell.columns, T(0));
        for (int64_t i = 0; i < M; ++i) {
            T *row = cell.matrix.data() + i * cell.stride;
            row[i] = 0;
            for (int64_t j = i + 1; j < M; ++j) cell.matrix[j * cell.stride + i] = row[j];
        }
        for (int64_t i = 0; i < M; ++i)
            for (int64_t j = 0; j < cell.columns; j += W)
                store(row_sums.data() + j, load(row_sums.data() + j) + load(cell.matrix.data() + i * cell.stride + j));
    }

    void transpose_into(T *members) const {
        for (int64_t j = 0; j < M; j += W) {
            const int64_t count = std::min(W, M - j);
            int64_t e = 0;
            for (; e + W <= E; e += W) {
                Vec<T> block[W];
                for (int64_t k = 0; k < W; ++k) block[k] = load(moved.data() + (e + k) * cell.offset_stride + j);
                transpose<T>(block);
                for (int64_t k = 0; k < count; ++k) store(members + (j + k) * E + e, block[k]);
            }
            for (; e < E; ++e)
                for (int64_t k = 0; k < count; ++k) members[(j + k) * E + e] = moved[e * cell.offset_stride + j + k];
        }
    }
};

// Adds what the cells from `first` to `last` give to columns `from` to `to` of their centers: in the order of the cells, so that
// the sums do not depend on the threads.
template <class T>
void scatter(const Task &task, int64_t first, int64_t last, int64_t from, int64_t to, const T *members) {
    for (int64_t i = first * task.neighbors; i < last * task.neighbors; ++i) {
        T *center = at<T>(task.grad_centers, task.indices[i] * task.features);
        const T *member = members + (i - first * task.neighbors) * task.features;
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
