#include "engine/memory/backend.h"

#include <cstring>

#include "kernels/copy.h"

namespace keel {

void Backend::zero(void* data, std::int64_t bytes) const {
    if (gpu) return gpu->fill(stream, data, 0, bytes);
    clear(stream, View<std::byte>(static_cast<std::byte*>(data), {bytes}));
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
