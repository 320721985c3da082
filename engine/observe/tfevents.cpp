#include "engine/observe/tfevents.h"

#include <unistd.h>

#include <array>
#include <bit>

#include "kernels/base/error.h"

namespace keel {
namespace fs = std::filesystem;
namespace {

constexpr std::array<std::uint32_t, 256> crc_table = [] {
    std::array<std::uint32_t, 256> table{};
    for (std::uint32_t i = 0; i < 256; ++i) {
        std::uint32_t c = i;
        for (int bit = 0; bit < 8; ++bit)
            c = c & 1 ? c >> 1 ^ 0x82F63B78u : c >> 1;  // Castagnoli's polynomial, reflected
        table[i] = c;
    }
    return table;
}();

// ---- protobuf, as far as an Event takes it: a key is field * 8 + wire type

template <class T> void fixed(std::string& out, T value) {
    for (std::size_t i = 0; i < sizeof(T); ++i) out += static_cast<char>(value >> 8 * i & 0xff);
}
void varint(std::string& out, std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
    out += static_cast<char>(value);
}
void key(std::string& out, int field, int wire_type) { varint(out, static_cast<std::uint64_t>(field * 8 + wire_type)); }
void number(std::string& out, int field, std::uint64_t value) { key(out, field, 0), varint(out, value); }
void bytes(std::string& out, int field, std::string_view value) {
    key(out, field, 2), varint(out, value.size());
    out += value;
}

fs::path new_file(const fs::path& folder, double unix_time) {
    std::error_code error;
    fs::create_directories(folder, error);
    if (error) fail(folder.string(), " cannot be made: ", error.message(), "; check --run.dir");
    char host[256] = "host";
    gethostname(host, sizeof host - 1);
    const std::string name = concat("events.out.tfevents.", static_cast<std::int64_t>(unix_time), ".", host);
    fs::path path = folder / name;
    for (int i = 1; fs::exists(path); ++i) path = folder / concat(name, ".", i);  // started twice within a second
    return path;
}

}  // namespace

std::uint32_t masked_crc32c(std::string_view text) {
    std::uint32_t crc = 0xffffffffu;
    for (const char c : text) crc = crc >> 8 ^ crc_table[(crc ^ static_cast<unsigned char>(c)) & 0xff];
    return std::rotr(~crc, 15) + 0xa282ead8u;
}

EventRecord::EventRecord(std::size_t capacity) {
    for (std::string* s : {&event_, &summary_, &value_, &framed_}) s->reserve(capacity);
}

EventRecord& EventRecord::begin(double unix_time, std::optional<std::int64_t> step) {
    event_.clear(), summary_.clear();
    key(event_, 1, 1), fixed(event_, std::bit_cast<std::uint64_t>(unix_time));
    if (step) number(event_, 2, static_cast<std::uint64_t>(*step));
    return *this;
}

EventRecord& EventRecord::file_version() { return bytes(event_, 3, "brain.Event:2"), *this; }

EventRecord& EventRecord::session_start() {
    constexpr std::string_view start = "\x08\x01";  // SessionLog.status = START
    return bytes(event_, 7, start), *this;
}

EventRecord& EventRecord::scalar(std::string_view tag, double value) {
    value_.clear();
    bytes(value_, 1, tag);
    key(value_, 2, 5), fixed(value_, std::bit_cast<std::uint32_t>(static_cast<float>(value)));
    return bytes(summary_, 1, value_), *this;
}

EventRecord& EventRecord::text(std::string_view tag, std::string_view text) {
    constexpr std::string_view metadata = "\x0a\x06\x0a\x04text\x20\x02";  // the plugin's name; of class tensor
    value_.clear();
    bytes(value_, 1, tag);
    bytes(value_, 9, metadata);
    std::string tensor;
    number(tensor, 1, 7);                   // DT_STRING
    bytes(tensor, 2, "\x12\x02\x08\x01");   // one dimension, of size 1
    bytes(tensor, 8, text);
    bytes(value_, 8, tensor);
    return bytes(summary_, 1, value_), *this;
}

std::string_view EventRecord::finish() {
    if (!summary_.empty()) bytes(event_, 5, summary_);
    framed_.clear();
    fixed(framed_, static_cast<std::uint64_t>(event_.size()));
    fixed(framed_, masked_crc32c(framed_));
    framed_ += event_;
    fixed(framed_, masked_crc32c(event_));
    return framed_;
}

EventFile::EventFile(const fs::path& folder, std::int64_t first_step, double unix_time, Warn warn)
    : file_(new_file(folder, unix_time), "wx", std::move(warn)) {
    write(record_.begin(unix_time).file_version());
    write(record_.begin(unix_time, first_step).session_start());
    flush();
}

}  // namespace keel
