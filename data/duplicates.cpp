#include "data/duplicates.h"

#include <algorithm>
#include <numeric>

// The state of a hash is of this size here, and lies in its owner.
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

namespace keel {

struct DuplicateFinder::State {
    XXH3_state_t hash;
};

DuplicateFinder::DuplicateFinder() : state_(std::make_unique<State>()) { XXH3_64bits_reset(&state_->hash); }
DuplicateFinder::~DuplicateFinder() = default;

void DuplicateFinder::append(std::span<const std::int32_t> ids) {
    XXH3_64bits_update(&state_->hash, ids.data(), ids.size_bytes());
    tokens_ += static_cast<std::int64_t>(ids.size());
}

void DuplicateFinder::end_document() {
    if (tokens_ == 0) return;
    documents_.push_back({XXH3_64bits_digest(&state_->hash), tokens_});
    XXH3_64bits_reset(&state_->hash);
    tokens_ = 0;
}

Duplicates DuplicateFinder::found(std::size_t keep) const {
    std::vector<std::int64_t> order(documents_.size());
    std::iota(order.begin(), order.end(), 0);
    const auto at = [&](std::int64_t document) -> const Document& { return documents_[static_cast<std::size_t>(document)]; };
    std::sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
        return at(a).hash != at(b).hash ? at(a).hash < at(b).hash : a < b;
    });
    Duplicates r;
    const auto earlier = [](const Duplicates::Pair& a, const Duplicates::Pair& b) { return a.document < b.document; };
    for (std::size_t i = 1, first = 0; i < order.size(); ++i) {
        if (at(order[i]).hash != at(order[first]).hash) {
            first = i;
            continue;
        }
        ++r.documents;
        r.tokens += at(order[i]).tokens;
        r.first.push_back({order[i], order[first]});
        std::push_heap(r.first.begin(), r.first.end(), earlier);  // the earliest few: the latest is on top, and goes
        if (r.first.size() > keep) std::pop_heap(r.first.begin(), r.first.end(), earlier), r.first.pop_back();
    }
    std::sort(r.first.begin(), r.first.end(), earlier);
    return r;
}

}  // namespace keel
