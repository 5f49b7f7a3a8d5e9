// The kernels: profiles of squared distances and their slopes over the distance. Formulas as in kernels.py.

#pragma once

#include "lanes.h"

namespace {

enum Profile {
    EXPONENTIAL, MATERN32, MATERN52, GAUSSIAN, RATIONAL_QUADRATIC, INVERSE_MULTIQUADRIC, WENDLAND, INVERSE_QUADRATIC,
    THIN_PLATE_SPLINE, LINEAR, CUBIC, QUINTIC, MULTIQUADRIC  // conditionally positive definite
};

// phi(sqrt(s)), or phi'(d) / d with SLOPE, of `count` vectors in place.
template <class T, bool SLOPE> struct Radial {
    using V = Vec<T>;
    int kind;
    T first, second;  // alpha; or exponent and smoothness

    Radial(int64_t kind, const double *shape) : kind(int(kind)), first(T(shape[0])), second(T(shape[1])) {}

    bool conditional() const { return kind >= THIN_PLATE_SPLINE; }
    T at_zero() const { return kind == MULTIQUADRIC ? T(-1) : T(kind < THIN_PLATE_SPLINE); }

    // How large the kernel is among points this far apart.
    T unit(T radius) const {
        T size = 1;
        switch (kind) {
        case THIN_PLATE_SPLINE: size = radius * radius; break;
        case LINEAR: size = radius; break;
        case CUBIC: size = radius * radius * radius; break;
        case QUINTIC: size = radius * radius * radius * radius * radius; break;
        case MULTIQUADRIC: size = std::sqrt(1 + radius * radius); break;
        default: break;
        }
        return size > 0 ? size : T(1);
    }

    void operator()(V *v, int count) const {
        visit([=](auto f) {
            for (int i = 0; i < count; ++i) v[i] = f(v[i]);
        });
    }

    // Calls g(f), f the function of one vector: a loop inside of g does not ask for the kernel again.
    template <class G> void visit(G g) const {
        switch (kind) {
        case EXPONENTIAL:
            return g([](V s) {
                const V d = root<T>(s), e = exponential<T>(-d);
                return SLOPE ? (s > 0 ? -e / d : V{}) : e;
            });
        case MATERN32:
            return g([](V s) {
                const V d = T(1.7320508075688772) * root<T>(s), e = exponential<T>(-d);
                return SLOPE ? -3 * e : (1 + d) * e;
            });
        case MATERN52:
            return g([](V s) {
                const V d = T(2.2360679774997897) * root<T>(s), e = exponential<T>(-d);
                return SLOPE ? T(-5.0 / 3) * (1 + d) * e : (1 + d + d * d * T(1.0 / 3)) * e;
            });
        case GAUSSIAN:
            return g([](V s) { return T(SLOPE ? -1 : 1) * exponential<T>(T(-0.5) * s); });
        case RATIONAL_QUADRATIC:
            return g([alpha = first](V s) {
                const T exponent = SLOPE ? -alpha - 1 : -alpha;
                return T(SLOPE ? -1 : 1) * exponential<T>(exponent * log_one_plus<T>(s / (2 * alpha)));
            });
        case INVERSE_MULTIQUADRIC:
            return g([](V s) {
                const V inverse = 1 / root<T>(1 + s);
                return SLOPE ? -inverse * inverse * inverse : inverse;
            });
        case INVERSE_QUADRATIC:
            return g([](V s) {
                const V inverse = 1 / (1 + s);
                return SLOPE ? -2 * inverse * inverse : inverse;
            });
        case THIN_PLATE_SPLINE:
            return g([](V s) {
                const V log = logarithm<T>(s > 0 ? s : V{} + 1);
                return SLOPE ? (s > 0 ? 1 + log : V{}) : T(0.5) * s * log;
            });
        case LINEAR:
            return g([](V s) {
                const V d = root<T>(s);
                return SLOPE ? (s > 0 ? -1 / d : V{}) : -d;
            });
        case CUBIC:
            return g([](V s) {
                const V d = root<T>(s);
                return SLOPE ? 3 * d : s * d;
            });
        case QUINTIC:
            return g([](V s) {
                const V d = root<T>(s);
                return SLOPE ? -5 * s * d : -s * s * d;
            });
        case MULTIQUADRIC:
            return g([](V s) {
                const V d = root<T>(1 + s);
                return SLOPE ? -1 / d : -d;
            });
        default:
            return g([this](V s) { return wendland(s); });
        }
    }

  private:
    V wendland(V s) const {
        const int smoothness = int(second);
        const T n = first;
        const V d = root<T>(s), left = d < 1 ? 1 - d : V{};
        const V support = power<T>(left, int(first) + smoothness - (SLOPE ? 1 : 0));
        if (SLOPE) {
            if (smoothness == 0) return (s > 0) & (d < 1) ? -n * support / d : V{};  // power(0, 0) is one
            if (smoothness == 1) return -(n + 1) * (n + 2) * support;
            if (smoothness == 2) return -(n + 3) * (n + 4) / 3 * support * ((n + 1) * d + 1);
            return -(n + 5) * (n + 6) / 15 * support * (((n * n + 4 * n + 3) * d + (3 * n + 6)) * d + 3);
        }
        if (smoothness == 0) return support;
        if (smoothness == 1) return support * ((n + 1) * d + 1);
        if (smoothness == 2) return support * (((n * n + 4 * n + 3) * d + (3 * n + 6)) * d + 3) / 3;
        const T cubic = n * n * n + 9 * n * n + 23 * n + 15, square = 6 * n * n + 36 * n + 45, linear = 15 * n + 45;
        return support * (((cubic * d + square) * d + linear) * d + 15) / 15;
    }
};

}  // namespace
