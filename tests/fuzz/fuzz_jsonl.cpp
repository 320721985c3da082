// Any bytes as text: JSON lines and plain, as they are and through zstd and gzip. Refused with Error, or pieces of
// valid UTF-8.
#include <zlib.h>
#include <zstd.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "data/text.h"
#include "data/utf8.h"
#include "kernels/base/error.h"
#include "tests/fuzz/memory_file.h"

namespace {

std::string compress(const std::string& text) {
    std::string out(ZSTD_compressBound(text.size()), '\0');
    out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 1));
    return out;
}

std::string gzip(const std::string& text) {
    std::string out(text.size() + 200, '\0');
    z_stream z{};
    if (deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK) std::abort();
    z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
    z.avail_in = static_cast<uInt>(text.size());
    z.next_out = reinterpret_cast<Bytef*>(out.data());
    z.avail_out = static_cast<uInt>(out.size());
    if (deflate(&z, Z_FINISH) != Z_STREAM_END) std::abort();
    out.resize(z.total_out);
    deflateEnd(&z);
    return out;
}

}  // namespace

std::vector<std::string> keel_fuzz_seeds() {
    const std::string lines =
        "{\"text\": \"one\\u00e9\", \"x\": [1, {\"text\": null}]}\r\n\n{\"x\": -1.5e3, \"text\": \"two\"}\n";
    const std::string plain = "one line\nanother 'll\n\n\nnext document\r\n\r\nna\xc3\xafve \xff\xe2\x82 end";
    return {lines,
            plain,
            compress(lines),
            compress(plain) + compress(lines),
            gzip(lines) + gzip(plain) + std::string(5, '\0'),
            std::string("\x50\x2a\x4d\x18\x01\0\0\0x", 9) + compress(plain)};
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const MemoryFile memory(data, size);
    for (const auto format : {keel::TextFormat::jsonl, keel::TextFormat::plain, keel::TextFormat::lines})
        for (const bool other : {false, true}) {
            keel::TextOptions options;
            options.format = format;
            options.skip_bad_lines = options.split_at_blank_lines = other;
            options.piece_bytes = other ? 5 : 1000;
            try {
                keel::TextReader reader({memory.path()}, options);
                bool open = false;
                std::size_t total = 0;
                for (keel::TextPiece piece; total < 1 << 22 && reader.next(piece);) {
                    if (keel::utf8_valid_prefix(piece.text) != piece.text.size()) std::abort();
                    if (piece.text.empty() && !open) std::abort();
                    open = !piece.ends_document;
                    total += piece.text.size();
                }
                if (open && total < 1 << 22) std::abort();
            } catch (const keel::Error&) {  // the one exception a file may cause
            }
        }
    return 0;
}
