// engine/memory/host_copy.h: parts of the backend's memory as the host reads and writes them: on the CPU where they lie, of a
// GPU a copy in the host's memory, made when it is first asked for, that goes back and forth on request.
#pragma once

#include <utility>
#include <vector>

#include "engine/memory/backend.h"
#include "kernels/base/pages.h"

namespace keel {

class HostCopy {
public:
    // Backend and parts outlive it.
    HostCopy(const Backend& backend, std::vector<View<std::byte>> parts) : backend_(backend), parts_(std::move(parts)) {}

    std::size_t parts() const { return parts_.size(); }
    std::byte* part(std::size_t i);
    void fetch();  // from the GPU; both return when it is done, and do nothing on the CPU
    void send();   // to the GPU

private:
    template <class Each> void each_part(Each each);

    Backend backend_;
    std::vector<View<std::byte>> parts_;
    Pages memory_;
};

}  // namespace keel
