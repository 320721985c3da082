#include "engine/observe/run_log.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "kernels/base/error.h"

namespace keel {
namespace {

using Json = nlohmann::json;

// A number, or the names that stand for what JSON cannot say.
double number(const Json& record, const char* key) {
    const auto found = record.find(key);
    if (found == record.end()) return 0;
    if (found->is_number()) return found->get<double>();
    if (*found == "Inf") return INFINITY;
    if (*found == "-Inf") return -INFINITY;
    return std::nan("");
}
std::int64_t count(const Json& record, const char* key) {
    const auto found = record.find(key);
    return found != record.end() && found->is_number_integer() ? found->get<std::int64_t>() : 0;
}
std::string text(const Json& record, const char* key) {
    const auto found = record.find(key);
    return found != record.end() && found->is_string() ? found->get<std::string>() : std::string();
}

PhaseSeconds phase_seconds(const Json& record) {
    PhaseSeconds out;
    for (std::size_t i = 0; i < phase_count; ++i) out[i] = number(record, key(static_cast<Phase>(i)));
    return out;
}

std::vector<StartupRow> startup_rows(const Json& record) {
    std::vector<StartupRow> rows;
    for (std::size_t i = 0; i + 1 < startup_count; ++i) {
        const std::string seconds = std::string(name(static_cast<Startup>(i))) + "_seconds_";
        rows.push_back({static_cast<Startup>(i), number(record, (seconds + "min").c_str()),
                        number(record, (seconds + "max").c_str()),
                        static_cast<int>(count(record, (seconds + "max_rank").c_str()))});
    }
    return rows;
}

// What is told once per step; whoever goes on after a step loses what came later.
struct Series {
    std::vector<Point> points{};
    void add(double step, double value) { points.push_back({step, value}); }
    void cut_after(double step) {
        std::erase_if(points, [step](const Point& p) { return p.x > step; });
    }
    double sum() const {
        return std::accumulate(points.begin(), points.end(), 0.0, [](double s, const Point& p) { return s + p.y; });
    }
    double last() const { return points.empty() ? 0 : points.back().y; }
};

}  // namespace

double sum(const PhaseSeconds& seconds) { return std::accumulate(seconds.begin(), seconds.end(), 0.0); }

double goodput(const PhaseSeconds& seconds) {
    const auto of = [&](Phase phase) { return seconds[static_cast<std::size_t>(phase)]; };
    const double all = sum(seconds);
    return all > 0 ? (of(Phase::compute) + of(Phase::optimizer)) / all : 0;
}

PhaseSeconds run_seconds(std::span<const Session> sessions) {
    PhaseSeconds out{};
    const auto add = [&](Phase phase, double seconds) {
        out[static_cast<std::size_t>(phase)] += std::max(seconds, 0.0);
    };
    for (std::size_t i = 0; i < sessions.size(); ++i) {
        const Session& s = sessions[i];
        const Session* next = i + 1 < sessions.size() ? &sessions[i + 1] : nullptr;
        const double known = s.readings.empty() ? 0 : s.readings.back().wall_seconds;
        const Session::Reading* kept = nullptr;
        for (const Session::Reading& r : s.readings)
            if (!next || r.step <= next->from) kept = &r;
        if (kept)
            for (std::size_t p = 0; p < phase_count; ++p) out[p] += kept->seconds[p];
        add(Phase::recovery, known - (kept ? kept->wall_seconds : 0));
        if (next) add(s.why.empty() ? Phase::recovery : Phase::idle, next->begin - (s.begin + known));
    }
    return out;
}

RunLog read_log(const std::filesystem::path& path) {
    std::ifstream in(path);
    if (!in) fail("report: ", path.string(), " cannot be read; a report is made from the log of its run");
    RunLog log;
    Series loss, eval_loss, lr, grad_norm, rate, flops, seconds, skipped, tokens, perplexity, bits;
    for (std::string line; std::getline(in, line);) {
        const Json record = Json::parse(line, nullptr, false);
        if (!record.is_object()) continue;
        const std::string event = text(record, "event");
        const double step = number(record, "step");
        if (event == "start") {
            log.sessions.push_back(
                {.begin = number(record, "time") - number(record, "wall_seconds"), .from = count(record, "step")});
            log.matmul_peak = number(record, "matmul_peak");
            const auto before = count(record, "tokens");
            log.tokens_before = log.sessions.size() == 1 ? before : std::min(log.tokens_before, before);
            log.parameters = count(record, "parameters");
            log.startup.clear(), log.ranks.clear(), log.observe_seconds = 0;
            for (Series* c :
                 {&loss, &eval_loss, &lr, &grad_norm, &rate, &flops, &seconds, &skipped, &tokens, &perplexity, &bits})
                c->cut_after(step);
        } else if (event == "step") {
            loss.add(step, number(record, "loss"));
            lr.add(step, number(record, "lr"));
            grad_norm.add(step, number(record, "grad_norm"));
            rate.add(step, number(record, "tokens_per_second"));
            flops.add(step, number(record, "flops"));
            seconds.add(step, number(record, "seconds"));
            skipped.add(step, record.contains("applied") && record["applied"] == false ? 1.0 : 0.0);
            tokens.add(step, number(record, "tokens"));
        } else if (event == "skip") {  // --fault.skip
            skipped.add(step, 1.0);
        } else if (event == "eval") {
            eval_loss.add(step, number(record, "loss"));
            perplexity.add(step, number(record, "perplexity"));
            bits.add(step, number(record, "bits_per_byte"));
        } else if (event == "seconds" && !log.sessions.empty()) {
            log.sessions.back().readings.push_back(
                {count(record, "step"), phase_seconds(record), number(record, "wall_seconds")});
        } else if (event == "end" && !log.sessions.empty()) {
            log.sessions.back().why = text(record, "why");
            log.observe_seconds = number(record, "observe_seconds");
        } else if (event == "startup") {
            log.startup = startup_rows(record);
        } else if (event == "rank") {
            log.ranks.push_back({static_cast<int>(count(record, "rank")), text(record, "host"), number(record, "steps"),
                                 number(record, "flops_per_second"), phase_seconds(record)});
        }
    }
    log.seconds = run_seconds(log.sessions);
    log.flops = flops.sum();
    log.flops_seconds = seconds.sum();
    log.skipped = static_cast<std::int64_t>(skipped.sum());
    log.last_perplexity = perplexity.last();
    log.last_bits_per_byte = bits.last();
    log.tokens = static_cast<std::int64_t>(tokens.last());
    if (!tokens.points.empty()) log.steps = static_cast<std::int64_t>(tokens.points.back().x);
    if (!log.sessions.empty()) log.why = log.sessions.back().why;
    for (std::size_t i = 0; i < loss.points.size(); ++i)
        log.loss_by_tokens.push_back({tokens.points[i].y, loss.points[i].y});
    for (const Point& e : eval_loss.points)  // at the step it was made after
        if (const auto at = std::ranges::lower_bound(tokens.points, e.x, {}, &Point::x); at != tokens.points.end())
            log.eval_by_tokens.push_back({at->y, e.y});
    log.loss = std::move(loss.points), log.eval_loss = std::move(eval_loss.points), log.lr = std::move(lr.points);
    log.grad_norm = std::move(grad_norm.points), log.tokens_per_second = std::move(rate.points);
    return log;
}

}  // namespace keel
