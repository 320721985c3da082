// engine/model/batch_slots.h: the micro-batches that a rank has under way, as its ops read them: where the loader put them, or a
// copy where that does not last, is only partly this rank's, or lies on another machine than the ops.
//
// To a GPU they go through pinned memory that is there from the start. Every micro-batch of a step has a place of its own in
// it, so the host writes the next one while the GPU works on this one, and neither waits. A step ends by reading its numbers
// (step_numbers.h), which waits for all of it: then every place is free.
#pragma once

#include <cstdint>
#include <vector>

#include "data/loader.h"
#include "engine/memory/backend.h"
#include "engine/parallel/slices.h"

namespace keel {

// As much of a micro-batch as this rank has. The arrays are memory of the backend.
struct SlotBatch {
    std::int64_t tokens = 0, batch_rows = 0;
    const std::int32_t *ids = nullptr, *labels = nullptr, *positions = nullptr, *lo = nullptr;
};

class BatchSlots {
public:
    static constexpr int arrays = 4;  // ids, labels, positions, lo: in a copy one behind the other, each as long as the batch
    struct Limits {
        std::int64_t tokens;         // of this rank's part of a micro-batch, at most
        std::int64_t micro_batches;  // of a step, at most, each as often as it is loaded
    };
    // `copies`: for each slot memory of the backend for a copy, [arrays * tokens], or none where the loader's arrays will do.
    BatchSlots(const Backend& backend, const ContextSlices& slices, std::int64_t slice, const Limits& limits,
               std::vector<View<std::int32_t>> copies);
    ~BatchSlots();
    BatchSlots(const BatchSlots&) = delete;
    BatchSlots& operator=(const BatchSlots&) = delete;

    void begin() { next_ = 0; }  // of a step; nothing that was loaded before is under way any more
    void load(int slot, const Batch& batch);
    // On a GPU: another batch of the same size where the `i`th of the step lay, for a graph that will send it again.
    void refill(std::int64_t i, const Batch& batch) { fill(place(i), batch); }

    const SlotBatch& operator[](int slot) const { return slots_[static_cast<std::size_t>(slot)]; }

private:
    void fill(std::int32_t* to, const Batch& batch) const;
    std::int32_t* place(std::int64_t i) const { return pinned_ + i * arrays * limits_.tokens; }

    Backend backend_;
    ContextSlices slices_;
    std::int64_t slice_;
    Limits limits_;
    std::vector<View<std::int32_t>> copies_;
    std::vector<SlotBatch> slots_;
    std::int32_t* pinned_ = nullptr;  // of a GPU's host
    std::int64_t next_ = 0;
};

}  // namespace keel
