// Any bytes as a tokenizer.json: refused with Error, or a tokenizer that encodes and decodes without harm.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "data/tokenizer.h"
#include "kernels/base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view json(reinterpret_cast<const char*>(data), size);
    try {
        const auto tokenizer = keel::Tokenizer::parse(json, "input");
        const auto ids = tokenizer.encode("the thing isn't 1234 <a> <b>  na\u00efve <|endoftext|>\n\n \u65e5\xff");
        for (const std::int32_t id : ids)
            if (id < 0 || id >= tokenizer.vocab_size()) std::abort();
        tokenizer.decode(ids);
        tokenizer.to_json();
    } catch (const keel::Error&) {  // the one exception a file may cause
    }
    return 0;
}
