#include "data/duplicates.h"

#include <xxhash.h>

#include <algorithm>
#include <memory>

#include "kernels/base/error.h"

namespace keel {

Duplicates find_duplicates(const TokenFile& file, std::size_t keep) {
    struct Hashed {
        std::uint64_t hash;
        std::int64_t document;
    };
    std::vector<Hashed> all(static_cast<std::size_t>(file.documents()));
    const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(), XXH3_freeState);
    if (!state) fail("cannot set up a hash");
    std::vector<std::int32_t> ids(1 << 16);
    for (std::int64_t d = 0; d < file.documents(); ++d) {
        XXH3_64bits_reset(state.get());
        const std::int64_t end = file.document_begin(d + 1);
        for (std::int64_t at = file.document_begin(d); at < end; at += static_cast<std::int64_t>(ids.size())) {
            const auto part = std::span(ids).first(
                static_cast<std::size_t>(std::min<std::int64_t>(end - at, static_cast<std::int64_t>(ids.size()))));
            file.read(at, part);
            XXH3_64bits_update(state.get(), part.data(), part.size_bytes());
        }
        all[static_cast<std::size_t>(d)] = {XXH3_64bits_digest(state.get()), d};
    }
    std::sort(all.begin(), all.end(), [](const Hashed& a, const Hashed& b) {
        return a.hash != b.hash ? a.hash < b.hash : a.document < b.document;
    });
    Duplicates r;
    for (std::size_t i = 1, first = 0; i < all.size(); ++i) {
        if (all[i].hash != all[first].hash) {
            first = i;
            continue;
        }
        ++r.documents;
        r.tokens += file.document_begin(all[i].document + 1) - file.document_begin(all[i].document);
        r.first.push_back({all[i].document, all[first].document});
        const auto earlier = [](const Duplicates::Pair& a, const Duplicates::Pair& b) {
            return a.document < b.document;
        };
        std::push_heap(r.first.begin(), r.first.end(), earlier);  // the earliest few: the latest is on top, and goes
        if (r.first.size() > keep) std::pop_heap(r.first.begin(), r.first.end(), earlier), r.first.pop_back();
    }
    std::sort(r.first.begin(), r.first.end(), [](const auto& a, const auto& b) { return a.document < b.document; });
    return r;
}

}  // namespace keel
