#include "engine/evaluate.h"

#include <algorithm>
#include <chrono>

namespace keel {

std::vector<std::int32_t> token_bytes(const Tokenizer& tokenizer, std::int64_t vocab) {
    std::vector<std::int32_t> bytes(static_cast<std::size_t>(vocab), 0);
    for (std::int32_t id = 0; id < std::min<std::int64_t>(vocab, tokenizer.vocab_size()); ++id)
        if (!tokenizer.is_special(id))
            bytes[static_cast<std::size_t>(id)] = static_cast<std::int32_t>(tokenizer.bytes(id).size());
    return bytes;
}

EvalResult evaluate_loss(Model& model, Loader& loader, std::int64_t samples, std::int64_t micro_batch,
                         std::span<const std::int32_t> bytes_of_token, const std::function<void(std::int64_t)>& each) {
    const auto start = std::chrono::steady_clock::now();
    EvalResult result;
    for (std::int64_t first = 0; first < samples; first += micro_batch) {
        const std::int64_t count = std::min(micro_batch, samples - first), after = first + count;
        const Batch& batch = loader.next(first, count);
        if (after < samples) loader.hint(after, std::min(micro_batch, samples - after));
        result.loss.add({model.evaluate(batch), batch.loss_tokens});
        if (!bytes_of_token.empty())
            for (std::int64_t i = 0; i < batch.labels.dim(0); ++i)
                if (batch.labels[i] >= 0) result.bytes += bytes_of_token[static_cast<std::size_t>(batch.labels[i])];
        if (each) each(after);
    }
    result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return result;
}

}  // namespace keel
