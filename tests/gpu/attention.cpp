// keel's attention at the shapes of both models and on a row of 37 documents: nominal TFLOP/s, which count 4 D for each query and
// key it sees forward, and 2.5 times as much backward, whatever the kernels compute. Last the kernels for Hopper, where they run.
#include "kernels/attention.h"
#include "kernels/hopper.h"
#include "tests/gpu/models.h"

namespace keel::gpu_check {
namespace {

struct Tensors {
    const Check& c;
    Shape m;
    std::int64_t n = m.tokens();
    Buffer<bf16> qkv{c, n, m.qkv_size()}, dqkv{c, n, m.qkv_size(), true}, y{c, n, m.q_size(), true}, dy{c, n, m.q_size()};
    Buffer<float> lse{c, m.heads, n, true};
    Buffer<std::byte> scratch{c, 1, attention_scratch_bytes(n, m.heads, n, m.kv_heads, m.head_dim), true};
    DevicePlaces at;

    Tensors(const Check& check, const Shape& shape, std::int64_t documents) : c(check), m(shape), at(c, places(m, documents)) {}
    View<bf16> q(const Buffer<bf16>& x) const { return x.view().columns(0, m.q_size()); }
    View<bf16> k(const Buffer<bf16>& x) const { return x.view().columns(m.q_size(), m.kv_size()); }
    View<bf16> v(const Buffer<bf16>& x) const { return x.view().columns(m.q_size() + m.kv_size(), m.kv_size()); }
    double flops() const { return 4 * at.seen * static_cast<double>(m.q_size()); }

    double forward_seconds() const {
        return c.seconds([&] {
            attention_forward<bf16>(*c.stream, {.y = y.view(), .lse = lse.view(), .q = q(qkv), .k = k(qkv), .v = v(qkv), .lo = at.lo.flat(),
                                                .head_dim = m.head_dim, .query_offset = 0, .scale = m.scale()});
        });
    }
    double backward_seconds() const {
        return c.seconds([&] {
            attention_backward<bf16>(*c.stream, {.dq = q(dqkv), .dk = k(dqkv), .dv = v(dqkv), .scratch = scratch.flat(), .dy = dy.view(), .y = y.view(),
                                                 .lse = lse.view(), .q = q(qkv), .k = k(qkv), .v = v(qkv), .lo = at.lo.flat(),
                                                 .head_dim = m.head_dim, .query_offset = 0, .scale = m.scale()});
        });
    }
};

}  // namespace

void attention(const Check& c, Result& result) {
    const double ceiling = largest_product(c);  // 790 TFLOP/s, when the goals were set
    const auto measured = [&](const char* kernels, const std::string& what, const char* pass, double flops, double seconds, double goal) {
        result.add({{"kernels", kernels}, {"what", what}, {"pass", pass}, {"ms", 1e3 * seconds}, {"TFLOP/s", tera(flops / seconds)}},
                   {flops / seconds / ceiling, "the largest product", goal / 790});
        return text("%.0f", tera(flops / seconds));
    };
    const struct {
        Shape shape;
        std::int64_t documents;
        double hopper_forward, hopper_backward;  // goals
    } cases[] = {{small_model(c.tiny), 0, 430, 320}, {large_model(c.tiny), 0, 580, 400}, {large_model(c.tiny), c.size(37, 5), 580, 400}};
    const auto name = [](const Shape& m, std::int64_t documents) {
        const std::string rows = text("D=%d, %d rows of %d", static_cast<int>(m.head_dim), static_cast<int>(m.rows), static_cast<int>(m.seq_len));
        return documents ? rows + text(", %d documents", static_cast<int>(documents)) : rows;
    };
    result.summary = "TFLOP/s forward / backward: ";
    const auto both = [&](const char* kernels, const auto& one, double forward, double backward) {
        const Tensors t(c, one.shape, one.documents);
        const std::string what = name(one.shape, one.documents);
        result.summary += what + ": " + measured(kernels, what, "forward", t.flops(), t.forward_seconds(), forward) + " / ";
        result.summary += measured(kernels, what, "backward", 2.5 * t.flops(), t.backward_seconds(), backward) + "; ";
    };
    for (const auto& one : cases) both("sm_80", one, 260, 160);
    result.summary += "for Hopper: ";
    if (const auto why = why_no_hopper(c.device)) {
        result.summary += *why;
        return;
    }
    allow_hopper(*c.stream);
    for (const auto& one : cases) both("sm_90a", one, one.hopper_forward, one.hopper_backward);
}

}  // namespace keel::gpu_check
