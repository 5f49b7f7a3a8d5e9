// Which numbers can be trusted: the rules of trust.py.

#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "task.h"

namespace {

constexpr int64_t PROBES = 2;  // as in trust.py
constexpr uint64_t MIXER = 0x9E3779B97F4A7C15u;
enum Limit { MEAN, POWER, WEIGHTS, SYSTEM, DOUBT };

// Random numbers of variance one, the same in every call and in trust.py.
inline double probe_at(int64_t row, int64_t probe) {
    const uint64_t n = uint64_t(row * PROBES + probe + 1) * MIXER;
    return (double(((n ^ (n >> 29)) * MIXER) >> 40) / (1 << 23) - 1) * 1.7320508075688772;
}

struct Evidence {
    double size, norm, spread, ridge;   // root of the largest row sum; |w|; |w| / max |w|; the smallest ridge
    double ratio, inverse;              // |alpha| / max |y| of the worst output; |A^-1|
};

template <class T> struct Judge {
    static constexpr double ROUNDOFF = std::numeric_limits<T>::epsilon() / 2, WIDE = std::numeric_limits<double>::epsilon() / 2;
    const double *limits;

    bool wants(Limit limit) const { return limits[limit] < std::numeric_limits<double>::infinity(); }
    bool wants_inverse() const { return wants(WEIGHTS) || wants(SYSTEM) || wants(DOUBT); }

    bool trusts(const Evidence &e, int64_t rows, double system_limit) const {
        const double error = ROUNDOFF * e.size * e.norm;
        if (!std::isfinite(error)) return false;
        if (wants(POWER) && !(error * e.norm <= limits[POWER])) return false;
        if (wants(MEAN) && !(error * e.ratio <= limits[MEAN])) return false;
        if (!wants_inverse()) return true;
        const double worst = std::max(e.norm * std::sqrt(double(rows)), e.spread);
        if (wants(WEIGHTS) && !(ROUNDOFF * e.size * e.spread * e.inverse <= limits[WEIGHTS])) return false;
        if (wants(SYSTEM) && !(ROUNDOFF * e.size * worst * e.inverse <= limits[SYSTEM])) return false;
        if (wants(DOUBT) && !(WIDE * e.size * worst <= system_limit * e.ridge) &&
            !(ROUNDOFF * e.size * e.inverse <= limits[DOUBT]))
            return false;
        return true;
    }
};

}  // namespace
