#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <vector>

#include "ckpt/async_save.h"
#include "ckpt/checkpoint.h"
#include "engine/bench/bench.h"
#include "engine/bench/random_batch.h"
#include "engine/model/model.h"
#include "engine/state.h"

namespace keel::bench {
namespace {

double median(std::vector<double> x) {
    std::ranges::sort(x);
    return x[x.size() / 2];
}

}  // namespace

SaveCost measure_save(Stream& stream, Case c, const std::filesystem::path& root, int rounds) {
    c.config.ckpt.async = true;
    const auto model = make_model(c.config, stream, training_use(c.config));
    model->init(1);
    WholeStep take_step(*model, c.config);
    const auto now = [] { return std::chrono::steady_clock::now(); };
    const auto seconds = [](auto begin, auto end) { return std::chrono::duration<double>(end - begin).count(); };

    prepare_checkpoint_root(root);
    SoloGroup writers("writers"), ranks("world");
    const std::vector<TensorPiece> owned = state_pieces(*model, Pieces::to_save);
    const View<std::byte> memory = model->snapshot();
    AsyncSave save(writers, owned, std::span(memory.data(), static_cast<std::size_t>(memory.size())));
    std::vector<double> steps, stalls, writes, extras;
    take_step();
    for (int i = 0; i < rounds; ++i) {
        const auto start = now();
        (void)save.begin(stream, take_step.taken(), [&](Group& group, std::span<const TensorPiece> pieces) {
            return save_checkpoint(group, root, take_step.taken(), "{}", pieces, {}, {.keep_last = 1});
        });
        stalls.push_back(seconds(start, now()));
        std::int64_t taken = 0;
        std::optional<AsyncSave::Outcome> outcome;
        for (; !outcome; ++taken) {
            take_step();
            outcome = save.poll(ranks);
        }
        if (!outcome->saved()) fail(outcome->error);
        const auto middle = now();
        for (std::int64_t s = 0; s < taken; ++s) take_step();
        const auto end = now();
        steps.push_back(seconds(middle, end) / static_cast<double>(taken));
        writes.push_back(outcome->seconds);
        extras.push_back(seconds(start, middle) - seconds(middle, end));
    }
    return {.bytes = memory.size(), .step_s = median(steps), .stall_s = median(stalls), .write_s = median(writes),
            .extra_s = median(extras)};
}

}  // namespace keel::bench
