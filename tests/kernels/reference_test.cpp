// The double reference against goldens of an independent program. Bound: results are chains of at most a few dozen
// double operations whose intermediate values exceed the result by less than 100 x, so 1e-12 is about 50 roundings of
// 2^-53 with that loss. Logits near 1e4 lose three digits more in lse, which only the z term shows.
#include <gtest/gtest.h>

#include "tests/kernels/golden.h"
#include "tests/kernels/reference.h"
#include "tests/kernels/tensor.h"

namespace keel {
namespace {

constexpr double bound = 1e-12;

std::vector<std::int32_t> ints(const Values& x) { return std::vector<std::int32_t>(x.begin(), x.end()); }

TEST(Reference, RmsnormIsTheGolden) {
    const Golden g("ops/rmsnorm");
    const auto y = ref::rmsnorm<double, double>(g["x"], g["gain"], g.scalar("eps"));
    EXPECT_LE(worst_error(y.y, g["y"]), bound);
    EXPECT_LE(worst_error(y.rstd, g["rstd"]), bound);
    EXPECT_LE(worst_error(ref::rmsnorm<double, double>(g["sum"], g["gain"], g.scalar("eps")).y, g["y_sum"]), bound);
    const auto d = ref::rmsnorm_backward<double, double>(g["dy"], g["x"], g["gain"], y.rstd, {}, 0);
    EXPECT_LE(worst_error(d.dx, g["dx"]), bound);
    EXPECT_LE(worst_error(d.dgain, g["dgain"]), bound);
    const auto r = ref::rmsnorm_backward<double, double>(g["dy"], g["x"], g["gain"], y.rstd, g["dresidual"], 0);
    EXPECT_LE(worst_error(r.dx, g["dx_residual"]), bound);
}

TEST(Reference, HeadNormIsTheGolden) {
    const Golden g("ops/head_norm");
    const auto y = ref::rmsnorm<double, double>(g["x"], g["gain"], g.scalar("eps"));
    EXPECT_LE(worst_error(y.y, g["y"]), bound);
    EXPECT_LE(worst_error(y.rstd, g["rstd"]), bound);
    const auto d = ref::rmsnorm_backward<double, double>(g["dy"], g["x"], g["gain"], y.rstd, {}, 0);
    EXPECT_LE(worst_error(d.dx, g["dx"]), bound);
    EXPECT_LE(worst_error(d.dgain, g["dgain"]), bound);
}

TEST(Reference, SwigluIsTheGolden) {
    const Golden g("ops/swiglu");
    const auto ffn = static_cast<std::size_t>(g.dim("y", 1));
    EXPECT_LE(worst_error(ref::swiglu<double, double>(g["gate_up"], ffn), g["y"]), bound);
    EXPECT_LE(worst_error(ref::swiglu_backward<double, double>(g["dy"], g["gate_up"], ffn), g["dgate_up"]), bound);
}

TEST(Reference, RopeIsTheGolden) {
    const Golden g("ops/rope");
    const auto positions = ints(g["positions"]);
    const Values& frequency = g["frequency0"];
    EXPECT_LE(worst_error(ref::rope<double, double>(g["x"], positions, frequency, 12), g["y"]), bound);
    EXPECT_LE(worst_error(ref::rope<double, double>(g["dy"], positions, frequency, 12, -1), g["dx"]), bound);
}

TEST(Reference, EmbeddingIsTheGolden) {
    const Golden g("ops/embedding");
    const auto ids = ints(g["ids"]);
    const auto begin = static_cast<std::int64_t>(g.scalar("vocab_begin"));
    const auto hidden = static_cast<std::size_t>(g.dim("w", 1));
    EXPECT_TRUE(same_bits(ref::embedding(g["w"], ids, begin, hidden), g["y"]));
    EXPECT_TRUE(same_bits(ref::embedding_backward(g["dw_before"], g["dy"], ids, begin, hidden), g["dw"]));
}

TEST(Reference, CrossEntropyIsTheGolden) {
    const Golden g("ops/cross_entropy");
    const auto labels = ints(g["labels"]);
    const auto plain = ref::cross_entropy<double, double>(g["logits"], labels, 0);
    EXPECT_LE(worst_error(plain.loss, g["loss"]), bound);
    EXPECT_LE(worst_error(plain.dlogits, g["dlogits"]), bound);
    const auto z = ref::cross_entropy<double, double>(g["logits"], labels, g.scalar("z_loss"));
    EXPECT_LE(worst_error(z.loss, g["loss_z"]), 1e3 * bound);
    EXPECT_LE(worst_error(z.dlogits, g["dlogits_z"]), 1e3 * bound);
}

TEST(Reference, AdamwIsTheGoldenOverThreeSteps) {
    const Golden g("ops/adamw");
    const auto n = static_cast<std::size_t>(g.dim("param", 0));
    const Values& s = g["scalars"];
    Values master = g["param"], m(n, 0.0), v(n, 0.0);
    for (int step = 1; step <= 3; ++step) {
        const auto at = static_cast<std::ptrdiff_t>(n) * (step - 1), end = at + static_cast<std::ptrdiff_t>(n);
        const Values grad(g["grads"].begin() + at, g["grads"].begin() + end);
        ref::adamw<double>(master, m, v, grad, {s[0], s[1], s[2], s[3], s[4], s[5]}, step);
        EXPECT_LE(worst_error(master, Values(g["params"].begin() + at, g["params"].begin() + end)), bound);
        EXPECT_LE(worst_error(m, Values(g["ms"].begin() + at, g["ms"].begin() + end)), bound);
        EXPECT_LE(worst_error(v, Values(g["vs"].begin() + at, g["vs"].begin() + end)), bound);
    }
}

}  // namespace
}  // namespace keel
