// engine/data_spec.h: what the [data] settings of a run mean to data/dataset.h. Shared by training and `keel data
// show`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/tokenizer.h"
#include "engine/config.h"
#include "kernels/base/error.h"

namespace keel {

// Refuses what contradicts itself in how samples are cut and ordered.
inline void check_samples(const DataSection& d) {
    const auto choice = [](const char* flag, const std::string& value, const char* one, const char* other) {
        if (value != one && value != other)
            fail_usage("--data.", flag, " is \"", value, "\"; it must be ", one, " or ", other);
    };
    choice("order", d.order, "keel", "megatron");
    choice("packing", d.packing, "concatenate", "best_fit");
    if (!d.raw_dtype.empty()) choice("raw_dtype", d.raw_dtype, "uint16", "uint32");
    if (d.token_vocab < 0 || d.token_vocab > 0x7fffffff)
        fail_usage("--data.token_vocab is ", d.token_vocab, "; give a size of a vocabulary, or 0 for the tokenizer's");
    if (d.token_eos < -1 || d.token_eos > 0x7ffffffe)
        fail_usage("--data.token_eos is ", d.token_eos, "; give a token, or -1");
    if (d.order_samples < 0)
        fail_usage("--data.order_samples is ", d.order_samples, "; give the number of samples of the run");
    const bool megatron = d.order == "megatron";
    if (megatron && d.order_samples == 0)
        fail_usage("--data.order megatron depends on the number of samples it is made for; give --data.order_samples");
    if (!megatron && d.order_samples > 0)
        fail_usage("--data.order_samples ", d.order_samples,
                   " is for --data.order megatron; keel's own order does not depend on it");
    if (megatron && !d.shuffle)
        fail_usage("--data.order megatron is a shuffled one; leave --data.shuffle on, or the order out");
    if (megatron && d.packing == "best_fit")
        fail_usage("--data.packing best_fit and --data.order megatron exclude each other");
    if (d.packing == "best_fit" && !d.reset_at_document)
        fail_usage(
            "--data.packing best_fit puts documents side by side that have nothing to do with each other; it needs"
            " --data.reset_at_document true");
}

// `tokenizer`, if there is one, tells what token files of other programs do not.
inline DatasetSpec dataset_spec(const Config& config, const std::optional<Tokenizer>& tokenizer,
                                const std::vector<std::string>& sources, Part part, bool shuffle) {
    const DataSection& d = config.data;
    DatasetSpec spec{.paths = {},
                     .weights = {},
                     .split = d.split,
                     .part = part,
                     .seq_len = d.seq_len,
                     .shuffle = shuffle,
                     .seed = config.train.seed};
    parse_sources(sources, spec);
    spec.declared.vocab_size = d.token_vocab > 0 ? d.token_vocab : tokenizer ? tokenizer->vocab_size() : 0;
    spec.declared.eos_id = static_cast<std::int32_t>(d.token_eos >= 0 ? d.token_eos
                                                     : tokenizer      ? tokenizer->eos_id().value_or(-1)
                                                                      : -1);
    spec.declared.dtype = d.raw_dtype;
    spec.pack = d.packing == "best_fit";
    spec.megatron_order = d.order == "megatron";
    spec.order_samples = d.order_samples;
    return spec;
}

// Evaluation reads data.valid, or else the second part of the split; in order, since nothing is gained by shuffling.
inline std::optional<DatasetSpec> valid_spec(const Config& config,
                                             const std::optional<Tokenizer>& tokenizer) {
    if (!config.data.valid.empty()) {
        DatasetSpec spec = dataset_spec(config, tokenizer, config.data.valid, Part::train, false);
        spec.split = {1, 0, 0};
        spec.megatron_order = false;
        return spec;
    }
    if (config.data.split[1] == 0) return std::nullopt;
    DatasetSpec spec = dataset_spec(config, tokenizer, config.data.train, Part::valid, false);
    spec.weights.clear();
    return spec;
}

}  // namespace keel
