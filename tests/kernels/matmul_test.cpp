// The CPU product against a double reference, on shapes that end inside every kind of tile, with poison around
// everything.
#include "kernels/matmul.h"
#include "kernels/matmul_float.h"
#include "kernels/matmul_pairs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/random.h"
#include "tests/kernels/rounding.h"

namespace keel {
namespace {

constexpr float poison = std::numeric_limits<float>::quiet_NaN();

// A matrix inside NaN: rows have a margin behind them, and whole vectors lie before the first and after the last.
template <class T>
struct Padded {
    std::int64_t rows, columns, stride;
    std::vector<T> bytes;
    Padded(std::int64_t r, std::int64_t c, std::int64_t margin = 3)
        : rows(r), columns(c), stride(c + margin), bytes(static_cast<std::size_t>(r * (c + margin) + 64), T(poison)) {}
    T* data() { return bytes.data() + 32; }
    const T* data() const { return bytes.data() + 32; }
    T& at(std::int64_t r, std::int64_t c) { return data()[r * stride + c]; }
    double value(std::int64_t r, std::int64_t c) const {
        return static_cast<double>(static_cast<float>(data()[r * stride + c]));
    }
    void fill(const char* name) {
        const Random random(1, Purpose::test, name);
        for (std::int64_t r = 0; r < rows; ++r)
            for (std::int64_t c = 0; c < columns; ++c)
                at(r, c) = T(static_cast<float>(random.uniform(static_cast<std::uint64_t>(r * columns + c)) * 2 - 1));
    }
    // Everything outside the matrix is still the NaN it was.
    bool margins_intact() const {
        Padded<T> other(rows, columns, stride - columns);
        for (std::int64_t r = 0; r < rows; ++r)
            for (std::int64_t c = 0; c < columns; ++c) other.at(r, c) = data()[r * stride + c];
        return std::memcmp(other.bytes.data(), bytes.data(), bytes.size() * sizeof(T)) == 0;
    }
    bool same_bits(const Padded& other) const {
        return bytes.size() == other.bytes.size() &&
               std::memcmp(bytes.data(), other.bytes.data(), bytes.size() * sizeof(T)) == 0;
    }
};

struct Shape {
    std::int64_t m, n, k;
};
struct Form {
    bool a_transposed, b_transposed;
    const char* name;
};
constexpr Form forms[] = {{false, true, "NT"}, {false, false, "NN"}, {true, false, "TN"}, {true, true, "TT"}};

template <class T, class C>
struct Case {
    Shape shape;
    Form form;
    bool accumulate, with_bias;
    Padded<T> a, b;
    Padded<C> before;
    std::vector<T> bias;

    Case(Shape s, Form f, bool acc, bool bias_too)
        : shape(s),
          form(f),
          accumulate(acc),
          with_bias(bias_too),
          a(f.a_transposed ? s.k : s.m, f.a_transposed ? s.m : s.k),
          b(f.b_transposed ? s.n : s.k, f.b_transposed ? s.k : s.n),
          before(s.m, s.n),
          bias(static_cast<std::size_t>(s.n)) {
        a.fill("a");
        b.fill("b");
        if (acc) before.fill("c");
        for (std::int64_t i = 0; i < s.n; ++i) bias[static_cast<std::size_t>(i)] = T(static_cast<float>(i % 7) / 4 - 1);
    }
    Matmul<T, C> args(Padded<C>& c) const {
        return {.c = c.data(),
                .c_stride = c.stride,
                .a = {a.data(), form.a_transposed ? 1 : a.stride, form.a_transposed ? a.stride : 1},
                .b = {b.data(), form.b_transposed ? 1 : b.stride, form.b_transposed ? b.stride : 1},
                .m = shape.m,
                .n = shape.n,
                .k = shape.k,
                .accumulate = accumulate,
                .bias = with_bias ? bias.data() : nullptr};
    }
    Padded<C> run(Stream& stream) const {
        for (int t = 0; t < stream.threads(); ++t)
            std::memset(stream.workspace(t), 0xff, static_cast<std::size_t>(stream.workspace_bytes()));
        std::memset(stream.shared_workspace(), 0xff, static_cast<std::size_t>(stream.shared_bytes()));
        Padded<C> c = before;
        matmul<T, C>(stream, args(c));
        return c;
    }
    std::string text() const {
        return std::string(form.name) + " " + std::to_string(shape.m) + "x" + std::to_string(shape.n) + "x" +
               std::to_string(shape.k);
    }

