// Linear and constant tails: the system of a cell, projected onto the complement of the polynomials. As tails.py.
//
// With monomials P (M, p) of the members, P = QR, and w0 = Q R'^-1 pi: B = (I - QQ')A(I - QQ') + s QQ' takes the place of A,
// and w = w0 + (I - QQ') B^-1 (I - QQ') (k - A w0). What is not surely determined is left to torch.

#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "cell.h"

namespace {

template <class T> class Tail {
    static constexpr int64_t W = WIDTH<T>;
    static constexpr double NOISE = 16, ROUNDING = 2;      // as in tails.py
    static constexpr double SURE = 1e-2, SURE_FLOAT = 1e-4;  // largest rounding of a tail

    const int64_t M, E, p, columns;
    const double precision;            // relative rounding of the points as they were given
    Buffer<T> basis, image, half;      // [monomial][member]: Q, A Q, and what is taken off A
    Buffer<double> triangle, back;     // R and its inverse, [row][column]
    Buffer<T> scale, middle;           // [feature] of the coordinates
    Buffer<T> sums;                    // [monomial][lane]

    T *row(const Buffer<T> &buffer, int64_t a) const { return buffer.data() + a * columns; }

  public:
    Tail(const Cell<T> &cell, int64_t monomials, double precision)
        : M(cell.neighbors), E(cell.features), p(monomials), columns(cell.columns), precision(precision),
          basis(p * columns), image(p * columns), half(p * columns), triangle(p * p), back(p * p), scale(E), middle(E),
          sums(p * W) {}

    // An orthonormal basis of the monomials of the members; false if they may not determine the polynomial.
    bool prepare(const Cell<T> &cell, const T *centers, const int64_t *members) {
        if (M < p) return false;
        double noise = 0;
        for (int64_t e = 0; e < E; ++e) {
            const T *offsets = cell.offsets.data() + e * cell.offset_stride;
            double sum = 0, most = 0, largest = 0;
            for (int64_t j = 0; j < M; ++j) sum += offsets[j];
            middle[e] = T(sum / double(M));
            for (int64_t j = 0; j < M; ++j) {
                most = std::max(most, std::abs(double(offsets[j] - middle[e])));
                largest = std::max(largest, std::abs(double(centers[members[j] * E + e] / cell.scales[e])));
            }
            const double rounding = std::max(precision, double(std::numeric_limits<T>::epsilon())) * largest;
            if (p > 1 && !(most > NOISE * rounding)) return false;
            scale[e] = T(most);
            if (p > 1) noise = std::max(noise, ROUNDING * rounding / most);
        }
        for (int64_t j = 0; j < columns; ++j) basis[j] = j < M ? T(1) : T(0);
        for (int64_t a = 1; a < p; ++a)
            for (int64_t j = 0; j < columns; ++j)
                basis[a * columns + j] = j < M ? (cell.offsets[(a - 1) * cell.offset_stride + j] - middle[a - 1]) / scale[a - 1] : T(0);
        std::fill_n(triangle.data(), p * p, 0.0);
        double size = 0;
        for (int64_t a = 0; a < p; ++a) {
            for (int twice = 0; twice < 2; ++twice)
                for (int64_t b = 0; b < a; ++b) {
                    const T along = dot(row(basis, b), row(basis, a));
                    triangle[b * p + a] += along;
                    add(row(basis, b), -along, row(basis, a));
                }
            const double length = std::sqrt(double(dot(row(basis, a), row(basis, a))));
            if (!(length > 0)) return false;
            triangle[a * p + a] = length;
            for (int64_t j = 0; j < M; ++j) basis[a * columns + j] = T(basis[a * columns + j] / length);
        }
        double inverse = 0;
        for (int64_t a = 0; a < p; ++a)
            for (int64_t b = a; b >= 0; --b) {
                double x = a == b;
                for (int64_t c = b + 1; c <= a; ++c) x -= triangle[b * p + c] * back[c * p + a];
                back[b * p + a] = x / triangle[b * p + b];
                size += triangle[b * p + a] * triangle[b * p + a], inverse += back[b * p + a] * back[b * p + a];
            }
        const double condition = std::sqrt(size * inverse), epsilon = std::numeric_limits<T>::epsilon();
        if (sizeof(T) < sizeof(double) && !(condition * epsilon < SURE_FLOAT)) return false;
        return condition * (double(std::max(M, p)) * std::numeric_limits<double>::epsilon() + noise) < SURE;
    }

    // The upper half of A becomes that of B.
    void project(const Cell<T> &cell, T unit) {
        std::fill_n(image.data(), p * columns, T(0));
        const Vec<T> number = counted<T>(std::make_index_sequence<W>());
        for (int64_t i = 0; i < M; ++i) {
            const T *from = cell.matrix.data() + i * cell.stride, diagonal = from[i];
            for (int64_t a = 0; a < p; ++a) {
                const T own = basis[a * columns + i];
                Vec<T> along{};
                for (int64_t j = i / W * W; j < columns; j += W) {
                    const Vec<T> x = number > T(i - j) ? load(from + j) : Vec<T>{};
                    along += x * load(row(basis, a) + j);
                    store(row(image, a) + j, load(row(image, a) + j) + own * x);
                }
                image[a * columns + i] += total<T>(along) + diagonal * own;
            }
        }
        // A - HQ' - QH' + s QQ' with H = AQ - Q(Q'AQ)/2, as A - GQ' - QG' with G = H - sQ/2.
        std::copy_n(image.data(), p * columns, half.data());
        for (int64_t a = 0; a < p; ++a) {
            for (int64_t b = 0; b < p; ++b) add(row(basis, b), -dot(row(basis, b), row(image, a)) / 2, row(half, a));
            add(row(basis, a), -unit / 2, row(half, a));
        }
        for (int64_t i = 0; i < M; ++i) {
            T *to = cell.matrix.data() + i * cell.stride;
            for (int64_t j = i / W * W; j < columns; j += W) {
                Vec<T> x = load(to + j);
                for (int64_t a = 0; a < p; ++a)
                    x -= half[a * columns + i] * load(row(basis, a) + j) + basis[a * columns + i] * load(row(half, a) + j);
                // Left of the diagonal the matrix belongs to nobody, but for the row above's tile.
                store(to + j, x);
            }
        }
    }

    // Monomials at a point, given relative to the origin of the offsets.
    void monomials(const Cell<T> &cell, const T *point, double *at) const {
        at[0] = 1;
        for (int64_t a = 1; a < p; ++a) at[a] = (double(point[a - 1]) - cell.shift[a - 1] - middle[a - 1]) / scale[a - 1];
    }

    // R'^-1 pi: w0 = Q times this.
    void constrain(const double *at, double *start) const {
        for (int64_t a = 0; a < p; ++a) {
            start[a] = 0;
            for (int64_t b = 0; b <= a; ++b) start[a] += back[b * p + a] * at[b];
        }
    }

    T start_of(int64_t i, const double *start) const {
        double x = 0;
        for (int64_t a = 0; a < p; ++a) x += double(basis[a * columns + i]) * start[a];
        return T(x);
    }

    // Row i of A w0.
    T image_of(int64_t i, const double *start) const {
        double x = 0;
        for (int64_t a = 0; a < p; ++a) x += double(image[a * columns + i]) * start[a];
        return T(x);
    }

    // Columns of rows that are `step` apart, onto the complement of the polynomials.
    void complement(T *rows, int64_t step, int64_t sides) {
        for (int64_t c = 0; c < sides; c += W) {
            std::fill_n(sums.data(), p * W, T(0));
            for (int64_t i = 0; i < M; ++i)
                for (int64_t a = 0; a < p; ++a)
                    store(sums.data() + a * W, load(sums.data() + a * W) + basis[a * columns + i] * load(rows + i * step + c));
            for (int64_t i = 0; i < M; ++i) {
                Vec<T> x = load(rows + i * step + c);
                for (int64_t a = 0; a < p; ++a) x -= basis[a * columns + i] * load(sums.data() + a * W);
                store(rows + i * step + c, x);
            }
        }
    }

    // R^-1 Q'(b - A x): the polynomial beside a solution x for the right-hand side b, their entries `b_step`, `x_step` apart.
    void polynomial(const T *b, int64_t b_step, const T *x, int64_t x_step, double *found) const {
        double along[MOST];
        for (int64_t a = 0; a < p; ++a) {
            along[a] = 0;
            for (int64_t i = 0; i < M; ++i)
                along[a] += double(basis[a * columns + i]) * b[i * b_step] - double(image[a * columns + i]) * x[i * x_step];
        }
        for (int64_t a = 0; a < p; ++a) {
            found[a] = 0;
            for (int64_t b = a; b < p; ++b) found[a] += back[a * p + b] * along[b];
        }
    }

    // What a multiplier or coefficient of monomial a is for offsets that are not scaled.
    double unscaled(int64_t a, double x) const { return a ? x / scale[a - 1] : x; }

    static constexpr int64_t MOST = 17;  // monomials: a constant and 16 features, as in compiled.py

  private:
    T dot(const T *a, const T *b) const {
        Vec<T> sum{};
        for (int64_t j = 0; j < columns; j += W) sum += load(a + j) * load(b + j);
        return total<T>(sum);
    }
    void add(const T *from, T factor, T *to) const {
        for (int64_t j = 0; j < columns; j += W) store(to + j, load(to + j) + factor * load(from + j));
    }
};

}  // namespace
