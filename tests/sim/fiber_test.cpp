// The switch between stacks: what a call preserves is preserved, stacks are their owner's, and one that is over is started anew. Built
// twice: with the switch of this processor, and with the portable one that others take.
#include "kernels/cudasim/fiber.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace sim {
namespace {

Fiber here;
Fiber there[2];
std::vector<int> order;

void switch_to(Fiber& from, Fiber& to) { Fiber::switch_from(from, to); }

// As many values as a processor has registers that survive a call, and as many more, live over each switch.
template <int self>
double work(int rounds) {
    double a = 1 + self, b = 2 + self, c = 3 + self, d = 4 + self, e = 5 + self, f = 6 + self, g = 7 + self, h = 8 + self;
    long i = 11 + self, j = 12 + self, k = 13 + self, l = 14 + self, m = 15 + self, n = 16 + self, o = 17 + self, p = 18 + self;
    volatile char deep[64 << 10];
    deep[0] = static_cast<char>(self + 1);
    for (int r = 0; r < rounds; ++r) {
        order.push_back(self);
        switch_to(there[self], self == 0 ? there[1] : here);
        a += b, b += c, c += d, d += e, e += f, f += g, g += h, h += a;
        i += j, j += k, k += l, l += m, m += n, n += o, o += p, p += i;
    }
    return a + b + c + d + e + f + g + h + static_cast<double>(i + j + k + l + m + n + o + p) + deep[0];
}
// The same without a switch.
double expected(int self, int rounds) {
    double x[8], sum = 0;
    long y[8];
    for (int v = 0; v < 8; ++v) x[v] = 1 + v + self, y[v] = 11 + v + self;
    for (int r = 0; r < rounds; ++r)
        for (int v = 0; v < 8; ++v) x[v] += x[(v + 1) % 8], y[v] += y[(v + 1) % 8];
    for (int v = 0; v < 8; ++v) sum += x[v] + static_cast<double>(y[v]);
    return sum + self + 1;
}

constexpr int rounds = 5;
double results[2];
template <int self>
void entry() {
    Fiber::entered();
    results[self] = work<self>(rounds);
    order.push_back(10 + self);
    Fiber::switch_from(there[self], self == 0 ? there[1] : here, true);
}

TEST(Fiber, SwitchesKeepRegistersAndStacksApartAndAFiberCanBeStartedAnew) {
    for (int again = 0; again < 3; ++again) {
        order.clear();
        there[0].start(&entry<0>);
        there[1].start(&entry<1>);
        double kept = std::sqrt(2.0 + again);
        for (int turn = 0; turn <= rounds; ++turn) {
            switch_to(here, there[0]);
            kept *= 2;
        }
        EXPECT_EQ(kept, std::ldexp(std::sqrt(2.0 + again), rounds + 1));
        EXPECT_EQ(order, (std::vector<int>{0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 10, 11}));
        EXPECT_EQ(results[0], expected(0, rounds));
        EXPECT_EQ(results[1], expected(1, rounds));
    }
}

}  // namespace
}  // namespace sim
