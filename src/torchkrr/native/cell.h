// One neighborhood: its offsets, its Gram matrix, its factor. Everything here stays in the caches of one core.

#pragma once

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>
#include <vector>

#include "profile.h"

namespace {

constexpr int64_t FEATURE_BLOCK = 64;              // features of all members that stay in the innermost cache
constexpr int64_t ROW_BLOCK = 64;                  // rows of a factor that are summed up at a time: long sums round more
constexpr double CLOSE = 1e-2, OUTSIDE = 2.0 / 3;  // as in distances.py and cells.py

inline int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

// Rows of n numbers, the distance between them chosen so that a column does not fall on few cache sets.
template <class T> int64_t row_stride(int64_t n) {
    const int64_t stride = round_up(n, WIDTH<T>);
    return stride * int64_t(sizeof(T)) % 256 ? stride : stride + WIDTH<T>;
}

template <class T> class Buffer {
    struct Free {
        void operator()(void *p) const { std::free(p); }
    };
    std::unique_ptr<void, Free> memory;

  public:
    explicit Buffer(int64_t count) {
        const std::size_t bytes = std::size_t(round_up(std::max<int64_t>(count, 1) * int64_t(sizeof(T)), 64));
        memory.reset(std::aligned_alloc(64, bytes));
        if (!memory) throw std::bad_alloc();
        std::fill_n(data(), bytes / sizeof(T), T(0));
    }
    T *data() const { return static_cast<T *>(memory.get()); }
    T &operator[](int64_t i) const { return data()[i]; }
};

template <class T> class Cell {
    static constexpr int64_t W = WIDTH<T>;

  public:
    const int64_t neighbors, features;
    const int64_t rows, columns;     // neighbors, up to full register tiles
    const int64_t width, stride;     // of the right-hand sides; from one row of the matrix to the next
    const int64_t offset_stride;
    const bool scaled;               // points are embedded here, by division
    Buffer<T> scales, factors;       // [feature] that points are divided by, and gradients multiplied by
    Buffer<T> offsets;               // [feature][member], relative to the query or, if that is outside, to the mean
    Buffer<T> cross_squares, squares, shift;  // [member] to the query; [member] lengths of offsets; [feature] mean taken off
    Buffer<T> matrix, solution;      // [row][columns | right-hand sides]; [row][right-hand sides]
    Buffer<T> inverse;               // [row] of the diagonal of the factor
    Buffer<T> sums, inside;          // [column] sums of the kernel matrix; one for members, zero past the last
    T row_sum = 0;                   // the largest of the kernel matrix
    const T *exact = nullptr;        // [feature][member], not shifted: all distances by their difference, without rounding

    // Points are divided by exp of `log_scales`, one for all features if `scale_step` is zero; null: they are as embedded.
    Cell(int64_t neighbors, int64_t features, int64_t sides, const double *log_scales = nullptr, int64_t scale_step = 0)
        : neighbors(neighbors), features(features), rows(round_up(neighbors, ROWS)),
          columns(round_up(neighbors, std::max<int64_t>(W, ROWS))), width(round_up(sides, W)),
          stride(row_stride<T>(columns + width)), offset_stride(row_stride<T>(columns)), scaled(log_scales),
          scales(features), factors(features), offsets(round_up(features, ROWS) * offset_stride), cross_squares(columns),
          squares(columns), shift(features), matrix(rows * stride), solution(rows * width), inverse(rows), sums(columns + rows),
          inside(columns) {
        std::fill_n(inside.data(), neighbors, T(1));
        for (int64_t e = 0; e < features; ++e) {
            scales[e] = !scaled ? T(1) : e && !scale_step ? scales[0] : T(std::exp(log_scales[e * scale_step]));
            factors[e] = 1 / scales[e];
        }
    }

    // The upper half of a symmetric matrix becomes the whole, with a zero diagonal; `totals` receives the sums of its rows.
    void mirror(T *totals) {
        for (int64_t i = 0; i < neighbors; ++i) {
            T *row = matrix.data() + i * stride;
            row[i] = 0;
            for (int64_t j = i + 1; j < neighbors; ++j) matrix[j * stride + i] = row[j];
        }
        std::fill_n(totals, columns, T(0));
        for (int64_t i = 0; i < neighbors; ++i)
            for (int64_t j = 0; j < columns; j += W) store(totals + j, load(totals + j) + load(matrix.data() + i * stride + j));
    }

    T *side(int64_t row) const { return matrix.data() + row * stride + columns; }

    void gather(const T *centers, const int64_t *members, const T *query) {
        scaled ? gather_as<true>(centers, members, query) : gather_as<false>(centers, members, query);
    }

    // Squared distance of two points, by difference.
    T distance(const T *a, const T *b) const {
        return scaled ? squared_distance<T, true>(a, b, features, scales.data()) : squared_distance(a, b, features);
    }

    // Whether the points that were gathered are numbers: an infinite one may look like one that is merely far away.
    bool finite(const T *centers, const int64_t *members) const {
        for (int64_t j = 0; j < neighbors; ++j)
            if (!std::isfinite(cross_squares[j])) {
                const T *center = centers + members[j] * features;
                if (!std::all_of(center, center + features, [](T x) { return std::isfinite(x); })) return false;
            }
        return true;
    }

    // A query far outside must not set the scale of rounding of the differences between members.
    void center() {
        T length = 0, spread = 0;
        for (int64_t e = 0; e < features; ++e) {
            Vec<T> sums{};
            for (int64_t j = 0; j < columns; j += W) sums += load(offsets.data() + e * offset_stride + j);
            shift[e] = total<T>(sums) / T(neighbors);  // offsets past the last member are zero
            length += shift[e] * shift[e];
        }
        for (int64_t j = 0; j < neighbors; ++j) spread += cross_squares[j];
        if (!(length > T(OUTSIDE) * spread / T(neighbors))) {
            std::fill_n(shift.data(), features, T(0));
            std::copy_n(cross_squares.data(), columns, squares.data());
            return;
        }
        for (int64_t e = 0; e < features; ++e)
            for (int64_t j = 0; j < neighbors; ++j) offsets[e * offset_stride + j] -= shift[e];
        for (int64_t j = 0; j < columns; j += W) {
            Vec<T> sums{};
            for (int64_t start = 0; start < features; start += W) {
                Vec<T> part{};
                for (int64_t e = start; e < std::min(start + W, features); ++e) {
                    const Vec<T> offset = load(offsets.data() + e * offset_stride + j);
                    part += offset * offset;
                }
                sums += part;
            }
            store(squares.data() + j, sums);
        }
    }

    // Inner products of the offsets, upper half; zero on the diagonal, so that no member counts as close to itself.
    void gram() {
        if (exact) return;
        for (int64_t e = 0; e < features; e += FEATURE_BLOCK) {
            const int64_t count = std::min(FEATURE_BLOCK, features - e);
            const T *block = offsets.data() + e * offset_stride;
            for (int64_t i = 0; i < rows; i += ROWS)
                tiles<T>(i / W * W, columns, [&](auto n, int64_t j) {
                    Vec<T> sums[ROWS][n()] = {};
                    T *out = matrix.data() + i * stride + j;
                    product<T, n()>(block + i, 1, offset_stride, block + j, offset_stride, count, sums);
                    // Sums of blocks, not one long sum: that is more exact too.
                    for (int r = 0; e && r < ROWS; ++r)
                        for (int v = 0; v < n(); ++v) sums[r][v] += load(out + r * stride + v * W);
                    put(out, sums);
                });
        }
        for (int64_t i = 0; i < rows; ++i) matrix[i * stride + i] = 0;
    }

    // The tile of inner products at (i, j) as squared distances; those that would be mostly rounding by difference.
    template <int N> INLINE void pair_squares(int64_t i, int64_t j, Vec<T> (&tile)[ROWS][N]) const {
        const T *in = matrix.data() + i * stride + j;
        for (int r = 0; r < ROWS; ++r)
            for (int v = 0; v < N; ++v) {
                if (exact) {
                    by_difference(i + r, j + v * W, tile[r][v]);
                    continue;
                }
                const Vec<T> sums = load(squares.data() + j + v * W) + squares[i + r];
                tile[r][v] = sums - 2 * load(in + r * stride + v * W);
                if (__builtin_expect(mask_bits(tile[r][v] < T(CLOSE) * sums) != 0, 0))
                    by_difference(i + r, j + v * W, tile[r][v]);
            }
    }

    // A = U'U, row by row; false if it is not positive definite.
    bool factor(const Radial<T, false> &profile, const T *ridge, int64_t ridge_step) {
        row_sum = 0;
        std::fill_n(sums.data(), columns, T(0));
        for (int64_t i = 0; i < rows; i += ROWS) {
            bool sound = true, diagonal = true;  // the first tile of a row holds the diagonal block
            T upper[ROWS][ROWS] = {};
            Vec<T> along[ROWS] = {};
            tiles<T>(i / W * W, columns, [&](auto n, int64_t j) {
                if (!sound) return;
                Vec<T> tile[ROWS][n()];
                pair_squares<n()>(i, j, tile);
                profile(&tile[0][0], ROWS * n());
                add_up<n()>(i, j, tile, along);
                if (diagonal)
                    for (int r = 0; r < ROWS; ++r) {
                        const int64_t k = i - j + r;
                        tile[r][k / W][k % W] = 1 + (i + r < neighbors ? ridge[(i + r) * ridge_step] : T(0));
                    }
                subtract_rows_above<n()>(i, j, tile);
                if (diagonal) {
                    put(matrix.data() + i * stride + j, tile);
                    sound = factor_diagonal(i, upper);
                    diagonal = false;
                }
                substitute_block<n()>(i, j, upper, tile);
            });
            if (!sound) return false;
            for (int r = 0; r < ROWS && i + r < neighbors; ++r) row_sum = std::max(row_sum, total<T>(along[r]) + sums[i + r]);
        }
        return true;
    }

    // The first `sides` right-hand sides become U'^-1 of them.
    void substitute(int64_t sides) {
        tiles<T>(columns, columns + round_up(sides, W), [&](auto n, int64_t j) {
            for (int64_t i = 0; i < rows; i += ROWS) {
                Vec<T> tile[ROWS][n()];
                T upper[ROWS][ROWS];
                for (int r = 0; r < ROWS; ++r) {
                    std::copy_n(matrix.data() + (i + r) * stride + i, ROWS, upper[r]);
                    for (int v = 0; v < n(); ++v) tile[r][v] = load(matrix.data() + (i + r) * stride + j + v * W);
                }
                subtract_rows_above<n()>(i, j, tile);
                substitute_block<n()>(i, j, upper, tile);
            }
        });
    }

    // solution = U^-1 of the first `sides` right-hand sides, which have been substituted.
    void back_substitute(int64_t sides) {
        tiles<T>(0, round_up(sides, W), [&](auto n, int64_t c) {
            for (int64_t i = rows - ROWS; i >= 0; i -= ROWS) {
                Vec<T> sums[ROWS][n()] = {};
                const int64_t below = i + ROWS;
                product<T, n()>(matrix.data() + i * stride + below, stride, 1, solution.data() + below * width + c, width,
                                rows - below, sums);
                for (int r = ROWS - 1; r >= 0; --r)
                    for (int v = 0; v < n(); ++v) {
                        Vec<T> x = load(side(i + r) + c + v * W) - sums[r][v];
                        for (int s = r + 1; s < ROWS; ++s) x -= matrix[(i + r) * stride + i + s] * sums[s][v];
                        sums[r][v] = x * inverse[i + r];
                        store(solution.data() + (i + r) * width + c + v * W, sums[r][v]);
                    }
            }
        });
    }

    // U'^-1, lower half, into `to`, whose rows are `step` apart and zero in the upper half past the block on the diagonal.
    void invert(T *to, int64_t step) const {
        for (int64_t i = 0; i < rows; i += ROWS) {
            T upper[ROWS][ROWS];
            for (int r = 0; r < ROWS; ++r) std::copy_n(matrix.data() + (i + r) * stride + i, ROWS, upper[r]);
            tiles<T>(0, round_up(i + ROWS, W), [&](auto n, int64_t j) {
                Vec<T> tile[ROWS][n()] = {}, sums[ROWS][n()] = {};
                product<T, n()>(matrix.data() + i, 1, stride, to + j, step, i, sums);
                for (int r = 0; r < ROWS; ++r) {
                    const int64_t k = i + r - j;  // where the row of the identity has its one
                    if (k >= 0 && k < n() * W) tile[r][k / W][k % W] = 1;
                    for (int v = 0; v < n(); ++v) {
                        tile[r][v] -= sums[r][v];
                        for (int s = 0; s < r; ++s) tile[r][v] -= upper[s][r] * tile[s][v];
                        tile[r][v] *= inverse[i + r];
                        store(to + (i + r) * step + j + v * W, tile[r][v]);
                    }
                }
            });
        }
    }

    // The factor as bytes, and back from them.
    std::vector<char> saved() const {
        std::vector<char> bytes(std::size_t(rows * (columns + 1) + 1) * sizeof(T));
        T *to = reinterpret_cast<T *>(bytes.data());
        for (int64_t i = 0; i < rows; ++i) to = std::copy_n(matrix.data() + i * stride, columns, to);
        to = std::copy_n(inverse.data(), rows, to);
        *to = row_sum;
        return bytes;
    }
    void restore(const std::vector<char> &bytes) {
        const T *from = reinterpret_cast<const T *>(bytes.data());
        for (int64_t i = 0; i < rows; ++i, from += columns) std::copy_n(from, columns, matrix.data() + i * stride);
        std::copy_n(from, rows, inverse.data());
        row_sum = from[rows];
    }

    template <int N> INLINE void put(T *out, const Vec<T> (&tile)[ROWS][N]) const {
        for (int r = 0; r < ROWS; ++r)
            for (int v = 0; v < N; ++v) store(out + r * stride + v * W, tile[r][v]);
    }

  private:
    // Divided before they are subtracted: to the last bit what points embedded by the caller would give.
    template <bool SCALED> void gather_as(const T *centers, const int64_t *members, const T *query) {
        const T *from[W];
        for (int64_t j = 0; j < columns; j += W) {
            for (int64_t k = 0; k < W; ++k) from[k] = j + k < neighbors ? centers + members[j + k] * features : query;
            Vec<T> sums{};
            int64_t e = 0;
            for (; e + W <= features; e += W) {
                const auto point = [&](const T *row) { return SCALED ? load(row + e) / load(scales.data() + e) : load(row + e); };
                const Vec<T> origin = point(query);
                Vec<T> block[W];
                for (int64_t k = 0; k < W; ++k) block[k] = point(from[k]) - origin;
                transpose<T>(block);
                Vec<T> part{};  // a sum of sums rounds less than one long sum
                for (int64_t k = 0; k < W; ++k) {
                    store(offsets.data() + (e + k) * offset_stride + j, block[k]);
                    part += block[k] * block[k];
                }
                sums += part;
            }
            for (; e < features; ++e) {
                const auto point = [&](const T *row) { return SCALED ? row[e] / scales[e] : row[e]; };
                Vec<T> row;
                for (int64_t k = 0; k < W; ++k) row[k] = point(from[k]) - point(query);
                store(offsets.data() + e * offset_stride + j, row);
                sums += row * row;
            }
            store(cross_squares.data() + j, sums);
        }
    }

    // The sums of rows of the kernel matrix: along the row from its first tile on, and down the columns of the rows above.
    template <int N> INLINE void add_up(int64_t i, int64_t j, const Vec<T> (&tile)[ROWS][N], Vec<T> (&along)[ROWS]) const {
        for (int v = 0; v < N; ++v) {
            const int64_t column = j + v * W;
            const Vec<T> counts = load(inside.data() + column);
            Vec<T> down{};
            for (int r = 0; r < ROWS; ++r) along[r] += tile[r][v] * counts, down += tile[r][v];
            if (column >= i + ROWS) store(sums.data() + column, load(sums.data() + column) + down);
        }
    }

    template <int N> INLINE void subtract_rows_above(int64_t i, int64_t j, Vec<T> (&tile)[ROWS][N]) const {
        for (int64_t k = 0; k < i; k += ROW_BLOCK) {
            Vec<T> sums[ROWS][N] = {};
            const T *above = matrix.data() + k * stride;
            product<T, N>(above + i, 1, stride, above + j, stride, std::min(ROW_BLOCK, i - k), sums);
            for (int r = 0; r < ROWS; ++r)
                for (int v = 0; v < N; ++v) tile[r][v] -= sums[r][v];
        }
    }

    template <int N>
    INLINE void substitute_block(int64_t i, int64_t j, const T (&upper)[ROWS][ROWS], Vec<T> (&tile)[ROWS][N]) const {
        for (int r = 0; r < ROWS; ++r)
            for (int v = 0; v < N; ++v) {
                for (int s = 0; s < r; ++s) tile[r][v] -= upper[s][r] * tile[s][v];
                tile[r][v] *= inverse[i + r];
            }
        put(matrix.data() + i * stride + j, tile);
    }

    // Not inlined: rare, and it would cost the loop around it its registers.
    __attribute__((noinline)) void by_difference(int64_t i, int64_t j, Vec<T> &squared) const {
        squared = Vec<T>{};
        for (int64_t e = 0; e < features; ++e) {
            const T *row = (exact ? exact : offsets.data()) + e * offset_stride;
            const Vec<T> difference = load(row + j) - row[i];
            squared += difference * difference;
        }
    }

    // Cholesky of the block at (i, i), into `upper` and `inverse`. Rows past the last member become zero.
    bool factor_diagonal(int64_t i, T (&upper)[ROWS][ROWS]) {
        T block[ROWS][ROWS];
        for (int r = 0; r < ROWS; ++r) std::copy_n(matrix.data() + (i + r) * stride + i, ROWS, block[r]);
        for (int r = 0; r < ROWS; ++r) {
            inverse[i + r] = 0;
            if (i + r >= neighbors) continue;
            const T pivot = block[r][r];
            if (!(pivot > 0) || pivot == std::numeric_limits<T>::infinity()) return false;
            inverse[i + r] = 1 / std::sqrt(pivot);
            for (int s = r + 1; s < ROWS; ++s) upper[r][s] = block[r][s] * inverse[i + r];
            for (int s = r + 1; s < ROWS; ++s)
                for (int t = s; t < ROWS; ++t) block[s][t] -= upper[r][s] * upper[r][t];
        }
        return true;
    }
};

}  // namespace
