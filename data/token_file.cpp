#include "data/token_file.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "data/llmc_file.h"
#include "data/megatron_file.h"
#include "data/token_layout.h"
#include "kernels/base/error.h"

namespace keel {
namespace fs = std::filesystem;
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian and read in place");

TokenLayout lay_out(const fs::path& path, const TokenDeclared& declared) {
    if (const auto pair = find_megatron_pair(path)) return lay_out_megatron(pair->index, pair->tokens, declared);
    MappedFile file(path);
    const std::string_view bytes(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
    if (bytes.starts_with("keel.tok")) return lay_out_keel(std::move(file));
    if (bytes.starts_with("BIN.TOK\n")) return lay_out_llmq(std::move(file), declared);
    if (is_llmc(bytes)) return lay_out_llmc(std::move(file), declared);
    if (!declared.dtype.empty()) return lay_out_raw(std::move(file), declared);
    fail(path.string(),
         " is not a token file: it begins neither like keel's (\"keel.tok\"; make one with `keel tokenize`), nor like"
         " those of llm.c or llm.q, and has no Megatron .idx beside it; if it is bare numbers as nanoGPT writes them, "
         "say which with"
         " --data.raw_dtype uint16");
}

// Copies and widens; `bad` is where an id is no id, or out.size().
template <class T> std::size_t copy_ids(const std::byte* from, std::span<std::int32_t> out, std::uint64_t limit) {
    bool all = true;
    for (std::size_t i = 0; i < out.size(); ++i) {
        const auto id =
            static_cast<std::uint64_t>(static_cast<std::int64_t>(number_at<T>(from + i * sizeof(T))));  // < 0 is large
        out[i] = static_cast<std::int32_t>(id);
        all &= id < limit;
    }
    if (all) return out.size();
    for (std::size_t i = 0;; ++i)
        if (static_cast<std::uint64_t>(static_cast<std::int64_t>(number_at<T>(from + i * sizeof(T)))) >= limit)
            return i;
}

template <class Body> auto with_type(TokenType type, Body&& body) {
    switch (type) {
        case TokenType::u8: return body(std::uint8_t{});
        case TokenType::i8: return body(std::int8_t{});
        case TokenType::i16: return body(std::int16_t{});
        case TokenType::u16: return body(std::uint16_t{});
        case TokenType::i64: return body(std::int64_t{});
        case TokenType::u32: return body(std::uint32_t{});
        case TokenType::i32: break;
    }
    return body(std::int32_t{});
}

}  // namespace

const char* name(TokenFormat format) {
    constexpr const char* names[] = {"keel", "Megatron", "llm.c", "llm.q", "raw"};
    return names[static_cast<int>(format)];
}

std::int64_t bytes_of(TokenType type) {
    return with_type(type, [](auto zero) { return static_cast<std::int64_t>(sizeof zero); });
}

std::string by_how_much(std::int64_t have, std::int64_t want) {
    return have < want ? concat(want - have, " bytes are missing") : concat(have - want, " bytes too many");
}

TokenFile::TokenFile(const fs::path& path, const TokenDeclared& declared)
    : layout_(std::make_unique<TokenLayout>(lay_out(path, declared))) {
    info_ = layout_->info;
    if (const auto& l = *layout_; l.hashes != nullptr)
        checked_ = std::make_unique<std::atomic<bool>[]>(
            static_cast<std::size_t>((l.hashed_bytes + token_block_bytes - 1) / token_block_bytes));
    if (layout_->offsets == nullptr) find_documents(layout_->separator, declared.eos_begins);
    info_.sequences = layout_->pointers != nullptr ? info_.sequences : info_.documents;
}
TokenFile::~TokenFile() = default;
TokenFile::TokenFile(TokenFile&&) noexcept = default;

void TokenFile::find_documents(std::int32_t separator, std::optional<bool> separator_begins) {
    std::vector<std::int64_t>& found = layout_->found;
    found.push_back(0);
    bool begins = separator >= 0 && separator_begins.value_or(false);
    std::vector<std::int32_t> block(1 << 16);
    for (std::int64_t at = 0; separator >= 0 && at < info_.tokens; at += static_cast<std::int64_t>(block.size())) {
        const auto ids = std::span(block).first(static_cast<std::size_t>(
            std::min<std::int64_t>(info_.tokens - at, static_cast<std::int64_t>(block.size()))));
        read(at, ids);
        if (at == 0) begins = separator_begins.value_or(ids[0] == separator);
        for (std::size_t i = 0; i < ids.size(); ++i)
            if (ids[i] == separator)
                if (const std::int64_t border = at + static_cast<std::int64_t>(i) + (begins ? 0 : 1);
                    border > found.back())
                    found.push_back(border);
    }
    if (found.back() < info_.tokens) found.push_back(info_.tokens);
    info_.documents = static_cast<std::int64_t>(found.size()) - 1;
    info_.begins_with_bos = begins;
    info_.ends_with_eos = separator >= 0 && !begins && info_.tokens > 0;
    layout_->offsets = reinterpret_cast<const std::byte*>(found.data());
}

const fs::path& TokenFile::path() const { return layout_->file.path(); }
void TokenFile::expect_random() const { layout_->file.expect_random(); }

std::int64_t TokenFile::sequence_begin(std::int64_t sequence) const {
    if (layout_->pointers == nullptr) return document_begin(sequence);
    return sequence == info_.sequences ? info_.tokens
                                       : number_at<std::int64_t>(layout_->pointers + sequence * 8) / info_.token_bytes;
}

std::int64_t TokenFile::document_begin(std::int64_t document) const {
    const auto at = number_at<std::int64_t>(layout_->offsets + document * 8);
    return layout_->pointers == nullptr ? at : sequence_begin(at);
}

std::int64_t TokenFile::document_of(std::int64_t token) const {
    std::int64_t low = 0, high = info_.documents;  // document_begin(low) <= token < document_begin(high)
    while (high - low > 1) {
        const std::int64_t middle = low + (high - low) / 2;
        (document_begin(middle) <= token ? low : high) = middle;
    }
    return low;
}

bool TokenFile::is_target(std::int64_t token) const {
    if (layout_->mask == nullptr) return true;
    return (static_cast<unsigned>(layout_->mask[token / 8]) >> (token % 8) & 1) != 0;
}

void TokenFile::check_blocks(std::int64_t begin_byte, std::int64_t end_byte) const {
    const TokenLayout& l = *layout_;
    for (std::int64_t block = begin_byte / token_block_bytes; block * token_block_bytes < end_byte; ++block) {
        std::atomic<bool>& checked = checked_[static_cast<std::size_t>(block)];
        if (checked.load(std::memory_order_relaxed)) continue;
        const std::int64_t at = block * token_block_bytes, bytes = std::min(token_block_bytes, l.hashed_bytes - at);
        const std::uint64_t hash =
            XXH3_64bits(l.file.bytes().data() + l.tokens_at + at, static_cast<std::size_t>(bytes));
        if (hash != number_at<std::uint64_t>(l.hashes + block * 8))
            fail(path().string(), ": tokens ", at / info_.token_bytes, "…", (at + bytes) / info_.token_bytes,
                 " (bytes ", l.tokens_at + at, "…", l.tokens_at + at + bytes,
                 ") are damaged: their hash is not the one written with them; make"
                 " the file again, or copy it again");
        checked.store(true, std::memory_order_relaxed);
    }
}

void TokenFile::read(std::int64_t begin, std::span<std::int32_t> out) const {
    const auto count = static_cast<std::int64_t>(out.size());
    if (begin < 0 || count > info_.tokens || begin > info_.tokens - count)
        fail(path().string(), ": tokens ", begin, "…", begin + count, " of ", info_.tokens, " were asked for");
    if (count == 0) return;
    if (checked_) check_blocks(begin * info_.token_bytes, (begin + count) * info_.token_bytes);
    const std::byte* from = layout_->file.bytes().data() + layout_->tokens_at + begin * info_.token_bytes;
    const auto limit =
        static_cast<std::uint64_t>(info_.vocab_size > 0 ? info_.vocab_size : std::numeric_limits<std::int32_t>::max());
    const std::size_t bad =
        with_type(layout_->type, [&](auto zero) { return copy_ids<decltype(zero)>(from, out, limit); });
    if (bad == out.size()) return;
    const auto at = static_cast<std::int64_t>(bad);
    const std::int64_t id = with_type(layout_->type, [&](auto zero) {
        return static_cast<std::int64_t>(number_at<decltype(zero)>(from + at * info_.token_bytes));
    });
    fail(path().string(), ": token ", begin + at, " (byte ", layout_->tokens_at + (begin + at) * info_.token_bytes,
         ") is ", id, ", but the vocabulary has ", limit,
         info_.format == TokenFormat::keel
             ? "; make the file again"
             : "; is the vocabulary (of --data.tokenizer, or --data.token_vocab) the one it was made with?");
}

void TokenFile::verify() const {
    if (info_.format == TokenFormat::keel && !info_.has_block_hashes) {
        const auto bytes = layout_->file.bytes().subspan(static_cast<std::size_t>(layout_->tokens_at));
        if (const std::uint64_t hash = XXH3_64bits(bytes.data(), bytes.size()); hash != info_.payload_hash)
            fail(path().string(), ": the content is damaged (its hash is ", std::hex, hash, ", the header says ",
                 info_.payload_hash, "); make the file again");
    }
    std::vector<std::int32_t> block(1 << 16);
    for (std::int64_t at = 0; at < info_.tokens; at += static_cast<std::int64_t>(block.size()))
        read(at, std::span(block).first(static_cast<std::size_t>(
                     std::min<std::int64_t>(info_.tokens - at, static_cast<std::int64_t>(block.size())))));
    if (info_.tokens == 0 && checked_) check_blocks(0, layout_->hashed_bytes);
}

}  // namespace keel
