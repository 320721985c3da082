// Any bytes as a file of torch.save, and as a pickle alone: refused with Error, or every tensor lies inside of the file.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "ckpt/foreign/torch_file.h"
#include "kernels/base/error.h"
#include "tests/fuzz/memory_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    try {
        const keel::Pickle pickle(std::string_view(reinterpret_cast<const char*>(data), size), "input");
        (void)pickle.root().description();
    } catch (const keel::Error&) {  // the one exception a file may cause
    }
    try {
        const MemoryFile memory(data, size);
        keel::TorchFile file(memory.path());
        const keel::TensorTable table = file.tensors(file.root());
        for (const auto& [name, t] : table.tensors) {
            if (t.rows() == 0 || t.row_elements() == 0) continue;
            const std::int64_t last = (t.rows() - 1) * t.row_stride + t.row_elements();
            if (t.begin < 0 || t.begin + last * keel::size_bits(t.dtype) / 8 > static_cast<std::int64_t>(size)) std::abort();
        }
        file.check_storages();
    } catch (const keel::Error&) {
    }
    return 0;
}
