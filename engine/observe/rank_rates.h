// engine/observe/rank_rates.h: how fast each rank multiplies matrices (matmul_peak.h), measured by all of them at once when a
// run starts, and which of them stand out from the rest.
//
// At once, because ranks of one host share its memory and its power in a step, too: so the sum over ranks is the ceiling that
// the run's steps are measured against.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "comm/group.h"
#include "engine/observe/json_line.h"

namespace keel {

// A value that is farther from the median than most are (the median of all such distances, MAD), and than a tenth of the
// median, to either side. One of two never is.
struct Outlier {
    int rank;
    double value, median;
    double percent() const { return 100 * (value / median - 1); }
};
std::vector<Outlier> outliers(std::span<const double> values);

struct RankRates {
    std::vector<double> flops_per_second;  // by rank; 0: not measured
    std::vector<std::string> hosts;
    bool comparable = true;  // every rank has processors of its own; where two share one, luck decides between them

    double sum() const;
    std::vector<Outlier> uneven() const { return comparable ? outliers(flops_per_second) : std::vector<Outlier>(); }
};

// A collective. What this rank reached, and whether it shares its processors with no other.
RankRates gather_rates(Group& world, Stream& stream, const std::string& host, double flops_per_second, bool own_processors);

// Records of log.jsonl: the least, the middle and the most over ranks; and one rank that stands out, also in words.
JsonLine rates_record(const RankRates& rates);
std::string uneven_text(const RankRates& rates, const Outlier& rank);
JsonLine uneven_record(const RankRates& rates, const Outlier& rank);

// Fails with ExitCode::device, on all ranks alike, where one stands out, naming all that do.
void expect_even(const RankRates& rates);

}  // namespace keel
