// engine/record.cpp: what every rank notes around a step, and what the rank with the log tells of it.
#include <cstdio>

#include "comm/agree.h"
#include "engine/observe/memory_chart.h"
#include "engine/observe/timeline.h"
#include "engine/run.h"
#include "kernels/base/error.h"

namespace keel {
namespace {

constexpr std::size_t most_spans = 4096;  // of one step and thread; 160 KiB
constexpr int most_rank_records = 1024, most_lanes = 16;

void tell_startup(Run& run) {
    const auto parts = startup_over_ranks(run.ranks.world, run.stream, run.startup);
    run.startup.enter(Startup::over);
    run.record([&](Observe& observe) {
        observe.tell(startup_record(parts).finish(), startup_table(parts, run.world.size()).c_str());
    });
}

void compare_ranks(Run& run) {
    RankTimes& times = *run.rank_times;
    times.collect();
    run.record([&](Observe& observe) {
        char line[512];
        if (run.world.size() > 1) format_ranks(line, run.progress.steps, times);
        const bool fine = run.config.observe.timers == "fine";
        observe.tell(ranks_record(run.progress.steps, times, fine).finish(), run.world.size() > 1 ? line : nullptr);
        if (run.stragglers)
            run.stragglers->look(
                times.of_ranks([](const RankReading& r) { return r.flops_per_second(); }), [&](int rank, double share) {
                    observe.warn(concat("rank ", rank, " on ", times.host(rank), " works at ",
                                        static_cast<int>(100 * share), " % of the median rank's FLOP/s, for ",
                                        run.config.observe.straggler_times,
                                        " log lines in a row (--observe.straggler_times, --observe.straggler_factor)"));
                });
    });
}

}  // namespace

// A collective.
void begin_observing(Run& run) {
    run.ledger.set_apart(Phase::communication, may_communicate, [&run] {
        return communication_seconds(run.ranks) + run.model->gradients().exposed_seconds();
    });
    const ObserveSection& config = run.config.observe;
    if (!config.trace_steps.empty()) run.trace.emplace(run.config, run.ranks, run.stream, run.progress.steps + 1);
    if (config.timers == "off" && !run.trace) return;
    run.spans.emplace(most_spans);
    run.executor->record(&run.spans->here);
    run.model->gradients().record(&run.spans->here, &run.spans->beside);
    const int ranks = run.world.size();
    if (config.timers == "off" || (ranks == 1 && config.timers != "fine")) return;
    const Shard& shard = run.model->shard();
    std::int64_t layers = 0;
    for (const LayerRange& chunk : shard.chunks) layers += chunk.size();
    run.rank_times.emplace(run.ranks.world, run.stream, run.world.host(), run.ledger, &*run.spans,
                           Flops::share(run.config.model, layers, shard.has_head(), shard.tp * shard.replicas));
    if (run.world.rank() == 0 && config.straggler_times > 0)
        run.stragglers.emplace(static_cast<std::size_t>(ranks), config.straggler_factor, config.straggler_times);
}

void record_start(Run& run) {
    run.ledger.enter(Phase::idle);  // the loop begins; what it does has its own phases
    run.startup.enter(Startup::first_step);
    run.record([&](Observe& observe) { observe.start(run.progress); });
}

void cut_spans(Run& run) {
    if (!run.spans) return;
    run.spans->cut();
    if (run.trace) run.trace->cut(run.progress.steps + 1, run.spans->last_here, run.spans->last_beside);
}

void record_step(Run& run, const StepPlan& plan, const StepResult& step) {
    const auto begin = Clock::now();
    const double waited = communication_seconds(run.ranks);
    run.record([&](Observe& observe) { observe.record(run.progress, plan, step); });
    if (run.startup.part() == Startup::first_step) tell_startup(run);
    if (run.rank_times) {
        run.rank_times->add(step);
        if (run.schedule.log_due(run.progress)) compare_ranks(run);
    }
    run.record([&](Observe& observe) {
        observe.add_cost(seconds_between(begin, Clock::now()) - (communication_seconds(run.ranks) - waited));
    });
}

// A collective.
Ending record_end(Run& run) {
    if (run.trace) run.trace->end();
    Ending out;
    if (run.spans) {
        const auto shown = [&](const Spans& spans) { return run.world.rank() < most_lanes ? spans_text(spans) : std::string(); };
        const std::vector<std::string> here = gather_strings(run.ranks.world, shown(run.spans->last_here)),
                                       beside = gather_strings(run.ranks.world, shown(run.spans->last_beside));
        std::vector<Spans> read;
        std::vector<TimelineLane> lanes;
        read.reserve(2 * here.size());
        for (int r = 0; r < std::min(run.world.size(), most_lanes); ++r)
            for (const auto* text : {&here[static_cast<std::size_t>(r)], &beside[static_cast<std::size_t>(r)]}) {
                if (text->empty()) continue;
                read.push_back(read_spans(*text));
                lanes.push_back(
                    {concat("rank ", r, text == &beside[static_cast<std::size_t>(r)] ? " beside" : ""), &read.back()});
            }
        if (run.observe && !lanes.empty()) out.timeline = timeline_svg(lanes);
    }
    if (run.observe) out.memory_chart = memory_svg(run.model->plan());
    if (run.rank_times && run.observe)
        for (int r = 0; r < std::min(run.world.size(), most_rank_records); ++r)
            run.observe->tell(rank_record(r, *run.rank_times).finish());
    return out;
}

}  // namespace keel
