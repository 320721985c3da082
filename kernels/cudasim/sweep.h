// kernels/cudasim/sweep.h: the same work under many schedules. A correct program makes no findings and the same bits
// each time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cudasim/config.h"
#include "kernels/cudasim/findings.h"

namespace sim {

// What a run leaves for comparison with the other runs.
class Outputs {
public:
    void add(std::string name, const void* data, std::size_t bytes) {
        const auto* b = static_cast<const std::byte*>(data);
        outputs_.push_back({std::move(name), std::vector<std::byte>(b, b + bytes)});
    }
    struct Output {
        std::string name;
        std::vector<std::byte> bytes;
    };
    const std::vector<Output>& all() const { return outputs_; }

private:
    std::vector<Output> outputs_;
};

struct SweepOptions {
    // Every order, with every Async and both poisons; or two that differ in all of them, for where a sanitizer looks, too.
    enum class Reach : std::uint8_t { all_24, two } reach = Reach::all_24;
    Streams streams = Streams::immediate;
    std::uint64_t seed = 1;
    bool same_bits = true;  // false for work that is not deterministic on purpose (float atomics)
};

struct SweepResult {
    int schedules = 0;
    int distinct = 0;               // different outputs
    std::vector<Finding> findings;  // of all runs, each kind and text once; the text ends with its first schedule
    bool clean() const { return findings.empty(); }
    bool has(Kind kind) const;
    // One finding a line, "divergence: …"; empty if clean.
    std::string text() const;
    // Whether some finding of this kind has a text that holds each of `words`.
    bool says(Kind kind, std::initializer_list<std::string_view> words) const;
};

std::vector<Config> schedules_of(const SweepOptions& options);
// An exception of `work` is a finding too. The configuration is left as it was.
SweepResult sweep(const SweepOptions& options, const std::function<void(Outputs&)>& work);

}  // namespace sim
