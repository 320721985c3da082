#include "data/token_file.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/base/error.h"

namespace keel {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian and read in place");

constexpr char magic[8] = {'k', 'e', 'e', 'l', '.', 't', 'o', 'k'};
constexpr std::uint32_t version = 1;
constexpr std::int64_t header_bytes = 256;
constexpr std::uint32_t flag_eos = 1, flag_bos = 2;

struct Header {
    char magic[8];
    std::uint32_t version, token_bytes;
    std::uint64_t tokens, documents, source_bytes, tokenizer_hash, vocab_size;
    std::int32_t eos_id, bos_id;
    std::uint32_t flags, zero;
    std::uint64_t replaced, payload_hash;
    std::byte zeros[160];
    std::uint64_t header_hash;
};
static_assert(sizeof(Header) == header_bytes && offsetof(Header, payload_hash) == 80);

std::uint64_t hash_of(const Header& h) { return XXH3_64bits(&h, offsetof(Header, header_hash)); }

std::int64_t padded(std::int64_t bytes) { return (bytes + 7) / 8 * 8; }

std::string by_how_much(std::int64_t have, std::int64_t want) {
    return have < want ? concat(want - have, " bytes are missing") : concat(have - want, " bytes too many");
}

// Reads and checks everything in the header; the size of the file bounds every count before anything is computed with it.
TokenFileInfo read_header(const MappedFile& file) {
    const std::string name = file.path().string();
    const std::int64_t size = file.size_bytes();
    Header h;
    if (size < static_cast<std::int64_t>(sizeof magic) || std::memcmp(file.bytes().data(), magic, sizeof magic) != 0)
        fail(name, " is not a token file: it does not begin with \"keel.tok\"; make one with `keel tokenize`");
    if (size < header_bytes) fail(name, " is cut: ", size, " bytes, but the header alone has ", header_bytes);
    std::memcpy(&h, file.bytes().data(), sizeof h);
    if (h.version != version)
        fail(name, " is a token file of version ", h.version, ", but this keel reads version ", version,
             "; make it again with `keel tokenize`");
    if (hash_of(h) != h.header_hash) fail(name, ": the header is damaged (its hash does not match); make the file again");
    if (h.token_bytes != 2 && h.token_bytes != 4) fail(name, ": ", h.token_bytes, " bytes per token; 2 or 4 are possible");
    if (h.vocab_size == 0 || h.vocab_size > 0x7fffffff) fail(name, ": a vocabulary of ", h.vocab_size, " is impossible");
    if (h.token_bytes != (h.vocab_size <= 65536 ? 2u : 4u))
        fail(name, ": ", h.token_bytes, " bytes per token do not go with a vocabulary of ", h.vocab_size);
    const auto vocab = static_cast<std::int64_t>(h.vocab_size);
    for (const auto& [what, id] : {std::pair{"eos", h.eos_id}, std::pair{"bos", h.bos_id}})
        if (id < -1 || id >= vocab) fail(name, ": the ", what, " id is ", id, ", outside the vocabulary of ", vocab);
    if ((h.flags & ~(flag_eos | flag_bos)) != 0) fail(name, ": unknown flags ", h.flags);
    if (((h.flags & flag_eos) != 0 && h.eos_id < 0) || ((h.flags & flag_bos) != 0 && h.bos_id < 0))
        fail(name, ": flags ", h.flags, " speak of a special id that the header lacks");
    if (h.zero != 0 || std::any_of(std::begin(h.zeros), std::end(h.zeros), [](std::byte b) { return b != std::byte{0}; }))
        fail(name, ": reserved bytes of the header are not zero");
    const auto room = static_cast<std::uint64_t>(size);
    if (h.tokens > room / h.token_bytes || h.documents > room / 8)
        fail(name, " is cut: ", size, " bytes cannot hold ", h.tokens, " tokens and ", h.documents, " documents");
    if (h.documents > h.tokens || (h.documents == 0 && h.tokens != 0))
        fail(name, ": ", h.documents, " documents in ", h.tokens, " tokens are impossible");
    if (h.source_bytes > 0x7fffffffffffffff || h.replaced > 0x7fffffffffffffff)
        fail(name, ": ", h.source_bytes, " bytes of text with ", h.replaced, " replaced are impossible");

    TokenFileInfo info;
    info.token_bytes = h.token_bytes;
    info.tokens = static_cast<std::int64_t>(h.tokens);
    info.documents = static_cast<std::int64_t>(h.documents);
    info.source_bytes = static_cast<std::int64_t>(h.source_bytes);
    info.tokenizer_hash = h.tokenizer_hash;
    info.vocab_size = vocab;
    info.eos_id = h.eos_id;
    info.bos_id = h.bos_id;
    info.ends_with_eos = (h.flags & flag_eos) != 0;
    info.begins_with_bos = (h.flags & flag_bos) != 0;
    info.replaced = static_cast<std::int64_t>(h.replaced);
    info.payload_hash = h.payload_hash;
    const std::int64_t want = header_bytes + padded(info.tokens * info.token_bytes) + (info.documents + 1) * 8;
    if (size != want)
        fail(name, " has ", size, " bytes, but ", info.tokens, " tokens and ", info.documents, " documents make ", want, ": ",
             by_how_much(size, want), size < want ? "; was it cut while being copied?" : "");
    return info;
}

}  // namespace

