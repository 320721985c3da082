#include "engine/observe/outputs.h"

#include "engine/config_io.h"

namespace keel {
namespace {

constexpr double publish_seconds = 1;  // more often costs steps of milliseconds more than it tells

}  // namespace

Outputs::Outputs(const Config& config, const RunFacts& facts, const Ledger& ledger, Warn warn)
    : config_(config),
      ledger_(ledger),
      flops_(config.model),
      warn_(std::move(warn)),
      progress_file_(std::filesystem::path(config.run.dir) / "progress.txt", facts.ranks, job_id(), warn_),
      metrics_(config.observe, config.run.dir, facts, warn_) {}

Outputs::~Outputs() { publish(); }

void Outputs::start(const Progress& progress, double unix_time) {
    progress_file_.start(unix_time, progress.steps, flops_.of(progress));
    if (config_.observe.tensorboard) {
        events_ = std::make_unique<EventFile>(std::filesystem::path(config_.run.dir) / "tensorboard",
                                              progress.steps + 1, unix_time, warn_);
        events_->write(EventRecord()
                           .begin(unix_time, progress.steps)
                           .text("config/text_summary", "```toml\n" + to_toml(config_) + "```\n"));
    }
    metrics_.start(
        {.unix_time = unix_time, .progress = progress, .plan = {}, .result = {}, .total_flops = flops_.of(progress)});
    publish();
}

void Outputs::step(const StepFacts& step, bool log_line) {
    metrics_.step(step);
    if (events_) {
        EventRecord& record = events_->record().begin(step.unix_time, step.progress.steps);
        record.scalar("train/loss", step.result.loss.mean())
            .scalar("train/grad_norm", step.result.grad_norm)
            .scalar("train/learning_rate", step.plan.lr)
            .scalar("train/batch", static_cast<double>(step.plan.samples))
            .scalar("progress/samples", static_cast<double>(step.progress.samples))
            .scalar("progress/tokens", static_cast<double>(step.progress.tokens))
            .scalar("progress/skipped", static_cast<double>(step.progress.skipped))
            .scalar("speed/step_seconds", step.seconds)
            .scalar("speed/tokens_per_second", step.tokens_per_second)
            .scalar("speed/tflops", step.flops_per_second / 1e12);
        if (step.result.loss_scale > 0) record.scalar("train/loss_scale", step.result.loss_scale);
        if (step.peak_share >= 0) record.scalar("speed/mfu", step.peak_share);
        if (step.joules >= 0)
            record.scalar("energy/joules_per_step", step.joules).scalar("energy/watts_per_device", step.watts);
        events_->write(record);
    }
    if (log_line && ledger_.wall_seconds() - published_ >= publish_seconds) publish();
}

void Outputs::eval(const Progress& progress, const EvalResult& eval, double unix_time) {
    metrics_.eval(eval);
    if (events_) {
        EventRecord& record = events_->record().begin(unix_time, progress.steps);
        record.scalar("eval/loss", eval.loss.mean()).scalar("eval/perplexity", eval.perplexity());
        if (eval.bytes > 0) record.scalar("eval/bits_per_byte", eval.bits_per_byte());
        events_->write(record);
    }
    publish();
}

void Outputs::saving(const Progress& progress, double unix_time) {
    progress_file_.saving(unix_time, progress.steps, flops_.of(progress), progress.tokens);
}

void Outputs::saved(const Progress& progress, double unix_time) {
    progress_file_.saved(unix_time, progress.steps);
    metrics_.saved(unix_time);
    publish();
}

void Outputs::publish() {
    published_ = ledger_.wall_seconds();
    if (events_) events_->flush();
    metrics_.publish(ledger_);
}

}  // namespace keel
