#include "engine/fault/injected_fault.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <numeric>
#include <sstream>

#include "engine/config_names.h"
#include "engine/model/params.h"
#include "kernels/base/error.h"
#include "kernels/base/random.h"

namespace keel {
namespace {

constexpr std::array names{"grad_nan", "grad_value", "grad_flip", "param_nan", "param_value", "param_flip", "slow", "hang", "kill",
                           "write_fail", "disk_full", "corrupt_checkpoint", "bad_core"};

template <class T> T number(const std::string& where, const std::string& key, const std::string& word) {
    T value{};
    const auto [end, status] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (status != std::errc() || end != word.data() + word.size())
        fail_usage(where, key, "=", word, ": this must be ", std::is_floating_point_v<T> ? "a number" : "a whole number");
    return value;
}

std::vector<std::string> parts(const std::string& text, char between) {
    std::vector<std::string> out;
    std::istringstream in(text);
    for (std::string part; std::getline(in, part, between);) out.push_back(part);
    return out;
}

// What may strike, and how likely each is: "kill:3/hang:1".
struct Kinds {
    std::vector<FaultKind> kinds;
    std::vector<double> weights;

    bool any(std::initializer_list<FaultKind> of) const { return std::ranges::find_first_of(kinds, of) != kinds.end(); }
};

Kinds parse_kinds(const std::string& where, const std::string& text) {
    const std::vector<std::string> known(names.begin(), names.end());
    Kinds out;
    for (const std::string& part : parts(text, '/')) {
        const std::string word = part.substr(0, part.find(':'));
        const auto kind = std::ranges::find(known, word);
        if (kind == known.end()) {
            const auto hint = nearest_name(word, known);
            fail_usage(where, "\"", word, "\" is no kind of fault", hint ? "; did you mean " + *hint + "?" : "; kinds are " + join(known, ", "));
        }
        out.kinds.push_back(static_cast<FaultKind>(kind - known.begin()));
        double& weight = out.weights.emplace_back(1);
        if (word.size() < part.size()) weight = number<double>(where, "weight", part.substr(word.size() + 1));
        if (!(weight >= 0 && std::isfinite(weight))) fail_usage(where, part, ": a weight must be at least 0");
    }
    if (out.kinds.empty()) fail_usage(where, "it begins with no kind of fault; kinds are ", join(known, ", "));
    if (std::ranges::all_of(out.weights, [](double w) { return w == 0; })) fail_usage(where, "no kind has a weight above 0");
    return out;
}

std::vector<std::string> words_of(const Kinds& k) {
    std::vector<std::string> fits = {"step", "after", "mttf", "rank", "ranks", "every", "lasting"};
    using enum FaultKind;
    if (k.any({grad_nan, grad_value, grad_flip, param_nan, param_value, param_flip})) fits.emplace_back("tensor");
    if (k.any({grad_flip, param_flip})) fits.emplace_back("bit");
    if (k.any({grad_value, param_value})) fits.emplace_back("value");
    if (k.any({slow})) fits.emplace_back("seconds");
    if (k.any({disk_full})) fits.emplace_back("steps");
    return fits;
}

// `random`: of this fault.
InjectedFault parse(const std::string& text, const Config& config, const Random& random) {
    const std::string where = concat("--inject.faults ", text, ": ");
    const std::vector<std::string> words = parts(text, ',');
    const Kinds kinds = parse_kinds(where, words.empty() ? std::string() : words[0]);
    const std::vector<std::string> fits = words_of(kinds);
    InjectedFault fault;
    fault.text = text;
    double after = 0, mttf = 0;
    std::vector<std::string> given;
    for (std::size_t i = 1; i < words.size(); ++i) {
        const std::string key = words[i].substr(0, words[i].find('='));
        const bool has_value = key.size() < words[i].size();
        const std::string value = has_value ? words[i].substr(key.size() + 1) : "";
        if (std::ranges::count(fits, key) == 0)
            fail_usage(where, "\"", words[i], "\" means nothing for ", words[0], "; it takes ", join(fits, ", "));
        if (has_value == (key == "lasting"))
            fail_usage(where, "\"", words[i], "\": ", key, key == "lasting" ? " stands alone" : " takes a value, as in " + key + "=1");
        if (std::ranges::count(given, key) > 0) fail_usage(where, key, " is given twice");
        given.push_back(key);
        if (key == "step") fault.step = number<std::int64_t>(where, key, value);
        else if (key == "after") after = number<double>(where, key, value);
        else if (key == "mttf") mttf = number<double>(where, key, value);
        else if (key == "rank") fault.rank = number<int>(where, key, value);
        else if (key == "ranks") fault.ranks = number<int>(where, key, value);
        else if (key == "every") fault.every = number<std::int64_t>(where, key, value);
        else if (key == "lasting") fault.lasting = true;
        else if (key == "tensor") fault.tensor = value;
        else if (key == "bit") fault.bit = number<int>(where, key, value);
        else if (key == "value") fault.value = number<double>(where, key, value);
        else if (key == "seconds") fault.seconds = number<double>(where, key, value);
        else fault.steps = number<std::int64_t>(where, key, value);
    }
    const auto has = [&](const char* key) { return std::ranges::count(given, std::string(key)) > 0; };
    const bool timed = has("after") || has("mttf");
    if (!has("step") && !timed)
        fail_usage(where, "no step is given; write step=7 for the seventh, after=60 for a minute later, or mttf=600 for a random time, "
                   "in the mean ten minutes");
    if (!has("step")) fault.step = 1;
    if (!(after >= 0 && after < 1e9)) fail_usage(where, "after=", after, "; it must be at least 0, and less than 1e9");
    if (has("mttf") && !(mttf > 0 && mttf < 1e9)) fail_usage(where, "mttf=", mttf, "; it must be more than 0, and less than 1e9");
    if (has("rank") && has("ranks")) fail_usage(where, "rank names one, and ranks draws some; leave one of them out");
    if (has("ranks") && fault.ranks < 1) fail_usage(where, "ranks=", fault.ranks, "; it must be at least 1");
    if (has("every") && fault.every < 1) fail_usage(where, "every=", fault.every, "; it must be at least 1");
    if (has("rank") && fault.rank < 0) fail_usage(where, "rank=", fault.rank, "; ranks begin at 0");
    if (!(fault.seconds >= 0 && fault.seconds < 1e9)) fail_usage(where, "seconds=", fault.seconds, "; it must be at least 0, and less than 1e9");
    if (fault.steps < 1) fail_usage(where, "steps=", fault.steps, "; it must be at least 1");
    if (fault.step < 1 || fault.step > config.train.steps)
        fail_usage(where, "step ", fault.step, " is none of the run's, which are 1 to ", config.train.steps);
    const bool narrow = config.model.dtype != "f32" && kinds.any({FaultKind::param_flip});
    if (const int bits = narrow ? 16 : 32; fault.bit >= bits || fault.bit < -1)
        fail_usage(where, "bit ", fault.bit, " is none of 0 to ", bits - 1);
    fault.kind = kinds.kinds[draw_by_weight(random.uniform(0), kinds.weights)];
    if (timed) fault.delay = failure_delay(random.uniform(1), mttf, after);
    return fault;
}

}  // namespace

const char* name(FaultKind kind) { return names[static_cast<std::size_t>(kind)]; }

double failure_delay(double u, double mttf, double after) { return after - std::log1p(-u) * mttf; }

std::size_t draw_by_weight(double u, std::span<const double> weights) {
    double left = u * std::reduce(weights.begin(), weights.end());
    std::size_t drawn = 0;
    for (std::size_t i = 0; i < weights.size(); ++i) {
        if (weights[i] > 0) drawn = i;  // the last one also where rounding leaves a little
        if ((left -= weights[i]) < 0) break;
    }
    return drawn;
}

std::vector<InjectedFault> parse_injected_faults(const Config& config) {
    std::vector<InjectedFault> faults;
    for (const std::string& text : config.inject.faults) {
        const Random random(config.inject.seed, Purpose::test, concat("kind and time ", faults.size(), text));
        const InjectedFault& fault = faults.emplace_back(parse(text, config, random));
        if (fault.tensor.empty()) continue;
        std::vector<std::string> tensors;
        for (const Param& p : ParamTable(config.model).specs) tensors.push_back(p.name);
        if (std::ranges::count(tensors, fault.tensor) > 0) continue;
        const auto hint = nearest_name(fault.tensor, tensors);
        fail_usage("--inject.faults ", text, ": the model has no tensor ", fault.tensor,
                   hint ? "; did you mean " + *hint + "?" : "; they are named as in `keel inspect` of a checkpoint");
    }
    return faults;
}

}  // namespace keel
