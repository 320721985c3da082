#include "engine/observe/rank_rates.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <sstream>

#include "comm/agree.h"
#include "engine/observe/matmul_peak.h"
#include "engine/observe/print.h"
#include "engine/observe/rank_times.h"
#include "kernels/base/affinity.h"
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

bool crowded(std::span<const Workplace> places) {
    struct Crowd {
        std::string host;
        std::set<int> processors;
        std::size_t threads, ranks;
    };
    std::vector<Crowd> crowds;  // no two have a processor in common
    for (const Workplace& place : places) {
        Crowd own{place.host, {place.processors.begin(), place.processors.end()}, static_cast<std::size_t>(place.threads), 1};
        std::erase_if(crowds, [&](Crowd& other) {
            if (other.host != own.host || std::ranges::none_of(place.processors, [&](int p) { return other.processors.contains(p); }))
                return false;
            own.processors.merge(other.processors);
            own.threads += other.threads, own.ranks += other.ranks;
            return true;
        });
        crowds.push_back(std::move(own));
    }
    return std::ranges::any_of(crowds, [](const Crowd& c) { return c.ranks > 1 && c.threads > c.processors.size(); });
}

std::int64_t least_product(std::span<const Workplace> places) {
    return std::ranges::min(places, {}, &Workplace::product).product;
}

std::vector<Workplace> gather_workplaces(Group& world, const Workplace& own) {
    std::string text = concat(own.product, " ", own.threads, " ", own.processors.size());
    for (const int p : own.processors) text += concat(" ", p);
    std::vector<Workplace> places;
    for (const std::string& one : gather_strings(world, text + " " + own.host)) {
        std::istringstream in(one);
        Workplace& place = places.emplace_back();
        std::size_t processors = 0;
        in >> place.product >> place.threads >> processors;
        place.processors.resize(processors);
        for (int& p : place.processors) in >> p;
        in >> place.host;
    }
    return places;
}

RankRates measure_rates(Group& world, const Backend& backend, Dtype dtype, const std::string& host) {
    Workplace own{.host = host, .processors = {}, .threads = 0, .product = peak_product(backend, dtype)};
    if (!backend.gpu) {
        own.threads = backend.host.threads();
        own.processors = available_processors();
    }
    const std::vector<Workplace> places = gather_workplaces(world, own);
    return gather_rates(world, backend.host, places, matmul_peak(backend, dtype, least_product(places), crowded(places)));
}

RankRates gather_rates(Group& world, Stream& stream, std::span<const Workplace> places, double flops_per_second) {
    RankRates out{.flops_per_second = std::vector<double>(places.size()), .hosts = {}, .comparable = !crowded(places)};
    for (const Workplace& place : places) out.hosts.push_back(place.host);
    world.all_gather(stream, View<double>(out.flops_per_second.data(), {world.size()}), View<const double>(&flops_per_second, {1}));
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

std::string expect_even(const RankRates& rates) {
    std::string text;
    for (const Outlier& o : rates.uneven()) text += uneven_text(rates, o) + ". ";
    if (!text.empty())
        throw Error(concat("ranks are not even (--watch.even): ", text, "Take that machine out, or train all the same with ",
                           "--watch.even false"),
                    std::source_location::current(), ExitCode::device);
    const std::string nothing = "--watch.even compares nothing here: ";
    if (rates.flops_per_second.size() < 3) return nothing + "of fewer than three ranks none stands out";
    if (!rates.comparable) return nothing + "ranks share processors, and luck would decide";
    if (rates.sum() <= 0) return nothing + "seconds of a simulated GPU are no device's";
    return {};
}

}  // namespace keel
