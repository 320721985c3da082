#include "data/loader.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "kernels/base/error.h"

namespace keel {
namespace {

// One prepared batch and the arrays behind it.
struct Slot {
    enum class Is : std::uint8_t {
        free,     // nobody's
        queued,   // hinted, not begun
        filling,  // being written, by the thread or by next()
        ready,    // written, or failed with `error`
        held,     // what next() returned last
    };
    Is is = Is::free;
    std::int64_t first = 0, count = 0;
    std::uint64_t turn = 0;  // order of the hints
    std::exception_ptr error;
    std::vector<Piece> pieces;                  // of one sample
    std::vector<std::uint8_t> begins, wanted;   // of its seq_len + 1 tokens: begins a document, is to be predicted
    std::vector<std::int32_t> tokens, ids, labels, positions, lo;
    Batch batch;

    Slot(std::int64_t seq_len, std::int64_t max_count, std::int64_t max_pieces)
        : pieces(static_cast<std::size_t>(max_pieces)),
          begins(static_cast<std::size_t>(seq_len + 2)),
          wanted(begins),
          tokens(static_cast<std::size_t>(seq_len + 1)),
          ids(static_cast<std::size_t>(seq_len * max_count)),
          labels(ids),
          positions(ids),
          lo(ids),
          batch(view_of(0)) {}

    Batch view_of(std::int64_t size) const {
        return {.ids = {ids.data(), {size}},
                .labels = {labels.data(), {size}},
                .positions = {positions.data(), {size}},
                .lo = {lo.data(), {size}},
                .loss_tokens = 0,
                .sum_len = 0,
                .sum_len_sq = 0,
                .first_sample = 0,
                .count = 0};
    }
    bool holds(std::int64_t f, std::int64_t c) const { return is != Is::free && first == f && count == c; }
};

}  // namespace

struct Loader::State {
    const Dataset& dataset;
    const LoaderSpec spec;
    std::vector<Slot> slots;
    std::mutex mutex;
    std::condition_variable changed;
    std::uint64_t turns = 0;
    bool stop = false;
    std::thread thread;

    State(const Dataset& d, const LoaderSpec& s) : dataset(d), spec(s) {}

    // Reads the pieces of a sample, one behind the other; marks where documents begin and what is to be predicted.
    std::int64_t gather(Slot& slot, std::int64_t sample) const {
        const std::int64_t count = dataset.pieces(sample, slot.pieces);
        std::fill(slot.begins.begin(), slot.begins.end(), std::uint8_t{0});
        std::int64_t at = 0;
        for (const Piece& piece : std::span(slot.pieces).first(static_cast<std::size_t>(count))) {
            const TokenFile& file = dataset.file(piece.file);
            file.read(
                piece.token,
                std::span(slot.tokens).subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(piece.count)));
            if (spec.reset_at_document) {
                slot.begins[static_cast<std::size_t>(at)] = 1;
                const std::int64_t end = piece.token + piece.count;
                std::int64_t document = file.document_of(piece.token) + 1;
                for (std::int64_t b; document < file.documents() && (b = file.document_begin(document)) < end;
                     ++document)
                    slot.begins[static_cast<std::size_t>(at + b - piece.token)] = 1;
            }
            for (std::int64_t t = 0; t < piece.count; ++t)
                slot.wanted[static_cast<std::size_t>(at + t)] =
                    !file.info().has_mask || file.is_target(piece.token + t);
            at += piece.count;
        }
        return at;
    }

    void fill_row(Slot& slot, std::int64_t row) const {
        const std::int64_t seq_len = dataset.seq_len(), base = row * seq_len;
        const std::int64_t total = gather(slot, slot.first + row), read = std::min(total, seq_len);
        std::int64_t start = 0;  // of the document in which t lies, counted from the row
        const auto close = [&](std::int64_t end) {
            slot.batch.sum_len += end - start;
            slot.batch.sum_len_sq += (end - start) * (end - start);
        };
        for (std::int64_t t = 0; t < read; ++t) {
            if (t > 0 && slot.begins[static_cast<std::size_t>(t)] != 0) {
                close(t);
                start = t;
            }
            const auto i = static_cast<std::size_t>(base + t), next = static_cast<std::size_t>(t + 1);
            const bool predicts = t + 1 < total && slot.begins[next] == 0 && slot.wanted[next] != 0;
            slot.ids[i] = slot.tokens[static_cast<std::size_t>(t)];
            slot.labels[i] = predicts ? slot.tokens[next] : -1;
            slot.positions[i] = static_cast<std::int32_t>(t - start);
            slot.lo[i] = static_cast<std::int32_t>(
                base + (spec.window > 0 && t - start >= spec.window ? t - spec.window + 1 : start));
            slot.batch.loss_tokens += predicts ? 1 : 0;
        }
        close(read);
        for (std::int64_t t = read; t < seq_len; ++t) {  // padding sees itself, is seen by nobody and predicts nothing
            const auto i = static_cast<std::size_t>(base + t);
            slot.ids[i] = slot.positions[i] = 0;
            slot.labels[i] = -1;
            slot.lo[i] = static_cast<std::int32_t>(base + t);
        }
    }

