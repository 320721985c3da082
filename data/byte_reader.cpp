#include <zlib.h>
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
        fail(name, " is compressed with ", format, "; plain text, zstd and gzip are read: ", unpack, " ", name,
             " | zstd > ", name, ".zst");
    };
    if (magic == Magic{0xfd, '7', 'z', 'X'}) packed("xz", "xz -dc");
    if (magic[0] == 'B' && magic[1] == 'Z' && magic[2] == 'h' && magic[3] >= '1' && magic[3] <= '9')
        packed("bzip2", "bzip2 -dc");
    if (magic == Magic{'P', 'K', 3, 4}) packed("zip", "unzip -p");
    if (magic != Magic{'P', 'A', 'R', '1'} || file.size_bytes() < 12) return;
    Magic end{};
    file.read_at(file.size_bytes() - 4, std::as_writable_bytes(std::span(end)));
    if (end == magic)
        fail(name, " is a Parquet table; plain text and JSON lines are read: export its text column as JSON lines");
}

enum class Codec : std::uint8_t { none, zstd, gzip };

Codec codec_of(const Magic& magic) {
    const bool frame = magic == Magic{0x28, 0xb5, 0x2f, 0xfd};
    const bool skippable = (magic[0] & 0xf0) == 0x50 && magic[1] == 0x2a && magic[2] == 0x4d && magic[3] == 0x18;
    return frame || skippable ? Codec::zstd : magic[0] == 0x1f && magic[1] == 0x8b ? Codec::gzip : Codec::none;
}

void check_name(const std::filesystem::path& path, Codec codec) {
    const auto ending = path.extension();
    const char* named = ending == ".zst" || ending == ".zstd" ? "zstd" : ending == ".gz" ? "gzip" : nullptr;
    if (named != nullptr && codec == Codec::none)
        fail(path.string(), " is named as ", named,
             ", but does not begin like it; was it damaged? If it is plain text, rename it");
}

struct Inflate {
    z_stream stream{};
    Inflate() {
        if (inflateInit2(&stream, 15 + 16) != Z_OK)
            fail("cannot set up gzip");  // the largest window, with gzip's header
    }
    ~Inflate() { inflateEnd(&stream); }
    Inflate(const Inflate&) = delete;
    Inflate& operator=(const Inflate&) = delete;
};

}  // namespace

struct ByteReader::State {
    InputFile file;
    std::int64_t at = 0;                              // next byte of the file
    std::vector<std::byte> block;                     // compressed bytes…
    std::size_t used = 0, filled = 0;                 // …of which [used, filled) are not consumed
    Codec codec = Codec::none;
    std::unique_ptr<ZSTD_DCtx, FreeContext> zstd;
    std::unique_ptr<Inflate> gzip;
    bool inside_frame = false;

    explicit State(const std::filesystem::path& path) : file(path) {
        Magic magic{};
        const auto size = static_cast<std::size_t>(std::min<std::int64_t>(4, file.size_bytes()));
        file.read_at(0, std::as_writable_bytes(std::span(magic).first(size)));
        refuse_other_formats(file, magic);
        codec = codec_of(magic);
        check_name(path, codec);
        if (codec == Codec::none) return;
        block.resize(block_bytes);
        if (codec == Codec::gzip) {
            gzip = std::make_unique<Inflate>();
            return;
        }
        zstd.reset(ZSTD_createDCtx());
        if (!zstd || ZSTD_isError(ZSTD_DCtx_setParameter(zstd.get(), ZSTD_d_windowLogMax, longest_window_log)))
            fail("cannot set up zstd to read ", path.string());
    }

    std::int64_t consumed() const { return at - static_cast<std::int64_t>(filled - used); }

    void refill() {
        if (used < filled || at == file.size_bytes()) return;
        used = 0;
        filled = static_cast<std::size_t>(std::min(block_bytes, file.size_bytes() - at));
        file.read_at(at, std::span(block).first(filled));
        at += static_cast<std::int64_t>(filled);
    }

