#include "engine/memory/backend.h"

#include <algorithm>
#include <cstring>

namespace keel {

void Backend::zero(void* data, std::int64_t bytes) const {
    if (gpu) return gpu->fill(stream, data, 0, bytes);
    constexpr std::int64_t tile = 1 << 18;
    auto* const at = static_cast<std::byte*>(data);
    stream.parallel(ceil_div(bytes, tile), [&](std::int64_t t, int) {
        std::memset(at + t * tile, 0, static_cast<std::size_t>(std::min(tile, bytes - t * tile)));
    });
}

void Backend::copy_in(void* to, const void* from, std::int64_t bytes) const {
    if (!gpu) return void(std::memcpy(to, from, static_cast<std::size_t>(bytes)));
    gpu->copy_in(stream, to, from, bytes);
    stream.synchronize();
}

void Backend::copy_out(void* to, const void* from, std::int64_t bytes) const {
    if (!gpu) return void(std::memcpy(to, from, static_cast<std::size_t>(bytes)));
    gpu->copy_out(stream, to, from, bytes);
    stream.synchronize();
}

}  // namespace keel
