#include "engine/resume.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "engine/config_io.h"
#include "kernels/base/error.h"

namespace keel {
namespace {

// What may differ without a word: where and how a run computes, looks and saves, and how long it goes on.
constexpr std::array free_settings{"train.samples",       "train.steps",         "train.eval_interval", "train.eval_samples",
                                   "train.log_interval",  "train.sample_prompt", "train.micro_batch",   "model.preset",
                                   "data.tokenizer",       "data.prefetch"};

bool is_free(std::string_view key) {
    return key.starts_with("run.") || key.starts_with("profile.") || key.starts_with("ckpt.") || key.starts_with("exit.") ||
           key.starts_with("watch.") || key.starts_with("memory.") || key.starts_with("parallel.") ||
           key.starts_with("observe.") || key.starts_with("fault.") || key.starts_with("inject.") ||
           std::find(free_settings.begin(), free_settings.end(), key) != free_settings.end();
}

std::string table(const std::vector<Change>& changes) {
    std::string text;
    for (const Change& c : changes) text += "  " + c.key + ": " + c.before + " -> " + c.after + "\n";
    return text;
}

}  // namespace

Changes compare_for_resume(const Config& saved, const Config& now) {
    Changes changes;
    for (const std::string& key : setting_names()) {
        if (is_free(key)) continue;
        const std::string before = value_text(saved, key), after = value_text(now, key);
        if (before == after) continue;
        auto& list = key.starts_with("model.") && key != "model.init_std" ? changes.shape : changes.curve;
        list.push_back({key, before, after});
    }
    // A decay that ends with the run ends elsewhere when the run does.
    const auto decay_end = [](const Config& c) { return c.optim.decay_samples > 0 ? c.optim.decay_samples : c.train.samples; };
    if (saved.optim.schedule == now.optim.schedule && now.optim.schedule != "constant" &&
        saved.optim.decay_samples == now.optim.decay_samples && decay_end(saved) != decay_end(now))
        changes.curve.push_back({"optim.decay_samples (the end of the run)", std::to_string(decay_end(saved)),
                                 std::to_string(decay_end(now))});
    return changes;
}

std::string check_resume(const Config& saved, const Config& now, const std::string& checkpoint) {
    const Changes changes = compare_for_resume(saved, now);
    if (!changes.shape.empty())
        fail_usage(checkpoint + " holds another model:\n", table(changes.shape),
                   "Give the settings it was trained with, another --run.dir, or --ckpt.resume none");
    if (!changes.curve.empty() && !now.ckpt.accept_changes)
        fail_usage(checkpoint + " was trained with other settings, and these change the curve:\n", table(changes.curve),
                   "Pass --ckpt.accept_changes true to go on with the new ones, or --ckpt.resume none to start anew");
    return table(changes.curve);
}

}  // namespace keel
