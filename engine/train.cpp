#include "engine/train.h"

#include <algorithm>
#include <cmath>

#include "engine/evaluate.h"

namespace keel {
namespace {

// The next micro-batch; the one after it is prepared while this one is computed.
const Batch& next_batch(Run& run, std::int64_t first, std::int64_t count) {
    const Ledger::Scope scope(run.ledger, Phase::data_wait);
    const Batch& batch = run.loader.next(first, count);
    run.loader.hint(first + count, count);
    return batch;
}

}  // namespace

const char* train(Run& run) {
    Watch watch(run.group);
    run.observe->start(run.progress);
    while (!run.schedule.done(run.progress)) {
        const StepPlan plan = run.schedule.at(run.progress);           // micro-batches and lr, by samples seen
        const auto step = train_step(run, plan, &watch);               // forward, backward, update: all ranks or none
        if (step) {
            run.progress.advance(plan, *step);                         // samples, tokens
            run.observe->record(run.progress, plan, *step);
            if (run.schedule.eval_due(run.progress)) evaluate(run);
        }
        const Verdict verdict = watch.decide(step && run.schedule.save_due(run.progress), run.schedule.done(run.progress));
        if (verdict.save) save_checkpoint(run);
        if (verdict.stop) return verdict.why;                          // stop implies save; the last sample stops too
    }
    return "done";
}

std::optional<StepResult> train_step(Run& run, const StepPlan& plan, Watch* watch) {
    const Ledger::Scope scope(run.ledger, Phase::step);
    StepResult result;
    Model& model = *run.model;
    model.zero_grads();
    for (std::int64_t i = 0; i < plan.num_micro_batches; ++i) {
        if (i > 0 && watch && watch->asked_to_stop()) return std::nullopt;
        const Batch& batch = next_batch(run, plan.first_sample + i * plan.micro_batch, plan.micro_batch);
        result.tokens += batch.sum_len;
        result.tokens_squared += batch.sum_len_sq;
        result.loss.add({model.train_micro_batch(batch), batch.loss_tokens});
    }
    double sums[] = {result.loss.sum, static_cast<double>(result.loss.count)};
    run.group.all_reduce(run.stream, View<double>(sums, {2}));
    result.loss = {sums[0], static_cast<std::int64_t>(sums[1])};

    // Gradients are of the summed loss: the division by the number of targets is one scale of the update.
    const double targets = static_cast<double>(result.loss.count);
    result.grad_norm = model.grad_norm() / targets;
    result.applied = run.group.all(std::isfinite(result.loss.mean()) && std::isfinite(result.grad_norm));
    if (!result.applied) return result;
    const OptimSection& optim = run.config.optim;
    const double clip = optim.clip > 0 ? std::min(1.0, optim.clip / (result.grad_norm + 1e-6)) : 1.0;
    model.update({.lr = static_cast<float>(plan.lr), .beta1 = static_cast<float>(optim.beta1),
                  .beta2 = static_cast<float>(optim.beta2), .eps = static_cast<float>(optim.eps),
                  .weight_decay = static_cast<float>(optim.weight_decay),
                  .grad_scale = static_cast<float>(clip / targets), .step = run.progress.steps - run.progress.skipped + 1});
    return result;
}

void evaluate(Run& run) {
    if (!run.valid_loader) return;
    const Ledger::Scope scope(run.ledger, Phase::eval);
    const std::int64_t all = run.valid_data->samples_per_epoch(), asked = run.config.train.eval_samples;
    const std::int64_t samples = asked > 0 ? std::min(asked, all) : all;
    run.observe->record_eval(run.progress, evaluate_loss(*run.model, *run.valid_loader, samples, run.config.train.micro_batch,
                                                         run.token_bytes));
}

}  // namespace keel
