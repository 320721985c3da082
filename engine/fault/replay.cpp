#include "engine/fault/replay.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "comm/agree.h"
#include "engine/batch_sizes.h"
#include "engine/observe/log_line.h"
#include "engine/observe/print.h"
#include "engine/parallel/layout.h"

namespace keel {
namespace {

constexpr std::int64_t before_all = -1, after_forward = std::int64_t{1} << 40;  // places in the order of a step

bool all_finite(View<const std::byte> x, Dtype dtype) {
    const auto any_bad = [&]<class Bits>(Bits exponent) {
        Bits bits;
        for (std::int64_t i = 0; i < x.size(); i += sizeof bits) {
            std::memcpy(&bits, x.data() + i, sizeof bits);
            if ((bits & exponent) == exponent) return true;
        }
        return false;
    };
    switch (dtype) {  // all ones in the exponent
        case Dtype::f32: return !any_bad(std::uint32_t{0x7f800000});
        case Dtype::bf16: return !any_bad(std::uint16_t{0x7f80});
        case Dtype::f16: break;
    }
    return !any_bad(std::uint16_t{0x7c00});
}

// A step without a single target has no loss, and is none to look into; nor is one whose gradients a smaller loss scale lets in.
bool not_finite(const StepResult& result) { return !result.applied && result.loss.count > 0 && !result.overflow; }

template <class T> View<const std::byte> bytes_of(View<T> x) {
    return {reinterpret_cast<const std::byte*>(x.data()), {x.bytes()}};
}

}  // namespace

Replay::Replay(const Config& config, const Backend& backend, const Ranks& ranks, Model& model, const std::string& host,
               Findings& findings, Dump dump)
    : config_(config.fault), backend_(backend), ranks_(ranks), model_(model), host_(host), findings_(findings), dump_(std::move(dump)),
      chunks_(static_cast<std::int64_t>(model.shard().chunks.size())), replicas_(replicas(config.parallel)) {
    for (const std::int64_t samples : BatchSizes(config).all())
        micro_batches_ = std::max(micro_batches_, micro_batches(config, samples));
    now_ = {.hashes = std::vector<std::uint64_t>(static_cast<std::size_t>(model.hash_slots().of_step())),
            .loss = std::vector<std::uint64_t>(static_cast<std::size_t>(micro_batches_)),
            .result = std::vector<std::uint64_t>(3)};
    shown_.resize(model.params().specs.size());
    first_ = now_;
    if (const ExactSums* exact = model.gradients().exact()) scales_ = exact->scales();
}

View<const std::byte> Replay::on_host(View<const std::byte> x) {
    if (!backend_.gpu) return x;
    looked_at_.resize(std::max(looked_at_.size(), static_cast<std::size_t>(x.size())));
    backend_.copy_out(looked_at_.data(), x.data(), x.size());
    return {looked_at_.data(), {x.size()}};
}

bool Replay::finite(View<const std::byte> x, Dtype dtype) { return all_finite(on_host(x), dtype); }

void Replay::begin_step(std::int64_t step) {
    step_ = step, attempt_ = 0;
    if (const ExactSums* exact = model_.gradients().exact()) scales_ = exact->scales();
}

void Replay::begin_attempt() {
    std::ranges::fill(now_.loss, 0);
    std::ranges::fill(shown_, 0);
    losses_ = 0;
    bad_ = {};
}

void Replay::put_back() {
    if (ExactSums* exact = model_.gradients().exact()) exact->set_scales(scales_);
}

void Replay::note(std::int64_t order, const std::string& name) {
    if (order < bad_.order) bad_ = {order, name};
}

// Micro-batch i of this replica, in the whole step.
std::int64_t Replay::whole(std::int64_t micro_batch) const { return micro_batch * replicas_ + ranks_.place.dp; }

std::int64_t Replay::place_of_forward(std::int64_t micro_batch, std::int64_t chunk) const {
    const std::int64_t stages = model_.shard().stages;
    return whole(micro_batch) * (stages * chunks_ + 1) + chunk * stages + model_.shard().stage;
}
std::int64_t Replay::place_of_loss(std::int64_t micro_batch) const {
    return (whole(micro_batch) + 1) * (model_.shard().stages * chunks_ + 1) - 1;
}
// Backward comes to the last parameters of the model first.
std::int64_t Replay::place_of_gradient(int param) const {
    return after_forward - model_.gradients().whole_index()[static_cast<std::size_t>(param)];
}

std::string Replay::name_of_forward(std::int64_t micro_batch, std::int64_t chunk) const {
    const LayerRange& r = model_.shard().chunks[static_cast<std::size_t>(chunk)];
    const std::string what = r.size() > 0 ? concat("layers ", r.begin, " to ", r.end - 1) : "the stage";
    return concat("what ", what, " put out for micro-batch ", whole(micro_batch));
}
std::string Replay::name_of_loss(std::int64_t micro_batch) const { return concat("the loss of micro-batch ", whole(micro_batch)); }
std::string Replay::name_of_gradient(int param) const {
    return "the gradient of " + model_.params().specs[static_cast<std::size_t>(param)].name;
}

void Replay::forward(std::int64_t micro_batch, int chunk, int slot) {
    model_.hash(model_.hash_slots().output(micro_batch, chunk), model_.output(slot));
    if (attempt_ == 0) return;
    const LayerRange& r = model_.shard().chunks[static_cast<std::size_t>(chunk)];
    const auto bad = [&](int layer) { return !finite(model_.layer_input(chunk, layer - r.begin, slot), model_.dtype()); };
    for (int layer = r.begin; layer < r.end; ++layer) {
        if (!bad(layer)) continue;
        const std::string source = layer > r.begin ? concat("what layer ", layer - 1, " puts out")
                                                   : concat("what goes into layer ", layer);
        return note(place_of_forward(micro_batch, chunk), concat(source, " for micro-batch ", whole(micro_batch)));
    }
    if (!finite(model_.output(slot), model_.dtype()))
        note(place_of_forward(micro_batch, chunk), name_of_forward(micro_batch, chunk));
}

void Replay::loss(double sum) {
    now_.loss[static_cast<std::size_t>(losses_)] = std::bit_cast<std::uint64_t>(sum);
    if (attempt_ > 0 && !std::isfinite(sum)) note(place_of_loss(losses_), name_of_loss(losses_));
    ++losses_;
}

void Replay::gradient(int param, View<const float> x) {
    model_.hash(model_.hash_slots().gradient(param, shown_[static_cast<std::size_t>(param)]++), bytes_of(x));
    if (attempt_ > 0 && !finite(bytes_of(x), Dtype::f32)) note(place_of_gradient(param), name_of_gradient(param));
}

bool Replay::again(const StepPlan& plan, const StepResult& result) {
    now_.result = {std::bit_cast<std::uint64_t>(result.loss.sum), std::bit_cast<std::uint64_t>(result.grad_norm),
                   static_cast<std::uint64_t>(result.loss.count)};
    // What an attempt had no micro-batch or use for is as it was in the one before.
    std::ranges::copy(model_.hashes().first(now_.hashes.size()), now_.hashes.begin());
    const auto same_as = [&](const Trail& other) { return !ranks_.world.any(!(now_ == other)); };
    switch (++attempt_) {
        case 1:
            if (!looks_wrong(result)) return commit(plan, result), false;
            first_ = now_;
            put_back();
            return true;
        case 2:
            if (same_as(first_)) return reproduced(plan, result), false;
            difference_ = first_of_all(first_difference());
            if (passed_over_ >= config_.tolerate) return passing(plan, result), false;
            second_ = now_;
            put_back();
            return true;
        default: {
            // Two of three are right, if they are good at all.
            const bool second = same_as(second_), first = same_as(first_);
            if ((first || second) && !not_finite(result)) return passed_over(plan, result), false;
            return passing(plan, result), false;
        }
    }
}

bool Replay::spiked(const StepResult& result) const {
    return spikes.loss.is_spike(result.loss.mean(), config_.spike_factor, config_.spike_steps) ||
           spikes.grad_norm.is_spike(result.grad_norm, config_.spike_factor, config_.spike_steps);
}

// `applied` was voted on already. One vote for the rest: a rank whose own sum went wrong suspects alone.
bool Replay::looks_wrong(const StepResult& result) {
    const bool due = config_.mode == "validate" && step_ % config_.interval == 0;
    return ranks_.world.any(not_finite(result) || due || spiked(result));
}

void Replay::commit(const StepPlan& plan, const StepResult& result) {
    if (!result.applied) return;
    if (const std::set<std::string>& then = findings_.open_hosts(step_); !then.empty()) {
        Finding f = finding("settled", plan, result);
        for (const std::string& host : then) f.where += "  it was on " + host + "\n";
        const bool elsewhere = std::ranges::none_of(findings_.hosts_now(), [&](const std::string& host) { return then.contains(host); });
        f.advice = elsewhere ? "The step is good here: a machine named computes wrongly. Training goes on"
                             : "The step is good now, on the same hardware: its error passed. Training goes on";
        findings_.add(std::move(f));
    }
    spikes.loss.add(result.loss.mean(), config_.spike_steps);
    spikes.grad_norm.add(result.grad_norm, config_.spike_steps);
}

Finding Replay::finding(const char* verdict, const StepPlan& plan, const StepResult& result) const {
    return {.verdict = verdict, .step = step_, .first_sample = plan.first_sample, .samples = plan.samples,
            .seen = concat("loss ", number_text("%.6g", result.loss.mean()).text, ", gradient norm ",
                           number_text("%.6g", result.grad_norm).text),
            .where = {}, .advice = {}, .dump = {}};
}

// Where this rank's two results part, in the order of the step.
Replay::Bad Replay::first_difference() const {
    Bad first;
    const HashSlots& slots = model_.hash_slots();
    const auto differs = [&](const auto& a, const auto& b, std::int64_t at, std::int64_t order, auto name) {
        const auto i = static_cast<std::size_t>(at);
        if (a[i] != b[i] && order < first.order) first = {order, name()};
    };
    for (std::int64_t m = 0; m < micro_batches_; ++m) {
        for (std::int64_t c = 0; c < chunks_; ++c)
            differs(now_.hashes, first_.hashes, slots.output(m, c), place_of_forward(m, c), [&] { return name_of_forward(m, c); });
        differs(now_.loss, first_.loss, m, place_of_loss(m), [&] { return name_of_loss(m); });
    }
    for (int p = 0; p < static_cast<int>(slots.params); ++p)
        for (std::int64_t use = 0; use < slots.uses; ++use)
            differs(now_.hashes, first_.hashes, slots.gradient(p, use), place_of_gradient(p), [&] { return name_of_gradient(p); });
    if (first.order == never && now_.result != first_.result) first = {never - 1, "a sum over ranks"};
    return first;
}

// The ranks at which it began, a line each. Where others are no worse than those, they have it from them.
std::string Replay::first_of_all(const Bad& mine) const {
    const int rank = ranks_.world.rank();
    const auto all = gather_strings(ranks_.world, concat(mine.order, " ", "rank ", rank, " on ", host_, ": ", mine.name));
    std::int64_t first = never;
    for (const std::string& line : all) first = std::min<std::int64_t>(first, std::stoll(line));
    std::string out;
    if (first == never) return "  nothing on any rank alone: a sum over ranks\n";
    for (const std::string& line : all)
        if (std::stoll(line) == first) out += "  " + line.substr(line.find(' ') + 1) + "\n";
    return out;
}

void Replay::passing(const StepPlan& plan, const StepResult& result) {
    put_back();
    Finding f = finding("passing", plan, result);
    f.where = difference_;
    f.advice = "The same step on the same data gave different results: this hardware computes wrongly now and then. Take it out, and "
               "start again; the checkpoint is from before the step";
    f.save = true, f.code = ExitCode::fault;
    findings_.add(std::move(f));
}

void Replay::passed_over(const StepPlan& plan, const StepResult& result) {
    ++passed_over_;
    commit(plan, result);
    Finding f = finding("passing", plan, result);
    f.where = difference_;
    f.advice = concat("One of three results was different; training goes on with the two that agree (", passed_over_,
                      " of --fault.tolerate ", config_.tolerate, ")");
    findings_.add(std::move(f));
}

void Replay::reproduced(const StepPlan& plan, const StepResult& result) {
    if (!not_finite(result)) {
        if (ranks_.world.any(spiked(result))) {
            Finding f = finding("spike", plan, result);
            f.advice = "Far larger than before, and the same when computed again: no fault of the hardware. Training goes on";
            f.dump = dump(plan, false);
            findings_.add(std::move(f));
            spikes.loss.accept(result.loss.mean()), spikes.grad_norm.accept(result.grad_norm);
        }
        return commit(plan, result);
    }
    put_back();
    const std::vector<Param>& specs = model_.params().specs;
    for (const Param& p : specs) {
        const std::int64_t size = size_bytes(model_.dtype());
        const View<const std::byte> x(model_.param_data() + p.offset * size, {p.size() * size});
        if (!finite(x, model_.dtype())) note(before_all, "the parameter " + p.name + ", before the step");
    }
    const bool bad_state = ranks_.world.any(bad_.order == before_all);
    Finding f = finding("open", plan, result);
    f.where = first_of_all(bad_);
    f.dump = dump(plan, true);
    f.save = !bad_state;
    const std::set<std::string>&then = findings_.open_hosts(step_), now = findings_.hosts_now();
    const bool elsewhere = std::ranges::none_of(now, [&](const std::string& host) { return then.contains(host); });
    const std::string past = concat("; --fault.skip ", step_, " goes past the step");
    if (then.empty()) {
        f.code = ExitCode::open;
        f.advice = "Computed again, the step is the same to the bit: the program, the data, or a defect of this hardware that stays. Start "
                   "the run again, best on another machine: it goes on from before the step, and then it is known" + past;
    } else {
        f.code = ExitCode::fault, f.verdict = "program";
        f.advice = elsewhere ? "Other machines came to the same: the program or the data" + past
                             : "A second start came to the same: the program or the data, if it is not this hardware, which a start "
                               "elsewhere would tell" + past;
    }
    if (bad_state) f.advice += ". What is in memory is no good, and was not saved: the newest checkpoint is from before";
    findings_.add(std::move(f));
}

std::string Replay::dump(const StepPlan& plan, bool bad_only) {
    const auto count = static_cast<std::size_t>(plan.samples / plan.micro_batch);
    std::vector<std::int64_t> bad(count), chosen;
    for (std::int64_t m = 0; bad_only && m < losses_; ++m)
        if (!std::isfinite(std::bit_cast<double>(now_.loss[static_cast<std::size_t>(m)])) && whole(m) < static_cast<std::int64_t>(count))
            bad[static_cast<std::size_t>(whole(m))] = 1;
    ranks_.world.all_reduce_max(backend_.host, View<std::int64_t>(bad.data(), {static_cast<std::int64_t>(count)}));
    const bool none = std::ranges::count(bad, 1) == 0;
    for (std::size_t m = 0; m < count; ++m)
        if (none || bad[m]) chosen.push_back(static_cast<std::int64_t>(m));
    std::string file;
    if (ranks_.world.rank() == 0) try {
            file = dump_(plan, chosen);
        } catch (const std::exception& e) {  // the verdict is worth more than the file
            std::fprintf(stderr, "keel: warning: the samples are not kept: %s\n", e.what());
        }
    return gather_strings(ranks_.world, file)[0];
}

}  // namespace keel
