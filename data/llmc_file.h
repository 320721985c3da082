// data/llmc_file.h: the token files of llm.c (in and out), llm.q and nanoGPT (in).
//
//   llm.c   256 numbers of 4 bytes: 20240520, version 1, tokens, zeros; then u16 tokens (GPT-2)
//           or 20240801, version 7, tokens, zeros; then u32 tokens (Llama-3)
//   llm.q   "BIN.TOK\n", then numbers of 4 bytes: version 1 or 2, bytes per token (4), tokens, in version 2 vocabulary
//           and whether there is a mask; tokens from byte 1024 on; then a bit per token, as in keel's own
//   nanoGPT bare u16 (or u32) numbers and nothing else: type and vocabulary must be declared
//
// llm.c's magic numbers also tell whose vocabulary it is where none is declared: GPT-2 has 50257 ids and 50256 between
// its documents, Llama-3 128256 and 128000. A count that disagrees with the size of the file is refused.
#pragma once

#include <limits>
#include <string_view>

#include "data/token_writer.h"

namespace keel {

bool is_llmc(std::string_view bytes);       // one of the two above
bool is_llmc_eval(std::string_view bytes);  // llm.c's multiple-choice examples (20240522): no tokens to train on

// What `keel inspect` says of such a file; every length is held to the file.
struct LlmcEval {
    std::int64_t examples = 0, longest_bytes = 0, completions = 0, tokens = 0;
};
LlmcEval read_llmc_eval(const std::filesystem::path& path);

// The count is 31 bits wide, so what is longer goes on in files numbered -00001, -00002, … before the extension. That one is
// there already is refused: a pattern would read what an earlier run left together with what this one writes.
class LlmcWriter : public TokenWriter {
public:
    LlmcWriter(const std::filesystem::path& path, const TokenFileInfo& info,
               std::int64_t tokens_per_file = std::numeric_limits<std::int32_t>::max());
    std::vector<AtomicFile*> close() override;

protected:
    void put(std::span<const std::int32_t> ids) override;
    void put_document_end() override {}

private:
    std::filesystem::path numbered(std::size_t number) const;
    void open_next();
    void end_file();

    std::filesystem::path path_;
    std::int64_t tokens_per_file_, here_ = 0;
    std::vector<std::unique_ptr<AtomicFile>> files_;
    std::vector<std::byte> block_;
};

}  // namespace keel
