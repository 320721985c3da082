// keel's attention at the shapes of both models and on a row of 37 documents: nominal TFLOP/s, which count 4 D for each query and
// key it sees forward, and 2.5 times as much backward, whatever the kernels compute.
#include "kernels/attention.h"
#include "tests/gpu/models.h"

namespace keel::gpu_check {
namespace {

void measure(const Check& c, const Shape& m, std::int64_t documents, Result& result) {
    Stream& s = *c.stream;
    const std::int64_t n = m.tokens();
    const Buffer<bf16> qkv(c, n, m.qkv_size()), dqkv(c, n, m.qkv_size(), true), y(c, n, m.q_size(), true), dy(c, n, m.q_size());
    const Buffer<float> lse(c, m.heads, n, true);
    const Buffer<std::byte> scratch(c, 1, attention_scratch_bytes(n, m.heads, n, m.kv_heads, m.head_dim), true);
    const DevicePlaces at(c, places(m, documents));
    const auto q = [&](const Buffer<bf16>& x) { return x.view().columns(0, m.q_size()); };
    const auto k = [&](const Buffer<bf16>& x) { return x.view().columns(m.q_size(), m.kv_size()); };
    const auto v = [&](const Buffer<bf16>& x) { return x.view().columns(m.q_size() + m.kv_size(), m.kv_size()); };
    const double forward = c.seconds([&] {
        attention_forward<bf16>(s, {.y = y.view(), .lse = lse.view(), .q = q(qkv), .k = k(qkv), .v = v(qkv), .lo = at.lo.flat(),
                                    .head_dim = m.head_dim, .query_offset = 0, .scale = m.scale()});
    });
    const double backward = c.seconds([&] {
        attention_backward<bf16>(s, {.dq = q(dqkv), .dk = k(dqkv), .dv = v(dqkv), .scratch = scratch.flat(), .dy = dy.view(), .y = y.view(),
                                     .lse = lse.view(), .q = q(qkv), .k = k(qkv), .v = v(qkv), .lo = at.lo.flat(),
                                     .head_dim = m.head_dim, .query_offset = 0, .scale = m.scale()});
    });
    const double flops = 4 * at.seen * static_cast<double>(m.q_size());
    const std::string what = text("D=%lld, %lld rows of %lld%s", static_cast<long long>(m.head_dim), static_cast<long long>(m.rows),
                                  static_cast<long long>(m.seq_len), documents ? text(", %lld documents", static_cast<long long>(documents)).c_str() : "");
    result.rows.push_back({{"who", "keel"}, {"what", what}, {"forward_ms", 1e3 * forward}, {"backward_ms", 1e3 * backward},
                           {"forward_TFLOP/s", tera(flops / forward)}, {"backward_TFLOP/s", tera(2.5 * flops / backward)}});
    result.summary += text("%s%s: %.0f / %.0f", result.summary.empty() ? "TFLOP/s forward / backward: " : "; ", what.c_str(),
                           tera(flops / forward), tera(2.5 * flops / backward));
}

}  // namespace

void attention(const Check& c, Result& result) {
    measure(c, small_model(c.tiny), 0, result);
    measure(c, large_model(c.tiny), 0, result);
    measure(c, large_model(c.tiny), c.size(37, 5), result);
}

}  // namespace keel::gpu_check
