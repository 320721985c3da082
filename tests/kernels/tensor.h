// tests/kernels/tensor.h: tensors that notice stray writes, streams of 1, 2 and 3 threads, and comparisons.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/base/dtype.h"
#include "kernels/base/random.h"
#include "kernels/base/stream.h"
#include "kernels/base/view.h"

namespace keel {

using Values = std::vector<double>;

// Memory around and between the rows of a tensor, and the tensor itself until it is written, holds a pattern that reads
// as NaN (float, bf16, f16) or as a number no test uses: an element read before it is written spoils the result, one written
// outside of the tensor is seen by `untouched`.
template <class T> class Tensor {
public:
    // Rows of `stride` elements, of which the tensor is the first `columns`; stride 0 means columns.
    Tensor(std::int64_t rows, std::int64_t columns, std::int64_t stride = 0)
        : rows_(rows), columns_(columns), stride_(stride ? stride : columns) {
        std::memset(static_cast<void*>(&poison_), 0xff, sizeof(T));  // a NaN with a full payload
        if constexpr (std::is_integral_v<T>) poison_ = T(0x5a);
        memory_.assign(static_cast<std::size_t>(2 * guard + rows_ * stride_), poison_);
    }
    explicit Tensor(std::int64_t n) : Tensor(1, n) { flat_ = true; }
    Tensor(const Values& values, std::int64_t rows, std::int64_t columns, std::int64_t stride = 0)
        : Tensor(rows, columns, stride) {
        fill(values);
    }
    explicit Tensor(const Values& values) : Tensor(static_cast<std::int64_t>(values.size())) { fill(values); }

    View<T> view() {
        T* data = memory_.data() + guard;
        if (flat_) return View<T>(data, {columns_});
        return stride_ == columns_ ? View<T>(data, {rows_, columns_})
                                   : View<T>(data, {rows_, stride_}).columns(0, columns_);
    }
    View<const T> read() { return view(); }

    void fill(const Values& values) {
        for (std::int64_t i = 0; i < rows_ * columns_; ++i) at(i) = from(values[static_cast<std::size_t>(i)]);
    }
    void fill(double value) { fill(Values(static_cast<std::size_t>(rows_ * columns_), value)); }
    Values values() const {
        Values out(static_cast<std::size_t>(rows_ * columns_));
        for (std::int64_t i = 0; i < rows_ * columns_; ++i) out[static_cast<std::size_t>(i)] = to(at(i));
        return out;
    }
    // True if every element outside of the tensor still holds the pattern.
    bool untouched() const {
        for (std::int64_t i = 0; i < static_cast<std::int64_t>(memory_.size()); ++i) {
            const std::int64_t inside = i - guard;
            if (inside >= 0 && inside < rows_ * stride_ && inside % stride_ < columns_) continue;
            if (std::memcmp(&memory_[static_cast<std::size_t>(i)], &poison_, sizeof(T)) != 0) return false;
        }
        return true;
    }

private:
    static constexpr std::int64_t guard = 67;  // past any vector, and odd: rows are not aligned to vectors
    static T from(double v) {
        if constexpr (sizeof(T) == 2)
            return T(static_cast<float>(v));
        else
            return static_cast<T>(v);
    }
    static double to(T v) {
        if constexpr (sizeof(T) == 2)
            return static_cast<double>(static_cast<float>(v));
        else
            return static_cast<double>(v);
    }
    T& at(std::int64_t i) { return memory_[static_cast<std::size_t>(guard + i / columns_ * stride_ + i % columns_)]; }
    const T& at(std::int64_t i) const { return const_cast<Tensor*>(this)->at(i); }

    std::int64_t rows_, columns_, stride_;
    bool flat_ = false;
    T poison_;
    std::vector<T> memory_;
};

// Scratch of exactly the bytes an op asked for, poisoned, with guards: floats in the op are NaN until it writes them.
class Scratch {
public:
    explicit Scratch(std::int64_t bytes)
        : bytes_(bytes), memory_(static_cast<std::size_t>((bytes + 7) / 8) + 2 * guard, poison) {}
    View<std::byte> view() { return View<std::byte>(reinterpret_cast<std::byte*>(memory_.data() + guard), {bytes_}); }
    bool untouched() const {
        for (std::size_t i = 0; i < guard; ++i)
            if (memory_[i] != poison || memory_[memory_.size() - 1 - i] != poison) return false;
        return true;
    }

private:
    static constexpr std::size_t guard = 8;
    static constexpr std::uint64_t poison = ~std::uint64_t{0};
    std::int64_t bytes_;
    std::vector<std::uint64_t> memory_;
};

// Normal numbers, a function of their name alone, rounded to T so that the op and the reference read the same values.
template <class T> Values random_values(const std::string& name, std::int64_t n, double scale = 1, double mean = 0) {
    const Random random(11, Purpose::test, name);
    Tensor<T> rounded(n);
    Values x(static_cast<std::size_t>(n));
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = mean + scale * random.normal(i);
    rounded.fill(x);
    return rounded.values();
}

inline Stream& stream_of(int threads) {
    static Stream one(1), two(2), three(3);
    return threads == 1 ? one : threads == 2 ? two : three;
}

inline bool same_bits(const Values& a, const Values& b) {
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0);
}

