// engine/observe/spans.h: what ran when: named stretches of time of one thread, for timelines and traces.
//
// One thread writes to a Spans. Nothing is allocated after reserve(); when it is full, later spans are counted and dropped.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/observe/ledger.h"

namespace keel {

struct Span {
    const char* name;          // a literal: "forward", "backward", "receive", "reduce", "gather", "wait"
    int index, chunk;          // micro-batch and chunk, or bucket; -1 where there is none
    Clock::time_point begin, end;
};

class Spans {
public:
    void reserve(std::size_t capacity) { spans_.reserve(capacity); }
    void clear() { spans_.clear(), dropped_ = 0; }
    void add(const Span& span) {
        if (spans_.size() < spans_.capacity()) spans_.push_back(span);
        else ++dropped_;
    }
    const std::vector<Span>& all() const { return spans_; }
    std::int64_t dropped() const { return dropped_; }

    // Until the end of the scope, if there is something to write to.
    class Scope {
    public:
        Scope(Spans* to, const char* name, int index = -1, int chunk = -1)
            : to_(to), span_{name, index, chunk, to ? Clock::now() : Clock::time_point(), {}} {}
        ~Scope() {
            if (!to_) return;
            span_.end = Clock::now();
            to_->add(span_);
        }
        Scope(const Scope&) = delete;
        Scope& operator=(const Scope&) = delete;

    private:
        Spans* to_;
        Span span_;
    };

private:
    std::vector<Span> spans_;
    std::int64_t dropped_ = 0;
};

}  // namespace keel
