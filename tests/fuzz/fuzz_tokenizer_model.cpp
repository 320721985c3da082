// Any bytes as a tokenizer.model, SentencePiece or tiktoken: refused with Error, or a tokenizer that encodes and decodes
// without harm.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "data/tokenizer.h"
#include "data/tokenizer_model.h"
#include "kernels/base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view file(reinterpret_cast<const char*>(data), size);
    try {
        auto model = keel::looks_like_tiktoken(file) ? keel::parse_tiktoken(file, "input") : keel::parse_sentencepiece(file, "input");
        const keel::Tokenizer tokenizer(std::move(model));
        const auto ids = tokenizer.encode("the thing  isn't 1234 <a> na\u00efve \ufb01 \u2460 <|endoftext|>\n\n \u65e5\u672c\xff");
        for (const std::int32_t id : ids)
            if (id < 0 || id >= tokenizer.vocab_size()) std::abort();
        tokenizer.decode(ids);
    } catch (const keel::Error&) {  // the one exception a file may cause
    }
    return 0;
}
