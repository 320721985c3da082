// data/megatron_file.h: Megatron's indexed data sets, a pair of NAME.bin and NAME.idx, in and out.
//
//   NAME.bin  the tokens of all sequences, back to back
//   NAME.idx  offset  size   content (little-endian, nothing between the arrays)
//                  0     9   "MMIDIDX\0\0"
//                  9     8   version, 1
//                 17     1   type of a token: 1 u8, 2 i8, 3 i16, 4 i32, 5 i64, 8 u16 (6 and 7 are floating point)
//                 18     8   N sequences
//                 26     8   M document indices, one more than there are documents
//                 34    4N   tokens of each sequence, signed
//                  …    8N   byte of NAME.bin where each begins
//                  …    8M   which sequence each document begins with; the first 0, the last N
//
// A file says nothing about its vocabulary or end-of-document token: they must be declared. The reader holds every
// number to the sizes of both files and demands that sequences follow one another without gaps. The writer makes each
// document one sequence, and takes u16 where the vocabulary is below 65500, as Megatron itself does, else i32.
#pragma once

#include <optional>

#include "data/token_writer.h"

namespace keel {

struct MegatronPair {
    std::filesystem::path index, tokens;
};
// The pair that `path` belongs to: as NAME, NAME.bin or NAME.idx. One without the other throws.
std::optional<MegatronPair> find_megatron_pair(const std::filesystem::path& path);

class MegatronWriter : public TokenWriter {
public:
    MegatronWriter(const std::filesystem::path& path, const TokenFileInfo& info);  // NAME, NAME.bin or NAME.idx
    std::vector<AtomicFile*> close() override;

protected:
    void put(std::span<const std::int32_t> ids) override;
    void put_document_end() override;

private:
    AtomicFile tokens_, index_;
    std::vector<std::int32_t> lengths_;
    std::int64_t begin_ = 0;
    std::vector<std::byte> block_;
};

}  // namespace keel
