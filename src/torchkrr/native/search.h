// Exact nearest neighbors: products in tiles that stay in cache, and only what may be near ever leaves it.
//
// A score is |x|^2 - 2 z.x, the squared distance less |z|^2, or the squared distance itself, by difference. Each query keeps a
// pool of candidates; a point enters if its score is below that of the `count`-th best so far, and when the pool is full it is
// cut back to the best `count`. By difference, points come in the order of their rows, so that of equal scores the lower row
// stays; by products they need not: whoever asks looks again where scores at the cut cannot be told apart.

#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "cell.h"

// Shared with native.py, field by field.
struct SearchTask {
    const void *query, *points, *squares;  // (Q, E), (B, E), (B)
    const int64_t *exclude;                // (Q) rows not to be found, or null
    void *pool, *bound;                    // (Q, capacity) candidates; (Q): only scores below it may enter
    int64_t *filled;                       // (Q): candidates in the pool
    void *distances, *worst;               // (Q, wanted); (Q): the worst score in the pool
    int64_t *indices;                      // (Q, wanted); of a comparison: null if more points are to come
    int64_t queries, block, features, start, count, capacity, wanted, threads;
    int64_t exact;                         // scores are squared distances
};

namespace {

constexpr int64_t QUERIES = 128;                // that a thread compares with a strip of points at a time
constexpr int64_t QUERY_STRIDE = QUERIES + 16;  // so that a column of them does not fall on few cache sets

template <class T> struct Candidate {
    T score;
    int32_t row;
    // Without branches: these are mispredicted half of the time.
    bool operator<(const Candidate &other) const {
        return (score < other.score) | ((score == other.score) & (row < other.row));
    }
};

// Moves the `count` smallest of `size` to the front, by partitions without branches.
template <class C> void select_smallest(C *items, int64_t size, int64_t count, C *spare) {
    while (size > 32 && count > 0 && count < size) {
        const C &a = items[size / 4], &b = items[size / 2], &c = items[3 * size / 4];
        const C pivot = std::max(std::min(a, b), std::min(std::max(a, b), c));
        int64_t low = 0, high = 0;
        for (int64_t i = 0; i < size; ++i) {
            const C item = items[i];
            const bool below = item < pivot;
            items[low] = item, spare[high] = item;
            low += below, high += !below;
        }
        std::copy_n(spare, high, items + low);
        if (low == 0) break;  // the pivot is the smallest
        if (count <= low) {
            size = low;
        } else {
            items += low, size -= low, count -= low;
        }
    }
    if (count > 0 && count < size) std::nth_element(items, items + count - 1, items + size);
}

// Near the golden section of `count`, and without a common divisor: its multiples visit everything, spread out.
inline int64_t far_step(int64_t count) {
    int64_t step = std::max<int64_t>(1, int64_t(0.618 * double(count)));
    while (std::gcd(step, count) != 1) ++step;
    return step;
}

template <class T> class Searcher {
    static constexpr int64_t W = WIDTH<T>, STRIP = 4 * WIDE * W;
    const SearchTask &task;
    const int64_t E;
    Buffer<T> queries, strip, squares, partial;  // [feature][query], [feature of a block][point], [point], [query][point]
    std::vector<Candidate<T>> spare;

  public:
    explicit Searcher(const SearchTask &task)
        : task(task), E(task.features), queries(E * QUERY_STRIDE), strip(FEATURE_BLOCK * STRIP), squares(STRIP),
          partial(E > FEATURE_BLOCK ? QUERIES * STRIP : 0), spare(std::size_t(task.capacity)) {}

    // Compares the queries from `first` to `last` with all points of the block.
    void compare(int64_t first, int64_t last) {
        const int64_t count = last - first, rows = round_up(count, ROWS);
        const T *query = static_cast<const T *>(task.query);
        for (int64_t q = 0; q < rows; ++q)
            for (int64_t e = 0; e < E; ++e) queries[e * QUERY_STRIDE + q] = q < count ? query[(first + q) * E + e] : T(0);
        // Strips far from each other in turn: if rows are sorted, near ones would let every point of the next strip enter.
        const int64_t strips = (task.block + STRIP - 1) / STRIP, step = far_step(strips);
        for (int64_t turn = 0, at = 0; turn < strips; ++turn, at = (at + step) % strips) {
            const int64_t j = at * STRIP, points = std::min(STRIP, task.block - j);
            std::copy_n(static_cast<const T *>(task.squares) + j, points, squares.data());
            std::fill(squares.data() + points, squares.data() + STRIP, std::numeric_limits<T>::infinity());
            for (int64_t e = 0; e < E; e += FEATURE_BLOCK) {
                const int64_t depth = std::min(FEATURE_BLOCK, E - e);
                pack(j, points, e, depth);
                for (int64_t q = 0; q < rows; q += ROWS)
                    tiles<T>(0, round_up(points, W), [&](auto n, int64_t c) {
                        Vec<T> sums[ROWS][n()] = {};
                        product<T, n()>(queries.data() + e * QUERY_STRIDE + q, 1, QUERY_STRIDE, strip.data() + c, STRIP,
                                        depth, sums);
                        for (int r = 0; r < ROWS; ++r)
                            for (int v = 0; v < n(); ++v) {
                                const int64_t place = (q + r) * STRIP + c + v * W;
                                if (e) sums[r][v] += load(partial.data() + place);
                                if (e + depth < E) {
                                    store(partial.data() + place, sums[r][v]);
                                } else if (q + r < count) {
                                    select(first + q + r, j + c + v * W, load(squares.data() + c + v * W) - 2 * sums[r][v]);
                                }
                            }
                    });
            }
        }
    }

    // The same by difference: slower, and without doubt.
    void compare_exactly(int64_t first, int64_t last) {
        const T *points = static_cast<const T *>(task.points), *query = static_cast<const T *>(task.query);
        for (int64_t j = 0; j < task.block; j += STRIP)
            for (int64_t q = first; q < last; ++q)
                for (int64_t p = j; p < std::min(j + STRIP, task.block); ++p) {
                    if (task.exclude && task.exclude[q] == task.start + p) continue;
                    enter(q, p, squared_distance(points + p * E, query + q * E, E));
                }
    }

    // The best `wanted` candidates of query q, nearest first; without points in the order of their scores.
    void rank(int64_t q, const T *points) {
        Candidate<T> *pool = pool_of(q);
        cut(q);
        const int64_t filled = task.filled[q];
        if (filled < task.wanted) {  // scores that are no numbers never entered
            std::fill_n(task.indices + q * task.wanted, task.wanted, int64_t(-1));
            if (task.distances) std::fill_n(static_cast<T *>(task.distances) + q * task.wanted, task.wanted, T(INFINITY));
            static_cast<T *>(task.worst)[q] = T(INFINITY);
            return;
        }
        static_cast<T *>(task.worst)[q] = std::max_element(pool, pool + filled)->score;
        const T *query = static_cast<const T *>(task.query) + q * E;
        for (int64_t k = 0; points && k < filled; ++k) {
            if (k + 4 < filled) __builtin_prefetch(points + pool[k + 4].row * E);
            pool[k].score = squared_distance(points + pool[k].row * E, query, E);
        }
        std::sort(pool, pool + filled);
        for (int64_t k = 0; k < task.wanted; ++k) {
            if (task.distances) static_cast<T *>(task.distances)[q * task.wanted + k] = std::sqrt(pool[k].score);
            task.indices[q * task.wanted + k] = pool[k].row;
        }
    }

    // Squared distances of query q to points of its own, (Q, wanted, E).
    void measure(int64_t q) {
        const T *query = static_cast<const T *>(task.query) + q * E;
        const T *points = static_cast<const T *>(task.points) + q * task.wanted * E;
        T *distances = static_cast<T *>(task.distances) + q * task.wanted;
        for (int64_t k = 0; k < task.wanted; ++k) distances[k] = squared_distance(points + k * E, query, E);
    }

  private:
    Candidate<T> *pool_of(int64_t q) const { return static_cast<Candidate<T> *>(task.pool) + q * task.capacity; }

    // Features from e on, `depth` of them, of a strip of points, transposed.
    void pack(int64_t j, int64_t points, int64_t e, int64_t depth) {
        const T *from = static_cast<const T *>(task.points) + j * E + e;
        for (int64_t p = 0; p < points; p += W) {
            int64_t f = 0;
            if (p + W <= points)
                for (; f + W <= depth; f += W) {
                    Vec<T> block[W];
                    for (int64_t k = 0; k < W; ++k) block[k] = load(from + (p + k) * E + f);
                    transpose<T>(block);
                    for (int64_t k = 0; k < W; ++k) store(strip.data() + (f + k) * STRIP + p, block[k]);
                }
            for (; f < depth; ++f)
                for (int64_t k = 0; k < W; ++k) strip[f * STRIP + p + k] = p + k < points ? from[(p + k) * E + f] : T(0);
        }
    }

    // Candidates among W points from row `row` of the block on.
    INLINE void select(int64_t q, int64_t row, Vec<T> scores) {
        const uint64_t below = mask_bits(scores < static_cast<T *>(task.bound)[q]);
        if (__builtin_expect(below != 0, 0)) enter_some(q, row, scores, below);
    }

    __attribute__((noinline)) void enter_some(int64_t q, int64_t row, Vec<T> scores, uint64_t below) {
        for (int64_t k = 0; k < W; ++k)
            if (below >> (k * sizeof(T)) & 1)
                if (!task.exclude || task.exclude[q] != task.start + row + k) enter(q, row + k, scores[k]);
    }

    // One more candidate, if it still is below the bound.
    void enter(int64_t q, int64_t row, T score) {
        T &bound = static_cast<T *>(task.bound)[q];
        if (!(score < bound)) return;
        pool_of(q)[task.filled[q]++] = {score, int32_t(task.start + row)};
        if (task.filled[q] == task.capacity) bound = cut(q);
    }

    // Leaves the best `count` in the pool; the worst of them is the bound.
    T cut(int64_t q) {
        Candidate<T> *pool = pool_of(q);
        int64_t &filled = task.filled[q];
        if (filled <= task.count) return std::numeric_limits<T>::infinity();
        select_smallest(pool, filled, task.count, spare.data());
        filled = task.count;
        return std::max_element(pool, pool + filled)->score;
    }
};

}  // namespace
