// Every kernel that only moves memory, at the shapes of Llama-3.2-1B: bytes that it must read and write at least, as a share of
// what a copy reaches, measured beside them.
#include "kernels/adamw.h"
#include "kernels/cross_entropy.h"
#include "kernels/device_copy.h"
#include "kernels/embedding.h"
#include "kernels/reduce.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"
#include "kernels/swiglu.h"
#include "tests/gpu/models.h"

namespace keel::gpu_check {

void bandwidth(const Check& c, Result& result) {
    Stream& s = *c.stream;
    const Shape m = small_model(c.tiny);
    const std::int64_t n = m.tokens(), d = m.hidden;
    double copy = 0, worst = 1e30;
    std::string worst_name;
    const auto measure = [&](const char* name, double bytes, const std::function<void()>& body) {
        const double rate = bytes / c.seconds(body);
        const std::optional<double> goal = copy == 0 ? std::nullopt : std::optional(0.85);
        if (copy == 0) copy = rate;
        const double share = rate / copy;
        if (share < worst) worst = share, worst_name = name;
        result.add({{"kernel", name}, {"bytes", bytes}, {"TB/s", tera(rate)}}, {share, "a copy", goal});
    };
    const auto bytes = [](const auto&... buffers) { return (static_cast<double>(buffers.view().bytes()) + ...); };

    const DevicePlaces at(c, places(m));
    {
        const Buffer<bf16> x(c, n, d), residual(c, n, d), sum(c, n, d, true), y(c, n, d, true), gain(c, 1, d);
        const Buffer<float> rstd(c, 1, n, true), dgain(c, 1, d, true);
        const Buffer<std::byte> scratch(c, 1, rmsnorm_scratch_bytes(n, d), true);
        measure("copy", bytes(x, y), [&] { copy_on_device(s, y.view().data(), x.view().data(), x.view().bytes()); });
        measure("add + rmsnorm forward", bytes(x, residual, sum, y), [&] {
            add_rmsnorm_forward<bf16>(s, {.sum = sum.view(), .y = y.view(), .rstd = rstd.flat(), .x = x.view(), .residual = residual.view(), .gain = gain.flat(), .eps = 1e-5f});
        });
        measure("rmsnorm forward", bytes(x, y), [&] {
            rmsnorm_forward<bf16>(s, {.y = y.view(), .rstd = rstd.flat(), .x = x.view(), .gain = gain.flat(), .eps = 1e-5f});
        });
        measure("rmsnorm backward + residual", bytes(y, sum, x, residual), [&] {
            rmsnorm_backward<bf16>(s, {.dx = y.view(), .dgain = dgain.flat(), .scratch = scratch.flat(), .dy = sum.view(), .x = x.view(), .gain = gain.flat(),
                                       .rstd = rstd.flat(), .dresidual = residual.view()});
        });
        const Buffer<bf16> table(c, m.vocab, d);
        measure("embedding forward", bytes(y) * 2, [&] { embedding_forward<bf16>(s, {.y = y.view(), .ids = at.ids.flat(), .w = table.view(), .vocab_begin = 0}); });
        const Buffer<float> dw(c, m.vocab, d, true);
        const Buffer<std::byte> sort(c, 1, embedding_scratch_bytes(n), true);
        const double rows = static_cast<double>(std::min(n, m.vocab) * d);  // of dw, each once; read and written
        measure("embedding backward", bytes(x) + 8 * rows, [&] {
            embedding_backward<bf16>(s, {.dw = dw.view(), .dy = x.view(), .ids = at.ids.flat(), .vocab_begin = 0, .scratch = sort.flat()});
        });
    }
    {
        const Buffer<bf16> qkv(c, n, m.qkv_size());
        const Buffer<float> table(c, m.seq_len, m.head_dim, true);
        const View<bf16> qk = qkv.view().columns(0, m.q_size() + m.kv_size());
        measure("rope forward, in place", 4.0 * static_cast<double>(qk.size()), [&] {
            rope_forward<bf16>(s, {.x = qk, .table = table.view(), .positions = at.positions.flat(), .head_dim = m.head_dim});
        });
    }
    {
        const Buffer<bf16> gate_up(c, n, 2 * m.ffn), act(c, n, m.ffn), dgate_up(c, n, 2 * m.ffn, true);
        measure("swiglu forward", bytes(gate_up, act), [&] { swiglu_forward<bf16>(s, {.y = act.view(), .gate_up = gate_up.view()}); });
        measure("swiglu backward", bytes(gate_up, act, dgate_up), [&] {
            swiglu_backward<bf16>(s, {.dgate_up = dgate_up.view(), .dy = act.view(), .gate_up = gate_up.view()});
        });
    }
    {
        const std::int64_t chunk = std::min<std::int64_t>(n, 4096);
        const Buffer<float> logits(c, chunk, m.vocab), max(c, 1, chunk, true), sum(c, 1, chunk, true), target(c, 1, chunk, true), loss(c, 1, chunk, true);
        const Buffer<bf16> dlogits(c, chunk, m.vocab, true);
        const View<const std::int32_t> labels = at.ids.flat().rows(0, chunk);
        measure("cross-entropy statistics", bytes(logits), [&] {
            cross_entropy_stats(s, {.max = max.flat(), .sum = sum.flat(), .target = target.flat(), .logits = logits.view(), .labels = labels, .vocab_begin = 0});
        });
        measure("cross-entropy gradient", bytes(logits, dlogits), [&] {
            cross_entropy_grad<bf16>(s, {.loss = loss.flat(), .dlogits = dlogits.view(), .logits = logits.view(), .labels = labels, .max = max.flat(),
                                         .sum = sum.flat(), .target = target.flat(), .vocab_begin = 0, .z_loss = 0});
        });
    }
    {
        const std::int64_t p = c.size(std::int64_t{1} << 28, 1 << 10);
        const Buffer<bf16> param(c, 1, p);
        const Buffer<float> master(c, 1, p), moment(c, 1, p, true), square(c, 1, p, true), grad(c, 1, p);
        const Buffer<double> sum(c, 1, 1, true);
        const Buffer<std::byte> scratch(c, 1, reduce_scratch_bytes(p), true);
        measure("adamw", 2 * bytes(master, moment, square) + bytes(grad, param), [&] {
            adamw<bf16>(s, {.param = param.flat(), .master = master.flat(), .m = moment.flat(), .v = square.flat(), .grad = grad.flat(), .lr = 1e-3f, .beta1 = 0.9f,
                            .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .grad_scale = 1, .step = 1});
        });
        measure("sum of squares", bytes(grad), [&] { sum_of_squares(s, {.out = sum.flat(), .scratch = scratch.flat(), .x = grad.flat()}); });
    }
    result.summary = text("copy %.2f TB/s; the worst of %zu kernels, %s, reaches %.0f %% of it", tera(copy), result.rows() - 1, worst_name.c_str(), 100 * worst);
}

}  // namespace keel::gpu_check
