// One Gram matrix for many queries: predictions and their gradient, for problems that stay in the caches of one core.
//
// Here the cells of a task are its queries and its neighbors are all centers, N of them; `adjoint` is alpha = A^-1 y (N, C).

#pragma once

#include <numeric>
#include <vector>

#include "cell.h"
#include "judge.h"
#include "task.h"

namespace {

constexpr int64_t TOGETHER = 64;  // queries whose kernel rows are held at a time; a multiple of ROWS

// [row][column] to [column][row]
template <class T> void turn(const T *from, int64_t from_stride, int64_t rows, int64_t columns, T *to, int64_t to_stride) {
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < columns; ++j) to[j * to_stride + i] = from[i * from_stride + j];
}

// The factor of all centers, and squared distances of queries to them.
template <class T> class Dense {
  protected:
    static constexpr int64_t W = WIDTH<T>;
    const Task &task;
    const int64_t N, E, C, Q;
    const Radial<T, false> profile;
    Cell<T> cell;
    const int64_t stride;          // of rows over the centers
    Buffer<T> scales;              // [feature]
    Buffer<T> points, queries;     // [center][feature], [query][feature]: embedded
    Buffer<T> centers;             // [feature][center]: differences to queries are exact where they are small

    explicit Dense(const Task &task)
        : task(task), N(task.neighbors), E(task.features), C(task.outputs), Q(task.cells), profile(task.profile, task.shape),
          cell(N, E, C + PROBES), stride(cell.offset_stride), scales(E), points(N * E), queries(Q * E), centers(E * stride) {
        for (int64_t e = 0; e < E; ++e)
            scales[e] = task.log_scales ? T(std::exp(task.log_scales[e * task.scale_step])) : T(1);
        divided(at<T>(task.centers, 0), N, points.data());
        divided(at<T>(task.query, 0), Q, queries.data());
        turn(points.data(), E, N, E, centers.data(), stride);
    }

    // Points, or gradients of embedded points, over the scales.
    void divided(const T *from, int64_t count, T *to) const {
        for (int64_t i = 0; i < count; ++i)
            for (int64_t e = 0; e < E; ++e) to[i * E + e] = from[i * E + e] / scales[e];
    }

    void gather() {
        cell.exact = centers.data();
        std::vector<int64_t> members(std::size_t(cell.columns), 0);
        std::iota(members.begin(), members.begin() + N, 0);
        cell.gather(points.data(), members.data(), points.data());
        cell.center();
        cell.gram(0, cell.rows);
    }

    // A = U'U; false if it is not positive definite.
    bool factor() {
        gather();
        cell.form(profile, at<T>(task.ridge, 0), task.ridge_neighbor);
        return cell.factor(0);
    }

    // solution = A^-1 of the right-hand sides `from` (N, C), rows `step` apart, and after them of the probes.
    void solve(const T *from, int64_t step, int64_t probes) {
        for (int64_t i = 0; i < cell.rows; ++i) {
            std::fill_n(cell.side(i), cell.width, T(0));
            if (i >= N) continue;
            std::copy_n(from + i * step, C, cell.side(i));
            for (int64_t p = 0; p < probes; ++p) cell.side(i)[C + p] = T(probe_at(i, p));
        }
        cell.substitute(C + probes);
        cell.back_substitute(C + probes);
    }

    // Squared distances of ROWS queries to all centers, [query][center]; fewer than ROWS are filled up by the last one.
    void squares(const int64_t *which, int64_t count, T *out) const {
        const T *query[ROWS];
        for (int64_t r = 0; r < ROWS; ++r) query[r] = queries.data() + which[std::min(r, count - 1)] * E;
        for (int64_t j = 0; j < cell.columns; j += W) {
            Vec<T> sums[ROWS] = {};
            for (int64_t e = 0; e < E; ++e) {
                const Vec<T> center = load(centers.data() + e * stride + j);
                for (int r = 0; r < ROWS; ++r) {
                    const Vec<T> difference = center - query[r][e];
                    sums[r] += difference * difference;
                }
            }
            for (int r = 0; r < ROWS; ++r) store(out + r * stride + j, sums[r]);
        }
    }

    // f of squared distances, in place, ROWS rows.
    template <class F> void map(const F &f, T *rows) const {
        for (int r = 0; r < ROWS; ++r)
            for (int64_t j = 0; j < cell.columns; j += W) {
                Vec<T> v = load(rows + r * stride + j);
                f(&v, 1);
                store(rows + r * stride + j, v);
            }
    }

    // `count` is a multiple of the width of a register.
    static bool all_finite(const T *numbers, int64_t count) {
        Vec<T> sums{};
        for (int64_t j = 0; j < count; j += W) sums += load(numbers + j) * 0;  // zero, or not a number
        return total<T>(sums) == 0;
    }
};

