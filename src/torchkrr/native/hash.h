// Hashes of rows of numbers, from their bits: formula as in nn/contents.py, number for number.

#pragma once

#include <cstdint>
#include <type_traits>

// Shared with native.py, field by field; integers as wide as the numbers.
struct HashTask {
    const void *rows, *weights;  // (N, D), (D)
    void *sums;                  // (2, N)
    int64_t count, features, lowered, threads;
};

namespace {

template <class I> void hash_rows(const HashTask &task, int64_t first, int64_t last) {
    using U = std::make_unsigned_t<I>;  // may overflow
    const I *rows = static_cast<const I *>(task.rows) + first * task.features, *weights = static_cast<const I *>(task.weights);
    U *sums = static_cast<U *>(task.sums);
    for (int64_t i = first; i < last; ++i, rows += task.features) {
        U plain = 0, lowered = 0;
        for (int64_t e = 0; e < task.features; ++e) {
            plain += U(rows[e]) * U(weights[e]);
            lowered += U(rows[e] >> task.lowered) * U(weights[e]);
        }
        sums[i] = plain, sums[task.count + i] = lowered;
    }
}

}  // namespace
