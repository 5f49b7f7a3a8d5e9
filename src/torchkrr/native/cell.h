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
constexpr int64_t MIRRORED = 16;                   // columns of a matrix that are mirrored at a time
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
    Buffer<T> cross_squares, squares, shift;  // [member] to the query; [member] lengths of offsets; [feature] sum, then mean taken off
    Buffer<T> matrix, solution;      // [row][columns | right-hand sides]; [row][right-hand sides]
    Buffer<T> inverse;               // [row] of the diagonal of the factor
    Buffer<T> sums;                  // [column] of the kernel matrix, of the rows above the diagonal
    T row_sum = 0;                   // the largest of the kernel matrix, or of its absolute values if some are negative
    T largest = 0;                   // entry of the kernel matrix, if some are negative
    const T *points = nullptr;       // where the members are, if there are no offsets but borrowed inner products; or null
    const int64_t *borrowed = nullptr;  // the members then
    const T *exact = nullptr;        // [feature][member], not shifted: all distances by their difference, without rounding

    // Points are divided by exp of `log_scales`, one for all features if `scale_step` is zero; null: they are as embedded.
    Cell(int64_t neighbors, int64_t features, int64_t sides, const double *log_scales = nullptr, int64_t scale_step = 0)
        : neighbors(neighbors), features(features), rows(round_up(neighbors, ROWS)),
          columns(round_up(neighbors, std::max<int64_t>(W, ROWS))), width(round_up(sides, W)),
          stride(row_stride<T>(columns + width)), offset_stride(row_stride<T>(columns)), scaled(log_scales),
          scales(features), factors(features), offsets(round_up(features, ROWS) * offset_stride), cross_squares(columns),
          squares(columns), shift(round_up(features, W)), matrix(rows * stride), solution(rows * width), inverse(rows), sums(columns + rows) {
        for (int64_t e = 0; e < features; ++e) {
            scales[e] = !scaled ? T(1) : e && !scale_step ? scales[0] : T(std::exp(log_scales[e * scale_step]));
            factors[e] = 1 / scales[e];
        }
    }

    // The upper half of a symmetric matrix becomes the whole, with a zero diagonal; `totals` receives the sums of its rows.
    void mirror(T *totals) {
        for (int64_t start = 0; start < neighbors; start += MIRRORED)  // of few columns at a time, whose lines stay in cache
            for (int64_t j = start; j < neighbors; ++j) {
                const int64_t end = std::min(start + MIRRORED, j);
                for (int64_t i = start; i < end; ++i) matrix[j * stride + i] = matrix[i * stride + j];
                if (j < start + MIRRORED) matrix[j * stride + j] = 0;
            }
        std::fill_n(totals, columns, T(0));
        for (int64_t i = 0; i < neighbors; ++i)
            for (int64_t j = 0; j < columns; j += W) store(totals + j, load(totals + j) + load(matrix.data() + i * stride + j));
    }

    T *side(int64_t row) const { return matrix.data() + row * stride + columns; }

    void gather(const T *centers, const int64_t *members, const T *query) {
        points = nullptr;
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
        Vec<T> squared{};
        T spread = 0;
        for (int64_t e = 0; e < features; e += W) {
            const Vec<T> mean = load(shift.data() + e) / T(neighbors);
            store(shift.data() + e, mean);
            squared += mean * mean;
        }
        for (int64_t j = 0; j < neighbors; ++j) spread += cross_squares[j];
        if (!(total<T>(squared) > T(OUTSIDE) * spread / T(neighbors))) {
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

    // Takes the place of gather, center and gram: inner products about the mean of all points, from a cell that has all of
    // them. Not if that mean is a bad origin; then gather.
    //
    // About an origin o, the square of a distance is rounded by some u (|x_i - o|^2 + |x_j - o|^2), u the unit roundoff, and
    // pairs closer than CLOSE of that sum are computed by difference: what is left of relative error is some u / CLOSE at
    // most, whatever the origin. On average it is larger than it could be by the mean square of the offsets over their
    // variance, which `center` bounds by 1 / (1 - OUTSIDE) = 3 for the query as origin. The same bound is asked of the mean
    // of all points: a small neighborhood far from it has offsets that are all alike, and forms its own inner products.
    bool borrow(const Cell &all, const T *centers, const int64_t *members, const T *query) {
        T spread = 0, between = 0;
        for (int64_t j = 0; j < neighbors; ++j) spread += squares[j] = all.squares[members[j]];
        for (int64_t i = 0; i < neighbors; ++i) {
            const T *from = all.matrix.data() + members[i] * all.stride;
            T *to = matrix.data() + i * stride;
            Vec<T> sum{};
            for (int64_t j = first_column(i / ROWS * ROWS); j < neighbors; j += W) {
                Vec<T> found{};
                for (int64_t k = 0; k < std::min(W, neighbors - j); ++k) found[k] = from[members[j + k]];
                store(to + j, found);
                sum += j > i ? found : counted<T>(std::make_index_sequence<W>()) > T(i - j) ? found : Vec<T>{};
            }
            between += total<T>(sum);
        }
        if (!(spread + 2 * between <= T(OUTSIDE) * spread * T(neighbors))) return false;
        for (int64_t i = neighbors; i < rows; ++i)
            for (int64_t j = first_column(i / ROWS * ROWS); j < rows; j += W) store(matrix.data() + i * stride + j, Vec<T>{});
        for (int64_t j = 0; j < neighbors; ++j) cross_squares[j] = distance(centers + members[j] * features, query);
        std::fill(squares.data() + neighbors, squares.data() + columns, T(0));
        std::fill(cross_squares.data() + neighbors, cross_squares.data() + columns, T(0));
        points = centers, borrowed = members;
        return true;
    }

    // Inner products of the offsets, upper half of some rows; zero on the diagonal, so that no member counts as close to itself.
    void gram(int64_t first, int64_t last) {
        if (exact) return;
        for (int64_t e = 0; e < features; e += FEATURE_BLOCK) {
            const int64_t count = std::min(FEATURE_BLOCK, features - e);
            const T *block = offsets.data() + e * offset_stride;
            for (int64_t i = first; i < last; i += ROWS)
                upper_tiles(i, [&](auto n, int64_t j) {
                    Vec<T> sums[ROWS][n()] = {};
                    T *out = matrix.data() + i * stride + j;
                    product<T, n()>(block + i, 1, offset_stride, block + j, offset_stride, count, sums);
                    // Sums of blocks, not one long sum: that is more exact too.
                    for (int r = 0; e && r < ROWS; ++r)
                        for (int v = 0; v < n(); ++v) sums[r][v] += load(out + r * stride + v * W);
                    put(out, sums);
                });
        }
        for (int64_t i = first; i < last; ++i) matrix[i * stride + i] = 0;
    }

    // The tile of inner products at (i, j) as squared distances; those that would be mostly rounding by difference.
    template <int N> INLINE void pair_squares(int64_t i, int64_t j, Vec<T> (&tile)[ROWS][N]) const {
        const T *in = matrix.data() + i * stride + j;
        Vec<T> margin{};  // the least
        for (int r = 0; r < ROWS; ++r)
            for (int v = 0; v < N; ++v) {
                const Vec<T> sums = load(squares.data() + j + v * W) + squares[i + r];
                tile[r][v] = sums - 2 * load(in + r * stride + v * W);
                const Vec<T> rest = tile[r][v] - T(CLOSE) * sums;
                margin = rest < margin ? rest : margin;
            }
        if (!exact && __builtin_expect(mask_bits(margin < 0) == 0, 1)) return;
        for (int r = 0; r < ROWS; ++r)
            for (int v = 0; v < N; ++v) {
                const Vec<T> sums = load(squares.data() + j + v * W) + squares[i + r];
                if (exact || mask_bits(tile[r][v] < T(CLOSE) * sums)) tile[r][v] = by_difference(i + r, j + v * W);
            }
    }

    // Inner products become the kernel matrix with the ridge on its diagonal, upper half.
    void form(const Radial<T, false> &profile, const T *ridge, int64_t ridge_step) {
        row_sum = largest = 0;
        std::fill_n(sums.data(), columns, T(0));
        const bool has_signs = profile.conditional();
        Vec<T> most{};
        profile.visit([&](auto phi) {
            for (int64_t i = 0; i < rows; i += ROWS) {
                Vec<T> along[ROWS];
                for (int r = 0; r < ROWS; ++r) along[r] = Vec<T>{};
                for (int64_t j = first_column(i); j < rows; j += W) {
                    Vec<T> tile[ROWS][1];
                    pair_squares<1>(i, j, tile);
                    for (int r = 0; r < ROWS; ++r) tile[r][0] = phi(tile[r][0]);
                    if (has_signs) {
                        pad(i, j, tile);
                        Vec<T> sizes[ROWS][1];
                        for (int r = 0; r < ROWS; ++r) {
                            sizes[r][0] = tile[r][0] > 0 ? tile[r][0] : -tile[r][0];
                            most = sizes[r][0] > most ? sizes[r][0] : most;
                        }
                        add_up(i, j, sizes, along);
                    } else {
                        add_up(i, j, tile, along);
                    }
                    put(matrix.data() + i * stride + j, tile);
                }
                T totals[ROWS];
                total_each<T>(along, totals);
                for (int r = 0; r < ROWS; ++r) {
                    const bool member = i + r < neighbors;
                    matrix[(i + r) * stride + i + r] = member ? profile.at_zero() + ridge[(i + r) * ridge_step] : T(1);
                    if (member) row_sum = std::max(row_sum, totals[r] + sums[i + r]);
                }
            }
        });
        for (int64_t k = 0; k < W; ++k) largest = std::max(largest, T(most[k]));
    }

    // A = U'U, row by row; the first `sides` right-hand sides become U'^-1 of them. False if A is not positive definite.
    bool factor(int64_t sides) {
        for (int64_t i = 0; i < rows; i += ROWS) {
            T upper[ROWS][ROWS];
            const auto subtract = [&](auto n, int64_t j) { subtract_rows_above<n()>(i, j); };
            const auto substitute = [&](auto n, int64_t j) { substitute_block<n()>(i, j, upper); };
            const int64_t begin = first_column(i), end = begin + round_up(rows - begin, W), first = round_up(ROWS, W);
            // The block on the diagonal first: one step waits for another there, and what comes next does not wait for it.
            tiles<T>(begin, begin + first, subtract);
            if (!factor_diagonal(i, upper)) return false;
            tiles<T>(begin + first, end, subtract);
            tiles<T>(columns, columns + round_up(sides, W), subtract);
            upper_tiles(i, substitute);
            tiles<T>(columns, columns + round_up(sides, W), substitute);
        }
        return true;
    }

    // The first `sides` right-hand sides become U'^-1 of them.
    void substitute(int64_t sides) {
        for (int64_t i = 0; i < rows; i += ROWS) {
            T upper[ROWS][ROWS];
            for (int r = 0; r < ROWS; ++r) std::copy_n(matrix.data() + (i + r) * stride + i, ROWS, upper[r]);
            tiles<T>(columns, columns + round_up(sides, W), [&](auto n, int64_t j) {
                subtract_rows_above<n()>(i, j);
                substitute_block<n()>(i, j, upper);
            });
        }
    }

    // solution = U^-1 of the first `sides` right-hand sides, which have been substituted.
    void back_substitute(int64_t sides) {
        tiles<T>(0, round_up(sides, W), [&](auto n, int64_t c) {
            for (int64_t i = rows - ROWS; i >= 0; i -= ROWS) {
                // From the last row up: those that have just been solved for are needed last.
                Vec<T> sums[ROWS][n()] = {};
                product<T, n()>(matrix.data() + i * stride + rows - 1, stride, -1, solution.data() + (rows - 1) * width + c, -width,
                                rows - ROWS - i, sums);
                for (int r = ROWS - 1; r >= 0; --r)
                    for (int v = 0; v < n(); ++v) {
                        Vec<T> x = load(side(i + r) + c + v * W) - sums[r][v];
                        for (int s = ROWS - 1; s > r; --s) x -= matrix[(i + r) * stride + i + s] * sums[s][v];
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

    // f for tiles of the upper half of the rows from i on.
    template <class F> INLINE void upper_tiles(int64_t i, F f) const {
        const int64_t begin = first_column(i);
        tiles<T>(begin, begin + round_up(rows - begin, W), f);
    }

  private:
    // Where the vectors of the rows from i on begin: at the diagonal if they fit then, or else at a multiple of W.
    int64_t first_column(int64_t i) const { return i + round_up(rows - i, W) <= columns ? i : i / W * W; }

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
                Vec<T> down = j ? load(shift.data() + e) : Vec<T>{};
                for (int64_t k = 0; k < W; ++k) block[k] = point(from[k]) - origin, down += block[k];
                store(shift.data() + e, down);
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
        for (int64_t e = features / W * W; e < features; ++e) {
            Vec<T> sums{};
            for (int64_t j = 0; j < columns; j += W) sums += load(offsets.data() + e * offset_stride + j);
            shift[e] = total<T>(sums);
        }
    }

    // The sums of rows of the kernel matrix: along the row from the diagonal on, and down the columns of the rows above.
    // Rows and columns past the last member become those of the identity.
    INLINE void add_up(int64_t i, int64_t j, Vec<T> (&tile)[ROWS][1], Vec<T> (&along)[ROWS]) const {
        const Vec<T> number = counted<T>(std::make_index_sequence<W>());
        pad(i, j, tile);
        const Vec<T> past = number + T(j - i);
        Vec<T> down{};
        for (int r = 0; r < ROWS; ++r) along[r] += past >= 0 ? tile[r][0] : Vec<T>{}, down += tile[r][0];
        store(sums.data() + j, load(sums.data() + j) + (past >= T(ROWS) ? down : Vec<T>{}));
    }

    INLINE void pad(int64_t i, int64_t j, Vec<T> (&tile)[ROWS][1]) const {
        const Vec<T> number = counted<T>(std::make_index_sequence<W>());
        if (j + W > neighbors || i + ROWS > neighbors)
            for (int r = 0; r < ROWS; ++r) tile[r][0] = (number < T(neighbors - j)) & (i + r < neighbors) ? tile[r][0] : Vec<T>{};
    }

    template <int N> INLINE void subtract_rows_above(int64_t i, int64_t j) const {
        T *out = matrix.data() + i * stride + j;
        for (int64_t k = 0; k < i; k += ROW_BLOCK) {
            Vec<T> sums[ROWS][N] = {};
            const T *above = matrix.data() + k * stride;
            product<T, N>(above + i, 1, stride, above + j, stride, std::min(ROW_BLOCK, i - k), sums);
            for (int r = 0; r < ROWS; ++r)
                for (int v = 0; v < N; ++v) sums[r][v] = load(out + r * stride + v * W) - sums[r][v];
            put(out, sums);
        }
    }

    template <int N> INLINE void substitute_block(int64_t i, int64_t j, const T (&upper)[ROWS][ROWS]) const {
        T *out = matrix.data() + i * stride + j;
        Vec<T> tile[ROWS][N];
        for (int r = 0; r < ROWS; ++r)
            for (int v = 0; v < N; ++v) {
                tile[r][v] = load(out + r * stride + v * W);
                for (int s = 0; s < r; ++s) tile[r][v] -= upper[s][r] * tile[s][v];
                tile[r][v] *= inverse[i + r];
            }
        put(out, tile);
    }

    // Not inlined: rare, and it would cost the loop around it its registers.
    __attribute__((noinline)) Vec<T> by_difference(int64_t i, int64_t j) const {
        Vec<T> squared{};
        for (int64_t k = 0; points && k < W && j + k < neighbors && i < neighbors; ++k)
            squared[k] = distance(points + borrowed[i] * features, points + borrowed[j + k] * features);
        for (int64_t e = 0; !points && e < features; ++e) {
            const T *row = (exact ? exact : offsets.data()) + e * offset_stride;
            const Vec<T> difference = load(row + j) - row[i];
            squared += difference * difference;
        }
        return squared;
    }

    // Cholesky of the block at (i, i), into `upper` and `inverse`.
    // One division waits for another; the roots come last, all at a time.
    INLINE bool factor_diagonal(int64_t i, T (&upper)[ROWS][ROWS]) {
        typedef T Row __attribute__((vector_size(ROWS * sizeof(T))));
        Row block[ROWS], pivots{};
        for (int r = 0; r < ROWS; ++r) __builtin_memcpy(&block[r], matrix.data() + (i + r) * stride + i, sizeof(Row));
        for (int r = 0; r < ROWS; ++r) {
            const Row scaled = block[r] / block[r][r];
            for (int s = r + 1; s < ROWS; ++s) block[s] -= scaled[s] * block[r];
            pivots[r] = block[r][r];
        }
        bool sound = true;
        for (int r = 0; r < ROWS; ++r) sound &= pivots[r] > 0 && pivots[r] < std::numeric_limits<T>::infinity();
        for (int r = 0; r < ROWS; ++r) pivots[r] = 1 / std::sqrt(pivots[r]);
        __builtin_memcpy(inverse.data() + i, &pivots, sizeof(Row));
        for (int r = 0; r < ROWS; ++r) {
            block[r] *= pivots[r];
            __builtin_memcpy(upper[r], &block[r], sizeof(Row));
        }
        return sound;
    }
};

}  // namespace
