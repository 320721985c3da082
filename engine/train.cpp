#include "engine/train.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>

#include "engine/evaluate.h"
#include "engine/observe/json_line.h"
#include "kernels/gpu_range.h"

namespace keel {
namespace {

// The micro-batches of this replica: replica d of n takes every nth, beginning with the dth, so that the samples of a step are
// the same for any number of replicas.
class Batches {
public:
    Batches(Run& run, Loader& loader, std::int64_t first_sample, std::int64_t samples, std::int64_t micro_batch)
        : run_(run), loader_(loader), first_(first_sample), end_(first_sample + samples), micro_batch_(micro_batch) {}

    std::int64_t count() const {  // of this replica
        const std::int64_t all = (end_ - first_ + micro_batch_ - 1) / micro_batch_, d = run_.ranks.place.dp;
        return all <= d ? 0 : (all - d + dp() - 1) / dp();
    }
    const Batch& operator()(std::int64_t i) {
        const Ledger::Scope scope(run_.ledger, Phase::data_wait);
        const Spans::Scope span(run_.what_ran(), "data");
        run_.standing.micro_batch(i, count());
        const Batch& batch = loader_.next(begin(i), size(i));
        if (begin(i + 1) < end_) loader_.hint(begin(i + 1), size(i + 1));
        if (i != counted_) return batch;  // another pipeline chunk reads it again
        ++counted_;
        tokens += batch.sum_len, tokens_squared += batch.sum_len_sq, loss_tokens += batch.loss_tokens;
        if (!run_.token_bytes.empty() && count_bytes)
            for (std::int64_t t = 0; t < batch.labels.dim(0); ++t)
                if (batch.labels[t] >= 0) bytes += run_.token_bytes[static_cast<std::size_t>(batch.labels[t])];
        return batch;
    }

    std::int64_t tokens = 0, tokens_squared = 0, loss_tokens = 0, bytes = 0;
    bool count_bytes = false;

private:
    std::int64_t dp() const { return replicas(run_.config.parallel); }
    std::int64_t begin(std::int64_t i) const { return first_ + (i * dp() + run_.ranks.place.dp) * micro_batch_; }
    std::int64_t size(std::int64_t i) const { return std::min(micro_batch_, end_ - begin(i)); }

    Run& run_;
    Loader& loader_;
    std::int64_t first_, end_, micro_batch_, counted_ = 0;
};

// Of all ranks, each token and each loss once: the loss where the head is, on every slice of a sequence; counts of whole
// sequences on the first.
//
// Where gradients are summed exactly, so is the loss: in steps of 2^-24 nats, of which 64 bits hold 2^39 nats. One that is not finite makes the sum NaN.
struct Sums {
    explicit Sums(const Run& run) : exact(run.config.numerics.grad_sum == "exact") {}
    bool exact;
    double loss = 0;
    std::int64_t counts[6] = {};  // targets, tokens, tokens squared, bytes; exact loss, losses that are not finite

