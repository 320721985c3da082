#include "engine/model/batch_slots.h"

#include <algorithm>
#include <utility>

namespace keel {

BatchSlots::BatchSlots(const Backend& backend, const ContextSlices& slices, std::int64_t slice, const Limits& limits,
                       std::vector<View<std::int32_t>> copies)
    : backend_(backend), slices_(slices), slice_(slice), limits_(limits), copies_(std::move(copies)), slots_(copies_.size()) {
    if (backend_.gpu)
        pinned_ = reinterpret_cast<std::int32_t*>(backend_.gpu->allocate_pinned(
            limits_.micro_batches * arrays * limits_.tokens * static_cast<std::int64_t>(sizeof(std::int32_t))));
}

BatchSlots::~BatchSlots() {
    if (backend_.gpu) backend_.gpu->release_pinned(reinterpret_cast<std::byte*>(pinned_));
}

void BatchSlots::load(int slot, const Batch& batch) {
    const std::int64_t all = batch.ids.dim(0), tokens = all / slices_.ranks;
    if (tokens > limits_.tokens) fail("model: a micro-batch of ", tokens, " tokens, but memory was planned for ", limits_.tokens);
    SlotBatch& to = slots_[static_cast<std::size_t>(slot)];
    to.tokens = tokens, to.batch_rows = all / slices_.seq_len;
    const View<std::int32_t> memory = copies_[static_cast<std::size_t>(slot)];
    if (memory.size() == 0) {
        to.ids = batch.ids.data(), to.labels = batch.labels.data(), to.positions = batch.positions.data(), to.lo = batch.lo.data();
        return;
    }
    const View<std::int32_t> copy = memory.rows(0, arrays * tokens);
    to.ids = copy.data(), to.labels = to.ids + tokens, to.positions = to.labels + tokens, to.lo = to.positions + tokens;
    if (!backend_.gpu) return fill(copy.data(), batch);
    if (next_ == limits_.micro_batches) {  // more than a step has, as in an evaluation
        backend_.stream.synchronize();
        next_ = 0;
    }
    std::int32_t* const from = place(next_++);
    fill(from, batch);
    backend_.gpu->copy_in(backend_.stream, copy.data(), from, copy.bytes());
}

void BatchSlots::fill(std::int32_t* to, const Batch& batch) const {
    const std::int64_t tokens = batch.ids.dim(0) / slices_.ranks;
    for (const View<const std::int32_t>& from : {batch.ids, batch.labels, batch.positions, batch.lo}) {
        if (slices_.ranks > 1) cut_slice(slices_, slice_, from, View<std::int32_t>(to, {tokens}));
        else std::copy_n(from.data(), tokens, to);
        to += tokens;
    }
    if (slices_.ranks == 1) return;
    std::int32_t* const lo = to - tokens;
    for (std::int64_t i = 0; i < tokens; ++i)  // attention over slices counts keys from the beginning of the row
        lo[i] -= static_cast<std::int32_t>(i / slices_.local_len() * slices_.seq_len);
}

}  // namespace keel
