// engine/observe/rank_times.h: how the ranks of a run spend their time, side by side, and which of them is slow.
//
// Every rank has a RankTimes and calls the same functions at the same steps. Each adds up what it does; collect(), at log steps
// only, brings the sums of all ranks to all of them, and whoever tells looks at what lies between the last two. Nothing
// allocates after the constructor.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/group.h"
#include "engine/observe/flops.h"
#include "engine/observe/json_line.h"
#include "engine/observe/ledger.h"
#include "engine/observe/spans.h"

namespace keel {

// Sums of one rank since its process began. All are doubles: a reading travels as it is.
struct RankReading {
    PhaseSeconds phases{};
    SpanSeconds spans{};
    double steps = 0, flops = 0;  // FLOPs: this rank's share of the useful work

    double phase(Phase p) const { return phases[static_cast<std::size_t>(p)]; }
    // What the rank did itself, without waiting for others: in this ranks differ, while their steps take equally long.
    double work_seconds() const { return phase(Phase::data_wait) + phase(Phase::compute) + phase(Phase::optimizer); }
    double flops_per_second() const { return work_seconds() > 0 ? flops / work_seconds() : 0; }
    RankReading operator-(const RankReading& before) const;
};

// The least, the middle and the most over ranks, and whose they are. Zeros count.
struct Spread {
    double min = 0, median = 0, max = 0;
    int min_rank = 0, max_rank = 0;
};
Spread spread(std::span<const double> values, std::vector<double>& scratch);  // scratch: as large

// Tells once of a rank that is slower than the median by `factor`, `times` times in a row.
class Stragglers {
public:
    Stragglers(std::size_t ranks, double factor, std::int64_t times)
        : factor_(factor), times_(times), in_a_row_(ranks), told_(ranks), scratch_(ranks) {}

    // What each rank reached; more is faster, and a rank that has nothing to do reaches 0. `found(rank, share)`: of the median.
    template <class Found> void look(std::span<const double> rates, Found&& found) {
        const double median = spread(rates, scratch_).median;
        for (std::size_t r = 0; r < rates.size(); ++r) {
            const bool slow = rates[r] > 0 && rates[r] * factor_ < median;
            in_a_row_[r] = slow ? in_a_row_[r] + 1 : 0;
            if (in_a_row_[r] < times_ || told_[r]) continue;
            told_[r] = true;
            found(static_cast<int>(r), rates[r] / median);
        }
    }

private:
    double factor_;
    std::int64_t times_;
    std::vector<std::int64_t> in_a_row_;
    std::vector<char> told_;
    std::vector<double> scratch_;
};

class RankTimes {
public:
    // A collective. `share`: of the model's work, what this rank does. `ledger` and `spans` must outlive it; spans may be null.
    RankTimes(Group& world, Stream& stream, const std::string& host, const Ledger& ledger, const StepSpans* spans, const Flops& share);

    void add(const StepResult& step) { own_.steps += 1, own_.flops += share_.of(step); }
    void collect();  // a collective

    // Between the last two collections, of each rank; and since its process began.
    std::span<const RankReading> interval() const { return interval_; }
    std::span<const RankReading> total() const { return now_; }
    const std::string& host(int rank) const { return hosts_[static_cast<std::size_t>(rank)]; }
    template <class Value> std::span<const double> of_ranks(Value&& value) const {
        for (std::size_t r = 0; r < values_.size(); ++r) values_[r] = value(interval_[r]);
        return values_;
    }
    template <class Value> Spread over_ranks(Value&& value) const { return spread(of_ranks(value), scratch_); }

private:
    Group& world_;
    Stream& stream_;
    const Ledger& ledger_;
    const StepSpans* spans_;
    Flops share_;
    RankReading own_;
    std::vector<std::string> hosts_;
    std::vector<RankReading> now_, interval_;
    mutable std::vector<double> values_, scratch_;
};

// The last interval as a record of log.jsonl and as a line of the log: milliseconds per step, FLOP/s, ranks by number.
// `fine`: spans too.
JsonLine ranks_record(std::int64_t step, const RankTimes& times, bool fine);
JsonLine rank_record(int rank, const RankTimes& times);  // its total
std::size_t format_ranks(std::span<char> out, std::int64_t step, const RankTimes& times);

// How long each part of start-up took, over ranks; the same on all of them. A collective.
struct StartupSpread {
    Startup part;
    Spread seconds;
};
std::vector<StartupSpread> startup_over_ranks(Group& world, Stream& stream, const StartupDials& dials);
JsonLine startup_record(std::span<const StartupSpread> parts);
std::string startup_table(std::span<const StartupSpread> parts, int ranks);

}  // namespace keel
