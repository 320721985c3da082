#include "engine/parallel/cluster.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "engine/config_names.h"
#include "kernels/base/error.h"

namespace keel {

double Cluster::wire(std::int64_t stride, std::int64_t size) const {
    if (stride * size <= per_node) return nvlink_gb * 1e9 * wire_share;
    // A ring through k members of a node leaves it over the wires of all k; inside, it is bound by NVLink.
    const double members = static_cast<double>(std::max<std::int64_t>(1, std::min(per_node / stride, size)));
    return std::min(nvlink_gb, members * ib_gb) * 1e9 * wire_share;
}

std::vector<Cluster> known_devices() {
    // gemm: the A100's is fitted to ten published runs (tests/engine/simulate_test.cpp); the others' is 730 of 989
    // TFLOP/s, what a tuned library reaches in a model's shapes (bare products reach 790). attention: 190 of 312 and
    // 500 of 989.
    return {
        {.device = "a100", .gpus = 8, .per_node = 8, .tflops = 312, .memory_gb = 80, .hbm_gb = 2039, .nvlink_gb = 300,
         .ib_gb = 25, .gemm = 0.68, .attention = 0.6},
        {.device = "h100", .gpus = 8, .per_node = 8, .tflops = 989, .memory_gb = 80, .hbm_gb = 3350, .nvlink_gb = 450,
         .ib_gb = 50, .gemm = 0.74, .attention = 0.5},
        {.device = "h200", .gpus = 8, .per_node = 8, .tflops = 989, .memory_gb = 141, .hbm_gb = 4800, .nvlink_gb = 450,
         .ib_gb = 50, .gemm = 0.74, .attention = 0.5},
    };
}

namespace {

double read_number(const std::string& key, const std::string& text) {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value) || value <= 0)
        fail_usage("--cluster: ", key, "=", text, " is not a number greater than 0");
    return value;
}

std::int64_t read_count(const std::string& key, const std::string& text) {
    const double value = read_number(key, text);
    if (value != std::floor(value) || value > 1e7)
        fail_usage("--cluster: ", key, "=", text, " is not a whole number up to 10 000 000");
    return static_cast<std::int64_t>(value);
}

Cluster device_named(const std::string& word) {
    std::vector<std::string> names;
    for (const Cluster& c : known_devices()) {
        if (c.device == word) return c;
        names.push_back(c.device);
    }
    fail_usage("--cluster: device=", word, " is not one of ", join(names, ", "),
               "; take the nearest and change its tflops, memory, hbm, nvlink, ib and gemm");
}

}  // namespace

Cluster parse_cluster(const std::string& text) {
    std::vector<std::pair<std::string, std::string>> words;
    for (std::size_t at = 0; at <= text.size();) {
        const std::size_t comma = std::min(text.find(',', at), text.size()), equals = text.find('=', at);
        if (equals >= comma)
            fail_usage("--cluster \"", text, "\": \"", text.substr(at, comma - at),
                       "\" is not name=value; write for example gpus=64,device=h100");
        words.emplace_back(text.substr(at, equals - at), text.substr(equals + 1, comma - equals - 1));
        at = comma + 1;
    }
    const std::vector<std::string> keys = {"device", "gpus",   "per_node", "tflops", "memory",
                                           "hbm",    "nvlink", "ib",       "gemm",   "attention"};
    Cluster c = device_named("h100");
    for (const auto& [key, value] : words)
        if (key == "device") c = device_named(value);
    bool counted = false;
    for (const auto& [key, value] : words) {
        if (key == "gpus") c.gpus = read_count(key, value), counted = true;
        else if (key == "per_node") c.per_node = read_count(key, value);
        else if (key == "tflops") c.tflops = read_number(key, value);
        else if (key == "memory") c.memory_gb = read_number(key, value);
        else if (key == "hbm") c.hbm_gb = read_number(key, value);
        else if (key == "nvlink") c.nvlink_gb = read_number(key, value);
        else if (key == "ib") c.ib_gb = read_number(key, value);
        else if (key == "gemm") c.gemm = read_number(key, value);
        else if (key == "attention") c.attention = read_number(key, value);
        else if (key != "device") {
            const auto hint = nearest_name(key, keys);
            fail_usage("--cluster: there is no \"", key, "\"",
                       hint ? "; did you mean " + *hint + "?" : "; there are " + join(keys, ", "));
        }
    }
    if (!counted) fail_usage("--cluster needs gpus, as in gpus=64,device=h100");
    for (const auto& [key, share] : {std::pair{"gemm", c.gemm}, {"attention", c.attention}})
        if (share > 1) fail_usage("--cluster: ", key, "=", share, " is a share of tflops; it is at most 1");
    return c;
}

}  // namespace keel
