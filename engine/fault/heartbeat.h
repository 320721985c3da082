// engine/fault/heartbeat.h: RUN/heartbeat/rank-00003.json, where a rank stands, for whoever watches a run from outside.
//
// One line of JSON, replaced whole every few seconds by a thread of its own: a reader sees an old file or a new one, and a file
// system that hangs holds up nobody else. A file that grows old means a rank that is gone, or a machine that is. The last one
// says "ended". Nothing allocates after the constructor. Not fsynced: after a power cut nobody asks whether a rank lives.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "engine/fault/standing.h"
#include "engine/fault/ticker.h"

namespace keel {

class Heartbeat {
public:
    // Every `seconds`, 0 for never. Writes once `run_dir` is there, which it never makes. `standing` outlives it.
    Heartbeat(double seconds, const std::filesystem::path& run_dir, const Standing& standing);
    ~Heartbeat();

private:
    void beat(const char* what);

    const Standing& standing_;
    std::string folder_, path_, fresh_;
    bool writes_, warned_ = false;
    std::optional<Ticker> ticker_;  // last: it uses all of the above
};

}  // namespace keel
