// engine/generate.h: text from a trained model: temperature, top-k, top-p, and a seed that fixes every choice.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "engine/model/decoder.h"

namespace keel {

struct Sampling {
    double temperature = 0.8;    // 0 always takes the likeliest token
    std::int64_t top_k = 0;      // only the k likeliest; 0 is all
    double top_p = 1.0;          // only the fewest likeliest tokens that together reach this probability
    std::uint64_t seed = 1234;
    std::int64_t max_tokens = 256;
    std::vector<std::int32_t> ending_ids = {};  // tokens that end the text, beside the tokenizer's end-of-text token
};

// Refuses values outside of their ranges, naming the flag.
void check_sampling(const Sampling& sampling);

// One choice among `logits`; `u` in [0, 1) decides. Ties in rank go to the lower id. `order` is scratch.
std::int32_t choose_token(View<const float> logits, const Sampling& sampling, double u, std::vector<std::int32_t>& order);

// Continues `prompt`, calling `emit` with each piece of whole characters as it comes; stops at a token that ends the text, at
// max_tokens or when the cache is full. Returns the continuation.
std::string generate(Decoder& decoder, const Tokenizer& tokenizer, const std::string& prompt, const Sampling& sampling,
                     const std::function<void(const std::string&)>& emit = {});

}  // namespace keel
