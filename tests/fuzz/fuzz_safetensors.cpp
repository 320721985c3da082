// Any bytes as a safetensors file: refused with Error, or every tensor lies inside the file and nothing is left over.
#include <cstdint>
#include <cstdlib>

#include "ckpt/safetensors.h"
#include "kernels/base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    try {
        const auto header = keel::parse_safetensors_header(std::as_bytes(std::span(data, size)),
                                                           static_cast<std::int64_t>(size), "input");
        std::int64_t end = 0;
        for (const keel::StoredTensor& t : header.tensors) {
            if (t.begin != end || t.end < t.begin || t.elements() * keel::size_bits(t.dtype) / 8 != t.size_bytes())
                std::abort();
            end = t.end;
        }
        if (header.data_offset + end != static_cast<std::int64_t>(size)) std::abort();
    } catch (const keel::Error&) {  // the one exception a file may cause
    }
    return 0;
}