TokenFile::TokenFile(const std::filesystem::path& path) : file_(path), info_(read_header(file_)) {
    tokens_ = file_.bytes().data() + header_bytes;
    offsets_ = tokens_ + padded(info_.tokens * info_.token_bytes);
    // One pass over the offsets, so that whoever walks documents may rely on them.
    if (document_begin(0) != 0) fail(this->path().string(), ": document 0 begins at token ", document_begin(0), ", not 0");
    for (std::int64_t d = 0; d < info_.documents; ++d)
        if (document_begin(d + 1) <= document_begin(d))
            fail(this->path().string(), ": document ", d + 1, " begins at token ", document_begin(d + 1), ", document ", d,
                 " at ", document_begin(d), "; they must grow");
    if (document_begin(info_.documents) != info_.tokens)
        fail(this->path().string(), ": the last document ends at token ", document_begin(info_.documents), " of ", info_.tokens);
}

std::int64_t TokenFile::document_begin(std::int64_t document) const {
    std::int64_t begin;
    std::memcpy(&begin, offsets_ + document * 8, 8);
    return begin;
}

std::int64_t TokenFile::document_of(std::int64_t token) const {
    std::int64_t low = 0, high = info_.documents;  // document_begin(low) <= token < document_begin(high)
    while (high - low > 1) {
        const std::int64_t middle = low + (high - low) / 2;
        (document_begin(middle) <= token ? low : high) = middle;
    }
    return low;
}

void TokenFile::read(std::int64_t begin, std::span<std::int32_t> out) const {
    const auto count = static_cast<std::int64_t>(out.size());
    if (begin < 0 || count > info_.tokens || begin > info_.tokens - count)
        fail(path().string(), ": tokens ", begin, "…", begin + count, " of ", info_.tokens, " were asked for");
    if (info_.token_bytes == 2) {
        const std::byte* from = tokens_ + begin * 2;
        for (std::int64_t i = 0; i < count; ++i) {
            std::uint16_t id;
            std::memcpy(&id, from + i * 2, 2);
            out[static_cast<std::size_t>(i)] = id;
        }
    } else {
        std::memcpy(out.data(), tokens_ + begin * 4, static_cast<std::size_t>(count) * 4);
    }
    std::uint32_t largest = 0;  // as unsigned, a negative id is a large one
    for (const std::int32_t id : out) largest = std::max(largest, static_cast<std::uint32_t>(id));
    if (largest >= static_cast<std::uint32_t>(info_.vocab_size))
        for (std::int64_t i = 0; i < count; ++i)
            if (const auto id = static_cast<std::uint32_t>(out[static_cast<std::size_t>(i)]); id >= info_.vocab_size)
                fail(path().string(), ": token ", begin + i, " (byte ", header_bytes + (begin + i) * info_.token_bytes, ") is ",
                     id, ", but the vocabulary has ", info_.vocab_size, "; make the file again");
}

void TokenFile::verify() const {
    const std::uint64_t hash = XXH3_64bits(tokens_, static_cast<std::size_t>(file_.size_bytes() - header_bytes));
    if (hash != info_.payload_hash)
        fail(path().string(), ": the content is damaged (its hash is ", std::hex, hash, ", the header says ",
             info_.payload_hash, "); make the file again");
    std::vector<std::int32_t> block(1 << 16);
    for (std::int64_t at = 0; at < info_.tokens; at += static_cast<std::int64_t>(block.size()))
        read(at, std::span(block).first(static_cast<std::size_t>(
                     std::min<std::int64_t>(info_.tokens - at, static_cast<std::int64_t>(block.size())))));
}