    // Called without the mutex; nobody else touches a slot that is `filling`.
    void fill(Slot& slot) const {
        slot.batch = slot.view_of(slot.count * dataset.seq_len());
        slot.batch.first_sample = slot.first;
        slot.batch.count = slot.count;
        try {
            for (std::int64_t row = 0; row < slot.count; ++row) fill_row(slot, row);
        } catch (...) {
            slot.error = std::current_exception();
        }
    }

    Slot* oldest(Slot::Is what) {
        Slot* found = nullptr;
        for (Slot& s : slots)
            if (s.is == what && (found == nullptr || s.turn < found->turn)) found = &s;
        return found;
    }

    void give(Slot& slot, std::int64_t first, std::int64_t count, Slot::Is is) {
        slot.first = first;
        slot.count = count;
        slot.turn = ++turns;
        slot.error = nullptr;
        slot.is = is;
    }

    void run() {
        std::unique_lock lock(mutex);
        while (true) {
            changed.wait(lock, [&] { return stop || oldest(Slot::Is::queued) != nullptr; });
            if (stop) return;
            Slot& slot = *oldest(Slot::Is::queued);
            slot.is = Slot::Is::filling;
            lock.unlock();
            fill(slot);
            lock.lock();
            slot.is = Slot::Is::ready;
            changed.notify_all();
        }
    }

    void check(std::int64_t first, std::int64_t count) const {
        if (first < 0 || count < 1 || count > spec.max_count)
            fail("samples ", first, "…", first + count, " were asked for; from 0 on, at most ", spec.max_count,
                 " at a time");
    }
};

Loader::Loader(const Dataset& dataset, const LoaderSpec& spec) : state_(new State(dataset, spec)) {
    if (spec.max_count < 1 || spec.window < 0 || spec.prefetch < 0)
        fail("Loader: max_count ", spec.max_count, ", window ", spec.window, ", prefetch ", spec.prefetch);
    if (spec.max_count > 0x7fffffff / dataset.seq_len())
        fail_usage("a micro-batch of ", spec.max_count, " x ", dataset.seq_len(), " tokens is past 2147483647; lower"
                   " train.micro_batch");
    // One is held by the caller and one more keeps next() from waiting for the thread to leave a slot.
    const std::int64_t slots = spec.prefetch + 2;
    state_->slots.reserve(static_cast<std::size_t>(slots));
    for (std::int64_t i = 0; i < slots; ++i)
        state_->slots.emplace_back(dataset.seq_len(), spec.max_count, dataset.max_pieces());
    if (spec.prefetch > 0) state_->thread = std::thread([s = state_.get()] { s->run(); });
}

Loader::~Loader() {
    if (!state_->thread.joinable()) return;
    {
        const std::lock_guard lock(state_->mutex);
        state_->stop = true;
    }
    state_->changed.notify_all();
    state_->thread.join();
}

const Batch& Loader::next(std::int64_t first_sample, std::int64_t count) {
    State& s = *state_;
    s.check(first_sample, count);
    std::unique_lock lock(s.mutex);
    for (Slot& slot : s.slots)
        if (slot.is == Slot::Is::held) slot.is = Slot::Is::free;
    Slot* slot = nullptr;
    for (Slot& candidate : s.slots)
        if (candidate.holds(first_sample, count)) slot = &candidate;
    if (slot != nullptr && slot->is != Slot::Is::queued) {
        s.changed.wait(lock, [&] { return slot->is == Slot::Is::ready; });
    } else {
        // Not begun: do it here. When it was not hinted either, the caller has gone elsewhere: what is ready is stale.
        if (slot == nullptr) {
            for (Slot& stale : s.slots)
                if (stale.is == Slot::Is::ready) stale.is = Slot::Is::free;
            slot = s.oldest(Slot::Is::free);
            if (slot == nullptr) slot = s.oldest(Slot::Is::queued);
        }
        s.give(*slot, first_sample, count, Slot::Is::filling);
        lock.unlock();
        s.fill(*slot);
        lock.lock();
    }
    if (slot->error) {
        const std::exception_ptr error = slot->error;
        slot->error = nullptr;
        slot->is = Slot::Is::free;
        std::rethrow_exception(error);
    }
    slot->is = Slot::Is::held;
    return slot->batch;
}

void Loader::hint(std::int64_t first_sample, std::int64_t count) {
    State& s = *state_;
    s.check(first_sample, count);
    if (!s.thread.joinable()) return;
    {
        const std::lock_guard lock(s.mutex);
        std::int64_t waiting = 0;
        for (const Slot& slot : s.slots) {
            if (slot.is != Slot::Is::held && slot.holds(first_sample, count)) return;
            waiting += slot.is == Slot::Is::free || slot.is == Slot::Is::held ? 0 : 1;
        }
        Slot* slot = s.oldest(Slot::Is::free);
        if (waiting >= s.spec.prefetch || slot == nullptr) return;
        s.give(*slot, first_sample, count, Slot::Is::queued);
    }
    s.changed.notify_all();
}

}  // namespace keel
