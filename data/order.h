// data/order.h: which sample comes n-th, as a pure function of n. No state, no index files, no memory that grows with n.
//
// Permutation  a keyed bijection of [0, size): a Feistel network over the next power of two, walked until it lands inside
//              (Black & Rogaway 2002, "Ciphers with arbitrary finite domains"). Another epoch is another key.
// Blend        draws from several sources by weight, such that after any number n of draws each source has been drawn
//              within one of weight * n times. Weights are brought to fractions over a common period; the pattern of
//              one period is scheduled by earliest deadline, each draw inside its own window (which always succeeds: Baruah
//              et al. 1996, "Proportionate progress"), and kept in a table. Draw n is then one look-up.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/base/random.h"

namespace keel {

class Permutation {
public:
    // `stream` tells apart several permutations of one seed (the files of a blend).
    Permutation(std::int64_t size, std::uint64_t seed, std::uint64_t stream, std::int64_t epoch);

    std::int64_t size() const { return size_; }
    std::int64_t operator()(std::int64_t i) const;  // throws unless 0 <= i < size

private:
    std::int64_t size_;
    int left_bits_, right_bits_;
    Random random_;
};

class Blend {
public:
    struct Draw {
        std::int64_t source;
        std::int64_t index;  // how often this source was drawn before
    };

    static constexpr std::int64_t max_period = 1 << 20;

    // Positive weights, not necessarily of sum 1. Weights that are fractions over a period of at most max_period (0.7 and
    // 0.3, a third, 0.123456) are met exactly; others are rounded to the best period, and weight() says to what.
    explicit Blend(const std::vector<double>& weights);

    std::int64_t sources() const { return static_cast<std::int64_t>(share_.size()); }
    std::int64_t period() const { return period_; }
    double weight(std::int64_t source) const;       // realised, of sum 1
    Draw operator()(std::int64_t n) const;          // n >= 0
    std::int64_t count(std::int64_t source, std::int64_t n) const;  // draws of `source` among the first n; O(period)

private:
    std::int64_t period_ = 1;
    std::vector<std::int64_t> share_;     // draws of each source in one period
    std::vector<std::uint16_t> source_;   // [period]
    std::vector<std::uint32_t> index_;    // [period]: draws of that source before, within the period
};

}  // namespace keel
