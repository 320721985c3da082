// What `keel estimate` says of the two models that the GPU path is judged by, against budgets reckoned from their shapes alone, in
// decimal GB: within 2 %, part by part and in sum, on an H200.
//
// A bf16 parameter takes 2 bytes, its float gradient 4, master weight and two moments 12. With norms and SwiGLU computed again in
// backward a token keeps, per layer: the residual stream twice (4 d), qkv (2 (Hq + 2 Hk) D), the attention's output (2 Hq D) and its
// lse (4 Hq), gate and up (4 f), and two rstd (8).
#include <gtest/gtest.h>

#include "engine/config_check.h"
#include "engine/model/model.h"
#include "engine/model_shape.h"

namespace keel {
namespace {

struct Parts {
    double parameters, gradients, optimizer, saved, rest;  // GB
    double sum() const { return parameters + gradients + optimizer + saved + rest; }
};

Parts planned(const char* preset, std::int64_t seq_len, std::int64_t rows, std::int64_t dp) {
    Config c;
    c.model.preset = preset;
    c.memory.recompute = "norms";
    c.run.device = "cuda";
    c.data.seq_len = seq_len;
    c.train.micro_batch = rows, c.train.global_batch = rows * dp, c.train.steps = 1;
    c.parallel.dp = dp;
    resolve_model(c.model);
    resolve_batch(c);
    const MemoryPlan plan = plan_model(c, training_use(c));
    const auto gb = [](std::int64_t bytes) { return static_cast<double>(bytes) / 1e9; };
    const auto at_peak = [&](Use use) { return gb(plan.live_bytes(plan.peak_moment(), use)); };
    Parts p{at_peak(Use::parameter), at_peak(Use::gradient), at_peak(Use::optimizer), at_peak(Use::saved), 0};
    p.rest = gb(plan.peak_bytes()) - p.sum();
    return p;
}

// What cuBLASLt works in has a line of its own, where there is one; the CPU's plan has none. Beneath it lies the table
// of RoPE, larger by one row of 64 bytes, so that it begins where the planner aligns it to.
TEST(GpuPlan, HoldsTheWorkspaceOfProductsAlignedAndNamed) {
    for (const std::string device : {"cuda", "cudasim", "cpu"}) {
        const std::int64_t wanted = device == "cuda" ? 32 << 20 : device == "cudasim" ? 256 << 10 : 0;
        Config c;
        c.model.preset = "llama-3.2-1b";
        c.run.device = device;
        c.data.seq_len = wanted / 64 + 1;
        c.train.micro_batch = c.train.global_batch = 1, c.train.steps = 1;
        resolve_model(c.model);
        c.model.head_dim = 16;
        resolve_batch(c);
        const MemoryPlan plan = plan_model(c, training_use(c));
        std::int64_t bytes = 0, odd = 0;
        for (const MemoryPlan::Item& item : plan.items())
            if (item.use == Use::products) {
                bytes += item.bytes;
                EXPECT_EQ(item.offset % 256, 0);
                EXPECT_EQ(item.life.last, Life::forever);
            } else if (item.name == "rope table") {
                odd = item.bytes;
            }
        EXPECT_EQ(bytes, wanted);
        EXPECT_EQ(odd, wanted + 64);
        EXPECT_EQ(plan.table().find("  workspace of products ") != std::string::npos, bytes > 0) << plan.table();
    }
}

void expect_within_2_percent(double got, double budget, const char* what) { EXPECT_NEAR(got / budget, 1, 0.02) << what << ": " << got << " GB"; }

double saved_gb(std::int64_t d, std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim, std::int64_t ffn, std::int64_t layers, std::int64_t tokens) {
    const std::int64_t token = 4 * d + 2 * (2 * heads + 2 * kv_heads) * head_dim + 4 * heads + 4 * ffn + 8;
    return static_cast<double>(token * layers * tokens) / 1e9;
}

// 16 rows of 2048 tokens. The rest is temporaries of one block's backward in place of the budget's 2.1 GB for 8192 rows of logits: keel
// takes fewer rows at a time, and that moment is not the peak; and 32 MiB in which products work (0.03 GB). A tied embedding's gradient from its input is a second buffer of
// 128256 x 2048 floats, which the budget does not know.
TEST(GpuPlan, OfLlama1bOn32768TokensIsTheBudget) {
    const Parts p = planned("llama-3.2-1b", 2048, 16, 1);
    constexpr double parameters = 1'235'814'400e-9, second_embedding = 4 * 128256.0 * 2048e-9, logits = 2.1;
    expect_within_2_percent(p.parameters, 2 * parameters, "parameters");
    expect_within_2_percent(p.gradients, 4 * parameters + second_embedding, "gradients");
    expect_within_2_percent(p.optimizer, 12 * parameters, "optimizer");
    expect_within_2_percent(p.saved, saved_gb(2048, 32, 8, 64, 8192, 16, 32768), "saved");
    EXPECT_LT(p.rest, logits);
    expect_within_2_percent(p.sum(), 22.2 + 26.9 + logits, "all");
    EXPECT_LT(p.sum(), 141);
}

// A row of 8192 tokens on each of eight ranks, which own an eighth of the optimizer's state.
TEST(GpuPlan, OfLlama8bOnEightRanksIsTheBudget) {
    const Parts p = planned("llama-3.1-8b", 8192, 1, 8);
    constexpr double parameters = 8'030'261'248e-9, logits = 2.1;
    expect_within_2_percent(p.parameters, 2 * parameters, "parameters");
    expect_within_2_percent(p.gradients, 4 * parameters, "gradients");
    expect_within_2_percent(p.optimizer, 12 * parameters / 8, "optimizer");
    expect_within_2_percent(p.saved, saved_gb(4096, 32, 8, 128, 14336, 32, 8192), "saved");
    EXPECT_LT(p.rest, logits);
    expect_within_2_percent(p.sum(), 16.1 + 32.1 + 12.0 + 24.7 + logits, "all");
    EXPECT_LT(p.sum(), 141);
}

}  // namespace
}  // namespace keel
