// Exact nearest neighbors by way of bounds: integers of 8 bits tell which few points have to be looked at.
//
// Each query keeps a pool of rows whose lower bound is not above the `wanted`-th smallest upper bound so far. In the end they are
// measured in the order of their lower bounds, until one is above the `wanted`-th smallest distance. A row that is ruled out is
// farther, as measured, than the last neighbor, and ties are never ruled out. So the neighbors are those of a full sort by
// (measured distance, row), whatever the order of the scan. A query with more than half of `capacity` rows in its pool is left
// to the caller: its points are too much alike to be told apart by 8 bits.

#pragma once

#include <utility>

#include "quantized.h"

namespace {

constexpr int64_t STRIP = 16;     // tiles that are scanned one after the other, at the full speed of memory
constexpr int64_t SCANNED = 128;  // queries that are compared with a tile while it is in cache
constexpr int64_t AT_ONCE = 8;    // queries of a register tile

struct Bounded {
    float lower, upper;
    int32_t row;
};

// The rows that may be neighbors of a query.
struct Pool {
    std::vector<Bounded> rows;
    float limit = FLT_MAX;  // what has a lower bound above it is ruled out
    float left = FLT_MAX;   // of the limit, for what depends on the point
    std::size_t full = 0;   // when to look what has been ruled out meanwhile
    bool crowded = false;
};

class Scanner {
    static constexpr int64_t W = WIDTH<float>;
    using V = Vec<float>;
    using I = typename Lanes<float>::I;
    static constexpr uint64_t LANES = 0x1111111111111111;  // one bit of each
    const QuantizedTask &task;
    Quantizer quantizer;
    const int64_t E, words;
    const float slack;  // of |p|^2 + |y|^2
    const Products products_of[4] = {products<1>(), products<2>(), products<4>(), products<8>()};
    Buffer<int8_t> codes;  // [query][feature]
    std::vector<Parts> parts;
    std::vector<float> uppers, spare;
    std::vector<std::pair<float, int32_t>> best;  // a heap of (squared distance, row)
    alignas(64) int32_t sums[AT_ONCE * TILE];
    const float *scale = nullptr, *length = nullptr, *rest = nullptr;  // of the points of a tile
    int64_t start = 0, count = 0;                                      // of the queries

  public:
    const int64_t tiles, strips, step;
    std::vector<Pool> pools;  // of the queries

    Scanner(const QuantizedTask &task, int64_t queries)
        : task(task), quantizer(task.features), E(task.features), words(quantizer.words), slack(16 * quantizer.rounding),
          codes(queries * 4 * words), parts(std::size_t(queries)), tiles((task.count + TILE - 1) / TILE),
          strips((tiles + STRIP - 1) / STRIP), step(far_step(strips)), pools(std::size_t(queries)) {}

    // Makes ready for the queries from `first` to `last`.
    void open(int64_t first, int64_t last) {
        start = first, count = last - first;
        for (int64_t q = 0; q < count; ++q) {
            Pool &pool = pools[q];
            pool.rows.clear(), pool.limit = pool.left = FLT_MAX, pool.full = room(0), pool.crowded = false;
            parts[q] = quantizer(static_cast<const float *>(task.query) + (first + q) * E, static_cast<const float *>(task.mean),
                                 codes.data() + q * 4 * words);
        }
    }

    // Compares them with the points of some strips. These are far from each other in turn, as in search.h: points may be sorted.
    void scan(int64_t first_turn, int64_t last_turn) {
        const auto crowded = [](const Pool &pool) { return pool.crowded; };
        for (int64_t turn = first_turn; turn < last_turn && !std::all_of(pools.begin(), pools.begin() + count, crowded); ++turn) {
            const int64_t begin = turn * step % strips * STRIP;
            for (int64_t tile = begin; tile < std::min(begin + STRIP, tiles); ++tile)
                each_product(tile, [&](int64_t q, int64_t p, V dot) {
                    const Parts &own = parts[q];
                    const V size = load(length + p), error = (own.length + own.rest) * load(rest + p) + own.rest * size;
                    const V low = size * size * (1 - slack) - 2 * (own.scale * dot + error);
                    const uint64_t below = mask_bits(low <= pools[q].left);
                    if (__builtin_expect(below != 0, 0)) enter(q, tile * TILE + p, p, dot, below);
                });
        }
    }

    // The bounds themselves, of all pairs.
    void bound() {
        open(0, task.queries);
        for (int64_t tile = 0; tile < tiles; ++tile)
            each_product(tile, [&](int64_t q, int64_t p, V dot) {
                V low, high;
                bounds(parts[q], p, dot, low, high);
                for (int64_t k = 0, i = tile * TILE + p; k < W && i < task.count; ++k, ++i) {
                    static_cast<float *>(task.lower)[q * task.count + i] = low[k];
                    static_cast<float *>(task.upper)[q * task.count + i] = high[k];
                }
            });
    }

