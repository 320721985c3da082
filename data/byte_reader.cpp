#include <zstd.h>

#include <algorithm>
#include <cstring>

#include "data/text.h"
#include "kernels/base/error.h"
#include "kernels/base/file.h"

namespace keel {
namespace {

constexpr std::int64_t block_bytes = 256 << 10;
constexpr int longest_window_log = 31;  // the default limit of 27 refuses files made in long mode

struct FreeContext {
    void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
};

using Magic = std::array<unsigned char, 4>;

// Files that people have for text and that are none: tokenized as they are, they would train nonsense without a word.
void refuse_other_formats(const InputFile& file, const Magic& magic) {
    const std::string name = file.path().string();
    const auto packed = [&](const char* format, const char* unpack) {
        fail(name, " is compressed with ", format, "; plain text and zstd are read: ", unpack, " ", name, " | zstd > ", name, ".zst");
    };
    if (magic[0] == 0x1f && magic[1] == 0x8b) packed("gzip", "gzip -dc");
    if (magic == Magic{0xfd, '7', 'z', 'X'}) packed("xz", "xz -dc");
    if (magic[0] == 'B' && magic[1] == 'Z' && magic[2] == 'h' && magic[3] >= '1' && magic[3] <= '9') packed("bzip2", "bzip2 -dc");
    if (magic == Magic{'P', 'K', 3, 4}) packed("zip", "unzip -p");
    if (magic != Magic{'P', 'A', 'R', '1'} || file.size_bytes() < 12) return;
    Magic end{};
    file.read_at(file.size_bytes() - 4, std::as_writable_bytes(std::span(end)));
    if (end == magic) fail(name, " is a Parquet table; plain text and JSON lines are read: export its text column as JSON lines");
}

bool is_named_zstd(const std::filesystem::path& path) { return path.extension() == ".zst" || path.extension() == ".zstd"; }

}  // namespace

struct ByteReader::State {
    InputFile file;
    std::int64_t at = 0;                              // next byte of the file
    std::vector<std::byte> block;                     // compressed bytes…
    std::size_t used = 0, filled = 0;                 // …of which [used, filled) are not consumed
    std::unique_ptr<ZSTD_DCtx, FreeContext> context;  // if compressed
    bool inside_frame = false;

    explicit State(const std::filesystem::path& path) : file(path) {
        Magic magic{};
        const auto size = static_cast<std::size_t>(std::min<std::int64_t>(4, file.size_bytes()));
        file.read_at(0, std::as_writable_bytes(std::span(magic).first(size)));
        const std::string name = path.string();
        refuse_other_formats(file, magic);
        const bool frame = magic == Magic{0x28, 0xb5, 0x2f, 0xfd};
        const bool skippable = (magic[0] & 0xf0) == 0x50 && magic[1] == 0x2a && magic[2] == 0x4d && magic[3] == 0x18;
        if (!frame && !skippable && is_named_zstd(path))
            fail(name, " is named as zstd, but does not begin like it; was it damaged? If it is plain text, rename it");
        if (!frame && !skippable) return;
        context.reset(ZSTD_createDCtx());
        if (!context || ZSTD_isError(ZSTD_DCtx_setParameter(context.get(), ZSTD_d_windowLogMax, longest_window_log)))
            fail("cannot set up zstd to read ", name);
        block.resize(block_bytes);
    }

    bool read_plain(std::int64_t bytes, std::string& out) {
        const std::int64_t count = std::min(bytes, file.size_bytes() - at);
        const std::size_t old = out.size();
        out.resize(old + static_cast<std::size_t>(count));
        file.read_at(at, std::as_writable_bytes(std::span(out).subspan(old)));
        at += count;
        return count > 0;
    }

    bool read_zstd(std::int64_t bytes, std::string& out) {
        const std::size_t old = out.size();
        out.resize(old + static_cast<std::size_t>(bytes));
        ZSTD_outBuffer to{out.data() + old, static_cast<std::size_t>(bytes), 0};
        while (to.pos < to.size) {
            if (used == filled && at < file.size_bytes()) {
                used = 0;
                filled = static_cast<std::size_t>(std::min(block_bytes, file.size_bytes() - at));
                file.read_at(at, std::span(block).first(filled));
                at += static_cast<std::int64_t>(filled);
            }
            const std::size_t before_in = used, before_out = to.pos;
            ZSTD_inBuffer from{block.data(), filled, used};
            const std::size_t result = ZSTD_decompressStream(context.get(), &to, &from);
            used = from.pos;
            if (ZSTD_isError(result))
                fail(file.path().string(), ": the zstd stream is damaged near byte ",
                     at - static_cast<std::int64_t>(filled - used), " (", ZSTD_getErrorName(result), ")");
            if (used != before_in || to.pos != before_out) {
                inside_frame = result != 0;
            } else {  // no progress: everything is consumed and given out
                if (inside_frame)
                    fail(file.path().string(), " is cut: it ends after ", file.size_bytes(),
                         " bytes in the middle of a zstd frame");
                break;
            }
        }
        out.resize(old + to.pos);
        return to.pos > 0;
    }
};

ByteReader::ByteReader(const std::filesystem::path& path) : state_(new State(path)) {}
ByteReader::~ByteReader() = default;
ByteReader::ByteReader(ByteReader&&) noexcept = default;

bool ByteReader::read(std::int64_t bytes, std::string& out) {
    return state_->context ? state_->read_zstd(bytes, out) : state_->read_plain(bytes, out);
}

std::int64_t ByteReader::file_bytes_read() const {
    return state_->at - static_cast<std::int64_t>(state_->filled - state_->used);
}
std::int64_t ByteReader::file_bytes() const { return state_->file.size_bytes(); }

}  // namespace keel
