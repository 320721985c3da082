// Any bytes as a token file of llm.c, llm.q or nanoGPT, or as the index of a Megatron pair: refused with Error, or
// every token and document can be read. Megatron's .bin has as many bytes as the index's first sequences would like, or
// a few more.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/llmc_file.h"
#include "data/loader.h"
#include "data/megatron_file.h"
#include "kernels/base/error.h"
#include "tests/fuzz/memory_file.h"
#include "tests/temp_folder.h"

namespace {

namespace fs = std::filesystem;

void read_all(const std::string& path, const keel::TokenDeclared& declared) {
    try {
        const keel::TokenFile file(path, declared);
        for (std::int64_t d = 0; d < file.documents(); ++d)
            if (file.document_begin(d) > file.document_begin(d + 1)) std::abort();
        if (file.document_begin(file.documents()) != file.tokens()) std::abort();
        file.verify();
        for (const bool pack : {false, true}) {
            keel::DatasetSpec spec;
            spec.paths = {path};
            spec.seq_len = 3;
            spec.declared = declared;
            spec.pack = pack;
            const keel::Dataset dataset(spec);
            keel::Loader loader(dataset, {.max_count = 2, .window = 2, .reset_at_document = true, .prefetch = 0});
            for (std::int64_t n = 0; n < 8; n += 2) loader.next(n, 2);
        }
        keel::DatasetSpec spec;
        spec.paths = {path};
        spec.seq_len = 3;
        spec.declared = declared;
        spec.megatron_order = true;
        spec.order_samples = 20;
        const keel::Dataset dataset(spec);
        keel::Loader loader(dataset, {.max_count = 1, .window = 0, .reset_at_document = true, .prefetch = 0});
        for (std::int64_t n = 0; n < 20; ++n) loader.next(n, 1);
    } catch (const keel::Error&) {  // the one exception a file may cause
    }
}

std::string number(std::uint64_t value, std::size_t bytes) {
    std::string out;
    for (std::size_t i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i));
    return out;
}

std::string header(const std::string& start, const std::string& behind) {
    std::string bytes = start;
    bytes.resize(1024);
    return bytes + behind;
}

}  // namespace

std::vector<std::string> keel_fuzz_seeds() {
    std::string index("MMIDIDX\0\0", 9);
    index += number(1, 8) + number(8, 1) + number(3, 8) + number(3, 8);
    for (const std::uint64_t length : {2, 3, 1}) index += number(length, 4);
    for (const std::uint64_t pointer : {0, 4, 10}) index += number(pointer, 8);
    for (const std::uint64_t first : {0, 2, 3}) index += number(first, 8);
    std::string small, large;
    for (std::uint64_t i = 0; i < 40; ++i) small += number(i % 9, 2), large += number(i % 9, 4);
    return {index, header(number(20240520, 4) + number(1, 4) + number(40, 4), small),
            header(number(20240801, 4) + number(7, 4) + number(40, 4), large),
            header("BIN.TOK\n" + number(2, 4) + number(4, 4) + number(40, 4) + number(100, 4) + number(1, 4),
                   large + "abcde"),
            header(number(20240522, 4) + number(1, 4) + number(1, 4) + number(36, 4),
                   number(65535, 2) + number(14, 2) + number(0, 4) + number(1, 2) + number(0, 2) + number(0, 2))};
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const MemoryFile memory(data, size);
    read_all(memory.path(), {.vocab_size = 1000, .eos_id = 3});
    read_all(memory.path(), {.vocab_size = 0, .eos_id = -1, .dtype = "uint16"});
    read_all(memory.path(), {.vocab_size = 65536, .eos_id = 3, .dtype = "uint16"});
    read_all(memory.path(), {.vocab_size = 0x7fffffff, .eos_id = 0, .dtype = "uint32"});
    try {
        keel::read_llmc_eval(memory.path());
    } catch (const keel::Error&) {
    }
    // A pair needs names; links give them to memory.
    static const keel::test::TempFolder links;
    const fs::path& folder = links.path();
    for (const std::size_t bytes : {std::size_t{12}, size % 64}) {
        const std::string zeros(bytes, '\1');
        const MemoryFile tokens(reinterpret_cast<const std::uint8_t*>(zeros.data()), zeros.size());
        for (const char* name : {"a.idx", "a.bin"}) fs::remove(folder / name);
        fs::create_symlink(memory.path(), folder / "a.idx");
        fs::create_symlink(tokens.path(), folder / "a.bin");
        read_all((folder / "a").string(), {.vocab_size = 70000, .eos_id = -1});
    }
    return 0;
}
