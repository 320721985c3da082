// data/token_writer.h: token files written front to back, documents one after the other. One class per format, one way
// to use them: append, end_document, …, then close, and commit_together with whatever else belongs to it.
//
// Ids are checked one by one: none outside the vocabulary and none too large for its bytes is ever written. Nothing
// appears under the final name before it is whole. Memory: 8 bytes per document (20 for Megatron), and a bit per token
// with a mask.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/duplicates.h"
#include "data/token_file.h"
#include "kernels/base/file.h"

namespace keel {

class TokenWriter {
public:
    // Of `info`, the fields tokenizer_hash, vocab_size, eos_id, bos_id, ends_with_eos, begins_with_bos and has_mask are
    // used.
    TokenWriter(std::string name, const TokenFileInfo& info);
    virtual ~TokenWriter() = default;

    // To the current document. An id outside of the vocabulary throws. `targets`: 0 or 1 per id, or none at all for
    // all 1.
    void append(std::span<const std::int32_t> ids, std::span<const std::uint8_t> targets = {});
    void end_document();  // an empty document is none
    void count_source(std::int64_t bytes, std::int64_t replaced = 0);
    const TokenFileInfo& info() const { return info_; }  // counts so far
    void look_for_duplicates() { duplicates_ = std::make_unique<DuplicateFinder>(); }  // among documents from now on
    const DuplicateFinder* duplicates() const { return duplicates_.get(); }

    // Ends the open document and completes the files; they appear when they are committed, and until then belong to
    // this.
    virtual std::vector<AtomicFile*> close() = 0;
    const TokenFileInfo& finish();  // close and commit

protected:
    virtual void put(std::span<const std::int32_t> ids) = 0;                  // ids are good
    virtual void put_targets(std::span<const std::uint8_t> targets);          // as many as ids; refuses
    virtual void put_document_end() = 0;                                      // at info_.tokens

    std::string name_;
    TokenFileInfo info_;

private:
    std::unique_ptr<DuplicateFinder> duplicates_;
    std::int64_t document_begin_ = 0;
};

// keel's own file, as data/token_file.h describes it.
class TokenFileWriter : public TokenWriter {
public:
    TokenFileWriter(const std::filesystem::path& path, const TokenFileInfo& info);
    std::vector<AtomicFile*> close() override;

protected:
    void put(std::span<const std::int32_t> ids) override;
    void put_targets(std::span<const std::uint8_t> targets) override;
    void put_document_end() override { offsets_.push_back(static_cast<std::uint64_t>(info_.tokens)); }

private:
    void end_block();

    AtomicFile file_;
    std::vector<std::uint64_t> offsets_{0}, hashes_;
    std::vector<std::byte> block_;    // of the 64 KiB that are hashed together, what is not yet written
    std::vector<std::uint8_t> mask_;
    std::int64_t masked_ = 0;         // bits of mask_
};

// What `keel tokenize --to` knows: keel, megatron, llmc. `path` is the file, or for Megatron the name before .bin and
// .idx.
std::unique_ptr<TokenWriter> make_token_writer(TokenFormat format, const std::filesystem::path& path,
                                               const TokenFileInfo& info);

}  // namespace keel
