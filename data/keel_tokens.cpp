// data/keel_tokens.cpp: opens keel's own token files: every field of the header, the exact size, the table of
// documents.
#include <algorithm>
#include <cstring>

#include "data/token_header.h"
#include "data/token_layout.h"
#include "kernels/base/error.h"

namespace keel {
namespace {

// The size of the file bounds every count before anything is computed with it.
TokenHeader checked_header(const MappedFile& file) {
    const std::string name = file.path().string();
    const std::int64_t size = file.size_bytes();
    if (size < token_header_bytes)
        fail(name, " is cut: ", size, " bytes, but the header alone has ", token_header_bytes);
    TokenHeader h;
    std::memcpy(&h, file.bytes().data(), sizeof h);
    if (h.version != 1 && h.version != token_version)
        fail(name, " is a token file of version ", h.version, ", but this keel reads versions 1 to ", token_version,
             "; make it again with `keel tokenize`");
    if (h.hash() != h.header_hash) fail(name, ": the header is damaged (its hash does not match); make the file again");
    if (h.token_bytes != 2 && h.token_bytes != 4)
        fail(name, ": ", h.token_bytes, " bytes per token; 2 or 4 are possible");
    if (h.vocab_size == 0 || h.vocab_size > 0x7fffffff)
        fail(name, ": a vocabulary of ", h.vocab_size, " is impossible");
    if (h.token_bytes != (h.vocab_size <= 65536 ? 2u : 4u))
        fail(name, ": ", h.token_bytes, " bytes per token do not go with a vocabulary of ", h.vocab_size);
    const auto vocab = static_cast<std::int64_t>(h.vocab_size);
    for (const auto& [what, id] : {std::pair{"eos", h.eos_id}, std::pair{"bos", h.bos_id}})
        if (id < -1 || id >= vocab) fail(name, ": the ", what, " id is ", id, ", outside the vocabulary of ", vocab);
    const std::uint32_t known =
        TokenHeader::flag_eos | TokenHeader::flag_bos | (h.version > 1 ? TokenHeader::flag_mask : 0);
    if ((h.flags & ~known) != 0) fail(name, ": unknown flags ", h.flags);
    if (((h.flags & TokenHeader::flag_eos) != 0 && h.eos_id < 0) ||
        ((h.flags & TokenHeader::flag_bos) != 0 && h.bos_id < 0))
        fail(name, ": flags ", h.flags, " speak of a special id that the header lacks");
    if (h.zero != 0 ||
        std::any_of(std::begin(h.zeros), std::end(h.zeros), [](std::byte b) { return b != std::byte{0}; }))
        fail(name, ": reserved bytes of the header are not zero");
    const auto room = static_cast<std::uint64_t>(size);
    if (h.tokens > room / h.token_bytes || h.documents > room / 8)
        fail(name, " is cut: ", size, " bytes cannot hold ", h.tokens, " tokens and ", h.documents, " documents");
    if (h.documents > h.tokens || (h.documents == 0 && h.tokens != 0))
        fail(name, ": ", h.documents, " documents in ", h.tokens, " tokens are impossible");
    if (h.source_bytes > 0x7fffffffffffffff || h.replaced > 0x7fffffffffffffff)
        fail(name, ": ", h.source_bytes, " bytes of text with ", h.replaced, " replaced are impossible");
    return h;
}

TokenFileInfo info_of(const TokenHeader& h) {
    TokenFileInfo info;
    info.token_bytes = h.token_bytes;
    info.tokens = static_cast<std::int64_t>(h.tokens);
    info.documents = static_cast<std::int64_t>(h.documents);
    info.source_bytes = static_cast<std::int64_t>(h.source_bytes);
    info.tokenizer_hash = h.tokenizer_hash;
    info.vocab_size = static_cast<std::int64_t>(h.vocab_size);
    info.eos_id = h.eos_id;
    info.bos_id = h.bos_id;
    info.ends_with_eos = (h.flags & TokenHeader::flag_eos) != 0;
    info.begins_with_bos = (h.flags & TokenHeader::flag_bos) != 0;
    info.has_mask = (h.flags & TokenHeader::flag_mask) != 0;
    info.has_block_hashes = h.version > 1;
    info.replaced = static_cast<std::int64_t>(h.replaced);
    info.payload_hash = h.payload_hash;
    return info;
}

// One pass, so that whoever walks documents may rely on them.
void check_documents(const std::string& name, const TokenLayout& l) {
    const auto begin = [&](std::int64_t d) { return number_at<std::int64_t>(l.offsets + d * 8); };
    if (begin(0) != 0) fail(name, ": document 0 begins at token ", begin(0), ", not 0");
    for (std::int64_t d = 0; d < l.info.documents; ++d)
        if (begin(d + 1) <= begin(d))
            fail(name, ": document ", d + 1, " begins at token ", begin(d + 1), ", document ", d, " at ", begin(d),
                 "; they must grow");
    if (begin(l.info.documents) != l.info.tokens)
        fail(name, ": the last document ends at token ", begin(l.info.documents), " of ", l.info.tokens);
}

}  // namespace

TokenLayout lay_out_keel(MappedFile file) {
    TokenLayout l(std::move(file));
    const std::string name = l.file.path().string();
    const TokenHeader h = checked_header(l.file);
    l.info = info_of(h);
    l.type = h.token_bytes == 2 ? TokenType::u16 : TokenType::u32;
    l.tokens_at = token_header_bytes;
    const std::int64_t token_bytes = padded(l.info.tokens * l.info.token_bytes),
                       mask_bytes = padded((l.info.tokens + 7) / 8);
    const std::int64_t blocks = (token_bytes + token_block_bytes - 1) / token_block_bytes;
    const std::int64_t want = token_header_bytes + token_bytes + (l.info.documents + 1) * 8 +
                              (l.info.has_mask ? mask_bytes : 0) + (l.info.has_block_hashes ? blocks * 8 : 0);
    const std::int64_t size = l.file.size_bytes();
    if (size != want)
        fail(name, " has ", size, " bytes, but ", l.info.tokens, " tokens and ", l.info.documents, " documents make ",
             want, ": ", by_how_much(size, want), size < want ? "; was it cut while being copied?" : "");
    const std::byte* behind = l.file.bytes().data() + token_header_bytes + token_bytes;
    l.offsets = behind;
    if (l.info.has_mask) l.mask = l.offsets + (l.info.documents + 1) * 8;
    if (l.info.has_block_hashes) {
        l.hashes = l.file.bytes().data() + size - blocks * 8;
        l.hashed_bytes = token_bytes;
        const auto bytes = static_cast<std::size_t>(l.file.bytes().data() + size - behind);
        if (XXH3_64bits(behind, bytes) != h.payload_hash)
            fail(name, ": the table of documents is damaged (bytes ", behind - l.file.bytes().data(), "…", size,
                 "; their hash is not the one in the header); make the file again, or copy it again");
    }
    check_documents(name, l);
    return l;
}

}  // namespace keel
