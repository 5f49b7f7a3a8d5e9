// Predictions, power functions, weights and paths of the cells of a task.

#pragma once

#include <cstring>
#include <utility>
#include <vector>

#include "cache.h"
#include "cell.h"
#include "task.h"

namespace {

constexpr int64_t GROUP = 32;  // queries that share one factorization, at most

template <class T> class Solver {
    const Task &task;
    const int64_t M, C;
    const bool whole;  // all values are right-hand sides, not only the kernel at the queries
    const Radial<T, false> profile;
    Cell<T> cell;
    Buffer<T> kernel, inner, sums;
    std::vector<std::pair<int64_t, int64_t>> sorted;  // members and their columns, where cells are known by their set
    std::vector<int64_t> in_order;

  public:
    explicit Solver(const Task &task)
        : task(task), M(task.neighbors), C(task.outputs), whole(task.adjoint || task.path), profile(task.profile, task.shape),
          cell(M, task.features, (task.starts ? GROUP : 1) + (task.trend ? 1 : 0) + (whole ? C : 0), task.log_scales, task.scale_step),
          kernel(cell.columns), inner(M), sums(2 * C) {}

    void run(int64_t c) {
        const int64_t first = task.starts ? task.starts[c] : c, last = task.starts ? task.starts[c + 1] : c + 1;
        for (int64_t q = first; q < last; q += GROUP) {
            int64_t queries[GROUP];
            const int64_t count = std::min(GROUP, last - q);
            for (int64_t k = 0; k < count; ++k) queries[k] = task.order ? task.order[q + k] : q + k;
            solve(c, queries, count);
        }
    }

  private:
    void solve(int64_t c, const int64_t *queries, int64_t count) {
        const int64_t *members = task.indices + c * M;
        if (task.cache && !task.starts) members = sort(members);
        const T *centers = at<T>(task.centers, 0);
        // A factor that serves several queries must not be rounded by how far away one of them is.
        const bool shared = task.starts || task.cache;
        cell.gather(centers, members, shared ? centers + members[0] * task.features : at<T>(task.query, queries[0] * task.features));
        for (int64_t k = 0; k < count; ++k) {
            const T *query = at<T>(task.query, queries[k] * task.features);
            if (shared) {
                for (int64_t i = 0; i < M; ++i)
                    kernel[i] = cell.distance(centers + members[i] * task.features, query);
            } else {
                std::copy_n(cell.cross_squares.data(), cell.columns, kernel.data());
            }
            for (int64_t j = 0; j < cell.columns; j += WIDTH<T>) {
                Vec<T> v = load(kernel.data() + j);
                profile(&v, 1);
                store(kernel.data() + j, v);
            }
            for (int64_t i = 0; i < M; ++i) cell.side(i)[k] = kernel[i];
        }
        const int64_t heads = count + (task.trend ? 1 : 0), sides = heads + (whole ? C : 0);
        for (int64_t i = 0; i < M; ++i) {
            if (task.trend) cell.side(i)[count] = 1;
            if (whole) std::copy_n(at<T>(task.values, members[i] * C), C, cell.side(i) + heads);
        }
        for (int64_t i = M; i < cell.rows; ++i) std::fill_n(cell.side(i), cell.width, T(0));
        const bool sound = cell.finite(centers, members) && factor(members, at<T>(task.ridge, c * task.ridge_cell));
        if (sound) {
            cell.substitute(sides);
            cell.back_substitute(task.adjoint ? sides : heads);
        }
        for (int64_t k = 0; k < count; ++k) {
            const bool resolved = sound && finish(members, queries[k], k, count, heads);
            task.resolved[queries[k]] = resolved;
            if (!resolved) clear(queries[k]);
        }
    }

    // Whatever their order, the same members have the same factor.
    const int64_t *sort(const int64_t *members) {
        sorted.resize(std::size_t(M)), in_order.resize(std::size_t(M));
        for (int64_t i = 0; i < M; ++i) sorted[i] = {members[i], i};
        std::sort(sorted.begin(), sorted.end());
        for (int64_t i = 0; i < M; ++i) in_order[i] = sorted[i].first;
        return in_order.data();
    }

    // Factors the cell that was gathered, or finds its factor in the cache.
    bool factor(const int64_t *members, const T *ridge) {
        auto *cache = static_cast<FactorCache *>(task.cache);
        FactorCache::Key key;
        if (cache) {
            key.assign(members, members + M);
            key.push_back(sizeof(T));
            key.push_back(0);
            std::memcpy(&key.back(), ridge, sizeof(T));
            if (const auto kept = cache->get(key)) {
                cell.restore(*kept);
                return true;
            }
        }
        cell.center();
        cell.gram();
        const bool sound = cell.factor(profile, ridge, task.ridge_neighbor);
        if (cache && sound) {
            try {
                cache->put(key, std::make_shared<const std::vector<char>>(cell.saved()));
            } catch (const std::bad_alloc &) {
                // Not kept, then.
            }
        }
        return sound;
    }

    // What query number k of the cell gets from the factor; false if that cannot be trusted.
    bool finish(const int64_t *members, int64_t q, int64_t k, int64_t ones, int64_t heads) {
        double length = 0, plain = 0, square = 0, with_ones = 0, total = 0;  // long sums, whatever T is
        T gap = 0;
        for (int64_t i = 0; i < M; ++i) {
            const T *white = cell.side(i), *solved = cell.solution.data() + i * cell.width;
            const double l = white[k], u = solved[k], v = task.trend ? white[ones] : T(0);
            square += l * l, plain += u * u, with_ones += l * v, total += v * v;
            inner[i] = solved[k];
        }
        double power = 1 - square;
        if (task.trend) {
            gap = T((1 - with_ones) / total);
            power += (1 - with_ones) * (1 - with_ones) / total;
            for (int64_t i = 0; i < M; ++i) {
                inner[i] += gap * cell.solution[i * cell.width + ones];
                length += double(inner[i]) * inner[i];
            }
        }
        const double norm = std::max(std::sqrt(std::max(length, plain)), task.least_norm);
        if (!(norm <= task.trusted * cell.smallest_pivot)) return false;
        if (task.path) {
            follow(q, k, ones, heads);
            return true;
        }
        if (task.power) *at<T>(task.power, q) = T(power);
        if (T *weights = at<T>(task.weights, q * M))
            for (int64_t i = 0; i < M; ++i) weights[sorted.empty() ? i : sorted[i].second] = inner[i];
        if (T *mean = at<T>(task.mean, q * C)) {
            std::fill_n(mean, C, T(0));
            for (int64_t i = 0; i < M; ++i) {
                const T *value = at<T>(task.values, members[i] * C), weight = inner[i];
                for (int64_t c = 0; c < C; ++c) mean[c] += weight * value[c];
            }
        }
        if (task.adjoint) keep_adjoint(q, ones, heads, T(total));
        return true;
    }

    // alpha = A^-1 y, projected so that its columns sum to zero if there is a trend.
    void keep_adjoint(int64_t q, int64_t ones, int64_t heads, T total) {
        T *adjoint = at<T>(task.adjoint, q * M * C), *multiples = sums.data();
        std::fill_n(multiples, C, T(0));
        for (int64_t i = 0; task.trend && i < M; ++i)
            for (int64_t c = 0; c < C; ++c) multiples[c] += cell.solution[i * cell.width + heads + c] / total;
        for (int64_t i = 0; i < M; ++i) {
            const T *solved = cell.solution.data() + i * cell.width, direction = task.trend ? solved[ones] : T(0);
            for (int64_t c = 0; c < C; ++c) adjoint[i * C + c] = solved[heads + c] - direction * multiples[c];
        }
        if (task.multiples) std::copy_n(multiples, C, at<T>(task.multiples, q * C));
    }

    // Means and powers with the first 1, 2, ..., M members.
    void follow(int64_t q, int64_t k, int64_t ones, int64_t heads) {
        T *mean = at<T>(task.mean, q * M * C), *power = at<T>(task.power, q * M), *plain = sums.data(), *along = plain + C;
        double square = 0, with_ones = 0, total = 0;
        std::fill_n(plain, 2 * C, T(0));
        for (int64_t i = 0; i < M; ++i) {
            const T *white = cell.side(i), l = white[k], v = task.trend ? white[ones] : T(0);
            square += double(l) * l, with_ones += double(l) * v, total += double(v) * v;
            const double missing = task.trend ? 1 - with_ones : 0.0;
            const T gap = task.trend ? T(missing / total) : T(0);
            power[i] = T(1 - square + (task.trend ? missing * missing / total : 0.0));
            for (int64_t c = 0; c < C; ++c) {
                plain[c] += l * white[heads + c], along[c] += v * white[heads + c];
                mean[i * C + c] = plain[c] + gap * along[c];
            }
        }
    }

    void clear(int64_t q) {
        const int64_t steps = task.path ? M : 1;
        if (task.mean) std::fill_n(at<T>(task.mean, q * steps * C), steps * C, T(0));
        if (task.power) std::fill_n(at<T>(task.power, q * steps), steps, T(0));
        if (task.weights) std::fill_n(at<T>(task.weights, q * M), M, T(0));
        if (task.adjoint) std::fill_n(at<T>(task.adjoint, q * M * C), M * C, T(0));
        if (task.multiples) std::fill_n(at<T>(task.multiples, q * C), C, T(0));
    }
};

}  // namespace
