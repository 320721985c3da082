// engine/model/step_numbers.h: what the host wants to know of a step: the loss of each micro-batch, the sum of squares of
// each gradient, hashes (hash_slots.h). They lie side by side in the arena, so that from a GPU they come in one small copy.
#pragma once

#include <cstdint>
#include <span>

#include "engine/memory/backend.h"

namespace keel {

class StepNumbers {
public:
    // `memory` of the backend: `micro_batches` losses, squares behind them, and `hashes` last. Backend and memory outlive it.
    StepNumbers(const Backend& backend, View<double> memory, std::int64_t micro_batches, std::int64_t hashes);
    ~StepNumbers();
    StepNumbers(const StepNumbers&) = delete;
    StepNumbers& operator=(const StepNumbers&) = delete;

    void begin() { losses_ = 0; }  // of a step
    View<double> next_loss();      // where an op writes it
    View<double> squares() const { return memory_.rows(micro_batches_, memory_.size() - micro_batches_ - hashes_); }
    View<std::uint64_t> next_hash(std::int64_t slot);  // where an op writes it
    void repeat(std::int64_t losses) { losses_ = losses, sent_ = true; }  // a graph queues these and sends all
    void send();  // all have been queued: they come to the host

    // As the host reads them; they wait for the backend, and send() first what was not sent.
    std::span<const double> take_losses();  // since begin() or the last call, in the order of next_loss()
    const double* host_squares() { return host() + micro_batches_; }
    std::span<const std::uint64_t> host_hashes();

private:
    const double* host();

    Backend backend_;
    View<double> memory_;
    std::int64_t micro_batches_, hashes_, losses_ = 0;
    bool sent_ = false;
    double* pinned_ = nullptr;  // of a GPU's host
};

}  // namespace keel