template <class T> class DenseSolver : Dense<T> {
    using Base = Dense<T>;
    using Base::all_finite, Base::C, Base::cell, Base::map, Base::N, Base::profile, Base::Q, Base::stride, Base::task;
    static constexpr int64_t W = WIDTH<T>;

  public:
    explicit DenseSolver(const Task &task) : Base(task) {}

    // Nothing of use is written if something is not finite or the factor cannot be trusted: `resolved` is then zero.
    void run() {
        *task.resolved = 0;
        if (!this->factor()) return;
        this->solve(at<T>(task.values, 0), C, PROBES);
        if (!surely_resolved()) return;
        for (int64_t i = 0; i < N; ++i) {
            const T *solved = cell.solution.data() + i * cell.width;
            if (!all_finite(solved, cell.width)) return;
            if (T *adjoint = at<T>(task.adjoint, i * C)) std::copy_n(solved, C, adjoint);
            if (T *upper = at<T>(task.factor, i * N)) std::copy_n(cell.matrix.data() + i * cell.stride, N, upper);
        }
        int64_t which[ROWS];
        const Buffer<T> rows(ROWS * stride);
        for (int64_t q = 0; q < Q; q += ROWS) {
            std::iota(which, which + ROWS, q);
            this->squares(which, Q - q, rows.data());
            if (!all_finite(rows.data(), ROWS * stride)) return;
            map(profile, rows.data());
            predict(q, rows.data());
        }
        *task.resolved = 1;
    }

  private:
    // Whether every query, wherever it is, can be trusted: its weights are at most as long as the root of |A^-1|.
    bool surely_resolved() const {
        double inverse = 0, ratio = 0;
        for (int64_t p = 0; p < PROBES; ++p) {
            double square = 0, along = 0;
            for (int64_t i = 0; i < N; ++i) {
                const double x = cell.solution[i * cell.width + C + p];
                square += x * x, along += x * probe_at(i, p);
            }
            inverse = std::max(inverse, square / along);
        }
        for (int64_t c = 0; c < C; ++c) {
            double square = 0, size = 0;
            for (int64_t i = 0; i < N; ++i) {
                const double x = cell.solution[i * cell.width + c];
                square += x * x, size = std::max(size, std::abs(double(*at<T>(task.values, i * C + c))));
            }
            if (square > 0) ratio = std::max(ratio, std::sqrt(square) / size);
        }
        const double norm = std::max(1.0, std::sqrt(inverse)), ridge = *at<T>(task.ridge, 0);
        const Evidence found = {std::sqrt(double(cell.row_sum)), norm, std::sqrt(double(N)), ridge, ratio, inverse};
        return Judge<T>{task.limits}.trusts(found, N, task.system_limit);
    }

    void predict(int64_t first, const T *rows) const {
        tiles<T>(0, cell.width, [&](auto n, int64_t c) {
            Vec<T> sums[ROWS][n()] = {};
            product<T, n()>(rows, stride, 1, cell.solution.data() + c, cell.width, N, sums);
            const int64_t count = std::min<int64_t>(n() * W, C - c);
            for (int r = 0; r < ROWS && first + r < Q; ++r)
                std::copy_n(reinterpret_cast<const T *>(sums[r]), count, at<T>(task.mean, (first + r) * C + c));
        });
    }
};

