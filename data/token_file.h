// data/token_file.h: keel's file of token ids (.tok), written once, mapped ever after.
//
//   offset  size  content (little-endian)
//        0     8  "keel.tok"
//        8     4  version, 1
//       12     4  bytes per token: 2 if vocab_size <= 65536, else 4
//       16     8  tokens
//       24     8  documents
//       32     8  bytes of text behind the tokens, after repair of its UTF-8
//       40     8  hash of the tokenizer
//       48     8  vocab_size
//       56     4  eos id, -1 without
//       60     4  bos id, -1 without
//       64     4  flags: 1 each document ends with eos, 2 each begins with bos
//       68     4  zero
//       72     8  byte sequences that were not UTF-8 and became U+FFFD
//       80     8  XXH3-64 of everything from byte 256 on
//       88   160  zero
//      248     8  XXH3-64 of bytes 0…247
//      256     …  tokens, then zeros up to a multiple of 8
//        …     …  documents + 1 offsets of 8 bytes: first token of each document, then the number of tokens
//
// Open checks every field, the exact size and the order of the offsets; verify() also reads and hashes all tokens. Ids are
// checked against the vocabulary whenever they are read. No file, however damaged, does more than throw Error.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/file.h"
#include "kernels/base/mapped_file.h"

namespace keel {

struct TokenFileInfo {
    std::int64_t token_bytes = 2;
    std::int64_t tokens = 0, documents = 0;
    std::int64_t source_bytes = 0;
    std::uint64_t tokenizer_hash = 0;
    std::int64_t vocab_size = 0;
    std::int32_t eos_id = -1, bos_id = -1;
    bool ends_with_eos = false, begins_with_bos = false;
    std::int64_t replaced = 0;
    std::uint64_t payload_hash = 0;
};

class TokenFile {
public:
    explicit TokenFile(const std::filesystem::path& path);

    const TokenFileInfo& info() const { return info_; }
    const std::filesystem::path& path() const { return file_.path(); }
    std::int64_t tokens() const { return info_.tokens; }
    std::int64_t documents() const { return info_.documents; }

    // Copies tokens [begin, begin + out.size()). An id >= vocab_size throws with file, position and value. No allocation.
    void read(std::int64_t begin, std::span<std::int32_t> out) const;
    std::int64_t document_of(std::int64_t token) const;                // which document holds this token; O(log documents)
    std::int64_t document_begin(std::int64_t document) const;          // `documents()` is allowed: the end of the last

    void verify() const;  // reads everything: the hash and every id
    void expect_random() const { file_.expect_random(); }

private:
    MappedFile file_;
    TokenFileInfo info_;
    const std::byte* tokens_ = nullptr;
    const std::byte* offsets_ = nullptr;
};

// Writes beside `path` and renames in finish(), so a reader never sees half a file. Holds 8 bytes per document in memory.
class TokenFileWriter {
public:
    // Of `info`, the fields tokenizer_hash, vocab_size, eos_id, bos_id, ends_with_eos and begins_with_bos are used.
    TokenFileWriter(const std::filesystem::path& path, const TokenFileInfo& info);
    ~TokenFileWriter();

    void append(std::span<const std::int32_t> ids);  // to the current document; an id >= vocab_size throws
    void end_document();                             // an empty document is none
    void count_source(std::int64_t bytes, std::int64_t replaced = 0);
    const TokenFileInfo& finish();                   // ends the open document, fsyncs, renames

    const TokenFileInfo& info() const { return info_; }  // counts so far

private:
    struct Hash;
    void put(std::span<const std::byte> bytes);

    std::string name_;
    AtomicFile file_;
    TokenFileInfo info_;
    std::vector<std::uint64_t> offsets_{0};
    std::vector<std::byte> block_;
    std::unique_ptr<Hash> hash_;
};

}  // namespace keel
