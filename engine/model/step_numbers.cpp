#include "engine/model/step_numbers.h"

#include <utility>

namespace keel {

StepNumbers::StepNumbers(const Backend& backend, View<double> memory, std::int64_t micro_batches, std::int64_t hashes)
    : backend_(backend), memory_(memory), micro_batches_(micro_batches), hashes_(hashes) {
    static_assert(sizeof(double) == sizeof(std::uint64_t));
    if (backend_.gpu) pinned_ = reinterpret_cast<double*>(backend_.gpu->allocate_pinned(memory_.bytes()));
}

StepNumbers::~StepNumbers() {
    if (backend_.gpu) backend_.gpu->release_pinned(reinterpret_cast<std::byte*>(pinned_));
}

View<double> StepNumbers::next_loss() {
    if (losses_ == micro_batches_) fail("model: more than the ", losses_, " micro-batches that memory was planned for");
    sent_ = false;
    return memory_.rows(losses_++, 1);
}

View<std::uint64_t> StepNumbers::next_hash(std::int64_t slot) {
    sent_ = false;
    return {reinterpret_cast<std::uint64_t*>(memory_.rows(memory_.size() - hashes_ + slot, 1).data()), {1}};
}

std::span<const std::uint64_t> StepNumbers::host_hashes() {
    return {reinterpret_cast<const std::uint64_t*>(host() + memory_.size() - hashes_), static_cast<std::size_t>(hashes_)};
}

void StepNumbers::send() {
    if (backend_.gpu) backend_.gpu->copy_out(backend_.stream, pinned_, memory_.data(), memory_.bytes());
    sent_ = true;
}

const double* StepNumbers::host() {
    if (!sent_) send();
    backend_.stream.synchronize();
    return backend_.gpu ? pinned_ : memory_.data();
}

std::span<const double> StepNumbers::take_losses() {
    return {host(), static_cast<std::size_t>(std::exchange(losses_, 0))};
}

}  // namespace keel