    bool read_plain(std::int64_t bytes, std::string& out) {
        const std::int64_t count = std::min(bytes, file.size_bytes() - at);
        const std::size_t old = out.size();
        out.resize(old + static_cast<std::size_t>(count));
        file.read_at(at, std::as_writable_bytes(std::span(out).subspan(old)));
        at += count;
        return count > 0;
    }

    // What zstd and gzip share: `step` consumes from the block and writes to [data, data + room); it returns what it
    // wrote.
    template <class Step> bool read_packed(std::int64_t bytes, std::string& out, const char* what, Step&& step) {
        const std::size_t old = out.size();
        out.resize(old + static_cast<std::size_t>(bytes));
        std::size_t done = 0;
        while (done < static_cast<std::size_t>(bytes)) {
            refill();
            const std::size_t before = used;
            const std::size_t written = step(out.data() + old + done, static_cast<std::size_t>(bytes) - done);
            done += written;
            if (written != 0 || used != before) continue;
            if (inside_frame)  // no progress: everything is consumed and given out
                fail(file.path().string(), " is cut: it ends after ", file.size_bytes(), " bytes in the middle of a ",
                     what);
            break;
        }
        out.resize(old + done);
        return done > 0;
    }

    std::size_t step_zstd(char* to, std::size_t room) {
        ZSTD_outBuffer out{to, room, 0};
        ZSTD_inBuffer in{block.data(), filled, used};
        const std::size_t before = used, result = ZSTD_decompressStream(zstd.get(), &out, &in);
        used = in.pos;
        if (ZSTD_isError(result))
            fail(file.path().string(), ": the zstd stream is damaged near byte ", consumed(), " (",
                 ZSTD_getErrorName(result), ")");
        if (used != before || out.pos != 0) inside_frame = result != 0;
        return out.pos;
    }

    std::size_t step_gzip(char* to, std::size_t room) {
        z_stream& z = gzip->stream;
        if (!inside_frame && used < filled && skip_padding()) return 0;
        if (used == filled && !inside_frame) return 0;
        inside_frame = true;
        z.next_in = reinterpret_cast<Bytef*>(block.data() + used);
        z.avail_in = static_cast<uInt>(filled - used);
        z.next_out = reinterpret_cast<Bytef*>(to);
        z.avail_out = static_cast<uInt>(std::min<std::size_t>(room, 1u << 30));
        const uInt room_before = z.avail_out;
        const int result = inflate(&z, Z_NO_FLUSH);
        used = filled - z.avail_in;
        if (result == Z_STREAM_END) {
            inside_frame = false;
            inflateReset(&z);
        } else if (result != Z_OK && result != Z_BUF_ERROR) {
            fail(file.path().string(), ": the gzip stream is damaged near byte ", consumed(), " (",
                 z.msg ? z.msg : "wrong checksum or length", ")");
        }
        return room_before - z.avail_out;
    }

    // Between members: zeros are padding, as tapes leave it. Whether some were skipped.
    bool skip_padding() {
        const std::size_t before = used;
        while (used < filled && block[used] == std::byte{0}) ++used;
        return used != before;
    }
};

ByteReader::ByteReader(const std::filesystem::path& path) : state_(new State(path)) {}
ByteReader::~ByteReader() = default;
ByteReader::ByteReader(ByteReader&&) noexcept = default;

bool ByteReader::read(std::int64_t bytes, std::string& out) {
    State& s = *state_;
    if (s.codec == Codec::none) return s.read_plain(bytes, out);
    if (s.codec == Codec::zstd)
        return s.read_packed(bytes, out, "zstd frame",
                             [&](char* to, std::size_t room) { return s.step_zstd(to, room); });
    return s.read_packed(bytes, out, "gzip member", [&](char* to, std::size_t room) { return s.step_gzip(to, room); });
}

std::int64_t ByteReader::file_bytes_read() const {
    return state_->consumed();
}
std::int64_t ByteReader::file_bytes() const { return state_->file.size_bytes(); }
bool ByteReader::compressed() const { return state_->codec != Codec::none; }

}  // namespace keel
