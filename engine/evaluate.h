// engine/evaluate.h: loss, perplexity and bits per byte over a stretch of a data set.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "data/loader.h"
#include "data/tokenizer.h"
#include "engine/model/model.h"
#include "engine/progress.h"

namespace keel {

// Bytes of text behind each id of the model's vocabulary; special tokens and padding rows stand for none.
std::vector<std::int32_t> token_bytes(const Tokenizer& tokenizer, std::int64_t vocab);

// Samples [0, samples), `micro_batch` at a time. Bits per byte counts the bytes of every target by `bytes_of_token`; empty
// leaves them out. `each` is told how many samples are done, for a progress bar.
EvalResult evaluate_loss(Model& model, Loader& loader, std::int64_t samples, std::int64_t micro_batch,
                         std::span<const std::int32_t> bytes_of_token,
                         const std::function<void(std::int64_t)>& each = {});

}  // namespace keel
