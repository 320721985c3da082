#include "engine/memory/host_copy.h"

namespace keel {

std::byte* HostCopy::part(std::size_t i) {
    if (!backend_.gpu) return parts_[i].data();
    std::int64_t before = 0, all = 0;
    for (std::size_t p = 0; p < parts_.size(); ++p) {
        if (p < i) before += parts_[p].bytes();
        all += parts_[p].bytes();
    }
    if (!memory_.data()) memory_ = Pages(all);
    return memory_.data() + before;
}

template <class Each> void HostCopy::each_part(Each each) {
    if (!backend_.gpu) return;
    for (std::size_t i = 0; i < parts_.size(); ++i) each(part(i), parts_[i]);
}

void HostCopy::fetch() {
    each_part([&](std::byte* host, View<std::byte> device) { backend_.copy_out(host, device.data(), device.bytes()); });
}

void HostCopy::send() {
    each_part([&](std::byte* host, View<std::byte> device) { backend_.copy_in(device.data(), host, device.bytes()); });
}

}  // namespace keel
