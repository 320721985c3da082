// engine/fault/self_test.h: whether what computes here computes rightly: every core, by products and patterns whose result is
// known to the last bit.
//
// A thread is bound to each core in turn. It multiplies matrices of small whole numbers (known_product.h) by keel's own kernel,
// in float and in bf16: one wrong bit shows. Then it writes three patterns (alternating bits, their opposite, one that depends on the address) to memory
// past its second-level cache and reads them back. Takes some 10 ms per core, eight cores at a time. Allocates: between steps.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "comm/world.h"

namespace keel {

// What a test lays hands on before it is compared; for tests of the test. Called by several threads.
struct Tampering {
    std::function<void(int core, std::span<float> product)> product;
    std::function<void(int core, std::span<std::uint64_t> memory)> memory;
};

// The cores that this rank answers for: those it is bound to, or its share of the machine where ranks are bound to none.
std::vector<int> cores_to_test(int local_rank, int local_size);

// Fails with ExitCode::device, naming the host, the core, and what came out in place of what. Not a collective: a rank that
// fails takes the others along.
void self_test(const std::string& host, std::span<const int> cores, const Tampering& tampering = {});
void self_test(const World& world, const Tampering& tampering = {});

}  // namespace keel
