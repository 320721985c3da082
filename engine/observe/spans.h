// engine/observe/spans.h: what ran when: named stretches of time of one thread, for timelines and traces.
//
// One thread writes to a Spans. Nothing is allocated after reserve(); when it is full, later spans are counted and dropped.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/observe/ledger.h"

namespace keel {

// What a span can be. "receive" and "wait" are times in which a thread waits.
inline constexpr std::array span_names{"forward", "backward", "receive", "reduce", "gather", "wait", "optimizer", "data"};
inline std::size_t span_kind(std::string_view name) {
    return static_cast<std::size_t>(std::ranges::find(span_names, name) - span_names.begin());
}
using SpanSeconds = std::array<double, span_names.size()>;

struct Span {
    const char* name;          // one of span_names
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

// Of a rank's two threads, the one that computes and the one that communicates beside it: the step under way, and the last
// whole one. A step is cut where nothing is under way beside: when gradients are reduced, before the update. It begins with
// the update and the gathers of the step before, which forward hides.
class StepSpans {
public:
    explicit StepSpans(std::size_t capacity) {
        for (Spans* s : {&here, &beside, &last_here, &last_beside}) s->reserve(capacity);
    }
    void cut() {
        for (const Spans* s : {&here, &beside})
            for (const Span& span : s->all())
                if (const std::size_t kind = span_kind(span.name); kind < seconds.size())
                    seconds[kind] += seconds_between(span.begin, span.end);
        std::swap(here, last_here), std::swap(beside, last_beside);
        here.clear(), beside.clear();
    }

    Spans here, beside, last_here, last_beside;
    SpanSeconds seconds{};  // of all steps that were cut, both threads
};

}  // namespace keel
