// comm/group.h: the ranks that decide and sum together. Made once and passed in; nobody asks for a global rank.
//
// A decision is a collective too: each rank brings its opinion, all leave with one answer. Every rank calls the same
// collectives in the same order; afterwards every rank holds the same bits.
#pragma once

#include "kernels/base/view.h"

namespace keel {

class Group {
public:
    virtual ~Group() = default;
    virtual int rank() const = 0;
    virtual int size() const = 0;

    virtual void all_reduce(View<double> x) = 0;  // sums x over the group, in place, in the order of ranks
    virtual bool any(bool opinion) = 0;           // true if one rank says so
    virtual bool all(bool opinion) = 0;           // true if every rank says so
};

// The group of one: what a single process with a single rank has. Every collective is the identity.
class SoloGroup final : public Group {
public:
    int rank() const override { return 0; }
    int size() const override { return 1; }
    void all_reduce(View<double>) override {}
    bool any(bool opinion) override { return opinion; }
    bool all(bool opinion) override { return opinion; }
};

}  // namespace keel
