// The CUDA bodies of swiglu against the double reference, swept over schedules.
#include <gtest/gtest.h>

#include "kernels/swiglu.h"
#include "tests/kernels/reference.h"
#include "tests/sim/gpu_tensor.h"

namespace keel {
namespace {

constexpr int steps = 10;  // exp to 2 ulp, a sum, a quotient, and up to four products and differences

template <class T>
std::vector<Values> run(Gpu& gpu, Stream& stream, const Values& gate_up, const Values& dy, std::int64_t tokens,
                        std::int64_t ffn, bool in_place) {
    GpuTensor<T> x(gpu, stream, {tokens, 2 * ffn}, gate_up), d(gpu, stream, {tokens, ffn}, dy);
    GpuTensor<T> y(gpu, stream, {tokens, ffn}), apart(gpu, stream, {tokens, 2 * ffn});
    swiglu_forward<T>(stream, {.y = y.view(), .gate_up = x.read()});
    GpuTensor<T>& dx = in_place ? x : apart;
    swiglu_backward<T>(stream, {.dgate_up = dx.view(), .dy = d.read(), .gate_up = x.read()});
    return {y.values(), dx.values()};
}

template <class T>
void matches() {
    for (const std::int64_t tokens : {0, 1, 7, 33})
        for (const std::int64_t ffn : {1, 8, 31, 72}) {
            SCOPED_TRACE(testing::Message() << tokens << " x " << ffn);
            const Values gate_up = random_values<T>("gate_up", tokens * 2 * ffn, 3),
                         dy = random_values<T>("dy", tokens * ffn);
            const auto n = static_cast<std::size_t>(ffn);
            const auto x = ref::cast<float>(gate_up), d = ref::cast<float>(dy);
            for (const bool in_place : {false, true})
                for (const auto& got : on_gpus([&](Gpu&gpu, Stream&stream) {
                         return run<T>(gpu, stream, gate_up, dy, tokens, ffn, in_place);
                     })) {
                    expect_close<T>("y", got[0], ref::swiglu<double, double>(gate_up, n),
                                    widen(ref::swiglu<float, T>(x, n)), steps);
                    expect_close<T>("dgate_up", got[1], ref::swiglu_backward<double, double>(dy, gate_up, n),
                                    widen(ref::swiglu_backward<float, T>(d, x, n)), steps);
                }
        }
}
TEST(SwigluCuda, MatchesTheReferenceInFloat) { matches<float>(); }
TEST(SwigluCuda, MatchesTheReferenceInBf16) { matches<bf16>(); }

}  // namespace
}  // namespace keel
