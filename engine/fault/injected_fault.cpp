#include "engine/fault/injected_fault.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <sstream>

#include "engine/config_names.h"
#include "engine/model/params.h"
#include "kernels/base/error.h"

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

InjectedFault parse(const std::string& text) {
    const std::string where = concat("--inject.faults ", text, ": ");
    std::vector<std::string> words;
    std::istringstream in(text);
    for (std::string word; std::getline(in, word, ',');) words.push_back(word);
    const std::vector<std::string> kinds(names.begin(), names.end());
    InjectedFault fault;
    fault.text = text;
    const auto kind = std::ranges::find(kinds, words.empty() ? std::string() : words[0]);
    if (kind == kinds.end()) {
        const auto hint = words.empty() ? std::nullopt : nearest_name(words[0], kinds);
        fail_usage(where, "it begins with no kind of fault",
                   hint ? "; did you mean " + *hint + "?" : "; kinds are " + join(kinds, ", "));
    }
    fault.kind = static_cast<FaultKind>(kind - kinds.begin());
    const bool flips = fault.kind == FaultKind::grad_flip || fault.kind == FaultKind::param_flip;
    const bool values = fault.kind == FaultKind::grad_value || fault.kind == FaultKind::param_value;
    std::vector<std::string> fits = {"step", "rank", "every", "lasting"};
    if (fault.of_gradient() || fault.of_parameter()) fits.emplace_back("tensor");
    if (flips) fits.emplace_back("bit");
    if (values) fits.emplace_back("value");
    if (fault.kind == FaultKind::slow) fits.emplace_back("seconds");
    if (fault.kind == FaultKind::disk_full) fits.emplace_back("steps");
    std::vector<std::string> given;
    for (std::size_t i = 1; i < words.size(); ++i) {
        const std::string key = words[i].substr(0, words[i].find('='));
        const bool has_value = key.size() < words[i].size();
        const std::string value = has_value ? words[i].substr(key.size() + 1) : "";
        if (std::ranges::count(fits, key) == 0)
            fail_usage(where, "\"", words[i], "\" means nothing for ", *kind, "; it takes ", join(fits, ", "));
        if (has_value == (key == "lasting"))
            fail_usage(where, "\"", words[i], "\": ", key, key == "lasting" ? " stands alone" : " takes a value, as in " + key + "=1");
        if (std::ranges::count(given, key) > 0) fail_usage(where, key, " is given twice");
        given.push_back(key);
        if (key == "step") fault.step = number<std::int64_t>(where, key, value);
        else if (key == "rank") fault.rank = number<int>(where, key, value);
        else if (key == "every") fault.every = number<std::int64_t>(where, key, value);
        else if (key == "lasting") fault.lasting = true;
        else if (key == "tensor") fault.tensor = value;
        else if (key == "bit") fault.bit = number<int>(where, key, value);
        else if (key == "value") fault.value = number<double>(where, key, value);
        else if (key == "seconds") fault.seconds = number<double>(where, key, value);
        else fault.steps = number<std::int64_t>(where, key, value);
    }
    const auto has = [&](const char* key) { return std::ranges::count(given, std::string(key)) > 0; };
    if (!has("step")) fail_usage(where, "no step is given; write step=7 for the seventh");
    if (has("every") && fault.every < 1) fail_usage(where, "every=", fault.every, "; it must be at least 1");
    if (has("rank") && fault.rank < 0) fail_usage(where, "rank=", fault.rank, "; ranks begin at 0");
    if (!(fault.seconds >= 0 && fault.seconds < 1e9)) fail_usage(where, "seconds=", fault.seconds, "; it must be at least 0");
    if (fault.steps < 1) fail_usage(where, "steps=", fault.steps, "; it must be at least 1");
    return fault;
}

}  // namespace

const char* name(FaultKind kind) { return names[static_cast<std::size_t>(kind)]; }

std::vector<InjectedFault> parse_injected_faults(const Config& config) {
    std::vector<InjectedFault> faults;
    for (const std::string& text : config.inject.faults) {
        const InjectedFault& fault = faults.emplace_back(parse(text));
        const std::string where = concat("--inject.faults ", text, ": ");
        if (fault.step < 1 || fault.step > config.train.steps)
            fail_usage(where, "step ", fault.step, " is none of the run's, which are 1 to ", config.train.steps);
        const int bits = fault.kind == FaultKind::param_flip && config.model.dtype != "f32" ? 16 : 32;
        if (fault.bit >= bits || fault.bit < -1) fail_usage(where, "bit ", fault.bit, " is none of 0 to ", bits - 1);
        if (fault.tensor.empty()) continue;
        std::vector<std::string> tensors;
        for (const Param& p : ParamTable(config.model).specs) tensors.push_back(p.name);
        if (std::ranges::count(tensors, fault.tensor) > 0) continue;
        const auto hint = nearest_name(fault.tensor, tensors);
        fail_usage(where, "the model has no tensor ", fault.tensor,
                   hint ? "; did you mean " + *hint + "?" : "; they are named as in `keel inspect` of a checkpoint");
    }
    return faults;
}

}  // namespace keel
