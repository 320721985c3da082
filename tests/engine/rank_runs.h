// tests/engine/rank_runs.h: whole runs on several ranks, and what they leave behind: log.jsonl and checkpoints.
#pragma once

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>

#include "ckpt/checkpoint_tensors.h"
#include "comm/threads.h"
#include "engine/parallel/layout.h"
#include "engine/run.h"
#include "engine/train.h"
#include "tests/engine/tiny.h"

namespace keel::test {

// The ranks that config.parallel asks for, as threads.
inline void on_ranks(const Config& config, const std::function<void(Run&)>& body) {
    run_threads(static_cast<int>(ranks_asked(config.parallel)), {.deadline_s = 100}, [&](World& world) {
        const auto run = std::make_unique<Run>(config, &world);
        body(*run);
    });
}

inline void take_step(Run& run) {
    const StepPlan plan = run.schedule.at(run.progress);
    run.progress.advance(plan, *train_step(run, plan));
}

// To the end, with everything that `keel train` writes.
inline void train_whole(const Config& config) {
    on_ranks(config, [](Run& run) { finish(run, train(run)); });
}

// Of every line of an event in a run's log: a number by its step; of a step that was logged twice, the later one.
inline std::map<std::int64_t, double> logged(const std::filesystem::path& run, const std::string& key,
                                             const std::string& event = "step") {
    std::map<std::int64_t, double> out;
    std::ifstream log(run / "log.jsonl");
    const auto value = [](const std::string& line, const std::string& name) {
        const std::size_t at = line.find("\"" + name + "\":");
        return at == std::string::npos ? std::nan("") : std::strtod(line.c_str() + at + name.size() + 3, nullptr);
    };
    for (std::string line; std::getline(log, line);)
        if (line.starts_with("{\"event\":\"" + event + "\"") && line.ends_with('}'))
            out[static_cast<std::int64_t>(value(line, "step"))] = value(line, key);
    return out;
}

// Every tensor of a checkpoint, whole: its bytes by its name.
inline std::map<std::string, std::string> tensors_of(const std::filesystem::path& checkpoint) {
    const CheckpointTensors stored(open_checkpoint(checkpoint));
    std::map<std::string, std::string> out;
    for (const auto& [name, tensor] : stored.tensors()) {
        const Dtype dtype = tensor.dtype == StoredDtype::F32 ? Dtype::f32
                            : tensor.dtype == StoredDtype::F16 ? Dtype::f16
                                                               : Dtype::bf16;
        const std::int64_t n = element_count(tensor.shape);
        std::string& bytes = out[name];
        bytes.resize(static_cast<std::size_t>(n * size_bytes(dtype)));
        stored.read(name, 0, n, dtype, reinterpret_cast<std::byte*>(bytes.data()));
    }
    return out;
}

inline std::filesystem::path checkpoint_of(const std::filesystem::path& run, std::int64_t step) {
    char name[32];
    std::snprintf(name, sizeof name, "step-%08lld", static_cast<long long>(step));
    return run / "checkpoints" / name;
}

// The names of what differs, one per line; empty where nothing does. Whole tensors are no message.
inline std::string differing(const std::map<std::string, std::string>& a, const std::map<std::string, std::string>& b) {
    std::string out;
    for (const auto& [name, bytes] : a) {
        const auto at = b.find(name);
        if (at == b.end()) out += name + " is missing\n";
        else if (at->second != bytes) out += name + "\n";
    }
    for (const auto& [name, bytes] : b)
        if (!a.contains(name)) out += name + " is new\n";
    return out;
}

}  // namespace keel::test
