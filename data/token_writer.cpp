#include "data/token_writer.h"

#include <cstring>

#include "data/llmc_file.h"
#include "data/megatron_file.h"
#include "data/token_header.h"
#include "data/token_layout.h"
#include "kernels/base/error.h"

namespace keel {

TokenWriter::TokenWriter(std::string name, const TokenFileInfo& info) : name_(std::move(name)) {
    if (info.vocab_size < 1 || info.vocab_size > 0x7fffffff)
        fail(name_, ": a vocabulary of ", info.vocab_size, " is impossible; 1 to 2147483647 is");
    for (const auto& [what, id] : {std::pair{"eos", info.eos_id}, std::pair{"bos", info.bos_id}})
        if (id < -1 || id >= info.vocab_size)
            fail(name_, ": the ", what, " id ", id, " is outside the vocabulary of ", info.vocab_size);
    info_.vocab_size = info.vocab_size;
    info_.tokenizer_hash = info.tokenizer_hash;
    info_.eos_id = info.eos_id;
    info_.bos_id = info.bos_id;
    info_.ends_with_eos = info.ends_with_eos;
    info_.begins_with_bos = info.begins_with_bos;
    info_.has_mask = info.has_mask;
    info_.token_bytes = info.vocab_size <= 65536 ? 2 : 4;
}

void TokenWriter::append(std::span<const std::int32_t> ids, std::span<const std::uint8_t> targets) {
    for (std::size_t i = 0; i < ids.size(); ++i)
        if (ids[i] < 0 || ids[i] >= info_.vocab_size)
            fail(name_, ": token ", info_.tokens + static_cast<std::int64_t>(i), " is ", ids[i],
                 ", but the vocabulary has ", info_.vocab_size);
    if (!targets.empty() && targets.size() != ids.size())
        fail(name_, ": ", targets.size(), " marks of a mask for ", ids.size(), " tokens");
    put(ids);
    if (info_.has_mask) {
        const std::vector<std::uint8_t> all(targets.empty() ? ids.size() : 0, 1);
        put_targets(targets.empty() ? std::span<const std::uint8_t>(all) : targets);
    }
    info_.tokens += static_cast<std::int64_t>(ids.size());
    if (duplicates_) duplicates_->append(ids);
}

void TokenWriter::end_document() {
    if (info_.tokens == document_begin_) return;
    document_begin_ = info_.tokens;
    ++info_.documents;
    put_document_end();
    if (duplicates_) duplicates_->end_document();
}

void TokenWriter::count_source(std::int64_t bytes, std::int64_t replaced) {
    info_.source_bytes += bytes;
    info_.replaced += replaced;
}

const TokenFileInfo& TokenWriter::finish() {
    const std::vector<AtomicFile*> files = close();
    commit_together(files);
    return info_;
}

void TokenWriter::put_targets(std::span<const std::uint8_t>) {
    fail(name_, ": this format has no place for a mask of what is to be predicted; write keel's own");
}

TokenFileWriter::TokenFileWriter(const std::filesystem::path& path, const TokenFileInfo& info)
    : TokenWriter(path.string(), info), file_(path) {
    info_.has_block_hashes = true;
    const TokenHeader blank{};
    file_.write(std::as_bytes(std::span(&blank, 1)));
}

void TokenFileWriter::put(std::span<const std::int32_t> ids) {
    const auto width = static_cast<std::size_t>(info_.token_bytes);
    constexpr auto block = static_cast<std::size_t>(token_block_bytes);
    while (!ids.empty()) {
        const std::size_t old = block_.size(), count = std::min(ids.size(), (block - old) / width);
        block_.resize(old + count * width);
        for (std::size_t i = 0; i < count; ++i)
            std::memcpy(block_.data() + old + i * width, &ids[i], width);  // low bytes first
        if (block_.size() == block) end_block();
        ids = ids.subspan(count);
    }
}

void TokenFileWriter::end_block() {
    if (block_.empty()) return;
    hashes_.push_back(XXH3_64bits(block_.data(), block_.size()));
    file_.write(block_);
    block_.clear();
}

void TokenFileWriter::put_targets(std::span<const std::uint8_t> targets) {
    mask_.resize(static_cast<std::size_t>((masked_ + static_cast<std::int64_t>(targets.size()) + 7) / 8));
    for (const std::uint8_t t : targets) {
        if (t != 0) mask_[static_cast<std::size_t>(masked_ / 8)] |= static_cast<std::uint8_t>(1u << (masked_ % 8));
        ++masked_;
    }
}

std::vector<AtomicFile*> TokenFileWriter::close() {
    end_document();
    const std::int64_t bytes = info_.tokens * info_.token_bytes;
    block_.resize(block_.size() + static_cast<std::size_t>(padded(bytes) - bytes));
    end_block();
    mask_.resize(static_cast<std::size_t>(padded(static_cast<std::int64_t>(mask_.size()))));
    XXH3_state_t* state = XXH3_createState();
    if (state == nullptr) fail(name_, ": cannot set up the hash of the file");
    XXH3_64bits_reset(state);
    const std::span<const std::byte> behind[] = {std::as_bytes(std::span(offsets_)), std::as_bytes(std::span(mask_)),
                                                 std::as_bytes(std::span(hashes_))};
    for (const auto& part : behind) XXH3_64bits_update(state, part.data(), part.size());
    info_.payload_hash = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    for (const auto& part : behind) file_.write(part);

    TokenHeader h{};
    std::memcpy(h.magic, token_magic, sizeof token_magic);
    h.version = token_version;
    h.token_bytes = static_cast<std::uint32_t>(info_.token_bytes);
    h.tokens = static_cast<std::uint64_t>(info_.tokens);
    h.documents = static_cast<std::uint64_t>(info_.documents);
    h.source_bytes = static_cast<std::uint64_t>(info_.source_bytes);
    h.tokenizer_hash = info_.tokenizer_hash;
    h.vocab_size = static_cast<std::uint64_t>(info_.vocab_size);
    h.eos_id = info_.eos_id;
    h.bos_id = info_.bos_id;
    h.flags = (info_.ends_with_eos ? TokenHeader::flag_eos : 0) | (info_.begins_with_bos ? TokenHeader::flag_bos : 0) |
              (info_.has_mask ? TokenHeader::flag_mask : 0);
    h.replaced = static_cast<std::uint64_t>(info_.replaced);
    h.payload_hash = info_.payload_hash;
    h.header_hash = h.hash();
    file_.overwrite(0, std::as_bytes(std::span(&h, 1)));
    return {&file_};
}

std::unique_ptr<TokenWriter> make_token_writer(TokenFormat format, const std::filesystem::path& path,
                                               const TokenFileInfo& info) {
    if (format == TokenFormat::keel) return std::make_unique<TokenFileWriter>(path, info);
    if (info.has_mask)
        fail_usage(path.string(), ": the token files of ", name(format),
                   " have no place for a mask of what is to be predicted; write"
                   " keel's own with --to keel");
    if (format == TokenFormat::megatron) return std::make_unique<MegatronWriter>(path, info);
    if (format == TokenFormat::llmc) return std::make_unique<LlmcWriter>(path, info);
    fail("token files of ", name(format), " are read only");
}

}  // namespace keel
