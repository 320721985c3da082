#include "engine/observe/rank_rates.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "comm/agree.h"
#include "engine/observe/print.h"
#include "engine/observe/rank_times.h"
#include "kernels/base/error.h"

namespace keel {

std::vector<Outlier> outliers(std::span<const double> values) {
    if (values.empty()) return {};
    std::vector<double> scratch, distances;
    const double median = spread(values, scratch).median;
    for (const double v : values) distances.push_back(std::abs(v - median));
    // And a hair: values that are equally far on either side are so but for rounding.
    const double limit = (1 + 1e-9) * std::max(spread(distances, scratch).median, median / 10);
    std::vector<Outlier> out;
    for (std::size_t r = 0; r < values.size(); ++r)
        if (distances[r] > limit) out.push_back({static_cast<int>(r), values[r], median});
    return out;
}

double RankRates::sum() const { return std::reduce(flops_per_second.begin(), flops_per_second.end()); }

RankRates gather_rates(Group& world, Stream& stream, const std::string& host, double flops_per_second, bool own_processors) {
    const double own[] = {flops_per_second, own_processors ? 1.0 : 0.0};
    RankRates out{.flops_per_second = {}, .hosts = gather_strings(world, host)};
    std::vector<double> all(2 * out.hosts.size());
    world.all_gather(stream, View<double>(all.data(), {2 * world.size()}), View<const double>(own, {2}));
    for (std::size_t r = 0; r < out.hosts.size(); ++r) {
        out.flops_per_second.push_back(all[2 * r]);
        out.comparable = out.comparable && all[2 * r + 1] > 0;
    }
    return out;
}

JsonLine rates_record(const RankRates& rates) {
    std::vector<double> scratch;
    const Spread s = spread(rates.flops_per_second, scratch);
    JsonLine json("rates");
    json.number("matmul_peak_min", s.min).number("matmul_peak_median", s.median).number("matmul_peak_max", s.max);
    json.count("matmul_peak_min_rank", s.min_rank).count("matmul_peak_max_rank", s.max_rank);
    return json;
}

std::string uneven_text(const RankRates& rates, const Outlier& o) {
    return concat("rank ", o.rank, " on ", rates.hosts[static_cast<std::size_t>(o.rank)],
                  print(" reaches %.4g TFLOP/s in matrix products, %.1f %% %s than the median rank, which reaches %.4g", o.value / 1e12,
                        std::abs(o.percent()), o.percent() < 0 ? "less" : "more", o.median / 1e12));
}

JsonLine uneven_record(const RankRates& rates, const Outlier& o) {
    JsonLine json("uneven");
    json.count("rank", o.rank).text("host", rates.hosts[static_cast<std::size_t>(o.rank)]);
    json.number("matmul_peak", o.value).number("percent", std::round(10 * o.percent()) / 10);
    return json;
}

void expect_even(const RankRates& rates) {
    std::string text;
    for (const Outlier& o : rates.uneven()) text += uneven_text(rates, o) + ". ";
    if (!text.empty())
        throw Error(text + "Take that machine out, or train all the same with --watch.even false", std::source_location::current(),
                    ExitCode::device);
}

}  // namespace keel
