// Any bytes as a conversation and as a chat format: told what is wrong, or ids with a mask of the same length.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "data/bpe_train.h"
#include "data/chat.h"
#include "data/utf8.h"
#include "kernels/base/error.h"

namespace {

const keel::Tokenizer& tokenizer() {
    static const keel::Tokenizer t = [] {
        keel::BpeTrainer trainer;
        trainer.add("user assistant content role");
        return trainer.train({.vocab_size = 280, .special = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}});
    }();
    return t;
}

void encode(const keel::ChatFormat& format, const std::string& line) {
    keel::ChatEncoder encoder(format, tokenizer());
    std::vector<std::int32_t> ids;
    std::vector<std::uint8_t> targets;
    if (!encoder.encode(line, ids, targets).empty()) return;
    if (ids.size() != targets.size()) std::abort();
    for (const std::int32_t id : ids)
        if (id < 0 || id >= tokenizer().vocab_size()) std::abort();
}

}  // namespace

std::vector<std::string> keel_fuzz_seeds() {
    return {
        R"({"messages": [{"role": "user", "content": "a\u00e9<|im_end|>"}, {"role": "assistant", "content": "b"}], "x": [1, null]})",
        R"({"conversations": [{"from": "human", "value": ""}, {"from": "gpt", "value": "b"}]})",
        R"({"prompt": "p", "completion": "c"})",
        R"({"begin": "<|im_start|>", "end": "e", "eos": true, "roles": {"user": {"before": "b", "after": "a"}, "assistant": {"between": "\n", "learn": true}}})"};
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string bytes(reinterpret_cast<const char*>(data), size);
    std::string line;
    keel::append_repaired(bytes, line);
    encode(keel::ChatFormat::named("chatml"), line);
    encode(keel::ChatFormat::named("prompt"), line);
    try {
        encode(keel::ChatFormat::parse(bytes, "fuzz"), keel_fuzz_seeds()[2]);
    } catch (const keel::Error&) {  // the one exception a format may cause
    }
    return 0;
}
