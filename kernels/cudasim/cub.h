// kernels/cudasim/cub.h: the part of CUB that keel calls: a stable radix sort of (key, value) pairs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/cudasim/memory.h"
#include "kernels/cudasim/runtime.h"

namespace sim::cuda::cub {

struct DeviceRadixSort {
    // As in CUB: with `temp` null only `temp_bytes` is written. Sorts by the bits [begin_bit, end_bit) of unsigned or
    // non-negative keys; equal keys keep their order. Input and output may not overlap.
    template <class Key, class Value, class Count>
    static cudaError_t SortPairs(void* temp, std::size_t& temp_bytes, const Key* keys_in, Key* keys_out,
                                 const Value* values_in, Value* values_out, Count count, int begin_bit = 0,
                                 int end_bit = sizeof(Key) * 8, cudaStream_t stream = nullptr,
                                 Site site = Site::current()) {
        static_assert(std::is_integral_v<Key>, "only integers are sorted here");
        const InModel in_model;
        const auto n = static_cast<std::size_t>(count);
        const std::size_t needed = n * (sizeof(Key) + sizeof(Value)) + 1024;
        if (!temp) {
            temp_bytes = needed;
            return cudaSuccess;
        }
        const auto holds = [&](const void* p, std::size_t bytes) {
            const Found found = find_allocation(p);
            return bytes == 0 || (found.place == Place::device &&
                                  static_cast<const std::byte*>(p) + bytes <= found.data + found.bytes);
        };
        if (temp_bytes < needed || !holds(temp, temp_bytes) || !holds(keys_in, n * sizeof(Key)) ||
            !holds(keys_out, n * sizeof(Key)) || !holds(values_in, n * sizeof(Value)) ||
            !holds(values_out, n * sizeof(Value))) {
            report(Kind::bad_call, "cub: a sort of " + std::to_string(n) + " pairs with " + std::to_string(temp_bytes) +
                                       " bytes of scratch (it needs " + std::to_string(needed) +
                                       "), or with an array that is smaller than that, at " + where(site));
            return set_last_error(cudaErrorInvalidValue);
        }
        using Bits = std::make_unsigned_t<Key>;
        const int width = end_bit - begin_bit;
        const Bits mask = width >= static_cast<int>(sizeof(Key) * 8) ? static_cast<Bits>(~Bits{0})
                                                                     : static_cast<Bits>((Bits{1} << width) - 1);
        submit(stream, [=] {
            std::vector<std::size_t> order(n);
            std::iota(order.begin(), order.end(), std::size_t{0});
            const auto bits = [&](std::size_t i) {
                return static_cast<Bits>(static_cast<Bits>(keys_in[i]) >> begin_bit) & mask;
            };
            std::stable_sort(order.begin(), order.end(),
                             [&](std::size_t a, std::size_t b) { return bits(a) < bits(b); });
            for (std::size_t i = 0; i < n; ++i) keys_out[i] = keys_in[order[i]], values_out[i] = values_in[order[i]];
            fill_poison(temp, temp_bytes, config().poison);  // what is left there is nobody's
            return true;
        });
        return cudaSuccess;
    }
};

}  // namespace sim::cuda::cub
