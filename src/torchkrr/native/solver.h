// Predictions, power functions, weights and paths of the cells of a task.

#pragma once

#include <cstring>
#include <utility>
#include <vector>

#include "cache.h"
#include "cell.h"
#include "judge.h"
#include "tail.h"
#include "task.h"

namespace {

constexpr int64_t GROUP = 32;  // queries that share one factorization, at most

constexpr int64_t MIXTURES = 4;  // of outputs that are solved for in place of all, where these are many

template <class T> class Solver {
    static constexpr int64_t W = WIDTH<T>;
    const Task &task;
    const int64_t M, C;
    const bool whole;  // all values are right-hand sides, not only the kernel at the queries
    const Radial<T, false> profile;
    const Judge<T> judge;
    const int64_t probes;    // right-hand sides of random numbers
    const int64_t mixtures;  // of outputs, or as many as there are: right-hand sides where `whole` is not
    const Cell<T> *const all;  // centers with their inner products, or null
    Cell<T> cell;
    Buffer<T> kernel, inner, sums;
    Buffer<T> random, low, high;          // [row][probe]; [side] range of the values
    Buffer<T> mixing, shifts;             // [mixture][output]; [mixture]
    Buffer<T> inverse_rows, ones_rows;    // [row][member]: U'^-1, and its running sums times the whitened ones
    Buffer<T> running, lengths, steps;    // [member]; [quantity][side], of a path [quantity][row]; [row]
    std::vector<std::pair<int64_t, int64_t>> sorted;  // members and their columns, where cells are known by their set
    std::vector<int64_t> in_order;
    Evidence found = {};
    std::unique_ptr<Tail<T>> tail;        // of a task that has one
    Buffer<T> kernels, point;             // [query][member]; [feature] of a query, relative to the origin
    Buffer<double> values_at, start, beside;  // [query][monomial] at the query, and what w0 is made of; [monomial]
    T unit = 1;

    static int64_t mixed(const Task &task, int64_t heads) {
        const int64_t spare = round_up(heads, W) - heads;  // columns that cost nothing
        return task.outputs <= std::max(spare, MIXTURES) ? task.outputs : MIXTURES;
    }
    int64_t heads_for(int64_t queries) const { return queries + (task.trend ? 1 : 0) + probes; }

  public:
    explicit Solver(const Task &task, const Cell<T> *all)
        : task(task), M(task.neighbors), C(task.outputs), whole(task.adjoint || task.path), profile(task.profile, task.shape),
          judge{task.limits}, probes(judge.wants_inverse() ? PROBES : 0),
          mixtures(whole || !judge.wants(MEAN) ? 0 : mixed(task, heads_for(task.starts ? GROUP : 1))),
          all(all), cell(M, task.features, heads_for(task.starts ? GROUP : 1) + (whole ? C : mixtures), task.log_scales, task.scale_step),
          kernel(cell.columns), inner(M), sums(2 * C), random(M * PROBES), low(cell.width), high(cell.width), mixing(mixtures * C), shifts(mixtures),
          inverse_rows(task.path ? cell.rows * cell.columns : 0), ones_rows(task.path && task.trend ? cell.rows * cell.columns : 0),
          running(cell.columns), lengths(task.path ? 5 * M : 3 * cell.width), steps(task.path ? M : 0),
          kernels(task.tail ? GROUP * M : 0), point(task.features), values_at(GROUP * task.tail), start(GROUP * task.tail), beside(task.tail) {
        if (task.tail) tail = std::make_unique<Tail<T>>(cell, task.tail, task.precision);
        for (int64_t i = 0; i < M * PROBES; ++i) random[i] = T(probe_at(i / PROBES, i % PROBES));
    }

    void run(int64_t c) {
        const int64_t first = task.starts ? task.starts[c] : c, last = task.starts ? task.starts[c + 1] : c + 1;
        for (int64_t q = first; q < last; q += GROUP) {
            int64_t queries[GROUP];
            const int64_t count = std::min(GROUP, last - q);
            for (int64_t k = 0; k < count; ++k) queries[k] = task.order ? task.order[q + k] : q + k;
            solve(c, queries, count);
        }
    }

  private:
    void solve(int64_t c, const int64_t *queries, int64_t count) {
        const int64_t *members = task.indices + c * M;
        if (task.cache && !task.starts) members = sort(members);
        const T *centers = at<T>(task.centers, 0);
        // A factor that serves several queries must not be rounded by how far away one of them is.
        const bool shared = task.starts || task.cache;
        const T *origin = shared ? centers + members[0] * task.features : at<T>(task.query, queries[0] * task.features);
        const bool borrowed = all && cell.borrow(*all, centers, members, origin);
        if (!borrowed) cell.gather(centers, members, origin);
        for (int64_t k = 0; k < count; ++k) {
            const T *query = at<T>(task.query, queries[k] * task.features);
            if (shared) {
                for (int64_t i = 0; i < M; ++i)
                    kernel[i] = cell.distance(centers + members[i] * task.features, query);
            } else {
                std::copy_n(cell.cross_squares.data(), cell.columns, kernel.data());
            }
            for (int64_t j = 0; j < cell.columns; j += WIDTH<T>) {
                Vec<T> v = load(kernel.data() + j);
                profile(&v, 1);
                store(kernel.data() + j, v);
            }
            for (int64_t i = 0; i < M; ++i) cell.side(i)[k] = kernel[i];
            if (tail) std::copy_n(kernel.data(), M, kernels.data() + k * M);
        }
        const int64_t heads = heads_for(count), sides = heads + (whole ? C : mixtures);
        if (mixtures && mixtures < C) prepare_mixing(members);
        for (int64_t i = 0; i < M; ++i) {
            T *side = cell.side(i);
            if (task.trend) side[count] = 1;
            for (int64_t p = 0; p < probes; ++p) side[heads - probes + p] = random[i * PROBES + p];
            const T *values = at<T>(task.values, members[i] * C);
            if (whole || mixtures == C) copy_row(values, C, side + heads);
            else if (mixtures) mix(values, side + heads);
        }
        for (int64_t i = M; i < cell.rows; ++i) std::fill_n(cell.side(i), cell.width, T(0));
        if (judge.wants(MEAN) && !task.path) find_ranges(heads, sides);
        const T *ridge = at<T>(task.ridge, c * task.ridge_cell);
        const bool sound = cell.finite(centers, members) && factor(members, ridge, sides, borrowed, queries, count, origin);
        if (sound) {
            if (!task.path) {
                cell.back_substitute(whole && !task.adjoint ? heads : sides);
                if (tail) tail->complement(cell.solution.data(), cell.width, round_up(sides, W));
                gather_evidence(count, heads, sides);
            }
            found.size = std::sqrt(double(cell.row_sum));
            found.ridge = ridge[0];
            for (int64_t i = 1; task.ridge_neighbor && i < M; ++i) found.ridge = std::min(found.ridge, double(ridge[i * task.ridge_neighbor]));
            if (profile.conditional()) {  // as if the kernel were of size one
                found.size = std::sqrt(double(cell.row_sum) / unit * (double(cell.largest) / unit));
                found.ridge /= unit, found.ratio *= unit, found.inverse *= unit;
            }
        }
        for (int64_t k = 0; k < count; ++k) {
            const int64_t q = queries[k], step = task.path ? M : 1;
            if (!sound) std::fill_n(task.resolved + q * step, step, uint8_t(0));
            else if (task.path) follow(q, count, heads);
            else task.resolved[q] = finish(members, q, k, count, heads);
            if (!sound || (!task.path && !task.resolved[q])) clear(q);
        }
    }

    // The range of the right-hand sides that are values, by column.
    void find_ranges(int64_t heads, int64_t sides) {
        for (int64_t c = heads / W * W; c < sides; c += W) {
            Vec<T> least = load(cell.side(0) + c), most = least;
            for (int64_t i = 1; i < M; ++i) {
                const Vec<T> x = load(cell.side(i) + c);
                least = x < least ? x : least, most = x > most ? x : most;
            }
            store(low.data() + c, least), store(high.data() + c, most);
        }
    }

    // Random mixtures of the outputs, each output of size one.
    void prepare_mixing(const int64_t *members) {
        std::vector<T> least(at<T>(task.values, members[0] * C), at<T>(task.values, members[0] * C) + C), most(least);
        for (int64_t i = 1; i < M; ++i) {
            const T *values = at<T>(task.values, members[i] * C);
            for (int64_t c = 0; c < C; ++c) least[c] = std::min(least[c], values[c]), most[c] = std::max(most[c], values[c]);
        }
        for (int64_t m = 0; m < mixtures; ++m) {
            shifts[m] = 0;
            for (int64_t c = 0; c < C; ++c) {
                const double size = size_of(c, least[c], most[c]);
                mixing[m * C + c] = size > 0 ? T(probe_at(c, m) / size) : T(0);
                if (centered()) shifts[m] += mixing[m * C + c] * (least[c] + most[c]) / 2;
            }
        }
    }

    bool centered() const { return task.trend || task.tail; }

    // The size of what output c predicts, as in trust.py.
    double size_of(int64_t c, double low, double high) const {
        double size = std::max(high, -low);
        if (centered()) size = std::max((high - low) / 2, 16 * double(std::numeric_limits<T>::epsilon()) * size);
        return task.value_scale ? std::max(size, double(*at<T>(task.value_scale, c))) : size;
    }

    // The mixtures of the values of a member.
    void mix(const T *values, T *out) const {
        for (int64_t m = 0; m < mixtures; ++m) {
            const T *factors = mixing.data() + m * C;
            out[m] = -shifts[m];
            for (int64_t c = 0; c < C; ++c) out[m] += factors[c] * values[c];
        }
    }

    // What all queries of the cell share: the norm of the inverse, and of the coefficients of the values.
    void gather_evidence(int64_t ones, int64_t heads, int64_t sides) {
        const T *solution = cell.solution.data();
        const int64_t width = cell.width;
        T total = 0;
        for (int64_t i = 0; task.trend && i < M; ++i) total += solution[i * width + ones];
        for (int64_t c = 0; c < round_up(sides, W); c += W) {
            Vec<T> sums{}, whitened{}, solved{}, projected{};
            for (int64_t i = 0; task.trend && i < M; ++i) sums += load(solution + i * width + c);
            for (int64_t i = 0; i < M; ++i) {
                const Vec<T> x = load(solution + i * width + c), z = load(cell.side(i) + c);
                const Vec<T> y = task.trend ? x - sums * (solution[i * width + ones] / total) : x;
                whitened += z * z, solved += x * x, projected += y * y;
            }
            store(lengths.data() + c, whitened), store(lengths.data() + width + c, solved);
            store(lengths.data() + 2 * width + c, projected);
        }
        found.inverse = found.ratio = 0;
        for (int64_t p = heads - probes; p < heads; ++p)  // a tail may leave nothing to solve for
            if (!tail || lengths[width + p] > 0) found.inverse = std::max(found.inverse, double(lengths[width + p]) / double(lengths[p]));
        if (!judge.wants(MEAN)) return;
        double all = 0;
        for (int64_t c = 0; heads + c < sides; ++c) {
            const double length = std::sqrt(double(lengths[2 * width + heads + c]));
            const bool own = whole || mixtures == C;
            const double ratio = length > 0 ? length / (own ? size_of(c, low[heads + c], high[heads + c]) : 1.0) : 0.0;
            found.ratio = std::max(found.ratio, ratio), all += ratio * ratio;
        }
        // Mixtures of many outputs have on average the length of all together.
        if (!whole && mixtures < C) found.ratio = std::sqrt(all / double(mixtures));
    }

    // Whatever their order, the same members have the same factor.
    const int64_t *sort(const int64_t *members) {
        sorted.resize(std::size_t(M)), in_order.resize(std::size_t(M));
        for (int64_t i = 0; i < M; ++i) sorted[i] = {members[i], i};
        std::sort(sorted.begin(), sorted.end());
        for (int64_t i = 0; i < M; ++i) in_order[i] = sorted[i].first;
        return in_order.data();
    }

    // Factors the cell that was gathered, or finds its factor in the cache; applies U'^-1 to the right-hand sides.
    bool factor(const int64_t *members, const T *ridge, int64_t sides, bool borrowed, const int64_t *queries, int64_t count, const T *origin) {
        auto *cache = static_cast<FactorCache *>(task.cache);
        FactorCache::Key key;
        if (cache) {
            key.assign(members, members + M);
            key.push_back(sizeof(T));
            key.push_back(0);
            std::memcpy(&key.back(), ridge, sizeof(T));
            if (const auto kept = cache->get(key)) {
                cell.restore(*kept);
                cell.substitute(sides);
                return true;
            }
        }
        if (!borrowed) {
            cell.center();
            cell.gram(0, cell.rows);
        }
        cell.form(profile, ridge, task.ridge_neighbor);
        if (tail && !border(members, sides, queries, count, origin)) return false;
        const bool sound = cell.factor(sides);
        if (cache && sound) {
            try {
                cache->put(key, std::make_shared<const std::vector<char>>(cell.saved()));
            } catch (const std::bad_alloc &) {
                // Not kept, then.
            }
        }
        return sound;
    }

    // Projects the system and its right-hand sides; false if the polynomial may not be determined.
    bool border(const int64_t *members, int64_t sides, const int64_t *queries, int64_t count, const T *origin) {
        if (!tail->prepare(cell, at<T>(task.centers, 0), members)) return false;
        unit = profile.unit(std::sqrt(*std::max_element(cell.cross_squares.data(), cell.cross_squares.data() + M)));
        tail->project(cell, unit);
        for (int64_t k = 0; k < count; ++k) {
            const T *query = at<T>(task.query, queries[k] * task.features);
            for (int64_t e = 0; e < task.features; ++e) point[e] = query[e] / cell.scales[e] - origin[e] / cell.scales[e];
            tail->monomials(cell, point.data(), values_at.data() + k * task.tail);
            tail->constrain(values_at.data() + k * task.tail, start.data() + k * task.tail);
            for (int64_t i = 0; i < M; ++i) cell.side(i)[k] -= tail->image_of(i, start.data() + k * task.tail);
        }
        tail->complement(cell.side(0), cell.stride, round_up(sides, W));
        return true;
    }

    // What query number k of the cell gets from the factor; false if that cannot be trusted.
    bool finish(const int64_t *members, int64_t q, int64_t k, int64_t ones, int64_t heads) {
        double length = 0, plain = 0, square = 0, with_ones = 0, total = 0;  // long sums, whatever T is
        T gap = 0;
        for (int64_t i = 0; i < M; ++i) {
            const T *white = cell.side(i), *solved = cell.solution.data() + i * cell.width;
            const double l = white[k], u = solved[k], v = task.trend ? white[ones] : T(0);
            square += l * l, plain += u * u, with_ones += l * v, total += v * v;
            inner[i] = solved[k];
        }
        double power = 1 - square;
        if (task.trend) {
            gap = T((1 - with_ones) / total);
            power += (1 - with_ones) * (1 - with_ones) / total;
            for (int64_t i = 0; i < M; ++i) {
                inner[i] += gap * cell.solution[i * cell.width + ones];
                length += double(inner[i]) * inner[i];
            }
        }
        if (tail) {
            const T *own = kernels.data() + k * M;
            for (int64_t i = 0; i < M; ++i) inner[i] += tail->start_of(i, start.data() + k * task.tail);
            tail->polynomial(own, 1, inner.data(), 1, beside.data());
            power = profile.at_zero(), plain = 0;
            for (int64_t i = 0; i < M; ++i) power -= double(own[i]) * inner[i], plain += double(inner[i]) * inner[i];
            for (int64_t a = 0; a < task.tail; ++a) power -= values_at[k * task.tail + a] * beside[a];
        }
        double largest = 0;
        for (int64_t i = 0; i < M; ++i) largest = std::max(largest, std::abs(double(inner[i])));
        const double norm = std::sqrt(std::max(length, plain));
        found.norm = std::max(norm, task.least_norm), found.spread = largest > 0 ? norm / largest : 1.0;
        if (!judge.trusts(found, M, task.system_limit)) return false;
        if (task.power) *at<T>(task.power, q) = T(power);
        if (T *weights = at<T>(task.weights, q * M))
            for (int64_t i = 0; i < M; ++i) weights[sorted.empty() ? i : sorted[i].second] = inner[i];
        if (T *mean = at<T>(task.mean, q * C)) {
            std::fill_n(mean, C, T(0));
            for (int64_t i = 0; i < M; ++i) {
                const T *value = at<T>(task.values, members[i] * C), weight = inner[i];
                for (int64_t c = 0; c < C; ++c) mean[c] += weight * value[c];
            }
        }
        if (task.adjoint || (tail && task.multiples)) keep_adjoint(q, ones, heads, T(total));
        return true;
    }

    // alpha = A^-1 y, projected so that its columns sum to zero if there is a trend.
    void keep_adjoint(int64_t q, int64_t ones, int64_t heads, T total) {
        T *adjoint = at<T>(task.adjoint, q * M * C), *multiples = sums.data();
        std::fill_n(multiples, C, T(0));
        for (int64_t i = 0; task.trend && i < M; ++i)
            for (int64_t c = 0; c < C; ++c) multiples[c] += cell.solution[i * cell.width + heads + c] / total;
        for (int64_t i = 0; i < M; ++i) {
            const T *solved = cell.solution.data() + i * cell.width, direction = task.trend ? solved[ones] : T(0);
            for (int64_t c = 0; c < C; ++c) adjoint[i * C + c] = solved[heads + c] - direction * multiples[c];
        }
        if (tail && task.multiples) keep_polynomial(q, heads);
        else if (task.multiples) std::copy_n(multiples, C, at<T>(task.multiples, q * C));
    }

    // Minus the multipliers of the query, which `finish` has left, and the polynomials of the values, for offsets as they are.
    void keep_polynomial(int64_t q, int64_t heads) {
        T *rows = at<T>(task.multiples, q * task.tail * (C + 1));
        for (int64_t a = 0; a < task.tail; ++a) rows[a * (C + 1)] = T(-tail->unscaled(a, beside[a]));
        for (int64_t c = 0; c < C; ++c) {
            const int64_t *members = task.indices + q * M;
            for (int64_t i = 0; i < M; ++i) kernel[i] = at<T>(task.values, members[i] * C)[c];
            tail->polynomial(kernel.data(), 1, cell.solution.data() + heads + c, cell.width, beside.data());
            for (int64_t a = 0; a < task.tail; ++a) rows[a * (C + 1) + 1 + c] = T(tail->unscaled(a, beside[a]));
        }
    }

    // Means and powers with the first 1, 2, ..., M members, and which of them can be trusted.
    void follow(int64_t q, int64_t ones, int64_t heads) {
        T *mean = at<T>(task.mean, q * M * C), *power = at<T>(task.power, q * M), *plain = sums.data(), *along = plain + C;
        double square = 0, with_ones = 0, total = 0;
        std::fill_n(plain, 2 * C, T(0));
        for (int64_t i = 0; i < M; ++i) {
            const T *white = cell.side(i), l = white[0], v = task.trend ? white[ones] : T(0);
            square += double(l) * l, with_ones += double(l) * v, total += double(v) * v;
            const double missing = task.trend ? 1 - with_ones : 0.0;
            const T gap = task.trend ? T(missing / total) : T(0);
            power[i] = T(1 - square + (task.trend ? missing * missing / total : 0.0));
            steps[i] = gap;
            for (int64_t c = 0; c < C; ++c) {
                plain[c] += l * white[heads + c], along[c] += v * white[heads + c];
                mean[i * C + c] = plain[c] + gap * along[c];
            }
        }
        judge_path(q, at<T>(task.values, 0), ones, heads);
    }

    // Solutions with the first m members are running sums of the rows of U'^-1, each times the whitened right-hand side.
    void judge_path(int64_t q, const T *values, int64_t ones, int64_t heads) {
        T *norm = lengths.data(), *largest = norm + M, *ratio = largest + M, *inverse = ratio + M, *length = inverse + M;
        std::fill_n(lengths.data(), 5 * M, T(0));
        cell.invert(inverse_rows.data(), cell.columns);
        if (task.trend) {
            std::fill_n(running.data(), cell.columns, T(0));
            for (int64_t i = 0; i < M; ++i)
                for (int64_t j = 0; j <= i; j += W) {
                    const Vec<T> sum = load(running.data() + j) + cell.side(i)[ones] * load(inverse_rows.data() + i * cell.columns + j);
                    store(running.data() + j, sum);
                    store(ones_rows.data() + i * cell.columns + j, sum);
                }
            run_along(0, nullptr, norm, nullptr);
        }
        run_along(0, task.trend ? steps.data() : nullptr, length, largest);
        for (int64_t i = 0; i < M; ++i) norm[i] = std::max(norm[i], length[i]);
        for (int64_t p = heads - probes; p < heads; ++p) {
            run_along(p, nullptr, length, nullptr);
            double square = 0;
            for (int64_t i = 0; i < M; ++i) {
                square += double(cell.side(i)[p]) * cell.side(i)[p];
                inverse[i] = T(std::max(double(inverse[i]), double(length[i]) * length[i] / square));
            }
        }
        for (int64_t c = 0; judge.wants(MEAN) && c < C; ++c) {
            double total = 0, sum = 0, low = 0, high = 0;
            for (int64_t i = 0; task.trend && i < M; ++i) {
                const T *white = cell.side(i);
                total += double(white[ones]) * white[ones], sum += double(white[ones]) * white[heads + c];
                steps[i] = T(-sum / total);
            }
            run_along(heads + c, task.trend ? steps.data() : nullptr, length, nullptr);
            for (int64_t i = 0; i < M; ++i) {
                const double value = values[task.indices[q * M + i] * C + c];
                low = i ? std::min(low, value) : value, high = i ? std::max(high, value) : value;
                if (length[i] > 0) ratio[i] = T(std::max(double(ratio[i]), length[i] / size_of(c, low, high)));
            }
        }
        for (int64_t i = 0; i < M; ++i) {
            const double spread = largest[i] > 0 ? norm[i] / largest[i] : 1.0;
            const Evidence here = {found.size, norm[i], spread, found.ridge, ratio[i], inverse[i]};
            task.resolved[q * M + i] = judge.trusts(here, i + 1, task.system_limit);
        }
    }

    // Lengths of the solutions for one right-hand side with the first m members, plus, if given, multiples of that for ones;
    // and their largest entries.
    void run_along(int64_t side, const T *multiples, T *length, T *largest) {
        std::fill_n(running.data(), cell.columns, T(0));
        for (int64_t i = 0; i < M; ++i) {
            const T factor = cell.side(i)[side], multiple = multiples ? multiples[i] : T(0);
            Vec<T> squares{}, most{};
            for (int64_t j = 0; j <= i; j += W) {
                Vec<T> x = load(running.data() + j) + factor * load(inverse_rows.data() + i * cell.columns + j);
                store(running.data() + j, x);
                if (multiples) x += multiple * load(ones_rows.data() + i * cell.columns + j);
                squares += x * x;
                const Vec<T> size = x > 0 ? x : -x;
                most = size > most ? size : most;
            }
            length[i] = std::sqrt(total<T>(squares));
            for (int64_t k = 0; largest && k < W; ++k) largest[i] = std::max(largest[i], most[k]);
        }
    }

    void clear(int64_t q) {
        const int64_t steps = task.path ? M : 1;
        if (task.mean) std::fill_n(at<T>(task.mean, q * steps * C), steps * C, T(0));
        if (task.power) std::fill_n(at<T>(task.power, q * steps), steps, T(0));
        if (task.weights) std::fill_n(at<T>(task.weights, q * M), M, T(0));
        if (task.adjoint) std::fill_n(at<T>(task.adjoint, q * M * C), M * C, T(0));
        const int64_t kept = task.tail ? task.tail * (C + 1) : C;
        if (task.multiples) std::fill_n(at<T>(task.multiples, q * kept), kept, T(0));
    }
};

}  // namespace
