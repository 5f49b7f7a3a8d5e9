// Factors of the neighborhoods used last, for queries to come with the same neighbors.

#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

class FactorCache {
  public:
    using Key = std::vector<int64_t>;                         // the members, and whatever else the factor depends on
    using Factor = std::shared_ptr<const std::vector<char>>;  // shared: a thread may still read what another one drops

    explicit FactorCache(int64_t capacity) : capacity(std::size_t(capacity)) {}

    Factor get(const Key &key) {
        const std::lock_guard<std::mutex> lock(mutex);
        const auto found = places.find(key);
        if (found == places.end()) return nullptr;
        ++hits;
        recent.splice(recent.begin(), recent, found->second);
        return found->second->second;
    }

    void put(const Key &key, Factor factor) {
        const std::lock_guard<std::mutex> lock(mutex);
        if (places.count(key)) return;
        recent.emplace_front(key, std::move(factor));
        places.emplace(key, recent.begin());
        if (recent.size() > capacity) {
            places.erase(recent.back().first);
            recent.pop_back();
        }
    }

    int64_t count_hits() {
        const std::lock_guard<std::mutex> lock(mutex);
        return hits;
    }

  private:
    struct Hash {
        std::size_t operator()(const Key &key) const {
            uint64_t hash = 14695981039346656037u;
            for (const int64_t part : key) hash = (hash ^ uint64_t(part)) * 1099511628211u;
            return std::size_t(hash);
        }
    };
    using Recent = std::list<std::pair<Key, Factor>>;  // the last used first

    std::size_t capacity;
    int64_t hits = 0;
    std::mutex mutex;
    Recent recent;
    std::unordered_map<Key, Recent::iterator, Hash> places;
};

}  // namespace
