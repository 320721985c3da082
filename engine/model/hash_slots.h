// engine/model/hash_slots.h: where the hashes of a step lie side by side: of what a rank puts out, of its gradients, and of
// its parameters. engine/fault compares them, with those of another attempt (replay.h) or another rank (replicas.h).
#pragma once

#include <cstdint>

namespace keel {

struct HashSlots {
    std::int64_t micro_batches = 0, chunks = 0;  // of a step, at most; of this rank
    std::int64_t params = 0, uses = 1;           // of its table; how often a step shows the gradient of one, at most

    std::int64_t output(std::int64_t micro_batch, std::int64_t chunk) const { return micro_batch * chunks + chunk; }
    std::int64_t gradient(std::int64_t param, std::int64_t use) const { return micro_batches * chunks + param * uses + use; }
    std::int64_t of_step() const { return gradient(params, 0); }  // outputs and gradients
    std::int64_t parameter(std::int64_t param) const { return of_step() + param; }
    std::int64_t count() const { return parameter(params); }
};

}  // namespace keel
