#include "engine/fault/inject.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <limits>
#include <numeric>
#include <span>
#include <sstream>
#include <thread>

#include "engine/observe/print.h"
#include "kernels/base/error.h"

namespace keel {

namespace fs = std::filesystem;

namespace {

// One element, as the fault wants it.
template <class T> void spoil(const InjectedFault& fault, std::byte* element, int bit) {
    using Bits = std::conditional_t<sizeof(T) == 2, std::uint16_t, std::uint32_t>;
    const auto value = [&](float x) {
        const T written(x);
        std::memcpy(element, &written, sizeof written);
    };
    switch (fault.kind) {
        case FaultKind::grad_nan:
        case FaultKind::param_nan: return value(std::numeric_limits<float>::quiet_NaN());
        case FaultKind::grad_value:
        case FaultKind::param_value: return value(static_cast<float>(fault.value));
        default: break;
    }
    Bits bits;
    std::memcpy(&bits, element, sizeof bits);
    bits = static_cast<Bits>(bits ^ (Bits{1} << bit));
    std::memcpy(element, &bits, sizeof bits);
}

enum What { what_rank, what_tensor, what_element, what_bit, what_file, draws };  // is drawn

// The ranks that are to suffer it. Of several, none is rank 0: it keeps the log of what they did.
std::vector<int> sufferers(const InjectedFault& fault, const Random& random, int ranks) {
    if (fault.rank >= 0) return {fault.rank};
    if (fault.ranks == 0) return {static_cast<int>(random.bits64(what_rank) % static_cast<std::uint64_t>(ranks))};
    std::vector<int> out(static_cast<std::size_t>(ranks - 1));
    std::iota(out.begin(), out.end(), 1);
    for (std::size_t i = 0; i < static_cast<std::size_t>(fault.ranks); ++i)
        std::swap(out[i], out[i + random.bits64(~i) % (out.size() - i)]);  // no step comes to ~i
    out.resize(static_cast<std::size_t>(fault.ranks));
    std::ranges::sort(out);
    return out;
}

}  // namespace

Injector::Injector(const Config& config, const Backend& backend, int rank, int ranks, Model& model)
    : config_(config), backend_(backend), rank_(rank), ranks_(ranks), model_(model), record_(fs::path(config.run.dir) / "injected.txt") {
    const std::vector<InjectedFault> faults = parse_injected_faults(config);
    for (std::size_t i = 0; i < faults.size(); ++i) {
        const InjectedFault& fault = faults[i];
        const std::string where = concat("--inject.faults ", fault.text, ": ");
        if (fault.rank >= ranks) fail_usage(where, "rank ", fault.rank, " is none of the run's ", ranks);
        if (fault.ranks >= ranks) fail_usage(where, "ranks=", fault.ranks, ": besides rank 0 the run has ", ranks - 1);
        const Random random(config.inject.seed, Purpose::test, concat(i, fault.text));
        const auto alike = 1 + std::ranges::count(std::span(faults).first(i), fault.text, &InjectedFault::text);
        for (const int whose : sufferers(fault, random, ranks)) {
            armed_.push_back({.fault = fault, .name = alike == 1 ? fault.text : concat(fault.text, " #", alike), .rank = whose,
                              .random = random, .waits = fault.delay >= 0});
            if (whose != rank) continue;
            if (!fault.tensor.empty() && !model.params().has(fault.tensor))
                fail_usage(where, "rank ", whose, " holds no part of ", fault.tensor, "; name a rank that does");
            if (fault.of_files() && !files_) {
                std::vector<fs::path> folders = {fs::path(config.run.dir) / "checkpoints"};
                if (!config.ckpt.local_dir.empty()) folders.emplace_back(config.ckpt.local_dir);
                files_.emplace(folders);
            }
        }
    }
    std::ifstream record(record_);
    for (std::string line; std::getline(record, line);) {
        std::istringstream words(line);
        int whose = -1;
        std::int64_t step = 0;
        std::string fault;
        if (!(words >> whose >> step) || !std::getline(words >> std::ws, fault)) continue;
        for (Armed& a : armed_)
            if (a.rank == whose && a.name == fault) a.struck.insert(step);
    }
    for (Armed& a : armed_)  // whose time came in an earlier start
        if (a.waits && !a.fault.lasting && !a.struck.empty()) a.fault.step = *a.struck.begin(), a.waits = false;
}

std::string Injector::warning(std::int64_t first_step) const {
    std::string out = "faults will be injected into this run (--inject.faults):";
    for (const Armed& a : armed_) {
        out += concat("\n  rank ", a.rank, ": ", a.fault.text);
        if (!a.fault.text.starts_with(concat(name(a.fault.kind), ","))) out += concat(", drawn: ", name(a.fault.kind));
        if (!a.struck.empty()) out += concat(", has struck at step ", *a.struck.rbegin());
        if (a.waits)
            out += print(", %.2f s after the beginning of step %lld in this start", a.fault.delay,
                         static_cast<long long>(std::max(a.fault.step, first_step)));
    }
    return out;
}

std::uint64_t Injector::draw(const Armed& a, int what, std::uint64_t below) const {
    return a.random.bits64(static_cast<std::uint64_t>(draws * step_ + what)) % below;
}

void Injector::tell(Armed& a, const std::string& what) {
    std::fprintf(stderr, "keel: injected at step %lld on rank %d: %s: %s\n", static_cast<long long>(step_), rank_, name(a.fault.kind),
                 what.c_str());
    if (!a.struck.insert(step_).second) return;
    const std::string line = concat(rank_, " ", step_, " ", a.name, "\n");
    const int fd = ::open(record_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    const bool written = fd >= 0 && ::write(fd, line.data(), line.size()) == static_cast<ssize_t>(line.size());
    if (fd >= 0) ::close(fd);
    if (!written) fail("cannot write ", record_.string(), ": ", std::strerror(errno), "; what was injected would be forgotten");
}

// From when its time has come it is a fault of the step that begins.
void Injector::look_at_clock(Armed& a) {
    if (step_ < a.fault.step) return;
    const auto now = Clock::now();
    if (!a.since) a.since = now;
    if (seconds_between(*a.since, now) < a.fault.delay) return;
    a.fault.step = step_;
    a.waits = false;
}

void Injector::begin(std::int64_t step) {
    const bool again = std::exchange(step_, step) == step;
    for (Armed& a : armed_) {
        a.here = false;
        if (a.rank != rank_) continue;
        if (a.waits && !again) look_at_clock(a);
        if (a.fault.kind == FaultKind::disk_full) files_->fill_disk(rank_, ranks_, false);
    }
    for (Armed& a : armed_) {
        const InjectedFault& f = a.fault;
        if (a.rank != rank_ || a.waits) continue;
        if (f.kind == FaultKind::disk_full)
            for (std::int64_t ago = 1; ago < f.steps; ++ago)
                if (f.due(step - ago)) files_->fill_disk(rank_, ranks_, true);
        if (!f.due(step) || (!f.lasting && a.struck.contains(step))) continue;
        if (f.of_gradient()) a.here = true;
        else if (std::exchange(a.last, step) != step) strike(a);  // what it did to memory is still there when a step runs again
    }
}

void Injector::strike(Armed& a) {
    switch (a.fault.kind) {
        case FaultKind::slow:
            tell(a, print("for %g s", a.fault.seconds));
            return std::this_thread::sleep_for(std::chrono::duration<double>(a.fault.seconds));
        case FaultKind::hang:
            tell(a, "this rank does nothing any more");
            for (;;) pause();
        case FaultKind::kill:
            tell(a, "the end of this process");
            raise(SIGKILL);
            return;
        case FaultKind::write_fail:
            tell(a, "the next block of a checkpoint is not written");
            return files_->fail_next_write(rank_, ranks_);
        case FaultKind::disk_full:
            tell(a, print("for %lld steps", static_cast<long long>(a.fault.steps)));
            return files_->fill_disk(rank_, ranks_, true);
        case FaultKind::corrupt_checkpoint: return corrupt_checkpoint(a);
        case FaultKind::bad_core:
            tell(a, "the next self-test is to find a wrong product");
            bad_core_ = true;
            return;
        default: return strike_parameter(a);
    }
}

// Where it lies.
void Injector::spoil(const InjectedFault& fault, std::byte* element, Dtype dtype, int bit) {
    std::byte copy[sizeof(float)];
    backend_.copy_out(copy, element, size_bytes(dtype));
    with_type(dtype, [&]<class T>() { keel::spoil<T>(fault, copy, bit); });
    backend_.copy_in(element, copy, size_bytes(dtype));
}

int Injector::tensor_of(const Armed& a) const {
    const std::vector<Param>& specs = model_.params().specs;
    if (a.fault.tensor.empty()) return static_cast<int>(draw(a, what_tensor, specs.size()));
    return static_cast<int>(std::ranges::find(specs, a.fault.tensor, &Param::name) - specs.begin());
}

void Injector::strike_parameter(Armed& a) {
    model_.gradients().need_all();  // what is still on its way from other replicas would undo it
    const Param& p = model_.params().specs[static_cast<std::size_t>(tensor_of(a))];
    const auto element = static_cast<std::int64_t>(draw(a, what_element, static_cast<std::uint64_t>(p.size())));
    const bool wide = model_.dtype() == Dtype::f32;
    const int bit = a.fault.bit >= 0 ? a.fault.bit : static_cast<int>(draw(a, what_bit, wide ? 32 : 16));
    tell(a, print("%s, element %lld, bit %d", p.name.c_str(), static_cast<long long>(element), bit));
    spoil(a.fault, model_.param_data() + (p.offset + element) * size_bytes(model_.dtype()), model_.dtype(), bit);
}

void Injector::gradient(int param, View<float> x) {
    for (Armed& a : armed_) {
        if (!a.here || tensor_of(a) != param) continue;
        a.here = false;  // once in an attempt, though a gradient may come in several parts
        const auto element = static_cast<std::int64_t>(draw(a, what_element, static_cast<std::uint64_t>(x.size())));
        const int bit = a.fault.bit >= 0 ? a.fault.bit : static_cast<int>(draw(a, what_bit, 32));
        const std::string& tensor = model_.params().specs[static_cast<std::size_t>(param)].name;
        tell(a, print("gradient of %s, element %lld, bit %d", tensor.c_str(), static_cast<long long>(element), bit));
        spoil(a.fault, reinterpret_cast<std::byte*>(x.data() + element), Dtype::f32, bit);
    }
}

Tampering Injector::tampering() {
    if (!std::exchange(bad_core_, false)) return {};
    return {.product = [](int, std::span<float> product) { product.front() += 1; }, .memory = {}};
}

void Injector::corrupt_checkpoint(Armed& a) {
    fs::path newest;
    const fs::path root = fs::path(config_.run.dir) / "checkpoints";
    for (const auto& entry : fs::directory_iterator(root))
        if (entry.path().filename().string().starts_with("step-")) newest = std::max(newest, entry.path());
    std::vector<fs::path> files;
    if (!newest.empty())
        for (const auto& entry : fs::directory_iterator(newest))
            if (entry.file_size() > 0) files.push_back(entry.path());
    if (files.empty()) return tell(a, "there is no checkpoint yet");
    std::ranges::sort(files);
    const fs::path& file = files[draw(a, what_file, files.size())];
    const std::uint64_t byte = draw(a, what_element, fs::file_size(file)), bit = draw(a, what_bit, 8);
    tell(a, print("%s, byte %llu, bit %llu", file.c_str(), static_cast<unsigned long long>(byte), static_cast<unsigned long long>(bit)));
    std::fstream io(file, std::ios::in | std::ios::out | std::ios::binary);
    char c = 0;
    if (io.seekg(static_cast<std::streamoff>(byte)) && io.get(c))
        io.seekp(static_cast<std::streamoff>(byte)).put(static_cast<char>(static_cast<unsigned char>(c) ^ (1u << bit)));
    if (!io.flush()) fail("cannot write ", file.string(), ", which was to be damaged");
}

}  // namespace keel
