// Vector registers: elementary functions, the micro-kernel of all products, transposition.
//
// Plain C++17 with vector extensions (GCC, Clang). VECTOR_BYTES is the width of a register of the instruction set compiled for.

#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>
#include <utility>

#ifndef VECTOR_BYTES
#define VECTOR_BYTES 16
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif
#define INLINE inline __attribute__((always_inline))

namespace {

constexpr int ROWS = VECTOR_BYTES == 64 ? 8 : 4;  // of a register tile, which is up to WIDE vectors wide
constexpr int WIDE = 3;

template <class T> struct Lanes;
template <> struct Lanes<float> {
    typedef float V __attribute__((vector_size(VECTOR_BYTES)));
    typedef int32_t I __attribute__((vector_size(VECTOR_BYTES)));
    static constexpr int MANTISSA = 23, EXP_DEGREE = 7, LOG_TERMS = 6;
    static constexpr float MAGIC = 12582912.0f, LOWEST = -87.0f, LN2_HIGH = 0.693145751953125f, LN2_LOW = 1.42860682e-06f;
};
template <> struct Lanes<double> {
    typedef double V __attribute__((vector_size(VECTOR_BYTES)));
    typedef int64_t I __attribute__((vector_size(VECTOR_BYTES)));
    static constexpr int MANTISSA = 52, EXP_DEGREE = 13, LOG_TERMS = 12;
    static constexpr double MAGIC = 6755399441055744.0, LOWEST = -708.0;
    static constexpr double LN2_HIGH = 0.693147180369123816490, LN2_LOW = 1.90821492927058770002e-10;
};
template <class T> using Vec = typename Lanes<T>::V;
template <class T> constexpr int WIDTH = VECTOR_BYTES / int(sizeof(T));

template <class T> INLINE Vec<T> load(const T *p) {
    Vec<T> v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
}
template <class T> INLINE void store(T *p, Vec<T> v) { __builtin_memcpy(p, &v, sizeof v); }


// As std::copy_n, without a call: most rows are short.
template <class T, int PART = WIDTH<T>> INLINE void copy_row(const T *from, int64_t count, T *to) {
    for (; count >= PART; count -= PART, from += PART, to += PART) __builtin_memcpy(to, from, PART * sizeof(T));
    if constexpr (PART > 1) copy_row<T, PART / 2>(from, count, to);
}
template <class T> INLINE Vec<T> root(Vec<T> x) {
    for (int i = 0; i < WIDTH<T>; ++i) x[i] = std::sqrt(x[i]);
    return x;
}
template <class T> INLINE T total(Vec<T> x) {
    T lanes[WIDTH<T>];
    __builtin_memcpy(lanes, &x, sizeof x);
    for (int half = WIDTH<T> / 2; half; half /= 2)
        for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    return lanes[0];
}

// A comparison as bits: that at lane * sizeof(T) tells of a lane. One instruction where there is one.
#if VECTOR_BYTES == 32 && defined(__AVX2__)
template <class M> INLINE uint64_t mask_bits(M mask) { return uint32_t(_mm256_movemask_epi8((__m256i)mask)); }
#elif VECTOR_BYTES == 16 && defined(__SSE2__)
template <class M> INLINE uint64_t mask_bits(M mask) { return uint32_t(_mm_movemask_epi8((__m128i)mask)); }
#elif VECTOR_BYTES == 64 && defined(__AVX512BW__)
template <class M> INLINE uint64_t mask_bits(M mask) { return _mm512_movepi8_mask((__m512i)mask); }
#else
template <class M> INLINE uint64_t mask_bits(M mask) {
    uint64_t bits = 0;
    constexpr int step = sizeof(mask[0]), count = sizeof(M) / step;
    for (int i = 0; i < count; ++i) bits |= uint64_t(mask[i] != 0) << (i * step);
    return bits;
}
#endif

// By difference: exact where inner products would cancel. Points are divided by scales, one for each feature, if SCALED.
template <class T, bool SCALED = false>
INLINE T squared_distance(const T *a, const T *b, int64_t count, const T *scales = nullptr) {
    constexpr int64_t W = WIDTH<T>;
    Vec<T> sums{};
    int64_t e = 0;
    for (; e + W <= count; e += W) {
        Vec<T> left = load(a + e), right = load(b + e);
        if constexpr (SCALED) left /= load(scales + e), right /= load(scales + e);
        sums += (left - right) * (left - right);
    }
    T rest = 0;
    for (; e < count; ++e) {
        T left = a[e], right = b[e];
        if constexpr (SCALED) left /= scales[e], right /= scales[e];
        rest += (left - right) * (left - right);
    }
    return total<T>(sums) + rest;
}

template <class T, std::size_t... I> constexpr Vec<T> counted(std::index_sequence<I...>) { return Vec<T>{T(I)...}; }

constexpr double inverse_factorial(int n) { return n < 2 ? 1.0 : inverse_factorial(n - 1) / n; }

// The polynomial with coefficient c(k) at x^k, k <= N.
template <class T, int N, int K = 0, class C> INLINE Vec<T> polynomial(Vec<T> x, C c) {
    if constexpr (K == N) {
        return Vec<T>{} + T(c(K));
    } else {
        return polynomial<T, N, K + 1>(x, c) * x + T(c(K));
    }
}

// e^x for x <= 0: 2^n times the Taylor polynomial of what is left; zero where it would not be a normal number.
template <class T> INLINE Vec<T> exponential(Vec<T> x) {
    using L = Lanes<T>;
    using I = typename L::I;
    const auto vanishes = x < L::LOWEST;
    x = vanishes ? Vec<T>{} : x;
    const Vec<T> shifted = x * T(1.4426950408889634) + L::MAGIC, n = shifted - L::MAGIC;
    const Vec<T> rest = (x - n * L::LN2_HIGH) - n * L::LN2_LOW;
    const Vec<T> p = polynomial<T, L::EXP_DEGREE>(rest, [](int k) { return inverse_factorial(k); });
    const I bits = (I)p + ((I)shifted << L::MANTISSA);
    return vanishes ? Vec<T>{} : (Vec<T>)bits;
}

// log(1 + x) for x >= 0: the exponent, and the series of artanh for a mantissa between 0.7 and 1.4.
template <class T> INLINE Vec<T> log_one_plus(Vec<T> x) {
    using L = Lanes<T>;
    using I = typename L::I;
    const Vec<T> y = 1 + x;
    const I exponent = ((I)y - (I)(Vec<T>{} + T(0.70710678118654752))) >> L::MANTISSA;
    const Vec<T> mantissa = (Vec<T>)((I)y - (exponent << L::MANTISSA));
    const Vec<T> s = (mantissa - 1) / (mantissa + 1), n = __builtin_convertvector(exponent, Vec<T>);
    const Vec<T> series = polynomial<T, L::LOG_TERMS - 1>(s * s, [](int k) { return 2.0 / (2 * k + 1); });
    return n * L::LN2_HIGH + (s * series + (n * L::LN2_LOW + (x - (y - 1)) / y));  // the last term: what 1 + x rounded off
}

// log(x) for x > 0, a normal number.
template <class T> INLINE Vec<T> logarithm(Vec<T> x) {
    using L = Lanes<T>;
    using I = typename L::I;
    const I exponent = ((I)x - (I)(Vec<T>{} + T(0.70710678118654752))) >> L::MANTISSA;
    const Vec<T> mantissa = (Vec<T>)((I)x - (exponent << L::MANTISSA));
    const Vec<T> s = (mantissa - 1) / (mantissa + 1), n = __builtin_convertvector(exponent, Vec<T>);
    const Vec<T> series = polynomial<T, L::LOG_TERMS - 1>(s * s, [](int k) { return 2.0 / (2 * k + 1); });
    return n * L::LN2_HIGH + (s * series + n * L::LN2_LOW);
}

template <class T> INLINE Vec<T> power(Vec<T> x, int n) {
    Vec<T> result = Vec<T>{} + 1;
    for (; n > 0; n >>= 1, x *= x)
        if (n & 1) result *= x;
    return result;
}

// sums[r][v] += sum over k < count of a[r * a_row + k * a_step] * (vector v of b + k * b_step)
template <class T, int N>
INLINE void product(const T *a, int64_t a_row, int64_t a_step, const T *b, int64_t b_step, int64_t count,
                    Vec<T> (&sums)[ROWS][N]) {
    for (int64_t k = 0; k < count; ++k, a += a_step, b += b_step) {
        Vec<T> right[N];
        for (int v = 0; v < N; ++v) right[v] = load(b + v * WIDTH<T>);
        for (int r = 0; r < ROWS; ++r)
            for (int v = 0; v < N; ++v) sums[r][v] += a[r * a_row] * right[v];
    }
}

// f(integral constant N, column) for tiles of N <= WIDE vectors that cover the columns from `begin` to `end`.
template <class T, class F> INLINE void tiles(int64_t begin, int64_t end, F f) {
    constexpr int64_t W = WIDTH<T>;
    while (begin < end) {
        const int64_t left = (end - begin) / W;
        if (left >= WIDE && left != WIDE + 1) {  // two and two are faster than three and one
            f(std::integral_constant<int, WIDE>(), begin), begin += WIDE * W;
        } else if (left >= 2) {
            f(std::integral_constant<int, 2>(), begin), begin += 2 * W;
        } else {
            f(std::integral_constant<int, 1>(), begin), begin += W;
        }
    }
}

// Lanes of a and b by turns, from lane START of each on.
template <class T, std::size_t START, std::size_t... I> INLINE Vec<T> interleave(Vec<T> a, Vec<T> b, std::index_sequence<I...>) {
#if defined(__clang__) || __GNUC__ >= 12
    return __builtin_shufflevector(a, b, int(I % 2 * sizeof...(I) + I / 2 + START)...);
#else
    return __builtin_shuffle(a, b, typename Lanes<T>::I{I % 2 * sizeof...(I) + I / 2 + START...});
#endif
}
// The totals of as many vectors: sums of two by turns, until all are in one. It changes the vectors.
template <class T> INLINE void total_each(Vec<T> (&vectors)[ROWS], T (&totals)[ROWS]) {
    constexpr int W = WIDTH<T>;
    if constexpr (W < ROWS) {
        for (int r = 0; r < ROWS; ++r) totals[r] = total<T>(vectors[r]);
    } else {
        constexpr auto lanes = std::make_index_sequence<W>();
        for (int half = ROWS / 2; half; half /= 2)
            for (int r = 0; r < half; ++r) {
                const Vec<T> a = vectors[r], b = vectors[r + half];
                vectors[r] = interleave<T, 0>(a, b, lanes) + interleave<T, W / 2>(a, b, lanes);
            }
        for (int r = 0; r < ROWS; ++r) totals[r] = vectors[0][r];
        for (int k = ROWS; k < W; ++k) totals[k % ROWS] += vectors[0][k];
    }
}
template <class T> INLINE void transpose(Vec<T> (&rows)[WIDTH<T>]) {
    constexpr int W = WIDTH<T>;
    constexpr auto lanes = std::make_index_sequence<W>();
    for (int round = 1; round < W; round *= 2) {
        Vec<T> next[W];
        for (int i = 0; i < W / 2; ++i) {
            next[2 * i] = interleave<T, 0>(rows[i], rows[i + W / 2], lanes);
            next[2 * i + 1] = interleave<T, W / 2>(rows[i], rows[i + W / 2], lanes);
        }
        for (int i = 0; i < W; ++i) rows[i] = next[i];
    }
}

}  // namespace