    // Measures what is left of the pool of query q, nearest first.
    void finish(int64_t q, Pool &pool) {
        const float *query = static_cast<const float *>(task.query) + q * E, *points = static_cast<const float *>(task.points);
        float *distances = static_cast<float *>(task.distances) + q * task.wanted;
        int64_t *indices = task.indices + q * task.wanted;
        const auto wanted = std::size_t(task.wanted);
        const auto by_lower = [](const Bounded &a, const Bounded &b) { return a.lower < b.lower; };
        const auto ruled_out = [&](const Bounded &row) { return best.size() == wanted && row.lower > best.front().first; };
        const auto measure = [&](auto from, auto to) {
            for (; from < to && !ruled_out(*from); ++from) {
                for (int64_t e = 0; from + 2 < to && e < E; e += 16) __builtin_prefetch(points + from[2].row * E + e);
                const std::pair<float, int32_t> found(squared_distance(points + from->row * E, query, E), from->row);
                if (!(found.first < INFINITY)) continue;  // no number
                if (best.size() == wanted) {
                    if (!(found < best.front())) continue;
                    std::pop_heap(best.begin(), best.end()), best.pop_back();
                }
                best.push_back(found), std::push_heap(best.begin(), best.end());
            }
        };
        cut(pool);
        best.clear();
        const auto first = pool.rows.begin(), middle = first + std::min(task.wanted, int64_t(pool.rows.size()));
        std::nth_element(first, middle, pool.rows.end(), by_lower);
        measure(first, middle);
        const auto last = std::remove_if(middle, pool.rows.end(), ruled_out);
        std::sort(middle, last, by_lower);
        measure(middle, last);
        std::sort_heap(best.begin(), best.end());
        const bool whole = best.size() == wanted && !pool.crowded;
        for (std::size_t k = 0; k < wanted; ++k) {
            distances[k] = whole ? std::sqrt(best[k].first) : INFINITY;
            indices[k] = whole ? best[k].second : -1;
        }
    }

    // Adds what another scan has found for the same query among other points.
    void merge(Pool &pool, const Pool &other) const {
        pool.rows.insert(pool.rows.end(), other.rows.begin(), other.rows.end());
        pool.limit = std::min(pool.limit, other.limit), pool.crowded |= other.crowded;
    }

  private:
    // f(query, point of the tile, s_y c_p.c_y for W points)
    template <class F> INLINE void each_product(int64_t tile, F f) {
        scale = static_cast<const float *>(task.numbers) + tile * 3 * TILE, length = scale + TILE, rest = length + TILE;
        for (int64_t q = 0; q < count;) {
            int size = 3;
            while (count - q < int64_t(1) << size) --size;
            products_of[size](static_cast<const uint8_t *>(task.codes) + tile * words * TILE * 4, codes.data() + q * 4 * words,
                              words, sums);
            for (int r = 0; r < 1 << size; ++r, ++q)
                for (int64_t p = 0; p < TILE; p += W) {
                    I sum;
                    std::memcpy(&sum, sums + r * TILE + p, sizeof sum);
                    f(q, p, __builtin_convertvector(sum - parts[q].shift, V) * load(scale + p));
                }
        }
    }

    INLINE void bounds(const Parts &own, int64_t p, V dot, V &low, V &high) const {
        const V size = load(length + p), product = own.scale * dot, cosine = product / (own.length * size);
        const V sine_square = 1 - cosine * cosine + slack, sine = root<float>(sine_square > 0 ? sine_square : V{});
        const V error = sine * (own.length * load(rest + p) + own.rest * size) + own.rest * load(rest + p);
        const V both = own.length * own.length + size * size, width = 2 * error + slack * both + quantizer.vanishing;
        low = both - 2 * product - width, high = both - 2 * product + width;
    }

    __attribute__((noinline)) void enter(int64_t q, int64_t row, int64_t p, V dot, uint64_t below) {
        Pool &pool = pools[q];
        V low, high;
        bounds(parts[q], p, dot, low, high);
        for (below &= mask_bits(low <= pool.limit) & LANES; below; below &= below - 1) {
            const int64_t k = __builtin_ctzll(below) / int64_t(sizeof(float));
            if (task.exclude && task.exclude[start + q] == row + k) continue;
            pool.rows.push_back({low[k], high[k], int32_t(row + k)});
        }
        if (pool.rows.size() < pool.full) return;
        cut(pool);
        pool.full = room(pool.rows.size());
        pool.left = pool.limit - parts[q].length * parts[q].length * (1 - slack) + quantizer.vanishing;
        if (2 * int64_t(pool.rows.size()) <= task.capacity) return;
        pool.rows.clear(), pool.crowded = true;
        pool.limit = pool.left = -INFINITY;
    }

    std::size_t room(std::size_t used) const {
        return std::size_t(std::min(task.capacity, 2 * std::max(int64_t(used), task.wanted) + TILE));
    }

    // Lowers the limit, and drops what it rules out.
    void cut(Pool &pool) {
        const int64_t count = int64_t(pool.rows.size());
        if (count < task.wanted) return;
        uppers.resize(std::size_t(count)), spare.resize(std::size_t(count));
        for (int64_t k = 0; k < count; ++k) uppers[k] = pool.rows[k].upper;
        select_smallest(uppers.data(), count, task.wanted, spare.data());
        pool.limit = std::min(pool.limit, *std::max_element(uppers.begin(), uppers.begin() + task.wanted));
        const auto above = [&](const Bounded &row) { return row.lower > pool.limit; };
        pool.rows.erase(std::remove_if(pool.rows.begin(), pool.rows.end(), above), pool.rows.end());
    }
};

}  // namespace