// With G arriving at the means: B = A^-1 k G is the gradient of the values, that of the kernel at the queries is alpha G', and
// that of A is -(B alpha' + alpha B') / 2. Distances as in backward.py.
template <class T> class DenseGradient : Dense<T> {
    using Base = Dense<T>;
    using Base::C, Base::cell, Base::centers, Base::E, Base::map, Base::N, Base::profile, Base::Q, Base::queries, Base::scales,
        Base::stride, Base::task;
    static constexpr int64_t W = WIDTH<T>;
    const Radial<T, true> slope;
    Buffer<T> alpha, alpha_turned, solved_turned;  // [center][output], [output][center]
    Buffer<T> sides, moved, row_sums;              // k G [center][output]; gradient [feature][center]; [center]
    Buffer<T> arriving, rows, pulls;               // [query][output], [query][center] of TOGETHER queries

  public:
    explicit DenseGradient(const Task &task)
        : Base(task), slope(task.profile, task.shape), alpha(cell.rows * cell.width), alpha_turned(C * stride),
          solved_turned(C * stride), sides(cell.rows * cell.width), moved(round_up(E, ROWS) * stride), row_sums(stride),
          arriving(TOGETHER * cell.width), rows(TOGETHER * stride), pulls(TOGETHER * stride) {
        for (int64_t i = 0; i < N; ++i) std::copy_n(at<T>(task.adjoint, i * C), C, alpha.data() + i * cell.width);
        turn(alpha.data(), cell.width, N, C, alpha_turned.data(), stride);
    }

    void run() {
        const std::vector<int64_t> reached = this->reached();
        const int64_t total = int64_t(reached.size());
        const bool points = task.grad_query || task.grad_centers;
        for (int64_t q = 0; q < total; q += TOGETHER) {
            const int64_t count = std::min(TOGETHER, total - q), *which = reached.data() + q;
            std::fill_n(arriving.data(), TOGETHER * cell.width, T(0));  // so that rows past the last count for nothing
            for (int64_t r = 0; r < count; ++r)
                std::copy_n(at<T>(task.grad_mean, which[r] * C), C, arriving.data() + r * cell.width);
            for (int64_t r = 0; r < count; r += ROWS) {
                T *row = rows.data() + r * stride, *pull = pulls.data() + r * stride;
                this->squares(which + r, count - r, row);
                std::copy_n(row, ROWS * stride, pull);
                map(profile, row);
                if (points) {
                    map(slope, pull);
                    weigh(r, pull);
                }
            }
            collect(round_up(count, ROWS));
            if (points) move(which, count);
        }
        if (!task.grad_values && !task.grad_centers) return;
        restore();
        this->solve(sides.data(), cell.width, 0);
        for (int64_t i = 0; i < N; ++i)
            if (T *grad = at<T>(task.grad_values, i * C)) std::copy_n(cell.solution.data() + i * cell.width, C, grad);
        if (task.grad_centers) spread();
    }

  private:
    // The queries whose predictions a gradient arrives at: often one part of a batch only.
    std::vector<int64_t> reached() const {
        std::vector<int64_t> found;
        for (int64_t q = 0; q < Q; ++q) {
            const T *row = at<T>(task.grad_mean, q * C);
            if (std::any_of(row, row + C, [](T g) { return g != 0; })) {
                found.push_back(q);
            } else if (T *grad = at<T>(task.grad_query, q * E)) {
                std::fill_n(grad, E, T(0));
            }
        }
        return found;
    }

    void restore() {
        for (int64_t i = 0; i < N; ++i) {
            std::copy_n(at<T>(task.factor, i * N), N, cell.matrix.data() + i * cell.stride);
            cell.inverse[i] = 1 / cell.matrix[i * cell.stride + i];
        }
    }

    // The slopes of ROWS queries times alpha G'.
    void weigh(int64_t first, T *pull) const {
        tiles<T>(0, cell.columns, [&](auto n, int64_t j) {
            Vec<T> sums[ROWS][n()] = {};
            product<T, n()>(arriving.data() + first * cell.width, cell.width, 1, alpha_turned.data() + j, stride, C, sums);
            for (int r = 0; r < ROWS; ++r)
                for (int v = 0; v < n(); ++v) {
                    T *out = pull + r * stride + j + v * W;
                    store(out, load(out) * sums[r][v]);
                }
        });
    }

    // sides += k G
    void collect(int64_t count) const {
        for (int64_t i = 0; i < cell.rows; i += ROWS)
            tiles<T>(0, cell.width, [&](auto n, int64_t c) {
                Vec<T> sums[ROWS][n()] = {};
                product<T, n()>(rows.data() + i, 1, stride, arriving.data() + c, cell.width, count, sums);
                for (int r = 0; r < ROWS; ++r)
                    for (int v = 0; v < n(); ++v) {
                        T *out = sides.data() + (i + r) * cell.width + c + v * W;
                        store(out, load(out) + sums[r][v]);
                    }
            });
    }

    // What these queries give to themselves and to the centers.
    void move(const int64_t *which, int64_t count) const {
        for (int64_t r = 0; r < count; ++r) {
            const T *query = queries.data() + which[r] * E, *pull = pulls.data() + r * stride;
            for (int64_t e = 0; e < E; ++e) {
                Vec<T> sums{};
                for (int64_t j = 0; j < cell.columns; j += W) {
                    const Vec<T> force = load(pull + j) * (load(centers.data() + e * stride + j) - query[e]);
                    T *out = moved.data() + e * stride + j;
                    store(out, load(out) + force);
                    sums -= force;
                }
                if (T *grad = at<T>(task.grad_query, which[r] * E)) grad[e] = total<T>(sums) / scales[e];
            }
        }
    }

    // What the centers give each other; then all that they get, into the gradient.
    void spread() {
        turn(cell.solution.data(), cell.width, N, C, solved_turned.data(), stride);
        this->gather();
        coefficients();
        tiles<T>(0, cell.columns, [&](auto n, int64_t j) {
            for (int64_t e = 0; e < E; e += ROWS) {
                Vec<T> sums[ROWS][n()] = {};
                product<T, n()>(cell.offsets.data() + e * stride, stride, 1, cell.matrix.data() + j, cell.stride, N, sums);
                for (int r = 0; r < ROWS && e + r < E; ++r)
                    for (int v = 0; v < n(); ++v) {
                        const int64_t place = (e + r) * stride + j + v * W;
                        const Vec<T> pull = load(row_sums.data() + j + v * W) * load(cell.offsets.data() + place);
                        store(moved.data() + place, load(moved.data() + place) + pull - sums[r][v]);
                    }
            }
        });
        T *grad = at<T>(task.grad_centers, 0);
        turn(moved.data(), stride, E, N, grad, E);
        this->divided(grad, N, grad);
    }

    // -(B alpha' + alpha B')_ij phi'(d_ij) / d_ij, all of it, and its row sums.
    void coefficients() {
        for (int64_t i = 0; i < cell.rows; i += ROWS)
            cell.upper_tiles(i, [&](auto n, int64_t j) {
                Vec<T> slopes[ROWS][n()], sums[ROWS][n()] = {};
                cell.template pair_squares<n()>(i, j, slopes);
                slope(&slopes[0][0], ROWS * n());
                product<T, n()>(cell.solution.data() + i * cell.width, cell.width, 1, alpha_turned.data() + j, stride, C, sums);
                product<T, n()>(alpha.data() + i * cell.width, cell.width, 1, solved_turned.data() + j, stride, C, sums);
                for (int r = 0; r < ROWS; ++r)
                    for (int v = 0; v < n(); ++v) slopes[r][v] *= -sums[r][v];
                cell.put(cell.matrix.data() + i * cell.stride + j, slopes);
            });
        cell.mirror(row_sums.data());
    }
};

}  // namespace
