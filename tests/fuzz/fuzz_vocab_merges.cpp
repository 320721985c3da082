// Any bytes as the files of a folder with vocab.json and merges.txt, and of what may lie beside them: refused with Error, or a
// tokenizer that encodes and decodes without harm. A zero byte ends a file: vocab.json, merges.txt, tokenizer_config.json,
// special_tokens_map.json, added_tokens.json.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer.h"
#include "kernels/base/error.h"
#include "tests/temp_folder.h"

namespace {

constexpr const char* names[] = {"vocab.json", "merges.txt", "tokenizer_config.json", "special_tokens_map.json",
                                 "added_tokens.json"};

}  // namespace

std::vector<std::string> keel_fuzz_seeds() {
    using namespace std::string_literals;
    const std::string vocab = R"({"<|endoftext|>":0,"t":1,"h":2,"e":3,"\u0120":4,"th":5,"the":6,"\u0120the":7,"\u010a":8})";
    const std::string merges = "#version: 0.2\nt h\nth e\n\u0120 the\r\n";
    return {vocab + "\0"s + merges + "\0{}"s,
            vocab + "\0"s + merges + "\0"s + R"({"tokenizer_class":"Qwen2TokenizerFast","add_prefix_space":true,"eos_token":{"content":"<|endoftext|>"}})",
            vocab + "\0"s + merges + "\0"s + R"({"added_tokens_decoder":{"9":{"content":"<a>","special":true,"lstrip":false}},"bos_token":"<a>"})",
            vocab + "\0"s + merges + "\0{}\0"s + R"({"eos_token":"<b>","additional_special_tokens":["<b>"]})" + "\0"s + R"({"<b>":9})"};
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static const keel::test::TempFolder folder;
    std::string_view rest(reinterpret_cast<const char*>(data), size);
    for (const char* name : names) {
        const std::size_t end = rest.find('\0');
        folder.write(name, name == names[0] || !rest.empty() ? std::string(rest.substr(0, end)) : "{}");
        rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    }
    try {
        const auto tokenizer = keel::Tokenizer::load(folder.path());
        const auto ids = tokenizer.encode("the he<|endoftext|> <a><b>\n the");
        for (const std::int32_t id : ids)
            if (id < 0 || id >= tokenizer.vocab_size()) std::abort();
        tokenizer.decode(ids);
        tokenizer.file();
    } catch (const keel::Error&) {  // the one exception a file may cause
    }
    return 0;
}