struct TokenFileWriter::Hash {
    struct Freed {
        void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
    };
    std::unique_ptr<XXH3_state_t, Freed> state{XXH3_createState()};
};

TokenFileWriter::TokenFileWriter(const std::filesystem::path& path, const TokenFileInfo& info)
    : name_(path.string()), file_(path), info_(info), hash_(new Hash) {
    if (info.vocab_size < 1 || info.vocab_size > 0x7fffffff)
        fail(name_, ": a vocabulary of ", info.vocab_size, " is impossible; 1 to 2147483647 is");
    for (const auto& [what, id] : {std::pair{"eos", info.eos_id}, std::pair{"bos", info.bos_id}})
        if (id < -1 || id >= info.vocab_size)
            fail(name_, ": the ", what, " id ", id, " is outside the vocabulary of ", info.vocab_size);
    info_.token_bytes = info.vocab_size <= 65536 ? 2 : 4;
    info_.tokens = info_.documents = info_.source_bytes = info_.replaced = 0;
    XXH3_64bits_reset(hash_->state.get());
    const Header empty{};
    file_.write(std::as_bytes(std::span(&empty, 1)));
}

TokenFileWriter::~TokenFileWriter() = default;

void TokenFileWriter::put(std::span<const std::byte> bytes) {
    XXH3_64bits_update(hash_->state.get(), bytes.data(), bytes.size());
    file_.write(bytes);
}

void TokenFileWriter::append(std::span<const std::int32_t> ids) {
    const auto width = static_cast<std::size_t>(info_.token_bytes);
    block_.resize(ids.size() * width);
    for (std::size_t i = 0; i < ids.size(); ++i) {
        if (ids[i] < 0 || ids[i] >= info_.vocab_size)
            fail(name_, ": token ", info_.tokens + static_cast<std::int64_t>(i), " is ", ids[i],
                 ", but the vocabulary has ", info_.vocab_size);
        std::memcpy(block_.data() + i * width, &ids[i], width);  // the low bytes come first
    }
    put(block_);
    info_.tokens += static_cast<std::int64_t>(ids.size());
}

void TokenFileWriter::end_document() {
    if (static_cast<std::int64_t>(offsets_.back()) == info_.tokens) return;
    offsets_.push_back(static_cast<std::uint64_t>(info_.tokens));
    ++info_.documents;
}

void TokenFileWriter::count_source(std::int64_t bytes, std::int64_t replaced) {
    info_.source_bytes += bytes;
    info_.replaced += replaced;
}

const TokenFileInfo& TokenFileWriter::finish() {
    end_document();
    const std::int64_t bytes = info_.tokens * info_.token_bytes;
    const std::array<std::byte, 8> zeros{};
    put(std::span(zeros).first(static_cast<std::size_t>(padded(bytes) - bytes)));
    put(std::as_bytes(std::span(offsets_)));
    info_.payload_hash = XXH3_64bits_digest(hash_->state.get());

    Header h{};
    std::memcpy(h.magic, magic, sizeof magic);
    h.version = version;
    h.token_bytes = static_cast<std::uint32_t>(info_.token_bytes);
    h.tokens = static_cast<std::uint64_t>(info_.tokens);
    h.documents = static_cast<std::uint64_t>(info_.documents);
    h.source_bytes = static_cast<std::uint64_t>(info_.source_bytes);
    h.tokenizer_hash = info_.tokenizer_hash;
    h.vocab_size = static_cast<std::uint64_t>(info_.vocab_size);
    h.eos_id = info_.eos_id;
    h.bos_id = info_.bos_id;
    h.flags = (info_.ends_with_eos ? flag_eos : 0) | (info_.begins_with_bos ? flag_bos : 0);
    h.replaced = static_cast<std::uint64_t>(info_.replaced);
    h.payload_hash = info_.payload_hash;
    h.header_hash = hash_of(h);
    file_.overwrite(0, std::as_bytes(std::span(&h, 1)));
    file_.commit();
    return info_;
}

}  // namespace keel
