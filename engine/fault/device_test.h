// engine/fault/device_test.h: the self-test (self_test.h) of a GPU: whether it multiplies rightly and remembers what was written.
//
// Products of whole numbers (known_product.h) by the model's own linear op, in float and bf16, large enough that every
// multiprocessor has a part of them; then three patterns (alternating bits, their opposite, one that depends on the address)
// are written to memory piece by piece, and each piece's hash is compared with the host's. Takes some tenths of a second and
// 256 MiB of the GPU's memory, which it keeps until it is destroyed: so that it can be run again beside a full model.
#pragma once

#include <cstdint>
#include <string>

#include "engine/memory/backend.h"

namespace keel {

class DeviceTest {
public:
    struct Sizes {
        std::int64_t side;          // of the product
        std::int64_t bytes, piece;  // of memory, and of what one hash is made of
    };

    // `backend` has a GPU, and both outlive this.
    explicit DeviceTest(const Backend& backend);
    ~DeviceTest();
    DeviceTest(const DeviceTest&) = delete;
    DeviceTest& operator=(const DeviceTest&) = delete;

    // Fails with ExitCode::device, naming the host, the GPU, and what came out in place of what. Not a collective.
    void run(const std::string& host) const;

private:
    template <class T> std::string multiply(const char* type) const;
    std::string remember() const;

    Backend backend_;
    Sizes sizes_;
    std::byte* memory_;
};

}  // namespace keel
