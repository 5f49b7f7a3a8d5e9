// Points as integers of 8 bits, and what these say about distances; scan.h searches by it.
//
// With mu a fixed point near the mean, each point is y = x - mu = s c + e: c are integers from -127 to 127, s is the scale that
// makes e orthogonal to c, and r is |e|, rounded up. A query p = q - mu is taken apart alike. Then
//
//     p.y = s_p s_y (c_p.c_y) + (s_p c_p).e_y + e_p.(s_y c_y) + e_p.e_y .
//
// The product of integers is exact. Since e_y is orthogonal to c_y, only the part of s_p c_p counts that is orthogonal to it too;
// its length is at most |p| sin, with cos = s_p s_y c_p.c_y / (|p| |y|). So, by Cauchy and Schwarz,
//
//     |p.y - s_p s_y c_p.c_y|  <=  w  =  sin (|p| r_y + |y| r_p) + r_p r_y ,
//
// and the squared distance |p|^2 + |y|^2 - 2 p.y lies within 2 w of b = |p|^2 + |y|^2 - 2 s_p s_y c_p.c_y. The scan first takes
// the sine to be one; what passes is bounded with the sine.
//
// Rounding. With u = 2^-24, a sum of E squares in W lanes is off by at most g = (E / W + 2 W + 8) u of itself, the rounding of
// x - mu included. In units of g (|p|^2 + |y|^2), b is off by 5 for the two lengths, which are kept rounded up, 4 for scales that
// are off by 2 g, so that e and c are not quite orthogonal, and 2 for some twenty operations that follow; and the distance that
// counts, measured by difference, by 2. Both bounds are moved outwards by 16 of these, and by what may vanish for being tiny:
// lengths are sqrt(square + v) with more v than can vanish from all sums together, so that 2 w is at least 2 v, the excess of
// the two squares. So the bounds hold for the distance *as it is measured*.

#pragma once

#include <cfloat>
#include <cstring>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "search.h"

// Shared with native.py, field by field.
struct QuantizedTask {
    const void *points, *query, *mean;  // (N, E), (Q, E), (E)
    const int64_t *exclude;             // (Q) rows not to be found, or null
    void *codes, *numbers;              // (tiles, words, TILE, 4): c + 128, as bytes; (tiles, 3, TILE): s, |y|, r
    void *distances;                    // (Q, wanted)
    int64_t *indices;                   // (Q, wanted); -1 for a query that is left to the caller
    void *lower, *upper;                // (Q, N): bounds of all squared distances, to look at
    int64_t queries, start, count, features, wanted, capacity, threads;  // rows from `start` to `count` are to be written
};

namespace {

constexpr int64_t TILE = 48;    // points that lie together in `codes`
constexpr float TINY = 1e-30f;  // coordinates that are all less are not worth a scale, whose inverse might be infinite

// sums[r][p] = sum over 4 * `words` features of (byte of point p) * (byte of query r), for R queries and a tile.
using Products = void (*)(const uint8_t *points, const int8_t *queries, int64_t words, int32_t *sums);

template <int R> void plain_products(const uint8_t *points, const int8_t *queries, int64_t words, int32_t *sums) {
    using I = typename Lanes<float>::I;
    constexpr int64_t W = WIDTH<float>;
    for (int r = 0; r < R; ++r)
        for (int64_t p = 0; p < TILE; p += W) {
            I sum{}, word;
            for (int64_t k = 0; k < words; ++k) {
                std::memcpy(&word, points + (k * TILE + p) * 4, sizeof word);
                for (int b = 0; b < 4; ++b) sum += (word >> (8 * b) & 255) * int32_t(queries[4 * (r * words + k) + b]);
            }
            std::memcpy(sums + r * TILE + p, &sum, sizeof sum);
        }
}

// Four products for each 32 bits of a register in one instruction, which not every processor with these registers has.
#if defined(__x86_64__) && VECTOR_BYTES == 64 && (defined(__clang__) || __GNUC__ >= 9)
#define QUICK __attribute__((target("avx512vnni")))
#define DOT(sum, points, query) _mm512_dpbusd_epi32((__m512i)(sum), (__m512i)(points), (__m512i)(query))
#elif defined(__x86_64__) && VECTOR_BYTES == 32 && (defined(__clang__) || __GNUC__ >= 11)
#define QUICK __attribute__((target("avxvnni")))
#define DOT(sum, points, query) _mm256_dpbusd_avx_epi32((__m256i)(sum), (__m256i)(points), (__m256i)(query))
#endif

inline bool has_quick_products() {
#ifdef QUICK
    unsigned a = 0, b = 0, c = 0, d = 0;  // the bits of AVX-512 VNNI and of AVX-VNNI
    if (VECTOR_BYTES == 64) return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (c >> 11 & 1);
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
#else
    return false;
#endif
}

#ifdef QUICK
// In register tiles, as in lanes.h: all loops over `total` have to be unrolled, or it lies in memory.
template <int R> QUICK void quick_products(const uint8_t *points, const int8_t *queries, int64_t words, int32_t *sums) {
    using I = typename Lanes<float>::I;
    constexpr int TALL = std::min(R, ROWS), BYTES = WIDE * VECTOR_BYTES;  // one byte of a word is one of a sum
    for (int r0 = 0; r0 < R; r0 += TALL)
        for (int64_t p0 = 0; p0 < 4 * TILE; p0 += BYTES) {
            I total[TALL][WIDE], point[WIDE];
#pragma GCC unroll 8
            for (int r = 0; r < TALL; ++r)
#pragma GCC unroll 3
                for (int v = 0; v < WIDE; ++v) total[r][v] = I{};
            for (int64_t k = 0; k < words; ++k) {
#pragma GCC unroll 3
                for (int v = 0; v < WIDE; ++v)
                    std::memcpy(&point[v], points + 4 * TILE * k + p0 + v * VECTOR_BYTES, VECTOR_BYTES);
#pragma GCC unroll 8
                for (int r = 0; r < TALL; ++r) {
                    int32_t word;
                    std::memcpy(&word, queries + 4 * ((r0 + r) * words + k), 4);
#pragma GCC unroll 3
                    for (int v = 0; v < WIDE; ++v) total[r][v] = (I)DOT(total[r][v], point[v], I{} + word);
                }
            }
#pragma GCC unroll 8
            for (int r = 0; r < TALL; ++r) std::memcpy(sums + (r0 + r) * TILE + p0 / 4, total[r], BYTES);
        }
}
#endif

template <int R> Products products() {
#ifdef QUICK
    if (has_quick_products()) return quick_products<R>;
#endif
    return plain_products<R>;
}

// A point or query taken apart.
struct Parts {
    float scale, length, rest;  // s; at least |y| and |e|
    int32_t shift;              // what the sums are too large by, since bytes of points are c + 128
};

class Quantizer {
    static constexpr int64_t W = WIDTH<float>;
    using V = Vec<float>;
    Buffer<float> shifted, integers;

