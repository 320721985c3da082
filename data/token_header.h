// data/token_header.h: the first 256 bytes of keel's token files, as data/token_file.h describes them. For reader and
// writer.
#pragma once

#include <xxhash.h>

#include <cstddef>
#include <cstdint>

namespace keel {

constexpr char token_magic[8] = {'k', 'e', 'e', 'l', '.', 't', 'o', 'k'};
constexpr std::uint32_t token_version = 2;
constexpr std::int64_t token_header_bytes = 256;

struct TokenHeader {
    static constexpr std::uint32_t flag_eos = 1, flag_bos = 2, flag_mask = 4;

    char magic[8];
    std::uint32_t version, token_bytes;
    std::uint64_t tokens, documents, source_bytes, tokenizer_hash, vocab_size;
    std::int32_t eos_id, bos_id;
    std::uint32_t flags, zero;
    std::uint64_t replaced, payload_hash;
    std::byte zeros[160];
    std::uint64_t header_hash;

    std::uint64_t hash() const { return XXH3_64bits(this, offsetof(TokenHeader, header_hash)); }
};
static_assert(sizeof(TokenHeader) == token_header_bytes && offsetof(TokenHeader, payload_hash) == 80);

inline std::int64_t padded(std::int64_t bytes) { return (bytes + 7) / 8 * 8; }

}  // namespace keel
