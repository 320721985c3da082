#include <algorithm>
#include <functional>
#include <vector>

#include "engine/bench/bench.h"
#include "engine/bench/random_batch.h"
#include "engine/config_check.h"
#include "engine/model/model.h"
#include "engine/observe/flops.h"

namespace keel::bench {
namespace {

Case make_case(std::string name, const std::string& dtype, std::int64_t hidden, std::int64_t layers, std::int64_t heads,
               std::int64_t ffn, std::int64_t vocab, std::int64_t seq_len, std::int64_t batch) {
    Config c;
    c.model.dtype = dtype;
    c.model.vocab = vocab, c.model.hidden = hidden, c.model.layers = layers, c.model.heads = heads, c.model.ffn = ffn;
    c.data.seq_len = seq_len;
    c.train.micro_batch = c.train.global_batch = batch;
    c.train.steps = 1;
    resolve_model(c.model);
    return {std::move(name), c};
}

}  // namespace

Case standard_case(const std::string& name, const std::string& dtype) {
    if (name == "a") return make_case(name, dtype, 288, 6, 6, 768, 512, 256, 8);
    if (name == "b") return make_case(name, dtype, 512, 8, 8, 1376, 8192, 512, 4);
    if (name == "c") return make_case(name, dtype, 768, 12, 12, 2048, 32000, 1024, 1);
    fail_usage("--case is \"" + name + "\"; it can be a, b or c");
}

Case length_case(std::int64_t seq_len, const std::string& dtype) {
    return make_case("T=" + std::to_string(seq_len), dtype, 512, 8, 8, 1376, 8192, seq_len, 4096 / seq_len);
}

StepTime measure_step(const Backend& backend, const Case& c, const Peaks& peaks, int rounds) {
    ModelUse use = training_use(c.config);
    use.device = backend.stream.device();
    const auto model = make_model(c.config, backend, use);
    model->init(1);
    WholeStep step(*model, c.config);
    const auto whole_step = [&] {
        step();
        backend.stream.synchronize();
    };
    const auto product = ceiling(backend, c.config.model.dtype, peaks.best(c.config.model.dtype));
    StepTime out;
    const std::vector<Sample> samples = measure({whole_step, std::ref(*product)}, rounds);
    out.seconds = samples[0];
    out.ceiling_median = product->flops() / samples[1].median_s;
    out.ceiling_best = product->flops() / samples[1].best_s;
    const Flops flops(c.config.model);
    const std::int64_t rows = c.config.train.micro_batch, length = c.config.data.seq_len;
    out.tokens = static_cast<double>(rows * length);
    out.flops = flops.of(rows * length, rows * length * length);
    out.attention_flops = flops.of(0, rows * length * length);
    out.arena_bytes = model->plan().peak_bytes();
    return out;
}

}  // namespace keel::bench
