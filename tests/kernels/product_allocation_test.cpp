// No product and no attention allocates: every allocation of the process, on every thread, is counted here.
#include <gtest/gtest.h>

#include "attention_reference.h"
#include "kernels/matmul.h"
#include "tests/count_allocations.h"

namespace keel {
namespace {

template <class T>
void check_product(std::int64_t m, std::int64_t n, std::int64_t k) {
    Stream stream(2);
    std::vector<T> a(static_cast<std::size_t>(m * k), T(1.0f)), b(static_cast<std::size_t>(n * k), T(1.0f)),
        c(static_cast<std::size_t>(m * n));
    const std::int64_t before = allocations();
    for (int i = 0; i < 2; ++i)
        matmul<T, T>(stream, {.c = c.data(),
                              .c_stride = n,
                              .a = {a.data(), k, 1},
                              .b = {b.data(), 1, k},
                              .m = m,
                              .n = n,
                              .k = k,
                              .accumulate = false});
    EXPECT_EQ(allocations(), before) << m << " x " << n << " x " << k;
}

TEST(Allocation, AProductMakesNone) {
    for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{1, 300, 40}, {20, 300, 600}, {150, 70, 40000}}) {
        check_product<float>(m, n, k);
        check_product<bf16>(m, n, k);
    }
}

template <class T>
void check_attention() {
    const attention_test::Problem p{4, 2, 64, 100, 0, 0, attention_test::Mask::documents, 1, 64};
    Stream stream(2);
    attention_test::Tensors<T> t(p);
    attention_test::Outputs<T> out(p);
    const AttentionForward<T> forward = t.forward(out);
    const AttentionBackward<T> backward = t.backward(out);
    const std::int64_t before = allocations();
    attention_forward<T>(stream, forward);
    attention_backward<T>(stream, backward);
    EXPECT_EQ(allocations(), before);
}

TEST(Allocation, AttentionMakesNone) {
    check_attention<float>();
    check_attention<bf16>();
}

}  // namespace
}  // namespace keel
