#include "engine/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/base/random.h"

namespace keel {

void check_sampling(const Sampling& s) {
    if (!(s.temperature >= 0) || std::isinf(s.temperature))
        fail_usage("--temperature is ", s.temperature, "; give a number from 0 (always the likeliest token) up");
    if (s.top_k < 0) fail_usage("--top-k is ", s.top_k, "; give a positive number, or 0 for all tokens");
    if (!(s.top_p > 0 && s.top_p <= 1)) fail_usage("--top-p is ", s.top_p, "; give a number in (0, 1]");
    if (s.max_tokens < 1) fail_usage("--max-tokens is ", s.max_tokens, "; give a positive number");
}

std::int32_t choose_token(View<const float> logits, const Sampling& s, double u, std::vector<std::int32_t>& order) {
    const std::int64_t vocab = logits.dim(0);
    const auto likelier = [&](std::int32_t a, std::int32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; };
    order.resize(static_cast<std::size_t>(vocab));
    std::iota(order.begin(), order.end(), 0);
    if (s.temperature == 0) return *std::min_element(order.begin(), order.end(), likelier);
    const auto keep = static_cast<std::size_t>(s.top_k > 0 ? std::min(s.top_k, vocab) : vocab);
    std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(keep), order.end(), likelier);
    order.resize(keep);

    const auto weight = [&](std::int32_t id) {
        return std::exp((static_cast<double>(logits[id]) - static_cast<double>(logits[order[0]])) / s.temperature);
    };
    double sum = 0;
    for (const std::int32_t id : order) sum += weight(id);
    if (s.top_p < 1) {
        double reached = 0;
        std::size_t n = 0;
        while (n < order.size() && reached < s.top_p * sum) reached += weight(order[n++]);
        order.resize(std::max<std::size_t>(1, n));
        sum = reached;
    }
    double left = u * sum;
    for (const std::int32_t id : order)
        if ((left -= weight(id)) < 0) return id;
    return order.back();  // rounding left a crumb
}

std::string generate(Decoder& decoder, const Tokenizer& tokenizer, const std::string& prompt, const Sampling& sampling,
                     const std::function<void(const std::string&)>& emit) {
    check_sampling(sampling);
    std::vector<std::int32_t> ids = tokenizer.encode(prompt);
    if (ids.empty()) {  // nothing to go on: a document begins where another ended
        if (const auto start = tokenizer.eos_id() ? tokenizer.eos_id() : tokenizer.bos_id()) ids.push_back(*start);
        else fail_usage("the prompt is empty and the tokenizer has no special token to begin with; give --prompt");
    }
    if (static_cast<std::int64_t>(ids.size()) >= decoder.capacity())
        fail_usage("the prompt has ", ids.size(), " tokens, and the context holds ", decoder.capacity(),
                   "; shorten it or raise --context");
    decoder.clear();
    const Random random(sampling.seed, Purpose::sample, "generate");
    StreamDecoder text(tokenizer, true);
    std::string out;
    std::vector<std::int32_t> order;
    View<const float> logits = decoder.append(ids);
    for (std::int64_t i = 0; i < sampling.max_tokens; ++i) {
        const std::int32_t id = choose_token(logits, sampling, random.uniform(static_cast<std::uint64_t>(i)), order);
        // Rows past the tokenizer's last id are padding of the vocabulary: nothing was ever trained there.
        if (id >= tokenizer.vocab_size() || id == tokenizer.eos_id()) break;
        if (std::find(sampling.ending_ids.begin(), sampling.ending_ids.end(), id) != sampling.ending_ids.end()) break;
        const std::string piece = text.push(id);
        out += piece;
        if (emit && !piece.empty()) emit(piece);
        if (decoder.length() == decoder.capacity()) break;
        logits = decoder.append(std::span<const std::int32_t>(&id, 1));
    }
    const std::string tail = text.finish();
    if (emit && !tail.empty()) emit(tail);
    return out + tail;
}

}  // namespace keel
