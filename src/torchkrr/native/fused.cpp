// Local kernel ridge regression, one neighborhood at a time, in cache from gather to prediction; and the search for neighbors.
//
// Per cell: offsets of the M members, transposed to [feature][member]; their Gram matrix, upper half only, in register tiles;
// distances, profile, ridge; a Cholesky factorization A = U'U that carries the right-hand sides along as further columns;
// back substitution. Cells are shared out over threads. No headers but the standard ones; called through native.py.

#include <algorithm>
#include <atomic>
#include <deque>
#include <exception>
#include <memory>
#include <new>
#include <numeric>
#include <thread>
#include <vector>

#include <pthread.h>

#include "dense.h"
#include "gradient.h"
#include "hash.h"
#include "scan.h"
#include "search.h"
#include "solver.h"

namespace {

constexpr int64_t CLAIM = 8;                 // cells a thread takes at a time
constexpr int64_t SCATTER_BYTES = 4 << 20;   // gradients of members that wait, in cache, to be added to their centers
constexpr int64_t HASHED = 1 << 18;          // numbers a thread hashes at a time
constexpr int64_t PREFETCH_LINES = 4;        // of each member of the next cell
constexpr int64_t SHARED_BYTES = 64 << 20;   // for inner products that all cells share
constexpr int64_t SHARED_FEATURES = 128;     // with fewer, a cell forms them about as fast as it finds them there;
constexpr int64_t SHARED_MISSES = 4;         // and with fewer than a fourth of the points, too, whose products are not in cache
constexpr int64_t SHARED_GAIN = 2;           // at least so many times the work of forming them once
constexpr int64_t SHARED_ROWS = 64;          // that a thread forms at a time
constexpr int64_t TILES = 16;                // that a thread quantizes at a time
constexpr int64_t FEW = 2 * AT_ONCE;         // queries of a thread: with fewer, the threads share out the points
constexpr int64_t STRIPS = 4;                // that a thread scans at a time then
constexpr int64_t WORTH_A_THREAD = 2 << 20;  // bytes to look at, which takes about as long as to start a thread

// OpenMP's own entrance, f(data) on so many of its threads, if the process has it. Between operators of torch these wait by
// spinning: threads of our own would have to fight them for the cores.
using Entrance = void (*)(void (*f)(void *), void *data, unsigned threads, unsigned flags);
std::atomic<Entrance> openmp{nullptr};

// f(worker, first, last) for pieces of `total`, each worker on a thread of its own; who takes which is left to chance.
template <class Worker, class F> void share(std::deque<Worker> &workers, int64_t total, int64_t piece, F f) {
    std::atomic<int64_t> next{0};
    std::vector<std::exception_ptr> failures(workers.size());
    const auto work = [&](std::size_t t) {
        try {
            for (int64_t first; (first = next.fetch_add(piece)) < total;) f(workers[t], first, std::min(first + piece, total));
        } catch (...) {
            failures[t] = std::current_exception();
        }
    };
    const std::size_t threads = std::min(workers.size(), std::size_t((total + piece - 1) / piece));
    const Entrance entrance = threads > 1 ? openmp.load() : nullptr;
    if (entrance) {
        std::atomic<std::size_t> turn{0};
        auto next_worker = [&] { work(turn.fetch_add(1)); };
        entrance([](void *data) { (*static_cast<decltype(next_worker) *>(data))(); }, &next_worker, unsigned(threads), 0);
    } else {
        std::vector<std::thread> others;
        others.reserve(threads);
        try {
            for (std::size_t t = 1; t < threads; ++t) others.emplace_back(work, t);
        } catch (const std::exception &) {
            // No more threads to be had, or no memory for one: those there are do all the work, and have to be joined.
        }
        work(0);
        for (auto &thread : others) thread.join();
    }
    for (const auto &failure : failures)
        if (failure) std::rethrow_exception(failure);
}

// Small calls are not worth a second thread.
int64_t useful_threads(const Task &task) { return std::max<int64_t>(1, std::min(task.threads, task.cells / CLAIM)); }

template <class T> void prefetch(const Task &task, int64_t cell) {
    const int64_t lines = std::min(PREFETCH_LINES, (task.features * int64_t(sizeof(T)) + 63) / 64);
    for (int64_t j = 0; j < task.neighbors; ++j) {
        const void *row = at<T>(task.centers, task.indices[cell * task.neighbors + j] * task.features);
        for (int64_t line = 0; line < lines; ++line) __builtin_prefetch(static_cast<const char *>(row) + 64 * line);
    }
}

// Inner products of all points of a task, about their mean; null where each cell had better form its own.
template <class T> std::unique_ptr<Cell<T>> products_of_all(const Task &task) {
    const int64_t N = task.points, E = task.features, M = task.neighbors;
    const bool pays = E >= SHARED_FEATURES && SHARED_MISSES * E >= N && task.cells * M * M >= SHARED_GAIN * N * N && !task.cache;
    if (N < M || !pays || N * (N + E) * int64_t(sizeof(T)) > SHARED_BYTES) return nullptr;
    std::vector<T> mean(std::size_t(E), T(0));
    for (int64_t i = 0; i < N; ++i)
        for (int64_t e = 0; e < E; ++e) mean[e] += at<T>(task.centers, i * E)[e];
    for (T &x : mean) x /= T(N);
    // One that is not a number may belong to no cell.
    if (!std::all_of(mean.begin(), mean.end(), [](T x) { return std::isfinite(x); })) return nullptr;
    std::vector<int64_t> everyone(std::size_t(N), 0);
    std::iota(everyone.begin(), everyone.end(), 0);
    auto all = std::make_unique<Cell<T>>(N, E, 0, task.log_scales, task.scale_step);
    all->gather(at<T>(task.centers, 0), everyone.data(), mean.data());
    std::copy_n(all->cross_squares.data(), all->columns, all->squares.data());
    std::deque<char> workers(std::size_t(task.threads));
    share(workers, all->rows, SHARED_ROWS, [&](char, int64_t first, int64_t last) { all->gram(first, last); });
    all->mirror(all->sums.data());
    return all;
}

template <class T> void solve(const Task &task) {
    const auto all = products_of_all<T>(task);
    std::deque<Solver<T>> solvers;
    for (int64_t t = useful_threads(task); t > 0; --t) solvers.emplace_back(task, all.get());
    share(solvers, task.cells, CLAIM, [&](Solver<T> &solver, int64_t first, int64_t last) {
        for (int64_t c = first; c < last; ++c) {
            if (c + 1 < last) prefetch<T>(task, c + 1);
            solver.run(c);
        }
    });
}

template <class T> void gradient(const Task &task) {
    const int64_t threads = useful_threads(task), of_cell = task.grad_centers ? task.neighbors * task.features : 0;
    std::deque<Gradient<T>> gradients;
    for (int64_t t = 0; t < threads; ++t) gradients.emplace_back(task);
    // Threads start anew to add what waits; one that works alone does not, and has its own cache only.
    const int64_t waiting = (threads > 1 ? SCATTER_BYTES : SCATTER_BYTES / 16) / std::max<int64_t>(1, of_cell * int64_t(sizeof(T)));
    const int64_t together = of_cell ? std::min(std::max(threads > 1 ? 2 * threads : 1, waiting), task.cells) : task.cells;
    const int64_t claim = std::min(CLAIM, std::max<int64_t>(1, together / (4 * threads)));
    const std::unique_ptr<T[]> members(new T[std::size_t(of_cell * together)]);  // written before it is read
    for (int64_t start = 0; start < task.cells; start += together) {
        const int64_t end = std::min(start + together, task.cells);
        share(gradients, end - start, claim, [&](Gradient<T> &worker, int64_t first, int64_t last) {
            for (int64_t c = first; c < last; ++c) worker.run(start + c, members.get() + c * of_cell);
        });
        share(gradients, threads, 1, [&](Gradient<T> &, int64_t part, int64_t) {
            const auto share_of = [&](int64_t count, int64_t k) { return count * k / threads; };
            const int64_t E = task.features, C = task.outputs;
            if (task.grad_centers)
                scatter<T>(task, start, end, share_of(E, part), share_of(E, part + 1), members.get());
            if (task.grad_values) scatter_values<T>(task, start, end, share_of(C, part), share_of(C, part + 1));
        });
    }
}

template <class T, class F> void search(const SearchTask &task, F f) {
    const int64_t share_of_all = round_up((task.queries + task.threads - 1) / task.threads, ROWS);
    const int64_t piece = std::min(QUERIES, share_of_all), threads = std::min(task.threads, (task.queries + piece - 1) / piece);
    std::deque<Searcher<T>> searchers;
    for (int64_t t = 0; t < threads; ++t) searchers.emplace_back(task);
    share(searchers, task.queries, piece, f);
}

template <class T> void compare(const SearchTask &task) {
    search<T>(task, [&](Searcher<T> &searcher, int64_t first, int64_t last) {
        task.exact ? searcher.compare_exactly(first, last) : searcher.compare(first, last);
        for (int64_t q = first; task.indices && q < last; ++q) searcher.rank(q, nullptr);
    });
}

template <class T> void rank(const SearchTask &task) {
    search<T>(task, [&](Searcher<T> &searcher, int64_t first, int64_t last) {
        for (int64_t q = first; q < last; ++q) searcher.rank(q, static_cast<const T *>(task.points));
    });
}

template <class T> void measure(const SearchTask &task) {
    search<T>(task, [&](Searcher<T> &searcher, int64_t first, int64_t last) {
        for (int64_t q = first; q < last; ++q) searcher.measure(q);
    });
}

void quantize(const QuantizedTask &task) {
    const int64_t first = task.start / TILE, tiles = (task.count + TILE - 1) / TILE - first;
    std::deque<Quantizer> workers;
    for (int64_t t = std::max<int64_t>(1, std::min(task.threads, tiles / TILES)); t > 0; --t) workers.emplace_back(task.features);
    share(workers, tiles, TILES, [&](Quantizer &worker, int64_t from, int64_t to) {
        quantize_tiles(task, worker, first + from, first + to);
    });
}

void near(const QuantizedTask &task) {
    const int64_t of_thread = round_up((task.queries + task.threads - 1) / task.threads, AT_ONCE), piece = std::min(SCANNED, of_thread);
    std::deque<Scanner> scanners;
    if (of_thread > FEW) {
        for (int64_t t = std::min(task.threads, (task.queries + piece - 1) / piece); t > 0; --t) scanners.emplace_back(task, piece);
        share(scanners, task.queries, piece, [&](Scanner &scanner, int64_t first, int64_t last) {
            scanner.open(first, last);
            scanner.scan(0, scanner.strips);
            for (int64_t q = first; q < last; ++q) scanner.finish(q, scanner.pools[q - first]);
        });
        return;
    }
    // Few queries: each thread finds candidates for all of them among some of the points.
    const int64_t bytes = task.count * task.features * task.queries;
    for (int64_t t = std::min(task.threads, 1 + bytes / WORTH_A_THREAD); t > 0; --t) scanners.emplace_back(task, task.queries);
    for (auto &scanner : scanners) scanner.open(0, task.queries);
    share(scanners, scanners[0].strips, STRIPS, [&](Scanner &scanner, int64_t first, int64_t last) { scanner.scan(first, last); });
    share(scanners, task.queries, 1, [&](Scanner &scanner, int64_t q, int64_t) {
        Pool &pool = scanners[0].pools[q];
        for (std::size_t t = 1; t < scanners.size(); ++t) scanner.merge(pool, scanners[t].pools[q]);
        scanner.finish(q, pool);
    });
}

template <class I> void hash(const HashTask &task) {
    const int64_t piece = std::max<int64_t>(1, HASHED / std::max<int64_t>(1, task.features));
    std::deque<char> workers(std::size_t(std::max<int64_t>(1, std::min(task.threads, task.count / piece))));
    share(workers, task.count, piece, [&](char, int64_t first, int64_t last) { hash_rows<I>(task, first, last); });
}

template <class F> int without_exceptions(F f) {
    try {
        f();
        return 0;
    } catch (const std::bad_alloc &) {
        return 1;
    } catch (...) {
        return 2;
    }
}

}  // namespace