    void add(double more) {
        if (!exact) loss += more;
        else if (std::abs(more) < 1e9) counts[4] += std::llrint(std::ldexp(more, 24));
        else counts[5] += 1;
    }
    void count(const Batches& b) {
        counts[0] = b.loss_tokens, counts[1] = b.tokens, counts[2] = b.tokens_squared, counts[3] = b.bytes;
    }
    void reduce(Run& run) {
        const RankPlace& at = run.ranks.place;
        if (at.tp != 0) loss = 0, counts[4] = counts[5] = 0;
        if (at.tp != 0 || at.cp != 0 || at.pp != 0) std::fill_n(counts, 4, 0);
        run.ranks.world.all_reduce(run.stream, View<double>(&loss, {1}));
        run.ranks.world.all_reduce(run.stream, View<std::int64_t>(counts, {6}));
        if (exact) loss = counts[5] > 0 ? std::nan("") : std::ldexp(static_cast<double>(counts[4]), -24);
    }
};

// Gradients of every micro-batch, summed over all ranks, and what they come to. Nothing else is changed. nullopt: asked to stop.
std::optional<StepResult> attempt(Run& run, const StepPlan& plan, Watch* watch) {
    Model& model = *run.model;
    const auto stop = [&] { return watch && watch->asked_to_abandon(); };
    if (run.loss_scale) model.scale_loss(static_cast<float>(run.loss_scale->value()));
    std::optional<Sums> sums;
    do {  // again only where the scale of exact sums did not fit
        if (run.inject) run.inject->begin(run.progress.steps + 1);
        if (run.replay) run.replay->begin_attempt();
        Batches batches(run, run.loader, plan.first_sample, plan.samples, plan.micro_batch);
        sums.emplace(run);
        const auto queue = [&] {
            model.zero_grads();
            if (!run.executor->train(batches.count(), std::ref(batches), std::ref(stop))) return false;
            model.reduce_grads();
            return true;
        };
        const auto refill = [&] {
            model.repeat(batches.count());
            for (std::int64_t i = 0; i < batches.count(); ++i) model.refill(i, batches(i));
        };
        const bool looks = run.replay && run.replay->looks();
        if (looks ? !queue() : !run.graph->run({plan.samples, plan.micro_batch}, queue, refill)) {
            model.gradients().give_up();
            return std::nullopt;
        }
        for (const double loss : model.take_losses()) {
            sums->add(loss);
            if (run.replay) run.replay->loss(loss);
        }
        sums->count(batches);
    } while (!model.gradients().fits(plan.samples));
    sums->reduce(run);
    cut_spans(run);  // here nothing is under way beside
    StepResult result;
    result.loss = {sums->loss, sums->counts[0]};
    result.tokens = sums->counts[1], result.tokens_squared = sums->counts[2];

    const Ledger::Scope scope(run.ledger, Phase::optimizer);
    // Gradients are of the summed loss: the division by the number of targets is one scale of the update.
    result.grad_norm = model.grad_norm() / static_cast<double>(result.loss.count);
    const bool finite_loss = std::isfinite(result.loss.mean());
    result.applied = run.ranks.world.all(finite_loss && std::isfinite(result.grad_norm));
    if (run.loss_scale) {
        result.loss_scale = run.loss_scale->value();
        result.overflow = !result.applied && run.loss_scale->can_shrink() && run.ranks.world.all(finite_loss);
    }
    if (ExactSums* exact = model.gradients().exact()) exact->advance();
    return result;
}

// Whether the step is one to be skipped, and has been.
bool pass_over(Run& run, const StepPlan& plan) {
    if (!run.skip.contains(run.progress.steps + 1)) return false;
    run.progress.pass_over(plan);
    run.record([&](Observe& observe) {
        observe.tell(JsonLine("skip").count("step", run.progress.steps).count("samples", run.progress.samples).finish());
    });
    return true;
}

// Nothing of the step has been committed.
const char* leave_for_fault(Run& run) {
    try {
        if (run.findings->stop()->save) save_checkpoint(run);
        tend_saves(run, false, true);
    } catch (const Error& e) {  // on all ranks alike; the exit code of the finding is worth more than that of the disk
        if (e.code() == ExitCode::peer) throw;
        if (run.observe) std::fprintf(stderr, "keel: warning: %s\n", e.what());
    }
    return "fault";
}

}  // namespace

const char* train(Run& run) {
    Watch watch(run.ranks.world, run.config.exit.after_s, [&] { return run.saver->last_save_s(); });
    record_start(run);
    while (!run.schedule.done(run.progress)) {
        const StepPlan plan = run.schedule.at(run.progress);           // micro-batches and lr, by samples seen
        const auto step = pass_over(run, plan) ? std::nullopt          // its data is consumed, nothing else
                                               : train_step(run, plan, &watch);  // forward, backward, update: all ranks or none
        if (run.findings->stop()) return leave_for_fault(run);         // with the state from before the step
        if (step) {
            run.progress.advance(plan, *step);                         // samples, tokens
            record_step(run, plan, *step);
            if (run.schedule.eval_due(run.progress) && !watch.asked_to_stop()) evaluate(run);  // who waits for the end may not wait long
            if (run.schedule.self_test_due(run.progress)) test_devices(run);
        }
        const Verdict verdict = watch.decide(step && run.schedule.save_due(run.progress, plan), run.schedule.leave(run.progress));
        if (verdict.save) save_checkpoint(run);
        tend_saves(run, step && !verdict.save, verdict.stop);          // local ones, and one that is being written
        if (verdict.stop && !run.schedule.done(run.progress)) return verdict.why;  // stop implies save; the last sample stops too
    }
    if (run.valid_loader) {  // behind the last checkpoint: who falls here, or is told to stop, does it when started again
        if (const Verdict verdict = watch.decide(false, ""); verdict.stop) return verdict.why;
        evaluate(run);
    }
    return "done";
}

std::optional<StepResult> train_step(Run& run, const StepPlan& plan, Watch* watch) {
    const Ledger::Scope scope(run.ledger, Phase::compute);
    run.standing.enter("step", run.progress.steps + 1);
    tell_profiler(run);
    const GpuRange range(run.gpu ? run.gpu->device() : Device::cpu, "step", run.progress.steps + 1);
    Model& model = *run.model;
    if (run.replay) run.replay->begin_step(run.progress.steps + 1);
    std::optional<StepResult> result = attempt(run, plan, watch);
    while (result && run.replay && run.replay->again(plan, *result)) {  // what looks wrong is computed again
        const Ledger::Scope recovery(run.ledger, Phase::recovery);
        result = attempt(run, plan, watch);
    }
    if (result && !run.findings->stop()) run.replicas->compare(run.progress.steps + 1, plan);
    if (!result || run.findings->stop()) return std::nullopt;
    if (run.loss_scale && std::isfinite(result->loss.mean())) run.loss_scale->update(!result->applied);
    if (!result->applied) return result;
    const Ledger::Scope update(run.ledger, Phase::optimizer);
    const Spans::Scope span(run.what_ran(), "optimizer");
    const OptimSection& optim = run.config.optim;
    const double clip = clip_factor(optim, result->grad_norm);
    model.update({.lr = static_cast<float>(plan.lr), .beta1 = static_cast<float>(optim.beta1),
                  .beta2 = static_cast<float>(optim.beta2), .eps = static_cast<float>(optim.eps),
                  .weight_decay = static_cast<float>(plan.weight_decay),
                  .grad_scale = static_cast<float>(clip / static_cast<double>(result->loss.count)),
                  .step = run.progress.steps - run.progress.skipped + 1});
    const ParallelSection& p = run.config.parallel;  // what is done beside, from the second step on
    model.gradients().overlap(p.overlap && p.overlap_reduce, p.overlap && p.overlap_gather);
    return result;
}

void evaluate(Run& run) {
    if (!run.valid_loader) return;
    const Ledger::Scope scope(run.ledger, Phase::eval);
    run.standing.enter("evaluation", run.progress.steps);
    const auto start = Clock::now();
    const std::int64_t all = run.valid_data->samples_per_epoch(), asked = run.config.train.eval_samples;
    Batches batches(run, *run.valid_loader, 0, asked > 0 ? std::min(asked, all) : all, compute_batch(run.config));
    batches.count_bytes = true;
    Sums sums(run);
    const auto add = [&](double loss) { sums.add(loss); };
    run.executor->evaluate(batches.count(), std::ref(batches), std::ref(add));
    run.restart_picture();
    sums.count(batches);
    sums.reduce(run);
    const EvalResult result{.loss = {sums.loss, sums.counts[0]}, .bytes = sums.counts[3],
                            .seconds = std::chrono::duration<double>(Clock::now() - start).count()};
    run.record([&](Observe& observe) { observe.record_eval(run.progress, result); });
}

}  // namespace keel