    // A sum of k products in any order of at most k float additions errs by (1 + u)^k - 1 <= 1.01 k u of the sum of the
    // terms' sizes (Higham, Accuracy and Stability, 3.1; k u < 0.01); what was in c and the bias are two more terms.
    // u = 2^-24. A result of two bytes is rounded once more.
    void expect_right(const Padded<C>& c) const {
        for (std::int64_t i = 0; i < shape.m; ++i)
            for (std::int64_t j = 0; j < shape.n; ++j) {
                double sum = accumulate ? before.value(i, j) : 0, size = std::abs(sum);
                if (with_bias) sum += static_cast<double>(static_cast<float>(bias[static_cast<std::size_t>(j)]));
                if (with_bias)
                    size += std::abs(static_cast<double>(static_cast<float>(bias[static_cast<std::size_t>(j)])));
                for (std::int64_t l = 0; l < shape.k; ++l) {
                    const double term = (form.a_transposed ? a.value(l, i) : a.value(i, l)) *
                                        (form.b_transposed ? b.value(j, l) : b.value(l, j));
                    sum += term;
                    size += std::abs(term);
                }
                double bound = 1.01 * static_cast<double>(shape.k + 2) * 0x1p-24 * size;
                bound += rounding_of<C>(std::abs(sum) + bound);
                ASSERT_LE(std::abs(c.value(i, j) - sum), bound) << text() << " at " << i << ", " << j;
                ASSERT_FALSE(std::isnan(c.value(i, j))) << text() << " at " << i << ", " << j;
            }
        EXPECT_TRUE(c.margins_intact()) << text() << " wrote outside of c";
    }
};

// One, primes, one past a vector, a register tile, a panel, a block of k, a row tile, a column tile.
const Shape shapes[] = {{1, 1, 1},     {1, 33, 7},      {2, 16, 31},    {7, 17, 513},  {14, 32, 64},
                        {15, 47, 65},  {33, 31, 33},    {64, 64, 64},   {113, 97, 40}, {3, 545, 96},
                        {241, 65, 17}, {61, 513, 1025}, {337, 37, 129}, {1, 700, 33},
                        {130, 135, 520}};

template <class T, class C>
void check_all_shapes() {
    Stream stream(2);
    for (const Shape& shape : shapes)
        for (const Form& form : forms)
            for (const bool accumulate : {false, true}) {
                const Case<T, C> c(shape, form, accumulate, shape.m % 2 == 1);
                c.expect_right(c.run(stream));
                if (::testing::Test::HasFatalFailure()) return;
            }
}

TEST(Matmul, IsTheProductOnRaggedShapesInFloat) { check_all_shapes<float, float>(); }
TEST(Matmul, IsTheProductOnRaggedShapesFromBf16ToFloat) { check_all_shapes<bf16, float>(); }
TEST(Matmul, IsTheProductOnRaggedShapesInBf16RoundedOnce) { check_all_shapes<bf16, bf16>(); }
TEST(Matmul, IsTheProductOnRaggedShapesInF16RoundedOnce) { check_all_shapes<f16, f16>(); }

template <class T, class C>
void check_bits_by_threads() {
    Stream one(1), two(2), three(3), five(5);
    // The first and the last may be tiles that pack both operands, if there are threads for no more.
    for (const Shape shape : {Shape{300, 200, 600}, Shape{5, 900, 70}, Shape{61, 33, 1025}, Shape{801, 290, 530}})
        for (const Form& form : forms) {
            const Case<T, C> c(shape, form, true, shape.m % 2 == 1);
            const auto expected = c.run(one);
            EXPECT_TRUE(expected.same_bits(c.run(two))) << c.text();
            EXPECT_TRUE(expected.same_bits(c.run(three))) << c.text();
            EXPECT_TRUE(expected.same_bits(c.run(five))) << c.text();
        }
}

TEST(Matmul, BitsDoNotDependOnTheNumberOfThreads) {
    check_bits_by_threads<float, float>();
    check_bits_by_threads<bf16, float>();
    check_bits_by_threads<bf16, bf16>();
}

template <class T, class C>
void check_bits_by_cut() {
    Stream stream(2);
    for (const Form& form : forms) {
        const Case<T, C> c({131, 101, 1100}, form, true, true);
        const auto whole = c.run(stream);
        for (const std::int64_t at : {1, 16, 37, 64, 100}) {
            auto by_rows = c.before, by_columns = c.before, serial = c.before;
            auto top = c.args(by_rows), bottom = top;
            top.m = at;
            bottom.m -= at, bottom.c += at * bottom.c_stride, bottom.a.data += at * bottom.a.row_stride;
            matmul<T, C>(stream, top);
            matmul<T, C>(stream, bottom);
            EXPECT_TRUE(whole.same_bits(by_rows)) << c.text() << " cut at row " << at;
            auto left = c.args(by_columns), right = left;
            left.n = at;
            right.n -= at, right.c += at, right.b.data += at * right.b.col_stride, right.bias += at;
            matmul<T, C>(stream, left);
            matmul<T, C>(stream, right);
            EXPECT_TRUE(whole.same_bits(by_columns)) << c.text() << " cut at column " << at;
            matmul_serial<T, C>(c.args(serial), stream.workspace(0));
            EXPECT_TRUE(whole.same_bits(serial)) << c.text() << " serial";
        }
    }
}

TEST(Matmul, BitsDoNotDependOnWhereRowsOrColumnsAreCut) {
    check_bits_by_cut<float, float>();
    check_bits_by_cut<bf16, float>();
    check_bits_by_cut<bf16, bf16>();
}

TEST(Matmul, AProductTooBigForOnePackedPieceIsStillTheProduct) {
    // 20,000 columns of 300 are more than is packed at once; only some rows are checked, in double, for time.
    Stream stream(2);
    const Case<float, float> c({130, 20000, 300}, forms[0], false, false);
    const auto got = c.run(stream);
    for (std::int64_t i = 0; i < 130; i += 43)
        for (std::int64_t j = 0; j < 20000; ++j) {
            double sum = 0, size = 0;
            for (std::int64_t l = 0; l < 300; ++l)
                sum += c.a.value(i, l) * c.b.value(j, l), size += std::abs(c.a.value(i, l) * c.b.value(j, l));
            ASSERT_LE(std::abs(got.value(i, j) - sum), 1.01 * 302 * 0x1p-24 * size) << i << ", " << j;
        }
    EXPECT_TRUE(got.margins_intact());
}

template <class T, class C>
void check_bits_by_shared_workspace() {
    Stream roomy(2), tight(2, Stream::default_workspace_bytes, matmul_workspace_bytes);
    for (const bool accumulate : {false, true}) {
        // The second: wide, and blocks of k as long as they get, so that the usual piece of B would not fit the tight one.
        for (const Case<T, C>& c : {Case<T, C>({131, 600, 2500}, forms[1], accumulate, true),
                                    Case<T, C>({131, 2100, 576}, forms[1], accumulate, true)})
            EXPECT_TRUE(c.run(roomy).same_bits(c.run(tight))) << c.text();
    }
}

TEST(Matmul, BitsDoNotDependOnHowMuchIsPackedAtOnce) {
    check_bits_by_shared_workspace<float, float>();
    check_bits_by_shared_workspace<bf16, float>();
    check_bits_by_shared_workspace<bf16, bf16>();
}

// What is packed at once fits the shared workspace, down to the smallest that matmul takes, and to the half of it that is left
// where a bf16 result is summed in pieces. Past its end would lie somebody else's memory, and no result might show it.
TEST(Matmul, APackedPieceNeverPassesTheSharedWorkspace) {
    const auto check = [](const gemm::Limits& limits, std::int64_t element_bytes) {
        for (const std::int64_t part : {1, 2})
            for (const std::int64_t n : {1, 33, 600, 1000, 1024, 2100, 20000})
                for (const std::int64_t k : {1, 288, 500, 576, 577, 1024, 2500, 50000}) {
                    const std::int64_t shared = matmul_workspace_bytes / element_bytes / part;
                    const gemm::Plan plan(500, n, k, shared, limits);
                    ASSERT_EQ(plan.packing, gemm::Packing::b);
                    const gemm::Blocks blocks(k, limits);
                    std::int64_t deepest = 0;
                    for (std::int64_t at = 0; at < blocks.count(); at += plan.packed_blocks) {
                        const std::int64_t end = blocks.begin(std::min(blocks.count(), at + plan.packed_blocks));
                        deepest = std::max(deepest, gemm::round_up(end - blocks.begin(at), limits.k_unit));
                    }
                    EXPECT_GT(plan.packed_columns, 0);
                    EXPECT_LE(plan.packed_columns * deepest, shared) << n << " columns of " << k;
                }
    };
    check(gemm::float_limits, 4);
#if KEEL_BF16_PAIRS
    check(gemm::pairs_limits, 2);
#endif
}

TEST(Matmul, RowsAPowerOfTwoApartAreTheProductToo) {
    Stream stream(2);
    for (const std::int64_t k :
         {1021, 1024}) {  // with the margin of 3, rows of 4096 bytes in float; and whole steps of k
        const Case<float, float> f({130, 40, k}, forms[0], false, false);
        f.expect_right(f.run(stream));
        const Case<bf16, bf16> b({130, 40, k}, forms[1], false, false);
        b.expect_right(b.run(stream));
    }
}

TEST(Matmul, WithoutTermsCIsTheBiasOrStaysAsItWas) {
    Stream stream(1);
    const Case<float, float> c({3, 5, 0}, forms[1], true, true), d({3, 5, 0}, forms[1], false, false);
    c.expect_right(c.run(stream));
    d.expect_right(d.run(stream));
}

TEST(Matmul, ANanInAnOperandReachesEveryElementItBelongsToAndNoOther) {
    Stream stream(2);
    for (const Form& form : forms) {
        Case<bf16, float> c({40, 50, 60}, form, false, false);
        (form.a_transposed ? c.a.at(59, 20) : c.a.at(20, 59)) = bf16(poison);
        const auto got = c.run(stream);
        for (std::int64_t i = 0; i < 40; ++i)
            for (std::int64_t j = 0; j < 50; ++j)
                EXPECT_EQ(std::isnan(got.value(i, j)), i == 20) << form.name << i << ", " << j;
    }
}

template <class Call>
std::string message(Call call) {
    try {
        call();
    } catch (const Error& e) {
        return e.what();
    }
    return "";
}

TEST(Matmul, AnOperandWithoutAContiguousDirectionIsNamed) {
    Stream stream(1);
    float x[16] = {};
    const auto text = message([&] {
        matmul<float, float>(
            stream,
            {.c = x, .c_stride = 2, .a = {x, 4, 2}, .b = {x, 2, 1}, .m = 2, .n = 2, .k = 2, .accumulate = false});
    });
    EXPECT_EQ(text, "matmul: a has strides 4 and 2; one of them must be 1");
    const auto rows = message([&] {
        matmul<float, float>(
            stream,
            {.c = x, .c_stride = 1, .a = {x, 2, 1}, .b = {x, 2, 1}, .m = 2, .n = 2, .k = 2, .accumulate = false});
    });
    EXPECT_EQ(rows, "matmul: rows of c are 1 elements apart, but hold 2");
}

TEST(Matmul, AStreamWithTooLittleWorkspaceIsRefused) {
    Stream stream(1, 4096);
    float x[16] = {};
    const auto text = message([&] {
        matmul<float, float>(
            stream,
            {.c = x, .c_stride = 2, .a = {x, 2, 1}, .b = {x, 2, 1}, .m = 2, .n = 2, .k = 2, .accumulate = false});
    });
    EXPECT_NE(text.find("4096 bytes of workspace a thread"), std::string::npos) << text;
}

}  // namespace
}  // namespace keel
