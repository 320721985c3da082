// The products of a layer and of the output layer of both models: the library's first choice in the workspace that a run has, which
// keel takes; its first choice without one; and the best of the sixteen it offers.
#include "tests/gpu/gemm_choice.h"
#include "tests/gpu/models.h"

namespace keel::gpu_check {
namespace {

struct Weight {
    const char* name;
    std::int64_t out, in;
};

}  // namespace

void gemm(const Check& c, Result& result) {
    double without_s = 0, first_s = 0, best_s = 0, flops = 0, worst = 1e30;
    std::string worst_name;
    const auto choose = c.device == Device::cudasim ? &on_cudasim::choose_gemm :
#if KEEL_CUDA
                                                    &on_cuda::choose_gemm;
#else
                                                    nullptr;
#endif
    if (!choose) fail("this keel was built without a CUDA toolkit");
    const double ceiling = largest_product(c);
    for (const Shape& m : {small_model(c.tiny), large_model(c.tiny)}) {
        const Weight weights[] = {{"qkv", m.qkv_size(), m.hidden}, {"out", m.hidden, m.q_size()}, {"gate_up", 2 * m.ffn, m.hidden},
                                  {"down", m.hidden, m.ffn}, {"head", m.vocab, m.hidden}};
        for (const Weight& w : weights) {
            const std::int64_t n = w.out == m.vocab ? m.head_tokens() : m.tokens();
            const Buffer<bf16> x(c, n, w.in), y(c, n, w.out), weight(c, w.out, w.in);
            const Buffer<float> dw(c, w.out, w.in, true);
            const auto one = [&](const char* half, GemmProblem p) {
                const GemmChoice choice = choose(*c.stream, p, [&](const std::function<void()>& body) { return c.quick_seconds(body); });
                const double work = 2 * static_cast<double>(n * w.out) * static_cast<double>(w.in);
                without_s += choice.without_s, first_s += choice.first_s, best_s += choice.best_s, flops += work;
                const std::string name = text("%s %s %s", m.name, w.name, half);
                if (work / choice.first_s < worst) worst = work / choice.first_s, worst_name = name;
                result.add({{"product", name}, {"m", p.m}, {"n", p.n}, {"k", p.k}, {"first_TFLOP/s", tera(work / choice.first_s)},
                            {"workspace_bytes", choice.first_bytes}, {"without_TFLOP/s", tera(work / choice.without_s)},
                            {"best_TFLOP/s", tera(work / choice.best_s)}, {"best", choice.best}, {"offered", choice.offered},
                            {"best_workspace_bytes", choice.best_bytes}},
                           {work / choice.first_s / ceiling, "the largest product", 640 / 790.0});
            };
            // Row-major matrices, as the library sees them (kernels/linear.cu).
            one("forward", {w.out, n, w.in, true, false, false, weight.view().data(), x.view().data(), y.view().data()});
            one("dgrad", {w.in, n, w.out, false, false, false, weight.view().data(), y.view().data(), x.view().data()});
            one("wgrad", {w.in, w.out, n, false, true, true, x.view().data(), y.view().data(), dw.view().data()});
        }
    }
    result.summary = text("%zu products: first choice %.0f TFLOP/s, without a workspace %.0f, best offered %.0f; slowest is %s, %.0f", result.rows(),
                          tera(flops / first_s), tera(flops / without_s), tera(flops / best_s), worst_name.c_str(), tera(worst));
}

}  // namespace keel::gpu_check
