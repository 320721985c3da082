// Any bytes as a token file: refused with Error, or every token and document can be read. Half of the inputs get the header
// hash they should have, or no mutation would come past it.
#include <xxhash.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/loader.h"
#include "data/token_file.h"
#include "data/token_writer.h"
#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "tests/fuzz/memory_file.h"
#include "tests/temp_folder.h"

namespace {

void read_all(const std::uint8_t* data, std::size_t size) {
    const MemoryFile memory(data, size);
    try {
        const keel::TokenFile file(memory.path());
        std::vector<std::int32_t> ids(64);
        for (std::int64_t at = 0; at < file.tokens(); at += 64) {
            ids.resize(static_cast<std::size_t>(std::min<std::int64_t>(64, file.tokens() - at)));
            const std::int64_t document = file.document_of(at);
            if (file.document_begin(document) > at || file.document_begin(document + 1) <= at) std::abort();
            file.read(at, ids);
            for (const std::int32_t id : ids)
                if (id < 0 || id >= file.info().vocab_size) std::abort();
        }
        keel::DatasetSpec spec;
        spec.paths = {memory.path()};
        spec.seq_len = 3;
        const keel::Dataset dataset(spec);
        keel::Loader loader(dataset, {.max_count = 2, .window = 2, .reset_at_document = true, .prefetch = 0});
        for (std::int64_t n = 0; n < 8; n += 2) loader.next(n, 2);
        file.verify();
    } catch (const keel::Error&) {  // the one exception a file may cause
    }
}

}  // namespace

std::vector<std::string> keel_fuzz_seeds() {
    std::vector<std::string> seeds;
    for (const std::int64_t vocab : {100, 70000}) {
        const keel::test::TempFolder folder;
        const std::string path = folder / "seed.tok";
        keel::TokenFileInfo info;
        info.vocab_size = vocab;
        info.eos_id = 0;
        info.ends_with_eos = true;
        keel::TokenFileWriter writer(path, info);
        for (int document = 0; document < 5; ++document) {
            for (std::int32_t i = 0; i < 1 + document * 3; ++i) writer.append(std::vector<std::int32_t>{i, 0});
            writer.end_document();
        }
        writer.finish();
        seeds.push_back(keel::read_file(path));
    }
    return seeds;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    read_all(data, size);
    if (size < 256) return 0;
    std::vector<std::uint8_t> fixed(data, data + size);
    const std::uint64_t hash = XXH3_64bits(fixed.data(), 248);
    std::memcpy(fixed.data() + 248, &hash, 8);
    read_all(fixed.data(), size);
    return 0;
}
