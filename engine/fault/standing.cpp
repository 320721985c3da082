#include "engine/fault/standing.h"

#include <cstdio>

namespace keel {

void Standing::describe(char* text, std::size_t size) const {
    char calls[512];
    world_.under_way().describe(calls, sizeof calls);
    char where[96] = "";
    if (const std::int64_t i = micro_batch_.load(); i >= 0)
        std::snprintf(where, sizeof where, ", micro-batch %lld of %lld", static_cast<long long>(i + 1),
                      static_cast<long long>(micro_batches_.load()));
    char step[48] = "";
    if (started()) std::snprintf(step, sizeof step, " (step %lld%s)", static_cast<long long>(this->step()), where);
    const char* whom = calls[0] ? "in " : "it waits for no other rank: it computes, reads or writes";
    std::snprintf(text, size, "%s%s; %s%s", what(), step, whom, calls);
}

}  // namespace keel