// Returns zero; one if there was not enough memory; two if anything else went wrong.
#define ENTRY(name, Kind, ...) \
    int name(const Kind *task) { return without_exceptions([=] { __VA_ARGS__; }); }

extern "C" {
ENTRY(torchkrr_solve_float, Task, solve<float>(*task))
ENTRY(torchkrr_solve_double, Task, solve<double>(*task))
ENTRY(torchkrr_gradient_float, Task, gradient<float>(*task))
ENTRY(torchkrr_gradient_double, Task, gradient<double>(*task))
ENTRY(torchkrr_dense_float, Task, DenseSolver<float>(*task).run())
ENTRY(torchkrr_dense_double, Task, DenseSolver<double>(*task).run())
ENTRY(torchkrr_dense_gradient_float, Task, DenseGradient<float>(*task).run())
ENTRY(torchkrr_dense_gradient_double, Task, DenseGradient<double>(*task).run())
ENTRY(torchkrr_compare_float, SearchTask, compare<float>(*task))
ENTRY(torchkrr_compare_double, SearchTask, compare<double>(*task))
ENTRY(torchkrr_measure_float, SearchTask, measure<float>(*task))
ENTRY(torchkrr_measure_double, SearchTask, measure<double>(*task))
ENTRY(torchkrr_rank_float, SearchTask, rank<float>(*task))
ENTRY(torchkrr_rank_double, SearchTask, rank<double>(*task))
ENTRY(torchkrr_hash_float, HashTask, hash<int32_t>(*task))
ENTRY(torchkrr_hash_double, HashTask, hash<int64_t>(*task))
// The threads of OpenMP do not survive a fork: a child process starts its own.
void torchkrr_use_pool(void *entrance) {
    if (!openmp.exchange(reinterpret_cast<Entrance>(entrance)))
        pthread_atfork(nullptr, nullptr, [] { openmp = nullptr; });
}
ENTRY(torchkrr_quantize_float, QuantizedTask, quantize(*task))
ENTRY(torchkrr_near_float, QuantizedTask, near(*task))
ENTRY(torchkrr_bound_float, QuantizedTask, Scanner(*task, task->queries).bound())
int64_t torchkrr_quick_products() { return has_quick_products(); }
int64_t torchkrr_interface() { return 5; }  // as in native.py; raised when a task comes to mean something else
int64_t torchkrr_task_size() { return sizeof(Task); }
int64_t torchkrr_search_task_size() { return sizeof(SearchTask); }
int64_t torchkrr_quantized_task_size() { return sizeof(QuantizedTask); }
int64_t torchkrr_hash_task_size() { return sizeof(HashTask); }
void *torchkrr_cache_new(int64_t capacity) { return new (std::nothrow) FactorCache(capacity); }
void torchkrr_cache_free(void *cache) { delete static_cast<FactorCache *>(cache); }
int64_t torchkrr_cache_hits(void *cache) { return static_cast<FactorCache *>(cache)->count_hits(); }
}
