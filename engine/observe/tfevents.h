// engine/observe/tfevents.h: TensorBoard event files: numbers by step, and texts, that TensorBoard reads while they
// grow.
//
// A file is a row of records: length (8 bytes), masked CRC of those bytes (4), a protobuf Event, masked CRC of it (4),
// all little-endian. The CRC is CRC-32C; it is rotated and added to, since a CRC over what holds its own CRC tells
// nothing.
//
// A run has a file per start. One that goes on from a checkpoint may have lost steps that the file before shows: its
// second record, a session log, says at which step it begins, and TensorBoard drops what older files have from there
// on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "engine/observe/append_file.h"

namespace keel {

std::uint32_t masked_crc32c(std::string_view bytes);

// One record, built anew by begin(). Its memory is kept, so that a step allocates nothing.
class EventRecord {
public:
    explicit EventRecord(std::size_t capacity = 4096);

    EventRecord& begin(double unix_time, std::optional<std::int64_t> step = {});
    EventRecord& file_version();
    EventRecord& session_start();
    EventRecord& scalar(std::string_view tag, double value);  // as float; NaN and infinities as they are
    EventRecord& text(std::string_view tag, std::string_view text);
    std::string_view finish();  // framed; until the next begin()

private:
    std::string event_, summary_, value_, framed_;
};

class EventFile {
public:
    // Makes a new file in `folder`, and the folder. `first_step` is the first that will be written.
    EventFile(const std::filesystem::path& folder, std::int64_t first_step, double unix_time, Warn warn);

    // file.write(file.record().begin(time, step).scalar("train/loss", loss)…);
    EventRecord& record() { return record_; }
    void write(EventRecord& record) { file_.write(record.finish()); }
    void flush() { file_.flush(); }
    const std::filesystem::path& path() const { return file_.path(); }

private:
    AppendFile file_;
    EventRecord record_;
};

}  // namespace keel
