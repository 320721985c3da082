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
#include "engine/memory/backend.h"
#include "engine/observe/json_line.h"
#include "kernels/base/dtype.h"

namespace keel {

// A value that is farther from the median than most are (the median of all such distances, MAD), and than a tenth of the
// median, to either side. One of two never is.
struct Outlier {
    int rank;
    double value, median;
    double percent() const { return 100 * (value / median - 1); }
};
std::vector<Outlier> outliers(std::span<const double> values);

// Where a rank works, and what it could measure there.
struct Workplace {
    std::string host;
    std::vector<int> processors;  // its threads may run on these; none where a GPU works for it
    int threads = 0;
    std::int64_t product = 0;  // peak_product
};

// Whether ranks get in each other's way: of the ranks of a host that have a processor in common, be it by way of a third, there
// are several, with more threads than those have processors together. Then luck decides between them.
bool crowded(std::span<const Workplace> places);
std::int64_t least_product(std::span<const Workplace> places);
// A collective: all of them, by rank.
std::vector<Workplace> gather_workplaces(Group& world, const Workplace& own);

struct RankRates {
    std::vector<double> flops_per_second;  // by rank; 0: not measured
    std::vector<std::string> hosts;
    bool comparable = true;  // they are not crowded

    double sum() const;
    std::vector<Outlier> uneven() const { return comparable ? outliers(flops_per_second) : std::vector<Outlier>(); }
};

// A collective: every rank multiplies matrices of one size at once, and takes the same of its times (matmul_peak).
RankRates measure_rates(Group& world, const Backend& backend, Dtype dtype, const std::string& host);
// Its last part: what this rank reached among all of `places`.
RankRates gather_rates(Group& world, Stream& stream, std::span<const Workplace> places, double flops_per_second);

// Records of log.jsonl: the least, the middle and the most over ranks; and one rank that stands out, also in words.
JsonLine rates_record(const RankRates& rates);
std::string uneven_text(const RankRates& rates, const Outlier& rank);
JsonLine uneven_record(const RankRates& rates, const Outlier& rank);

// Fails with ExitCode::device, on all ranks alike, where one stands out, naming all that do. Returns why none can, whatever it
// reaches: to be told whoever asked; "" where one could.
std::string expect_even(const RankRates& rates);

}  // namespace keel
