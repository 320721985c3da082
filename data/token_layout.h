// data/token_layout.h: where the parts of a token file lie, whatever its format. Filled by one function per format,
// which checks the sizes it relies on; read by TokenFile alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/token_file.h"
#include "kernels/base/mapped_file.h"

namespace keel {

// How one token is stored. The numbers are Megatron's, with one more.
enum class TokenType : std::uint8_t { u8 = 1, i8 = 2, i16 = 3, i32 = 4, i64 = 5, u16 = 8, u32 = 100 };
std::int64_t bytes_of(TokenType type);

struct TokenLayout {
    TokenFileInfo info;
    MappedFile file;                     // holds the tokens
    std::optional<MappedFile> index;     // Megatron's .idx
    TokenType type = TokenType::u16;
    std::int64_t tokens_at = 0;          // byte of the first token
    const std::byte* offsets =
        nullptr;  // documents + 1 numbers of 8 bytes, in tokens; or, with `pointers`, in sequences
    const std::byte* pointers = nullptr; // Megatron: byte in `file` where each sequence begins
    const std::byte* mask = nullptr;     // a bit per token
    const std::byte* hashes = nullptr;   // of each block of 64 KiB of tokens
    std::int64_t hashed_bytes = 0;       // how far the hashes reach, from the first token on
    std::int32_t separator = -1;         // parts documents, in formats without a table of them
    std::vector<std::int64_t> found;     // the table that was made then; `offsets` points into it

    explicit TokenLayout(MappedFile tokens) : file(std::move(tokens)) {}
};

constexpr std::int64_t token_block_bytes = 64 << 10;

TokenLayout lay_out_keel(MappedFile file);
// `index` is the .idx; what it lacks comes from `declared`.
TokenLayout lay_out_megatron(const std::filesystem::path& index, const std::filesystem::path& tokens,
                             const TokenDeclared& declared);
TokenLayout lay_out_llmc(MappedFile file, const TokenDeclared& declared);
TokenLayout lay_out_llmq(MappedFile file, const TokenDeclared& declared);
TokenLayout lay_out_raw(MappedFile file, const TokenDeclared& declared);

// "3 bytes are missing", "1 bytes too many".
std::string by_how_much(std::int64_t have, std::int64_t want);

template <class T> T number_at(const std::byte* from) {
    T value;
    __builtin_memcpy(&value, from, sizeof value);
    return value;
}

}  // namespace keel
