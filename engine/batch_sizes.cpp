#include "engine/batch_sizes.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <string_view>

#include "kernels/base/error.h"

namespace keel {
namespace {

__extension__ typedef __int128 wide;  // samples * increments passes 2^63 for long runs

constexpr std::int64_t endless = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t most_increments = 1'000'000;  // each is a level in memory

// 768, 250B, 1.5M.
std::int64_t count_of(std::string_view text, const std::string& entry) {
    const char* const end = text.data() + text.size();
    double number = 0;
    const auto [after, error] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
    double unit = 1;
    if (after + 1 == end) unit = *after == 'K' ? 1e3 : *after == 'M' ? 1e6 : *after == 'B' ? 1e9 : *after == 'T' ? 1e12 : 0;
    const double product = number * unit, count = std::round(product);  // 1.001B is not quite 1001000000 of a double
    if (error != std::errc() || end - after > 1 || unit == 0 || !(count >= 0 && count < 9e18) || std::abs(product - count) > 1e-15 * count)
        fail_usage("--train.batch_schedule: \"", text, "\" in \"", entry, "\" is no whole count, such as 768, 1.5M or 250B");
    return static_cast<std::int64_t>(count);
}

}  // namespace

BatchSizes::BatchSizes(std::int64_t always) { add(0, always); }

BatchSizes::BatchSizes(const Config& config) {
    const TrainSection& t = config.train;
    *this = !t.batch_schedule.empty() ? steps(t.batch_schedule, config.data.seq_len)
            : t.batch_ramp.empty()    ? BatchSizes(t.global_batch)
                                      : ramp(t.global_batch, t.batch_ramp.at(0), t.batch_ramp.at(1), t.batch_ramp.at(2));
}

void BatchSizes::add(std::int64_t from, std::int64_t batch) {
    if (batch <= 0) fail_usage("--train.global_batch is ", batch, "; it must be at least 1");
    if (!levels_.empty() && levels_.back().from == from) levels_.back().batch = batch;  // the one before lasts for no sample
    else levels_.push_back({from, batch});
}

BatchSizes BatchSizes::ramp(std::int64_t global_batch, std::int64_t start, std::int64_t increment, std::int64_t ramp_samples) {
    if (global_batch <= 0) fail_usage("--train.global_batch is ", global_batch, "; it must be at least 1");
    if (start <= 0 || start > global_batch)
        fail_usage("--train.batch_ramp starts at ", start, " samples per step; it must start between 1 and ",
                   "--train.global_batch ", global_batch);
    if (increment <= 0) fail_usage("--train.batch_ramp has increment ", increment, "; it must be at least 1");
    if (ramp_samples < 0) fail_usage("--train.batch_ramp lasts ", ramp_samples, " samples; it cannot be negative");
    if ((global_batch - start) % increment != 0)
        fail_usage("--train.batch_ramp ", start, " ", increment, " ", ramp_samples, " never arrives at ",
                   "--train.global_batch ", global_batch, ": ", global_batch - start, " is not a multiple of ", increment);
    const std::int64_t increments = (global_batch - start) / increment;
    if (increments > most_increments)
        fail_usage("--train.batch_ramp ", start, " ", increment, " ", ramp_samples, " grows ", increments, " times; ",
                   most_increments, " is the most, so grow by more at a time");
    BatchSizes sizes;
    for (std::int64_t k = 0; k <= increments; ++k) {
        // The first n with floor(n increments / ramp_samples) = k.
        const wide from = increments == 0 ? 0 : (static_cast<wide>(k) * ramp_samples + increments - 1) / increments;
        sizes.add(static_cast<std::int64_t>(from), start + k * increment);
    }
    return sizes;
}

BatchSizes BatchSizes::steps(const std::vector<std::string>& entries, std::int64_t seq_len) {
    std::vector<Level> levels;
    for (const std::string& entry : entries) {
        const std::size_t colon = entry.find(':');
        if (colon == std::string::npos)
            fail_usage("--train.batch_schedule: \"", entry, "\" is not tokens:samples, such as 250B:1536");
        const std::string_view text = entry;
        const std::int64_t tokens = count_of(text.substr(0, colon), entry), batch = count_of(text.substr(colon + 1), entry);
        if (batch < 1) fail_usage("--train.batch_schedule: \"", entry, "\" has steps of no sample");
        levels.push_back({tokens / std::max<std::int64_t>(seq_len, 1), batch});
    }
    std::ranges::stable_sort(levels, {}, &Level::from);
    if (levels.front().from != 0)
        fail_usage("--train.batch_schedule says nothing of the first step; it begins with 0:samples");
    BatchSizes sizes;
    for (const Level& level : levels) {
        if (!sizes.levels_.empty() && level.from == sizes.levels_.back().from)
            fail_usage("--train.batch_schedule has steps of ", sizes.last(), " and of ", level.batch, " samples from sample ",
                       level.from, " (of --data.seq_len ", seq_len, " tokens) on; leave one out");
        if (!sizes.levels_.empty() && level.batch <= sizes.last())
            fail_usage("--train.batch_schedule goes from ", sizes.last(), " samples to ", level.batch, " at sample ", level.from,
                       "; a step never takes fewer than the one before, so make each entry larger than the last");
        sizes.add(level.from, level.batch);
    }
    return sizes;
}

const BatchSizes::Level* BatchSizes::level_at(std::int64_t samples) const {
    return &*std::prev(std::ranges::upper_bound(levels_, samples, {}, &Level::from));
}

std::int64_t BatchSizes::at(std::int64_t samples) const { return level_at(samples)->batch; }

std::vector<std::int64_t> BatchSizes::all() const {
    std::vector<std::int64_t> sizes;
    for (const Level& level : levels_) sizes.push_back(level.batch);
    return sizes;
}

// Both walk level by level, not step by step: a ramp may last for billions of steps.
std::int64_t BatchSizes::samples_after(std::int64_t steps) const {
    std::int64_t samples = 0;
    while (steps > 0) {
        const Level* const level = level_at(samples);
        const std::int64_t end = level == &levels_.back() ? endless : level[1].from;
        const std::int64_t taken = std::min(steps, (end - samples - 1) / level->batch + 1);
        if (taken > (endless - samples) / level->batch)
            fail_usage("--train.steps ", steps, " of --train.global_batch ", last(),
                       " samples are more than a 64-bit count of samples holds; shorten the run");
        samples += taken * level->batch;
        steps -= taken;
    }
    return samples;
}

std::int64_t BatchSizes::steps_for(std::int64_t target) const {
    std::int64_t samples = 0, steps = 0;
    while (samples < target) {
        const Level* const level = level_at(samples);
        const std::int64_t end = level == &levels_.back() ? target : std::min(target, level[1].from);
        const std::int64_t taken = (end - samples - 1) / level->batch + 1;
        samples += taken * level->batch;
        steps += taken;
    }
    return steps;
}

}  // namespace keel
