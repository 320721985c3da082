#include "engine/observe/observe.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>

#include "engine/config_io.h"
#include "engine/observe/json_line.h"
#include "engine/observe/mfu.h"
#include "engine/observe/report.h"
#include "engine/observe/run_log.h"

namespace keel {
namespace {

constexpr double forget = 0.95;      // per step, of the rate behind "left"
constexpr double bar_seconds = 0.1;  // a bar that is drawn more often costs more than it tells

double training_seconds(const Ledger& ledger) {
    const PhaseSeconds all = ledger.all_seconds();
    double sum = 0;
    for (std::size_t i = 0; i < phase_count; ++i)
        if (is_training(static_cast<Phase>(i))) sum += all[i];
    return sum;
}

double microseconds(double seconds) { return std::round(seconds * 1e6) / 1e6; }

double rate(double amount, double seconds) { return seconds > 0 ? amount / seconds : 0.0; }

}  // namespace

Observe::Observe(const Config& config, const RunFacts& facts, Ledger& ledger)
    : config_(config),
      facts_(facts),
      ledger_(ledger),
      flops_(config.model),
      dir_(config.run.dir),
      log_(dir_ / "log.jsonl", "a", [this](const std::string& text) { warn(text); }),
      bar_(isatty(STDERR_FILENO) == 1),
      log_interval_(std::max<std::int64_t>(config.train.log_interval, 1)),
      energy_(facts_.powercap, facts_.gpus),
      outputs_(config_, facts_, ledger_, [this](const std::string& text) { warn(text); }) {}

Observe::~Observe() { clear_bar(); }

void Observe::start(const Progress& progress) {
    logged_ = first_ = latest_ = progress;
    logged_seconds_ = recorded_seconds_ = training_seconds(ledger_);
    std::printf("run %s parameters %lld dtype %s threads %d steps %lld samples %lld planned_bytes %lld config %s\n",
                dir_.c_str(), static_cast<long long>(facts_.parameters), config_.model.dtype.c_str(), facts_.threads,
                static_cast<long long>(facts_.total_steps), static_cast<long long>(facts_.total_samples),
                static_cast<long long>(facts_.planned_bytes), config_hash(config_).c_str());
    if (energy_.devices() == 0) std::printf("energy is not measured: %s\n", energy_.absence().c_str());
    std::fflush(stdout);  // and stdio has its buffer before the first step
    outputs_.start(progress, unix_seconds());
    // A full disk or a loss of power leaves half a line; what is joined to it could not be read.
    if (std::ifstream old(log_.path(), std::ios::binary | std::ios::ate); old && old.tellg() > 0)
        if (old.seekg(-1, std::ios::end).peek() != '\n') log_.write("\n");
    write_json(JsonLine("start")
                   .number("time", unix_seconds())
                   .number("wall_seconds", ledger_.wall_seconds())
                   .count("step", progress.steps)
                   .count("samples", progress.samples)
                   .count("tokens", progress.tokens)
                   .count("parameters", facts_.parameters)
                   .text("dtype", config_.model.dtype)
                   .count("threads", facts_.threads)
                   .count("planned_bytes", facts_.planned_bytes)
                   .number("matmul_peak", facts_.matmul_peak)
                   .count("total_steps", facts_.total_steps)
                   .count("total_samples", facts_.total_samples)
                   .text("config_hash", config_hash(config_))
                   .text("version", KEEL_VERSION)
                   .finish());
    if (facts_.rates.flops_per_second.size() > 1) write_json(rates_record(facts_.rates).finish());
    for (const Outlier& rank : facts_.rates.uneven()) {
        warn(uneven_text(facts_.rates, rank));
        write_json(uneven_record(facts_.rates, rank).finish());
    }
    write_seconds(progress);
}

// What the session has spent so far: so much is known of one that is killed.
void Observe::write_seconds(const Progress& progress) {
    const auto now = Clock::now();
    JsonLine json("seconds");
    json.count("step", progress.steps);
    const PhaseSeconds seconds = ledger_.all_seconds(now);
    for (std::size_t i = 0; i < phase_count; ++i) json.number(key(static_cast<Phase>(i)), microseconds(seconds[i]));
    write_json(json.number("wall_seconds", microseconds(ledger_.wall_seconds(now))).finish());
}

StepFacts Observe::facts_of(const Progress& progress, const StepPlan& plan, const StepResult& step) {
    const double now = training_seconds(ledger_), seconds = now - recorded_seconds_;
    recorded_seconds_ = now;
    StepFacts facts{.unix_time = unix_seconds(),
                    .progress = progress,
                    .plan = plan,
                    .result = step,
                    .seconds = seconds,
                    .tokens_per_second = rate(static_cast<double>(step.tokens), seconds),
                    .flops = flops_.of(step),
                    .flops_per_second = rate(flops_.of(step), seconds),
                    .total_flops = flops_.of(progress)};
    if (facts_.matmul_peak > 0) facts.peak_share = facts.flops_per_second / facts_.matmul_peak;
    if (energy_.devices() > 0) {
        facts.total_joules = energy_.joules();
        facts.joules = facts.total_joules - recorded_joules_;
        facts.watts = rate(facts.joules, seconds) / energy_.devices();
        recorded_joules_ = facts.total_joules;
    }
    return facts;
}

void Observe::record(const Progress& progress, const StepPlan& plan, const StepResult& step) {
    const StepFacts facts = facts_of(progress, plan, step);
    latest_ = progress;
    rate_samples_ = forget * rate_samples_ + static_cast<double>(plan.samples);
    rate_seconds_ = forget * rate_seconds_ + facts.seconds;
    const double left = rate_samples_ > 0 && rate_seconds_ > 0
                            ? static_cast<double>(std::max<std::int64_t>(facts_.total_samples - progress.samples, 0)) *
                                  rate_seconds_ / rate_samples_
                            : -1.0;
    JsonLine json("step");
    json.count("step", progress.steps)
        .count("samples", progress.samples)
        .count("tokens", progress.tokens)
        .number("loss", step.loss.mean())
        .count("loss_tokens", step.loss.count)
        .number("grad_norm", step.grad_norm)
        .number("lr", plan.lr)
        .number("weight_decay", plan.weight_decay)
        .boolean("applied", step.applied)
        .count("batch", plan.samples)
        .number("seconds", facts.seconds)
        .number("tokens_per_second", facts.tokens_per_second)
        .number("flops", facts.flops)
        .number("flops_per_second", facts.flops_per_second)
        .number("wall_seconds", ledger_.wall_seconds());
    if (facts.peak_share >= 0) json.number("peak_percent", 100 * facts.peak_share);
    if (step.loss_scale > 0) json.number("loss_scale", step.loss_scale);
    if (facts.joules >= 0) json.number("joules", facts.joules).number("watts_per_device", facts.watts);
    write_json(json.finish());

    interval_loss_.add(step.loss);
    const bool last = progress.samples >= facts_.total_samples;
    const bool log_line = progress.steps % log_interval_ == 0 || last;
    outputs_.step(facts, log_line);
    if (log_line) {
        const double interval = recorded_seconds_ - logged_seconds_;
        const Progress& before = logged_;
        char text[log_line_size];
        format_step(text, {.step = progress.steps,
                           .total_steps = facts_.total_steps,
                           .progress_percent = 100 * rate(static_cast<double>(progress.samples),
                                                          static_cast<double>(facts_.total_samples)),
                           .loss = interval_loss_.mean(),
                           .grad_norm = step.grad_norm,
                           .lr = plan.lr,
                           .tokens_per_second = rate(static_cast<double>(progress.tokens - before.tokens), interval),
                           .flops_per_second = rate(flops_.of(progress.tokens - before.tokens,
                                                              progress.tokens_squared - before.tokens_squared), interval),
                           .peak = facts_.matmul_peak,
                           .seconds_left = left,
                           .skipped = progress.skipped,
                           .loss_scale = step.loss_scale});
        show_line(text);
        write_seconds(progress);
        logged_ = progress;
        logged_seconds_ = recorded_seconds_;
        interval_loss_ = {};
    }
    draw_bar(progress, step.loss.mean(), left);
}

void Observe::record_eval(const Progress& progress, const EvalResult& eval) {
    JsonLine json("eval");
    json.count("step", progress.steps)
        .count("samples", progress.samples)
        .number("loss", eval.loss.mean())
        .number("perplexity", eval.perplexity())
        .count("tokens", eval.loss.count)
        .number("seconds", eval.seconds);
    if (eval.bytes > 0) json.count("bytes", eval.bytes).number("bits_per_byte", eval.bits_per_byte());
    write_json(json.finish());
    char text[log_line_size];
    format_eval(text, progress.steps, eval);
    show_line(text);
    outputs_.eval(progress, eval, unix_seconds());
    recorded_joules_ = energy_.joules();
}

void Observe::record_saving(const Progress& progress) {
    outputs_.saving(progress, unix_seconds());
    write_seconds(progress);  // whoever goes on from it loses what comes after this moment
}

void Observe::record_save(const Progress& progress, const char* path, double seconds) {
    write_json(JsonLine("save")
                   .count("step", progress.steps)
                   .count("samples", progress.samples)
                   .text("path", path)
                   .number("seconds", seconds)
                   .finish());
    outputs_.saved(progress, unix_seconds());
    recorded_joules_ = energy_.joules();
    if (progress.steps == latest_.steps) write_seconds(progress);  // and not of one that was written while training went on
}

void Observe::tell(const char* json, const char* line) {
    write_json(json);
    if (line) show_line(line);
}

void Observe::warn(const std::string& text) {
    clear_bar();
    std::fprintf(stderr, "keel: warning: %s\n", text.c_str());
}

// What the session came to, for people: utilisation, goodput, and what observing took.
void Observe::show_end(const Progress& progress) {
    const double seconds = training_seconds(ledger_);
    const std::int64_t steps = progress.steps - first_.steps;
    if (steps == 0 || !(seconds > 0)) return;
    const double flops = flops_.of(progress.tokens - first_.tokens, progress.tokens_squared - first_.tokens_squared);
    std::printf("%s\n", mfu_text(config_, flops, seconds, facts_.ranks, facts_.matmul_peak, facts_.device_peak).c_str());
    std::printf("goodput %.1f %% of %.1f s; observing took %.3f ms a step, %.3f %% of it\n",
                100 * goodput(ledger_.all_seconds()), ledger_.wall_seconds(), 1e3 * cost_seconds_ / static_cast<double>(steps),
                100 * cost_seconds_ / seconds);
}

std::filesystem::path Observe::finish(const Progress& progress, const char* why, const Ending& ending) {
    clear_bar();
    show_end(progress);
    write_seconds(progress);
    JsonLine json("end");
    json.text("why", why).number("time", unix_seconds()).count("step", progress.steps).count("samples", progress.samples);
    if (energy_.devices() > 0) json.number("joules", energy_.joules());
    write_json(json.number("observe_seconds", microseconds(cost_seconds_)).finish());
    const auto path = dir_ / "report.html";
    write_report(path, dir_ / "log.jsonl",
                 {.config = config_,
                  .parameters = facts_.parameters,
                  .matmul_peak = facts_.matmul_peak,
                  .device_peak = facts_.device_peak,
                  .memory_table = facts_.memory_table,
                  .threads = facts_.threads,
                  .ranks = facts_.ranks,
                  .ending = ending});
    return path;
}

void Observe::write_json(const char* line) {
    log_.write(line);
    log_.flush();
}

void Observe::show_line(const char* line) {
    clear_bar();
    std::fputs(line, stdout);
    std::fflush(stdout);
}

void Observe::draw_bar(const Progress& progress, double loss, double seconds_left) {
    if (!bar_) return;
    const double now = ledger_.wall_seconds();
    if (bar_shown_ && now - bar_drawn_ < bar_seconds) return;
    bar_drawn_ = now;
    bar_shown_ = true;
    constexpr int width = 30;
    const double share = std::clamp(rate(static_cast<double>(progress.samples),
                                         static_cast<double>(facts_.total_samples)), 0.0, 1.0);
    char cells[width + 1];
    for (int i = 0; i < width; ++i) cells[i] = i < static_cast<int>(share * width) ? '#' : '.';
    cells[width] = '\0';
    std::fprintf(stderr, "\r[%s] %s %%  loss %s  left %s \033[K", cells, number_text("%.1f", 100 * share).text,
                 number_text("%.3f", loss).text, duration_text(seconds_left).text);
}

void Observe::clear_bar() {
    if (bar_shown_) std::fputs("\r\033[K", stderr);
    bar_shown_ = false;
}

}  // namespace keel