  public:
    const int64_t E, words;
    const float rounding, vanishing;  // g; what may vanish

    explicit Quantizer(int64_t features)
        : shifted(round_up(features, W)), integers(round_up(features, W)), E(features), words((features + 3) / 4),
          rounding(float(E / W + 2 * W + 8) * 0x1p-24f), vanishing(64 * float(E + 1) * FLT_MIN) {}

    float length(float square) const { return std::sqrt(square + vanishing) * (1 + 2 * rounding); }  // not less than it is

    // `codes` has room for whole words, and is zero past the last feature.
    Parts operator()(const float *x, const float *mean, int8_t *codes) {
        float largest = 0;
        V squares{}, most{}, products{}, lengths{}, rests{};
        for (int64_t e = 0; e < E; ++e) shifted[e] = x[e] - mean[e];
        for (int64_t e = 0; e < E; e += W) {
            const V y = load(shifted.data() + e), size = y < 0 ? -y : y;
            squares += y * y, most = most > size ? most : size;
        }
        for (int i = 0; i < W; ++i) largest = std::max(largest, most[i]);
        const float size = length(total<float>(squares)), step = largest < TINY ? 0.0f : 127 / largest;
        for (int64_t e = 0; e < E; e += W) {
            const V y = load(shifted.data() + e), c = y * step + Lanes<float>::MAGIC - Lanes<float>::MAGIC;
            store(integers.data() + e, c);
            products += c * y, lengths += c * c;
        }
        const float scale = step > 0 ? total<float>(products) / total<float>(lengths) : 0.0f;
        for (int64_t e = 0; e < E; e += W) {
            const V rest = load(shifted.data() + e) - scale * load(integers.data() + e);
            rests += rest * rest;
        }
        int32_t sum = 0;
        for (int64_t e = 0; e < E; ++e) codes[e] = int8_t(integers[e]), sum += codes[e];
        return {scale, size, length(total<float>(rests)) + size * 0x1p-23f, 128 * sum};
    }
};

// Writes the new rows in the tiles from `first` to `last`; and what is past the last row so that it is never found.
inline void quantize_tiles(const QuantizedTask &task, Quantizer &quantizer, int64_t first, int64_t last) {
    const int64_t words = quantizer.words;
    Buffer<int8_t> row(4 * words);
    for (int64_t i = std::max(first * TILE, task.start); i < last * TILE; ++i) {
        float *numbers = static_cast<float *>(task.numbers) + i / TILE * 3 * TILE + i % TILE;
        uint8_t *codes = static_cast<uint8_t *>(task.codes) + (i / TILE * words * TILE + i % TILE) * 4;
        Parts parts{0, INFINITY, 0, 0};
        if (i < task.count)
            parts = quantizer(static_cast<const float *>(task.points) + i * task.features, static_cast<const float *>(task.mean),
                              row.data());
        numbers[0] = parts.scale, numbers[TILE] = parts.length, numbers[2 * TILE] = parts.rest;
        for (int64_t k = 0; k < words; ++k) {
            uint32_t word;
            std::memcpy(&word, row.data() + 4 * k, 4);
            word ^= 0x80808080u;  // adds 128 to each byte
            std::memcpy(codes + k * TILE * 4, &word, 4);
        }
    }
}

}  // namespace
