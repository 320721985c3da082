#include "engine/observe/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace keel {
namespace fs = std::filesystem;
namespace {

fs::path file_of(const ObserveSection& config, const fs::path& run_dir) {
    return config.prometheus_file.empty() ? run_dir / "metrics.prom" : fs::path(config.prometheus_file);
}

// What is kept of a step allocates; a text that never grows past this does not.
constexpr std::size_t text_capacity = 1 << 14;

}  // namespace

Metrics::Metrics(const ObserveSection& config, const fs::path& run_dir, const RunFacts& facts, Warn warn)
    : path_(file_of(config, run_dir)),
      beside_(path_.string() + ".new"),
      run_(fs::absolute(run_dir).lexically_normal().filename()),
      planned_bytes_(facts.planned_bytes),
      sources_(facts.sources),
      warn_(std::move(warn)),
      text_(text_capacity + 256 * facts.sources.size()) {
    if (config.http_port > 0)
        server_ = std::make_unique<MetricsServer>(config.http_address, static_cast<int>(config.http_port),
                                                  text_.text().capacity());
}

void Metrics::publish(const Ledger& ledger) {
    format(ledger);
    write_file();
    if (server_) server_->publish(text_.text());
}

void Metrics::format(const Ledger& ledger) {
    const StepFacts& s = last_;
    const auto gauge = [&](const char* name, const char* help, double value) {
        text_.family(name, "gauge", help).sample(value);
    };
    const auto counter = [&](const char* name, const char* help, auto value) {
        text_.family(name, "counter", help).sample(static_cast<double>(value));
    };
    text_.begin("run", run_);
    gauge("keel_step", "Optimizer steps taken.", static_cast<double>(s.progress.steps));
    counter("keel_samples_total", "Samples consumed.", s.progress.samples);
    counter("keel_tokens_total", "Tokens trained on, padding left out.", s.progress.tokens);
    counter("keel_flops_total", "Floating-point operations of useful work.", s.total_flops);
    text_.family("keel_skipped_steps_total", "counter", "Steps that changed no weight: not finite, or passed over.")
        .sample(static_cast<double>(s.progress.skipped), "reason", "no_update");
    if (s.plan.samples > 0) {  // a step was taken
        gauge("keel_train_loss", "Mean token loss of the last optimizer step (nats).", s.result.loss.mean());
        gauge("keel_grad_norm", "Global gradient norm of the last step, before clipping.", s.result.grad_norm);
        if (s.result.loss_scale > 0)
            gauge("keel_loss_scale", "Loss scale of the last step; f16 only.", s.result.loss_scale);
        gauge("keel_learning_rate", "Learning rate of the last step.", s.plan.lr);
        gauge("keel_tokens_per_second", "Tokens per second of the last step, all ranks.", s.tokens_per_second);
        gauge("keel_flops_per_second", "Useful floating-point operations per second of the last step, all ranks.",
              s.flops_per_second);
        if (s.peak_share >= 0)
            gauge("keel_model_flops_utilization",
                  "Useful work of the last step over the matmul peak measured on this machine.", s.peak_share);
    }
    if (eval_loss_)
        text_.family("keel_eval_loss", "gauge", "Mean token loss of the last evaluation (nats).")
            .sample(*eval_loss_, "set", "valid");
    text_.family("keel_step_seconds", "histogram", "Wall time of one optimizer step.").histogram(step_seconds_);
    text_.family("keel_phase_seconds_total", "counter", "Wall time of this process by what it did.");
    for (std::size_t i = 0; i < phase_count; ++i)
        text_.sample(ledger.seconds(static_cast<Phase>(i)), "phase", name(static_cast<Phase>(i)));
    text_.family("keel_device_memory_bytes", "gauge", "Memory of a rank.")
        .sample(static_cast<double>(planned_bytes_), "kind", "planned", "rank", "0");
    if (saved_time_)
        gauge("keel_checkpoint_last_success_timestamp_seconds", "When the last checkpoint was announced.",
              *saved_time_);
    if (!sources_.empty()) {
        text_.family("keel_data_epoch", "gauge", "Passes over a source of training data.");
        for (const RunFacts::Source& source : sources_)
            text_.sample(source.epochs_per_sample * static_cast<double>(s.progress.samples), "source", source.name);
    }
    if (s.joules >= 0) {
        counter("keel_energy_joules_total", "Energy of the devices (GPUs, else processors) of this machine since the process started.",
                s.total_joules);
        gauge("keel_power_watts", "Mean power of a device (a GPU, else a processor package) in the last step.", s.watts);
    }
}

void Metrics::write_file() {
    const std::string& text = text_.text();
    const int fd = ::open(beside_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    const bool written = fd >= 0 && ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
    int problem = written ? 0 : errno;
    if (fd >= 0) close(fd);
    if (written && std::rename(beside_.c_str(), path_.c_str()) != 0) problem = errno;
    if (problem != 0 && !failed_)
        warn_(path_.string() + ": " + std::strerror(problem) + "; the run goes on, and tries again");
    failed_ = problem != 0;
}

}  // namespace keel
