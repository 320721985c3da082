#include "kernels/cudasim/block.h"

#include <algorithm>
#include <bit>
#include <string_view>

#include "kernels/cudasim/sanitizers.h"

namespace sim {
namespace {

thread_local Block* running_block = nullptr;

// The set bit of mask that follows `after` in cyclic order; mask is not 0.
unsigned next_bit(unsigned mask, unsigned after) {
    const unsigned above = after >= 31 ? 0 : mask & (all_lanes << (after + 1));
    return static_cast<unsigned>(std::countr_zero(above ? above : mask));
}
unsigned previous_bit(unsigned mask, unsigned before) {
    const unsigned below = mask & ((1u << before) - 1);
    return 31u - static_cast<unsigned>(std::countl_zero(below ? below : mask));
}
unsigned random_bit(unsigned mask, std::uint64_t random) {
    for (auto skip = random % static_cast<unsigned>(std::popcount(mask)); skip > 0; --skip) mask &= mask - 1;
    return static_cast<unsigned>(std::countr_zero(mask));
}
constexpr unsigned bit(unsigned lane) { return 1u << (lane % warp_lanes); }

}  // namespace

Block::Block() = default;
Block::~Block() = default;

Block& Block::current() { return *running_block; }
bool Block::in_kernel() { return running_block != nullptr; }

std::uint64_t Block::random() {  // splitmix64
    std::uint64_t z = random_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

// ---- the life of a block --------------------------------------------------------------------------------------------

void Block::prepare(const Launch& launch, cuda::uint3 index) {
    launch_ = &launch;
    index_ = index;
    threads_ = launch.block.x * launch.block.y * launch.block.z;
    warp_count_ = (threads_ + warp_lanes - 1) / warp_lanes;
    alive_ = threads_;
    runnable_warps_ = warp_count_ == 32 ? all_lanes : (1u << warp_count_) - 1;
    idle_yields_ = 0;
    stopped_ = false;
    deferred_.clear();
    ++blocks_run_;
#if SIM_TSAN
    while (fibers().size() < threads_) {  // here, because what makes a fiber is ordered before what it does
        fibers().push_back(std::make_unique<Fiber>());
        fibers().back()->start(&trampoline);
    }
#endif
    free_.clear();
    for (auto& fiber : fibers()) free_.push_back(fiber.get());
#if SIM_TSAN
    // To the sanitizer a fiber is a thread: the same one for the same lane of two blocks would order their accesses.
    if (!free_.empty()) std::rotate(free_.begin(), free_.begin() + blocks_run_ * 7 % free_.size(), free_.end());
#endif
    if (lanes_.size() < threads_) lanes_.resize(threads_);
    cuda::uint3 at{0, 0, 0};
    for (unsigned i = 0; i < threads_; ++i) {
        Lane& lane = lanes_[i];
        lane.fiber = nullptr;
        lane.waits = Waits::nothing;
        lane.passed = 0;
        lane.part = nullptr;
        lane.index = at;
        lane.copies.queue.clear();
        lane.copies.groups.clear();
        lane.copies.open = 0;
        lane.stores.queue.clear();
        lane.stores.groups.clear();
        if (++at.x == launch.block.x) {
            at.x = 0;
            if (++at.y == launch.block.y) at.y = 0, ++at.z;
        }
    }
    for (unsigned w = 0; w < warp_count_; ++w) {
        const unsigned lanes = threads_ - w * warp_lanes;
        const unsigned mask = lanes >= warp_lanes ? all_lanes : (1u << lanes) - 1;
        const bool backward = config_.order == Order::warps_backward || config_.order == Order::lanes_backward;
        warps_[w] = {mask, mask, 0, backward ? 0u : 31u};
        products_[w] = {};
    }
    for (Barrier& barrier : barriers_) barrier = {};
    edges_.begin();
    shared_.begin(launch.dynamic_bytes, config_.poison);
    mbarriers_.begin();
    cuda::blockIdx = index;
    cuda::blockDim = launch.block;
    cuda::gridDim = launch.grid;
}

bool Block::run(const Launch& launch, cuda::uint3 index, const Config& config, std::uint64_t seed, const void* over) {
    config_ = config;
    random_ = seed;
    over_ = over;
    prepare(launch, index);
    slow_ = static_cast<unsigned>((seed % warp_count_ * warp_lanes + random() % warp_lanes) % threads_);  // a warp after the other
    constexpr unsigned turns[] = {0, 64, 256, 1024};  // goes one time in so many
    slow_turns_ = turns[random() % std::size(turns)];
    Block* const before = running_block;
    running_block = this;
    const bool backward = config_.order == Order::warps_backward || config_.order == Order::lanes_backward;
    running_ = backward ? 0 : threads_ - 1;
    happens_before(&main_);
    const auto first = static_cast<unsigned>(pick());
    set_running(first);
    Fiber::switch_from(main_, *lanes_[first].fiber);
    if (!stopped_) finish();
    running_block = before;
    ++counters_.blocks;
    return !stopped_;
}

// After the last thread: what a block must not leave behind.
void Block::finish() {
    if (!deferred_.empty())
        report(Kind::missing_wait, std::to_string(deferred_.size()) + " bulk loads of " + block_text() +
                                       " had not landed when its last thread left, the first of them started at " +
                                       where(deferred_.front().site));
    deferred_.clear();
    check_warpgroups();
    if (!config_.early_exit) {
        unsigned most = 0;
        for (unsigned i = 0; i < threads_; ++i) most = std::max(most, lanes_[i].passed);
        for (unsigned n = 0; n < most; ++n) {
            const std::string fewer = ranges_of([&](const Lane& lane) { return lane.passed == n; });
            if (fewer.empty()) continue;
            Site site = launch_->site;
            for (unsigned i = 0; i < threads_; ++i)
                if (lanes_[i].passed == most) site = lanes_[i].site;
            report(Kind::barrier_count, "threads " + fewer + " of " + block_text() + " passed __syncthreads " +
                                            std::to_string(n) + " times, others " + std::to_string(most) +
                                            " times, last at " + where(site));
            break;
        }
    }
    if (const std::string damage = shared_.damage(); !damage.empty())
        report(Kind::out_of_bounds, "shared memory of " + block_text() + " was written " + damage);
}

void Block::trampoline() {
    Fiber::entered();
    Block& block = current();
    do {
        happens_after(&block.main_);
        block.launch_->call(block.launch_->arguments);
        happens_before(block.over_);
    } while (block.leave());
}

void Block::set_running(unsigned i) {
    running_ = i;
    Lane& lane = lanes_[i];
    Warp& warp = warps_[i / warp_lanes];
    warp.runnable &= ~bit(i);
    if (!warp.runnable) runnable_warps_ &= ~(1u << (i / warp_lanes));
    warp.last = i % warp_lanes;
    lane.waits = Waits::nothing;
    cuda::threadIdx = lane.index;
    if (!lane.fiber) {
        const IgnoreRaces fibers_are_the_models;
        if (free_.empty()) {
            fibers().push_back(std::make_unique<Fiber>());
            free_.push_back(fibers().back().get());
        }
        lane.fiber = free_.back();
        free_.pop_back();
        lane.fiber->start(&trampoline);
    }
}

void Block::make_runnable(unsigned i) {
    warps_[i / warp_lanes].runnable |= bit(i);
    runnable_warps_ |= 1u << (i / warp_lanes);
}

bool Block::leave() {
    Lane& over = lanes_[running_];
    const unsigned w = running_ / warp_lanes;
    over.waits = Waits::over;
    warps_[w].alive &= ~bit(running_);
    --alive_;
    idle_yields_ = 0;
    check_copies_over();
    check_stores_over();
    if (!warps_[w].alive) check_products_over(w);
    for (unsigned id = 0; id < barriers_.size(); ++id) complete_if_full(id);
    for (unsigned parked = warps_[w].parked; parked; parked &= parked - 1) {
        const unsigned lane = w * warp_lanes + static_cast<unsigned>(std::countr_zero(parked));
        unsigned group = 0;
        if ((warps_[w].parked & bit(lane)) && collective_ready(lane, group)) do_collective(w, group);
    }
    Fiber* const fiber = over.fiber;
    if (alive_ == 0) Fiber::switch_from(*fiber, main_, true);
    const auto next = static_cast<unsigned>(pick_or_stop());
#if !SIM_TSAN  // to the thread sanitizer a stack is a thread, and this one is over
    if (!lanes_[next].fiber) {
        lanes_[next].fiber = fiber;
        set_running(next);
        return true;
    }
    free_.push_back(fiber);
#endif
    set_running(next);
    Fiber::switch_from(*fiber, *lanes_[next].fiber, true);
    return false;
}

// ---- which thread goes on -------------------------------------------------------------------------------------------

bool Block::only_slow_can_run() const {
    const unsigned warp = slow_ / warp_lanes;
    return runnable_warps_ == 1u << warp && warps_[warp].runnable == bit(slow_);
}

int Block::pick() {
    if (!runnable_warps_) return -1;
    const unsigned here = running_ / warp_lanes;
    const bool stay = runnable_warps_ >> here & 1u;
    unsigned w = 0, lane = 0;
    switch (config_.order) {
        case Order::warps_forward:
            w = stay ? here : next_bit(runnable_warps_, here);
            lane = next_bit(warps_[w].runnable, warps_[w].last);
            break;
        case Order::warps_backward:
            w = stay ? here : previous_bit(runnable_warps_, here);
            lane = previous_bit(warps_[w].runnable, warps_[w].last);
            break;
        case Order::lanes_forward:
            w = next_bit(runnable_warps_, here);
            lane = next_bit(warps_[w].runnable, warps_[w].last);
            break;
        case Order::lanes_backward:
            w = previous_bit(runnable_warps_, here);
            lane = previous_bit(warps_[w].runnable, warps_[w].last);
            break;
        case Order::random_lanes: {
            // The slow thread goes when nobody else can, nor a bulk copy land; when its turn has come, which may be
            // never; or when somebody spins, who may wait for it.
            const bool turn = idle_yields_ > 0 || (slow_turns_ > 0 && random() % slow_turns_ == 0);
            while (!turn && only_slow_can_run() && !deferred_.empty()) land_one();
            const bool waits = !turn && !only_slow_can_run();
            const unsigned slow_warp = slow_ / warp_lanes, slow = waits ? bit(slow_) : 0;
            const bool alone = (warps_[slow_warp].runnable & ~slow) == 0;
            w = random_bit(alone ? runnable_warps_ & ~(1u << slow_warp) : runnable_warps_, random());
            lane = random_bit(w == slow_warp ? warps_[w].runnable & ~slow : warps_[w].runnable, random());
            break;
        }
        case Order::random_warps:
            w = stay ? here : random_bit(runnable_warps_, random());
            lane = next_bit(warps_[w].runnable, warps_[w].last);
            break;
    }
    return static_cast<int>(w * warp_lanes + lane);
}

// Bulk copies land when nothing else can run; if nothing is left to land, nobody will ever go on.
int Block::pick_or_stop() {
    for (;;) {
        if (const int next = pick(); next >= 0) return next;
        if (deferred_.empty()) stop(Kind::deadlock, "in " + block_text() + ": " + waiters());
        land_one();
    }
}

void Block::land_one() {
    const IgnoreRaces the_work_is_no_threads;
    const auto chosen = deferred_.begin() + static_cast<std::ptrdiff_t>(random() % deferred_.size());
    const Deferred work = std::move(*chosen);
    deferred_.erase(chosen);
    work.run();
}

void Block::reschedule() {
    Lane& from = lanes_[running_];
    const unsigned before = running_;
    const auto next = static_cast<unsigned>(pick_or_stop());
    set_running(next);
    if (next != before) Fiber::switch_from(*from.fiber, *lanes_[next].fiber);
}

void Block::yield(const Site& site) {
    Lane& lane = lanes_[running_];
    lane.site = site;
    const bool alone = runnable_warps_ == 0;
    // Threads that spin while nobody does anything else will spin for ever.
    if (++idle_yields_ > 100000)
        stop(Kind::deadlock, "in " + block_text() + ": thread " + std::to_string(running_) + " spins at " +
                                 where(site) + "; " + waiters());
    if (alone && !deferred_.empty()) {
        land_one();
        idle_yields_ = 0;
    }
    const unsigned self = running_;
    const int next = alone ? -1 : pick();
    make_runnable(self);
    set_running(next < 0 ? self : static_cast<unsigned>(next));
    if (running_ != self) Fiber::switch_from(*lane.fiber, *lanes_[running_].fiber);
}

void Block::stop(Kind kind, const std::string& text) {
    if (ignoring_races_) heed_races();
    ignoring_races_ = false;
    report(kind, text);
    mark_broken();
    stopped_ = true;
    Fiber::switch_from(*lanes_[running_].fiber, main_, true);
    __builtin_unreachable();
}

// ---- barriers -------------------------------------------------------------------------------------------------------

unsigned Block::barrier(unsigned id, unsigned count, const Site& site, bool vote) {
    if (id >= barriers_.size())
        stop(Kind::divergence,
             "barrier " + std::to_string(id) + " of " + who() + " at " + where(site) + ": there are 16");
    Lane& lane = lanes_[running_];
    Barrier& barrier = barriers_[id];
    if (barrier.arrived > 0 && barrier.count != count)
        stop(Kind::divergence, who() + " expects " + std::to_string(count) + " threads at barrier " +
                                   std::to_string(id) + ", " + where(site) + ", and those before it " +
                                   std::to_string(barrier.count));
    barrier.count = count;
    ++barrier.arrived;
    barrier.waiting[running_ / warp_lanes] |= bit(running_);
    lane.waits = Waits::barrier;
    lane.barrier = id;
    lane.site = site;
    lane.vote = vote;
    const void* const edge = edges_.now(Edges::of_barrier(id));
    happens_before(edge);
    complete_if_full(id);
    reschedule();
    happens_after(edge);
    return lane.votes;
}

void Block::arrive(unsigned id, unsigned count, const Site& site) {
    Barrier& barrier = barriers_[id % barriers_.size()];
    if (barrier.arrived > 0 && barrier.count != count)
        stop(Kind::divergence, who() + " expects " + std::to_string(count) + " threads at barrier " +
                                   std::to_string(id) + ", " + where(site) + ", and those before it " +
                                   std::to_string(barrier.count));
    barrier.count = count;
    ++barrier.arrived;
    ++barrier.ghosts;
    happens_before(edges_.now(Edges::of_barrier(id % static_cast<unsigned>(barriers_.size()))));
    complete_if_full(id);
}

void Block::complete_if_full(unsigned id) {
    Barrier& barrier = barriers_[id];
    if (barrier.arrived == 0 || barrier.arrived < (barrier.count ? barrier.count : alive_)) return;
    unsigned votes = 0;
    const Lane* first = nullptr;
    const Lane* other = nullptr;
    for (unsigned w = 0; w < warp_count_; ++w)
        for (unsigned waiting = barrier.waiting[w]; waiting; waiting &= waiting - 1) {
            Lane& lane = lanes_[w * warp_lanes + static_cast<unsigned>(std::countr_zero(waiting))];
            votes += lane.vote;
            if (id == 0 && barrier.count == 0) ++lane.passed;
            if (!first)
                first = &lane;
            else if (!other && (lane.site.line() != first->site.line() ||
                                std::string_view(lane.site.file_name()) != first->site.file_name()))
                other = &lane;
        }
    if (other && barrier.count == 0) {
        const auto at = [&](const Lane& one) {
            return ranges_of([&](const Lane& lane) {
                return lane.waits == Waits::barrier && lane.barrier == id && lane.site.line() == one.site.line();
            });
        };
        report(Kind::divergence, "in " + block_text() + " one barrier was reached by threads " + at(*first) + " at " +
                                     where(first->site) + " and by threads " + at(*other) + " at " +
                                     where(other->site));
    }
    for (unsigned w = 0; w < warp_count_; ++w) {
        for (unsigned waiting = barrier.waiting[w]; waiting; waiting &= waiting - 1) {
            const unsigned i = w * warp_lanes + static_cast<unsigned>(std::countr_zero(waiting));
            lanes_[i].votes = votes;
            make_runnable(i);
        }
        barrier.waiting[w] = 0;
    }
    barrier.arrived = barrier.ghosts = 0;
    ++counters_.barriers;
    idle_yields_ = 0;
    edges_.next(Edges::of_barrier(id));
}

// ---- warp collectives -----------------------------------------------------------------------------------------------

void Block::join(Part& part) {
    const unsigned w = running_ / warp_lanes, me = bit(running_);
    Warp& warp = warps_[w];
    Lane& lane = lanes_[running_];
    if (!(part.mask & me))
        stop(Kind::warp_mismatch, who() + " calls " + part.what->name + " at " + where(part.site) + " with mask " +
                                      hex(part.mask) + ", which does not hold its own lane");
    for (unsigned others = part.mask & warp.parked; others; others &= others - 1) {
        const Part& other = *lanes_[w * warp_lanes + static_cast<unsigned>(std::countr_zero(others))].part;
        if (!(other.mask & me) || (other.mask == part.mask && other.what == part.what)) continue;
        stop(Kind::warp_mismatch, who() + " calls " + part.what->name + " with mask " + hex(part.mask) + " at " +
                                      where(part.site) + ", and lane " + std::to_string(std::countr_zero(others)) +
                                      " waits for it in " + other.what->name + " with mask " + hex(other.mask) +
                                      " at " + where(other.site));
    }
    warp.parked |= me;
    lane.part = &part;
    lane.waits = Waits::collective;
    lane.site = part.site;
    unsigned group = 0;
    if (collective_ready(running_, group)) do_collective(w, group);
    reschedule();
}

// Whether all that the parked lane names, but those that have left, are there for the same thing.
bool Block::collective_ready(unsigned i, unsigned& group) const {
    const Warp& warp = warps_[i / warp_lanes];
    const Part& part = *lanes_[i].part;
    group = part.mask & warp.alive;
    if ((warp.parked & group) != group) return false;
    for (unsigned rest = group; rest; rest &= rest - 1) {
        const Part& other = *lanes_[i / warp_lanes * warp_lanes + static_cast<unsigned>(std::countr_zero(rest))].part;
        if (other.mask != part.mask || other.what != part.what) return false;
    }
    return true;
}

void Block::do_collective(unsigned w, unsigned group) {
    Part* parts[warp_lanes];
    const Collective* what = nullptr;
    for (unsigned l = 0; l < warp_lanes; ++l) {
        parts[l] = group >> l & 1u ? lanes_[w * warp_lanes + l].part : nullptr;
        if (parts[l]) what = parts[l]->what;
    }
    if (what->whole_warp && group != all_lanes) {
        const Part& part = *parts[std::countr_zero(group)];
        stop(Kind::inactive_lane, "a warp of " + block_text() + " calls " + what->name + " at " + where(part.site) +
                                      ", which takes all 32 lanes; lanes " + hex(~group) + " have left");
    }
    ignore_races();
    ignoring_races_ = true;
    what->run(parts, group);
    ignoring_races_ = false;
    heed_races();
    idle_yields_ = 0;
    warps_[w].parked &= ~group;
    warps_[w].runnable |= group;
    runnable_warps_ |= 1u << w;
}

// ---- waiting for an address -----------------------------------------------------------------------------------------

void Block::wait_at(const void* address, const char* what, const Site& site) {
    Lane& lane = lanes_[running_];
    lane.waits = Waits::address;
    lane.address = address;
    lane.what = what;
    lane.site = site;
    reschedule();
}

void Block::wake(const void* address) {
    for (unsigned i = 0; i < threads_; ++i)
        if (lanes_[i].waits == Waits::address && lanes_[i].address == address) make_runnable(i);
}

}  // namespace sim
