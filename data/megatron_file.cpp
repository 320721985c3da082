#include "data/megatron_file.h"

#include <array>
#include <cstring>
#include <limits>

#include "data/token_layout.h"
#include "kernels/base/error.h"

namespace keel {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view magic("MMIDIDX\0\0", 9);
constexpr std::int64_t header_bytes = 34;

fs::path with(const fs::path& path, const char* extension) {
    fs::path name = path;
    if (path.extension() == ".bin" || path.extension() == ".idx") name.replace_extension();
    return name += extension;
}

bool is_index(const fs::path& path) {
    if (std::error_code none; !fs::is_regular_file(path, none)) return false;
    const InputFile file(path);
    std::array<char, 9> start{};
    if (file.size_bytes() < 9) return false;
    file.read_at(0, std::as_writable_bytes(std::span(start)));
    return std::string_view(start.data(), 9) == magic;
}

}  // namespace

std::optional<MegatronPair> find_megatron_pair(const fs::path& path) {
    const MegatronPair pair{with(path, ".idx"), with(path, ".bin")};
    if (path != pair.index && path != pair.tokens && fs::exists(path))
        return std::nullopt;  // some other file of that name
    const bool index = is_index(pair.index);
    if (!index && is_index(path)) return MegatronPair{path, with(path, ".bin")};
    if (!index) {
        // A .idx that is none, or none at all: the .bin may be a file of another kind.
        if (path == pair.index && fs::exists(path))
            fail(path.string(), " does not begin with \"MMIDIDX\" as Megatron's index files do");
        if (path != pair.tokens && fs::exists(pair.tokens))
            fail(pair.tokens.string(), " has no ", pair.index.filename().string(),
                 " beside it; Megatron's data sets are a pair of both");
        return std::nullopt;
    }
    if (!fs::exists(pair.tokens))
        fail(pair.index.string(), " is the index of ", pair.tokens.string(),
             ", which is not there; Megatron's data sets are a pair of both");
    return pair;
}

TokenLayout lay_out_megatron(const fs::path& index, const fs::path& tokens, const TokenDeclared& declared) {
    TokenLayout l{MappedFile(tokens)};
    const MappedFile& idx = l.index.emplace(index);
    const std::string name = index.string();
    const std::byte* bytes = idx.bytes().data();
    const std::int64_t size = idx.size_bytes();
    if (size < header_bytes)
        fail(name, " is cut: ", size, " bytes, but the header of a Megatron index alone has ", header_bytes);
    if (const auto version = number_at<std::uint64_t>(bytes + 9); version != 1)
        fail(name, " is a Megatron index of version ", version, "; version 1 is read");
    const auto code = static_cast<unsigned>(bytes[17]);
    if (code == 6 || code == 7) fail(name, ": the type ", code, " is floating point, which holds no token ids");
    if (code == 0 || code > 8) fail(name, ": the type of its tokens is ", code, "; 1 to 5 and 8 are integers");
    l.type = static_cast<TokenType>(code);
    const auto n = number_at<std::uint64_t>(bytes + 18), m = number_at<std::uint64_t>(bytes + 26);
    const auto room = static_cast<std::uint64_t>(size);
    if (n > room / 12 || m > room / 8)
        fail(name, " is cut: ", size, " bytes cannot hold ", n, " sequences and ", m, " document indices");
    const auto sequences = static_cast<std::int64_t>(n), indices = static_cast<std::int64_t>(m);
    const std::int64_t want = header_bytes + 12 * sequences + 8 * indices;
    if (size == want + sequences && sequences > 0)
        fail(name, " has a mode per sequence, as multimodal data sets do; keel trains on text");
    if (size != want)
        fail(name, " has ", size, " bytes, but ", n, " sequences and ", m, " document indices make ", want, ": ",
             by_how_much(size, want));
    if (indices < 1) fail(name, " has no document indices; there is always one more than documents");
    const std::byte* lengths = bytes + header_bytes;
    l.pointers = lengths + 4 * sequences;
    l.offsets = l.pointers + 8 * sequences;
    const std::int64_t width = bytes_of(l.type);
    std::int64_t at = 0;
    for (std::int64_t i = 0; i < sequences; ++i) {
        const auto length = number_at<std::int32_t>(lengths + 4 * i);
        const auto pointer = number_at<std::int64_t>(l.pointers + 8 * i);
        if (length < 0) fail(name, ": sequence ", i, " has ", length, " tokens");
        if (pointer != at)
            fail(name, ": sequence ", i, " begins at byte ", pointer, " of ", tokens.filename().string(),
                 ", but those before it end at ", at, "; sequences must follow one another");
        at += length * width;
    }
    if (at != l.file.size_bytes())
        fail(tokens.string(), " has ", l.file.size_bytes(), " bytes, but the sequences of its index make ", at, ": ",
             by_how_much(l.file.size_bytes(), at));
    for (std::int64_t d = 0; d < indices; ++d) {
        const auto first = number_at<std::int64_t>(l.offsets + 8 * d);
        const std::int64_t before = d == 0 ? 0 : number_at<std::int64_t>(l.offsets + 8 * (d - 1));
        if (first < before || first > sequences || (d == 0 && first != 0) || (d + 1 == indices && first != sequences))
            fail(name, ": document ", d, " begins at sequence ", first, " of ", sequences, ", the one before at ",
                 before, "; they must grow from 0 to the number of sequences");
    }
    l.info.format = TokenFormat::megatron;
    l.info.token_bytes = width;
    l.info.tokens = at / width;
    l.info.sequences = sequences;
    l.info.documents = indices - 1;
    l.info.vocab_size = declared.vocab_size;
    l.info.eos_id = declared.eos_id;
    return l;
}

MegatronWriter::MegatronWriter(const fs::path& path, const TokenFileInfo& info)
    : TokenWriter(path.string(), info), tokens_(with(path, ".bin")), index_(with(path, ".idx")) {
    info_.format = TokenFormat::megatron;
    info_.token_bytes = info_.vocab_size < 65500 ? 2 : 4;
}

void MegatronWriter::put(std::span<const std::int32_t> ids) {
    const auto width = static_cast<std::size_t>(info_.token_bytes);
    block_.resize(ids.size() * width);
    for (std::size_t i = 0; i < ids.size(); ++i)
        std::memcpy(block_.data() + i * width, &ids[i], width);  // low bytes first
    tokens_.write(block_);
}

void MegatronWriter::put_document_end() {
    const std::int64_t length = info_.tokens - begin_;
    if (length > std::numeric_limits<std::int32_t>::max())
        fail(name_, ": document ", info_.documents - 1, " has ", length,
             " tokens, and Megatron's index counts up to 2147483647; part it");
    lengths_.push_back(static_cast<std::int32_t>(length));
    begin_ = info_.tokens;
}

std::vector<AtomicFile*> MegatronWriter::close() {
    end_document();
    info_.sequences = info_.documents;
    const auto number = [&](auto value) { index_.write(std::as_bytes(std::span(&value, 1))); };
    index_.write(magic);
    number(std::uint64_t{1});
    number(static_cast<std::uint8_t>(info_.token_bytes == 2 ? TokenType::u16 : TokenType::i32));
    number(static_cast<std::uint64_t>(lengths_.size()));
    number(static_cast<std::uint64_t>(lengths_.size() + 1));
    index_.write(std::as_bytes(std::span(lengths_)));
    std::int64_t at = 0;
    for (const std::int32_t length : lengths_) number(at), at += length * info_.token_bytes;
    for (std::int64_t d = 0; d <= info_.documents; ++d) number(d);
    return {&tokens_, &index_};
}

}  // namespace keel