// Runs an op on 1, 2 and 3 threads, demands the same bits of each, and returns them. run(stream) returns every output.
template <class Run> std::vector<Values> on_any_threads(Run run) {
    std::vector<Values> first = run(stream_of(1));
    for (int threads : {2, 3}) {
        const std::vector<Values> other = run(stream_of(threads));
        for (std::size_t i = 0; i < first.size(); ++i)
            EXPECT_TRUE(same_bits(first[i], other[i])) << "output " << i << " differs on " << threads << " threads";
    }
    return first;
}

template <class T>
constexpr double unit_roundoff = std::is_same_v<T, bf16> ? 0x1p-9 : std::is_same_v<T, f16> ? 0x1p-12 : 0x1p-24;

// Error of x against want, relative to the element and to the tensor's own size: an element that cancels to nearly
// zero is as wrong as the numbers it came from.
inline double worst_error(const Values& x, const Values& want, std::size_t* where = nullptr) {
    double square = 0, worst = 0;
    for (const double w : want) square += w * w;
    const double rms = std::sqrt(square / static_cast<double>(std::max<std::size_t>(1, want.size())));
    for (std::size_t i = 0; i < want.size(); ++i) {
        const double scale = std::abs(want[i]) + rms, error = std::abs(x[i] - want[i]);
        const double e = std::isnan(error) ? std::numeric_limits<double>::infinity()
                         : scale > 0       ? error / scale
                                           : error;
        if (e > worst) {
            worst = e;
            if (where) *where = i;
        }
    }
    return worst;
}

// At most twice the error of the naive evaluation, plus `steps` roundings of float and one to the type of the result: a
// tensor of few elements may find the naive evaluation exact by luck, and every result is rounded at least once.
template <class T>
void expect_close(const char* what, const Values& got, const Values& want, const Values& naive, int steps) {
    ASSERT_EQ(got.size(), want.size()) << what;
    ASSERT_EQ(naive.size(), want.size()) << what;
    std::size_t at = 0;
    const double error = worst_error(got, want, &at);
    const double bound = 2 * worst_error(naive, want) + unit_roundoff<T> + steps * unit_roundoff<float>;
    EXPECT_LE(error, bound) << what << "[" << at << "] is " << got[at] << ", but must be " << want[at];
}

inline Values widen(const std::vector<float>& x) { return Values(x.begin(), x.end()); }

template <class Call> std::string error_of(Call call) {
    try {
        call();
    } catch (const Error& e) {
        return e.what();
    }
    return "(no error)";
}

}  // namespace keel
