#include "engine/config_names.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>

#include "engine/config_io.h"

namespace keel {
namespace {

struct Alias {
    std::string_view theirs, ours;
};

// Spelled with '-', lower case; '_' and '.' in what was typed count as '-'.
constexpr Alias aliases[] = {
    // Megatron-LM
    {"num-layers", "model.layers"},
    {"hidden-size", "model.hidden"},
    {"ffn-hidden-size", "model.ffn"},
    {"num-attention-heads", "model.heads"},
    {"num-query-groups", "model.kv_heads"},
    {"kv-channels", "model.head_dim"},
    {"norm-epsilon", "model.norm_eps"},
    {"rotary-base", "model.rope_base"},
    {"init-method-std", "model.init_std"},
    {"untie-embeddings-and-output-weights", "model.tied"},
    {"bf16", "model.dtype"},
    {"fp16", "model.dtype"},
    {"seq-length", "data.seq_len"},
    {"max-position-embeddings", "data.seq_len"},
    {"data-path", "data.train"},
    {"tokenizer-model", "data.tokenizer"},
    {"reset-position-ids", "data.reset_at_document"},
    {"reset-attention-mask", "data.reset_at_document"},
    {"train-iters", "train.steps"},
    {"micro-batch-size", "train.micro_batch"},
    {"global-batch-size", "train.global_batch"},
    {"rampup-batch-size", "train.batch_ramp"},
    {"step-batch-size-schedule", "train.batch_schedule"},
    {"end-weight-decay", "optim.weight_decay_end"},
    {"weight-decay-incr-style", "optim.weight_decay_schedule"},
    {"eval-iters", "train.eval_samples"},
    {"lr-decay-style", "optim.schedule"},
    {"lr-wsd-decay-style", "optim.wsd_decay"},
    {"lr-wsd-decay-samples", "optim.wsd_samples"},
    {"lr-wsd-decay-iters", "optim.wsd_samples"},
    {"lr-warmup-samples", "optim.warmup_samples"},
    {"lr-warmup-iters", "optim.warmup_samples"},
    {"lr-warmup-fraction", "optim.warmup_samples"},
    {"lr-warmup-init", "optim.init_lr"},
    {"lr-decay-samples", "optim.decay_samples"},
    {"lr-decay-iters", "optim.decay_samples"},
    {"clip-grad", "optim.clip"},
    {"adam-beta1", "optim.beta1"},
    {"adam-beta2", "optim.beta2"},
    {"adam-eps", "optim.eps"},
    {"initial-loss-scale", "optim.loss_scale_initial"},
    {"min-loss-scale", "optim.loss_scale_min"},
    {"hysteresis", "optim.loss_scale_hysteresis"},
    {"recompute-granularity", "memory.recompute"},
    {"recompute-activations", "memory.recompute"},
    {"profile-step-start", "profile.start"},
    {"profile-step-end", "profile.stop"},
    {"save", "run.dir"},
    {"save-interval", "ckpt.interval"},
    {"load", "ckpt.resume"},
    {"finetune", "ckpt.init"},
    // HF trainer
    {"per-device-train-batch-size", "train.micro_batch"},
    {"gradient-accumulation-steps", "train.global_batch"},
    {"num-train-epochs", "train.samples"},
    {"max-steps", "train.steps"},
    {"max-seq-length", "data.seq_len"},
    {"learning-rate", "optim.lr"},
    {"lr-scheduler-type", "optim.schedule"},
    {"warmup-steps", "optim.warmup_samples"},
    {"warmup-ratio", "optim.warmup_samples"},
    {"max-grad-norm", "optim.clip"},
    {"adam-epsilon", "optim.eps"},
    {"gradient-checkpointing", "memory.recompute"},
    {"output-dir", "run.dir"},
    {"save-steps", "ckpt.interval"},
    {"save-total-limit", "ckpt.keep_last"},
    {"resume-from-checkpoint", "ckpt.resume"},
    {"eval-steps", "train.eval_interval"},
    {"logging-steps", "train.log_interval"},
    // the keys of a model folder's config.json
    {"hidden-layers", "model.layers"},
    {"num-hidden-layers", "model.layers"},
    {"intermediate-size", "model.ffn"},
    {"num-key-value-heads", "model.kv_heads"},
    {"vocab-size", "model.vocab"},
    {"rms-norm-eps", "model.norm_eps"},
    {"rope-theta", "model.rope_base"},
    {"tie-word-embeddings", "model.tied"},
    {"attention-bias", "model.qkv_bias"},
    {"sliding-window", "model.window"},
    {"initializer-range", "model.init_std"},
    // torchtitan, LitGPT, llm.c and habit
    {"batch-size", "train.global_batch"},
    {"max-norm", "optim.clip"},
    {"grad-clip", "optim.clip"},
    {"gradient-clip", "optim.clip"},
    {"log-freq", "train.log_interval"},
    {"sequence-length", "data.seq_len"},
    {"max-context-length", "data.seq_len"},
    {"keep-latest-k", "ckpt.keep_last"},
    {"block-size", "data.seq_len"},
    {"batch", "train.global_batch"},
    {"bs", "train.global_batch"},
    {"data", "data.train"},
    {"min-decay-lr", "optim.min_lr"},
    {"final-lr", "optim.min_lr"},
    {"warmup", "optim.warmup_samples"},
    {"epochs", "train.samples"},
    {"iters", "train.steps"},
    {"n-layer", "model.layers"},
    {"n-head", "model.heads"},
    {"n-embd", "model.hidden"},
    {"d-model", "model.hidden"},
    {"out-dir", "run.dir"},
    {"train-file", "data.train"},
    {"eval-file", "data.valid"},
    {"seq-len", "data.seq_len"},
};

std::string plain(std::string_view word) {
    while (word.starts_with('-')) word.remove_prefix(1);
    std::string out;
    for (const char c : word)
        out += c == '_' || c == '.' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return out;
}

std::string_view last_part(std::string_view name) {
    const auto dot = name.rfind('.');
    return dot == std::string_view::npos ? name : name.substr(dot + 1);
}

}  // namespace

std::vector<std::string> section_names() {
    Config config;
    std::vector<std::string> names;
    config.sections([&](const char* name, auto&) { names.emplace_back(name); });
    return names;
}

std::string_view short_flag(std::string_view setting) {
    constexpr Alias flags[] = {{"device", "run.device"}, {"init", "ckpt.init"}};
    const auto* at = std::ranges::find(flags, setting, &Alias::ours);
    return at == std::end(flags) ? std::string_view() : at->theirs;
}

std::string_view known_alias(std::string_view word) {
    std::string spelled = plain(word);
    for (int pass = 0; pass < 2; ++pass) {
        for (const Alias& alias : aliases)
            if (alias.theirs == spelled) return alias.ours;
        spelled = plain(last_part(word));  // trainer.max_steps, train.global_batch_size
    }
    return {};
}

std::vector<std::string> dangling_aliases(const std::vector<std::string>& known) {
    std::vector<std::string> dangling;
    for (const Alias& alias : aliases)
        if (std::ranges::count(known, alias.ours) == 0) dangling.emplace_back(alias.theirs);
    return dangling;
}

std::int64_t edit_distance(std::string_view a, std::string_view b) {
    const std::size_t n = b.size() + 1;
    std::vector<std::int64_t> two_ago(n), ago(n), row(n);
    for (std::size_t j = 0; j < n; ++j) ago[j] = static_cast<std::int64_t>(j);
    for (std::size_t i = 1; i <= a.size(); ++i) {
        row[0] = static_cast<std::int64_t>(i);
        for (std::size_t j = 1; j < n; ++j) {
            row[j] = std::min({ago[j] + 1, row[j - 1] + 1, ago[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], two_ago[j - 2] + 1);
        }
        std::swap(two_ago, ago);
        std::swap(ago, row);
    }
    return ago[n - 1];
}

std::string join(const std::vector<std::string>& words, std::string_view between) {
    std::string out;
    for (std::size_t i = 0; i < words.size(); ++i) out.append(i ? between : "").append(words[i]);
    return out;
}

std::optional<std::string> nearest_name(std::string_view word, const std::vector<std::string>& known) {
    const std::string typed = plain(word);
    // The field's own name without its section, if only one section has it: --lr, --seed.
    const std::string* only = nullptr;
    int count = 0;
    for (const std::string& name : known)
        if (plain(last_part(name)) == typed) ++count, only = &name;
    if (count == 1) return *only;
    if (const std::string_view alias = known_alias(word); !alias.empty() && std::ranges::count(known, alias) > 0)
        return std::string(alias);

    const std::string* best = nullptr;
    std::int64_t best_distance = 0;
    for (const std::string& name : known) {
        std::int64_t distance = edit_distance(typed, plain(name));
        if (typed.find('-') == std::string::npos || word.find('.') == std::string_view::npos)
            distance = std::min(distance, edit_distance(typed, plain(last_part(name))));
        if (!best || distance < best_distance) best = &name, best_distance = distance;
    }
    // A third of the letters may be wrong; more is another word.
    if (!best || best_distance > std::max<std::int64_t>(1, static_cast<std::int64_t>(typed.size()) / 3)) return std::nullopt;
    return *best;
}

}  // namespace keel
