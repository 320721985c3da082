// data/token_file.h: files of token ids, mapped and read in place: keel's own (.tok), and those of Megatron, llm.c,
// llm.q and nanoGPT (data/megatron_file.h, data/llmc_file.h). The format is recognised by content, never by name.
//
// keel's own, version 2:
//   offset  size  content (little-endian)
//        0     8  "keel.tok"
//        8     4  version, 2 (1 is read too: no mask, no hashes of blocks, and the hash at 80 covers byte 256 to the end)
//       12     4  bytes per token: 2 if vocab_size <= 65536, else 4
//       16     8  tokens
//       24     8  documents
//       32     8  bytes of text behind the tokens, after repair of its UTF-8
//       40     8  hash of the tokenizer
//       48     8  vocab_size
//       56     4  eos id, -1 without
//       60     4  bos id, -1 without
//       64     4  flags: 1 each document ends with eos, 2 each begins with bos, 4 there is a mask
//       68     4  zero
//       72     8  byte sequences that were not UTF-8 and became U+FFFD
//       80     8  XXH3-64 of everything behind the tokens
//       88   160  zero
//      248     8  XXH3-64 of bytes 0…247
//      256     …  tokens, then zeros up to a multiple of 8
//        …     …  documents + 1 offsets of 8 bytes: first token of each document, then the number of tokens
//        …     …  the mask, if there is one: bit i % 8 of byte i / 8 is 1 where token i is to be predicted; padded to 8
//        …     …  XXH3-64 of each 64 KiB of the tokens, the zeros behind them included
//
// Open checks every field, the exact size, the order of the offsets and the hash of what lies behind the tokens. The
// tokens of a block are hashed the first time one of them is read; ids are checked against the vocabulary whenever they
// are read. Files of others have no hashes, and may need to be told what they do not say (TokenDeclared). Their
// documents, if the file has no table of them, are found by one pass over it, which also checks every id. No file does
// more than throw Error.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace keel {

enum class TokenFormat : std::uint8_t { keel, megatron, llmc, llmq, raw };
const char* name(TokenFormat format);  // as in "a Megatron token file"

struct TokenFileInfo {
    TokenFormat format = TokenFormat::keel;
    std::int64_t token_bytes = 2;
    std::int64_t tokens = 0, documents = 0;
    std::int64_t sequences = 0;          // Megatron: of which documents are made; elsewhere as documents
    std::int64_t source_bytes = 0;       // 0: unknown
    std::uint64_t tokenizer_hash = 0;    // 0: unknown
    std::int64_t vocab_size = 0;         // 0: neither said by the file nor declared
    std::int32_t eos_id = -1, bos_id = -1;
    bool ends_with_eos = false, begins_with_bos = false;
    bool has_mask = false;
    bool has_block_hashes = false;
    std::int64_t replaced = 0;
    std::uint64_t payload_hash = 0;      // what stands at byte 80
};

// What a file of another program does not say about itself. A file that does say it is believed.
struct TokenDeclared {
    std::int64_t vocab_size = 0;
    std::int32_t eos_id = -1;  // which parts documents, where a file has no table of them
    // Whether documents begin with eos_id, as llm.c's do, or end with it; not said: as the first token of the file tells.
    // Of files that follow one another only the first tells: the next may begin in the middle of a document.
    std::optional<bool> eos_begins = {};
    std::string dtype = {};    // "uint16" or "uint32": then a file without any header is read as these and nothing else
};

struct TokenLayout;  // data/token_layout.h

class TokenFile {
public:
    // A file; of a Megatron pair the .bin, the .idx or the name without either.
    explicit TokenFile(const std::filesystem::path& path, const TokenDeclared& declared = {});
    ~TokenFile();
    TokenFile(TokenFile&&) noexcept;

    const TokenFileInfo& info() const { return info_; }
    const std::filesystem::path& path() const;  // of the file that holds the tokens
    std::int64_t tokens() const { return info_.tokens; }
    std::int64_t documents() const { return info_.documents; }

    // Copies tokens [begin, begin + out.size()). An id >= vocab_size, or a block whose hash is wrong, throws with file,
    // position and value. No allocation. Several threads may read.
    void read(std::int64_t begin, std::span<std::int32_t> out) const;
    bool is_target(std::int64_t token) const;                          // by the mask; true without one
    std::int64_t document_of(std::int64_t token) const;  // which document holds this token; O(log documents)
    std::int64_t document_begin(std::int64_t document) const;          // `documents()` is allowed: the end of the last
    std::int64_t sequence_begin(std::int64_t sequence) const;

    void verify() const;  // reads everything: every hash and every id
    void expect_random() const;

private:
    void check_blocks(std::int64_t begin_byte, std::int64_t end_byte) const;
    void find_documents(std::int32_t separator, std::optional<bool> separator_begins);

    TokenFileInfo info_;
    std::unique_ptr<TokenLayout> layout_;
    std::unique_ptr<std::atomic<bool>[]> checked_;  // per block of 64 KiB
};

}  // namespace keel
