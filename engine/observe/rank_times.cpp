#include "engine/observe/rank_times.h"

#include <cmath>
#include <cstdio>
#include <string_view>
#include <type_traits>

#include "comm/agree.h"
#include "engine/observe/print.h"

namespace keel {
namespace {

constexpr std::size_t reading_size = sizeof(RankReading) / sizeof(double);
static_assert(sizeof(RankReading) == reading_size * sizeof(double) && std::is_trivially_copyable_v<RankReading>);

double* doubles(RankReading* readings) { return reinterpret_cast<double*>(readings); }

// Each quantity of an interval, per step where it is a time: its name, and what it is of one rank.
template <class Each>
void each_quantity(Each&& each) {
    each("work_ms", [](const RankReading& r) { return 1e3 * r.work_seconds() / r.steps; });
    each("flops_per_second", [](const RankReading& r) { return r.flops_per_second(); });
    for (const Phase p : {Phase::data_wait, Phase::compute, Phase::communication, Phase::optimizer}) {
        constexpr const char* names[] = {"", "data_wait_ms", "compute_ms", "communication_ms", "optimizer_ms"};
        each(names[static_cast<std::size_t>(p)], [p](const RankReading& r) { return 1e3 * r.phase(p) / r.steps; });
    }
}

struct Key {
    char text[48];
    Key(const char* name, const char* what) { std::snprintf(text, sizeof text, "%s_%s", name, what); }
};

double short_number(double value) { return std::round(value * 1e4) / 1e4; }  // a record holds many

void put(JsonLine& json, const char* name, const Spread& s) {
    json.number(Key(name, "min").text, short_number(s.min)).number(Key(name, "max").text, short_number(s.max));
    json.count(Key(name, "max_rank").text, s.max_rank);
}

}  // namespace

RankReading RankReading::operator-(const RankReading& before) const {
    RankReading out = *this;
    for (std::size_t i = 0; i < reading_size; ++i) doubles(&out)[i] -= reinterpret_cast<const double*>(&before)[i];
    return out;
}

Spread spread(std::span<const double> values, std::vector<double>& scratch) {
    const auto least = std::ranges::min_element(values), most = std::ranges::max_element(values);
    scratch.assign(values.begin(), values.end());
    const auto middle = scratch.begin() + static_cast<std::ptrdiff_t>(scratch.size() / 2);
    std::ranges::nth_element(scratch, middle);
    const double below = scratch.size() % 2 ? *middle : *std::max_element(scratch.begin(), middle);
    return {.min = *least,
            .median = (*middle + below) / 2,
            .max = *most,
            .min_rank = static_cast<int>(least - values.begin()),
            .max_rank = static_cast<int>(most - values.begin())};
}

RankTimes::RankTimes(Group& world, Stream& stream, const std::string& host, const Ledger& ledger,
                     const StepSpans* spans, const Flops& share)
    : world_(world),
      stream_(stream),
      ledger_(ledger),
      spans_(spans),
      share_(share),
      hosts_(gather_strings(world, host)),
      now_(hosts_.size()),
      interval_(hosts_.size()),
      values_(hosts_.size()),
      scratch_(hosts_.size()) {
    collect();  // what came before is start-up
}

void RankTimes::collect() {
    own_.phases = ledger_.all_seconds();
    if (spans_) own_.spans = spans_->seconds;
    std::swap(now_, interval_);
    const auto n = static_cast<std::int64_t>(reading_size);
    world_.all_gather(stream_, View<double>(doubles(now_.data()), {n * world_.size()}),
                      View<const double>(doubles(&own_), {n}));
    for (std::size_t r = 0; r < now_.size(); ++r) interval_[r] = now_[r] - interval_[r];
}

JsonLine ranks_record(std::int64_t step, const RankTimes& times, bool fine) {
    JsonLine json("ranks");
    json.count("step", step).number("steps", times.interval()[0].steps);
    each_quantity([&](const char* name, auto&& value) {
        const Spread s = times.over_ranks(value);
        put(json, name, s);
        json.number(Key(name, "median").text, short_number(s.median)).count(Key(name, "min_rank").text, s.min_rank);
    });
    for (std::size_t kind = 0; fine && kind < span_names.size(); ++kind)
        put(json, Key(span_names[kind], "ms").text,
            times.over_ranks([kind](const RankReading& r) { return 1e3 * r.spans[kind] / r.steps; }));
    return json;
}

JsonLine rank_record(int rank, const RankTimes& times) {
    const RankReading& r = times.total()[static_cast<std::size_t>(rank)];
    JsonLine json("rank");
    json.count("rank", rank)
        .text("host", times.host(rank))
        .number("steps", r.steps)
        .number("flops_per_second", short_number(r.flops_per_second()));
    for (std::size_t i = 0; i < phase_count; ++i) json.number(key(static_cast<Phase>(i)), short_number(r.phases[i]));
    return json;
}

std::size_t format_ranks(std::span<char> out, std::int64_t step, const RankTimes& times) {
    const auto put_text = [&](std::size_t at, const char* name, const Spread& s, double unit) {
        const int n = std::snprintf(out.data() + at, out.size() - at, " %s %.4g (%d) %.4g %.4g (%d)", name,
                                    s.min / unit, s.min_rank, s.median / unit, s.max / unit, s.max_rank);
        return std::min(at + static_cast<std::size_t>(std::max(n, 0)), out.size() - 2);
    };
    auto at = static_cast<std::size_t>(
        std::snprintf(out.data(), out.size(), "ranks step %lld", static_cast<long long>(step)));
    each_quantity([&](const char* name, auto&& value) {
        const bool rate = std::string_view(name) == "flops_per_second";
        at = put_text(at, rate ? "GFLOP/s" : name, times.over_ranks(value), rate ? 1e9 : 1);
    });
    out[at] = '\n', out[at + 1] = '\0';
    return at + 1;
}

std::vector<StartupSpread> startup_over_ranks(Group& world, Stream& stream, const StartupDials& dials) {
    const auto own = dials.all_seconds();
    constexpr auto parts = static_cast<std::int64_t>(own.size());
    std::vector<double> all(own.size() * static_cast<std::size_t>(world.size())),
        of_ranks(static_cast<std::size_t>(world.size())), scratch;
    world.all_gather(stream, View<double>(all.data(), {parts * world.size()}), View<const double>(own.data(), {parts}));
    std::vector<StartupSpread> out;
    for (std::size_t part = 0; part + 1 < own.size(); ++part) {  // not what came after
        for (std::size_t r = 0; r < of_ranks.size(); ++r) of_ranks[r] = all[r * own.size() + part];
        out.push_back({static_cast<Startup>(part), spread(of_ranks, scratch)});
    }
    return out;
}

JsonLine startup_record(std::span<const StartupSpread> parts) {
    JsonLine json("startup");
    for (const auto& [part, seconds] : parts) put(json, Key(name(part), "seconds").text, seconds);
    return json;
}

std::string startup_table(std::span<const StartupSpread> parts, int ranks) {
    std::string out;
    if (ranks == 1) {
        double sum = 0;
        for (const auto& [part, seconds] : parts) {
            sum += seconds.max;
            out += print("%s%s %.3f", out.empty() ? "" : ", ", name(part), seconds.max);
        }
        return print("start-up %.3f s: ", sum) + out + "\n";
    }
    out = print("start-up of %d ranks, s %6s  %8s  slowest\n", ranks, "min", "max");
    for (const auto& [part, seconds] : parts)
        out += print("  %-18s %8.3f  %8.3f  rank %d\n", name(part), seconds.min, seconds.max, seconds.max_rank);
    return out;
}

}  // namespace keel
