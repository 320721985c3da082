#include "engine/parallel/gradients.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>

#include "kernels/convert.h"
#include "kernels/copy.h"
#include "kernels/reduce.h"

namespace keel {
namespace {

bool is_gain(const Param& p) { return p.held == Held::partial; }

}  // namespace

std::int64_t Gradients::gain_elements(const ParamTable& params) {
    std::int64_t n = 0;
    for (const Param& p : params.specs) n += is_gain(p) ? p.size() : 0;
    return n;
}

Gradients::Gradients(const Backend& backend, const Ranks& ranks, const ModelSection& model, const Shard& shard, const ParamTable& params,
                     const Buffers& buffers)
    : backend_(backend), stream_(backend.stream), ranks_(ranks), params_(params), b_(buffers), tied_(model.tied), tied_across_stages_(model.tied && shard.stages > 1),
      missing_(params.buckets.buckets.size()), is_ready_(params.specs.size()), reducing_(missing_.size()),
      fetching_(missing_.size()), reduced_(missing_.size()) {
    const ParamTable whole(model);
    std::map<std::string, int> index;
    for (const Param& p : whole.specs) index.emplace(p.name, static_cast<int>(index.size()));
    for (const Param& p : params.specs) whole_index_.push_back(index.at(p.name));
    whole_squares_.resize(whole.specs.size());
    if (b_.squares.size() != static_cast<std::int64_t>(params.owned.size()))
        fail("gradients: ", b_.squares.size(), " sums of squares for ", params.owned.size(), " pieces");
    if (ranks_.replicas.size() > 1) worker_ = make_worker(backend_, 2 * static_cast<int>(missing_.size()) + 2);
    if (b_.exact) exact_.emplace(backend_, params_, whole_index_, *b_.exact);
}

void Gradients::overlap(bool reduce, bool gather) {
    overlap_reduce_ = reduce && worker_;
    overlap_gather_ = gather && worker_;
}

void Gradients::begin() {
    for (std::size_t b = 0; b < missing_.size(); ++b) missing_[b] = params_.buckets.buckets[b].params;
    std::ranges::fill(is_ready_, 0);
    std::ranges::fill(reducing_, 0);
    std::ranges::fill(reduced_, 0);
    if (exact_) exact_->begin();
    if (backend_.gpu && overlap_gather_) fetch_all();
}

void Gradients::ready(int first, int last) {
    for (int i = first; i < last; ++i) {
        const auto at = static_cast<std::size_t>(i);
        const Param& p = params_.specs[at];
        if (is_ready_[at]++) fail("gradients: " + p.name + " is ready twice in one step");
        if (b_.lookup && p.name == "embed" && !exact_) {
            const View<float> grad = b_.grad.rows(p.offset, p.size());
            add<float>(stream_, {.y = grad, .a = grad, .b = b_.lookup->reshape({p.size()})});
        }
        if (tap_ && !exact_) tap_(i, b_.grad.rows(p.offset, p.size()));
        const int bucket = params_.buckets.bucket_of[at];
        if (--missing_[static_cast<std::size_t>(bucket)] > 0) continue;
        // The other stage's half of a tied embedding may be far from done: it is fetched when all is.
        if (tied_across_stages_ && p.name == "embed") continue;
        sum_gains(bucket);
        if (!overlap_reduce_) continue;
        reducing_[static_cast<std::size_t>(bucket)] = worker_->post(
            [](void* self, int b, Stream& s) {
                auto& g = *static_cast<Gradients*>(self);
                const Spans::Scope span(g.spans_beside_, "reduce", b);
                g.reduce(b, g.ranks_.beside, s);
            },
            this, bucket);
        reduced_[static_cast<std::size_t>(bucket)] = 1;
    }
}

void Gradients::add_sequence(int first, int last) {
    for (int i = first; i < last; ++i) {
        const Param& p = params_.specs[static_cast<std::size_t>(i)];
        const auto take = [&](View<float> gradient) {
            if (tap_) tap_(i, gradient);
            exact_->add(i, gradient);
        };
        take(b_.grad.rows(p.offset, p.size()));
        if (b_.lookup && p.name == "embed") take(b_.lookup->reshape({p.size()}));
    }
}

// The gains of one bucket, summed over the tensor-parallel ranks: floats in one message, integers where they lie.
void Gradients::sum_gains(int bucket) {
    if (ranks_.tp.size() == 1) return;
    if (exact_) {
        for (std::size_t i = 0; i < params_.specs.size(); ++i)
            if (const Param& p = params_.specs[i]; is_gain(p) && params_.buckets.bucket_of[i] == bucket)
                ranks_.tp.all_reduce(stream_, exact_->sums().rows(p.offset, p.size()));
        return;
    }
    std::int64_t n = 0;
    const auto each = [&](auto&& body) {
        n = 0;
        for (std::size_t i = 0; i < params_.specs.size(); ++i) {
            const Param& p = params_.specs[i];
            if (!is_gain(p) || params_.buckets.bucket_of[i] != bucket) continue;
            body(b_.grad.rows(p.offset, p.size()), b_.gains.rows(n, p.size()));
            n += p.size();
        }
    };
    each([&](View<float> grad, View<float> gains) { copy<float>(stream_, gains, grad); });
    if (n == 0) return;
    ranks_.tp.all_reduce(stream_, b_.gains.rows(0, n));
    each([&](View<float> grad, View<float> gains) { copy<float>(stream_, grad, gains); });
}

void Gradients::reduce(int bucket, Group& group, Stream& stream) {
    if (group.size() == 1) return;
    const Bucket& at = params_.buckets.buckets[static_cast<std::size_t>(bucket)];
    const std::int64_t shard = params_.buckets.shard_size(bucket);
    const auto sum = [&](auto flat) {
        const auto x = flat.rows(at.begin, at.size());
        group.reduce_scatter(stream, x.rows(group.rank() * shard, shard), x);
    };
    if (exact_) sum(exact_->sums());
    else sum(b_.grad);
}

bool Gradients::all_ready() const { return std::ranges::all_of(missing_, [](int n) { return n == 0; }); }

void Gradients::give_up() {
    if (!backend_.gpu) return;
    std::ranges::fill(reducing_, 0);
    std::ranges::fill(fetching_, 0);
    behind_ = overlap_gather_;
}

void Gradients::finish() {
    need_all();  // a rank without a micro-batch has needed none
    for (std::size_t i = 0; i < is_ready_.size(); ++i)
        if (!is_ready_[i]) fail("gradients: " + params_.specs[i].name + " never became ready in this step");
    if (tied_across_stages_ && ranks_.embedding.size() > 1) {
        const Param& p = params_.at("embed");
        if (exact_) ranks_.embedding.all_reduce(stream_, exact_->sums().rows(p.offset, p.size()));
        else ranks_.embedding.all_reduce(stream_, b_.grad.rows(p.offset, p.size()));
    }
    for (int bucket = 0; bucket < static_cast<int>(missing_.size()); ++bucket) {
        const auto at = static_cast<std::size_t>(bucket);
        if (reducing_[at]) wait(reducing_[at]);
    }
    for (int bucket = 0; bucket < static_cast<int>(missing_.size()); ++bucket)
        if (!reduced_[static_cast<std::size_t>(bucket)]) {
            const Spans::Scope span(ranks_.replicas.size() > 1 ? spans_ : nullptr, "reduce", bucket);
            reduce(bucket, ranks_.replicas, stream_);
        }
    if (!exact_) square();
}

bool Gradients::counts(const ShardPiece& piece) const {
    const Param& p = params_.specs[static_cast<std::size_t>(piece.param)];
    return !p.copy && (p.held == Held::cut || ranks_.tp.rank() == 0);
}

void Gradients::square() {
    for (std::size_t i = 0; i < params_.owned.size(); ++i)
        if (const ShardPiece& piece = params_.owned[i]; counts(piece))
            sum_of_squares(stream_, {.out = b_.squares.rows(static_cast<std::int64_t>(i), 1), .scratch = b_.scratch,
                                     .x = b_.grad.rows(piece.in_buffer, piece.size)});
}

bool Gradients::fits(std::int64_t sequences) {
    if (!exact_) return true;
    if (!exact_->fits(ranks_.world, (tied_ ? 2 : 1) * sequences * ranks_.tp.size() * ranks_.cp.size())) return false;
    if (exact_->finite())
        for (const ShardPiece& piece : params_.owned) exact_->read(piece, b_.grad);
    return true;
}

double Gradients::norm(const double* squares) {
    if (exact_) {
        const auto counted = [this](const ShardPiece& piece) { return counts(piece); };
        return exact_->finite() ? exact_->norm(ranks_.world, b_.grad, counted) : std::nan("");
    }
    std::ranges::fill(whole_squares_, 0.0);
    for (std::size_t i = 0; i < params_.owned.size(); ++i)
        if (const ShardPiece& piece = params_.owned[i]; counts(piece))
            whole_squares_[static_cast<std::size_t>(whole_index_[static_cast<std::size_t>(piece.param)])] += squares[i];
    ranks_.world.all_reduce(stream_, View<double>(whole_squares_.data(), {static_cast<std::int64_t>(whole_squares_.size())}));
    double total = 0;
    for (const double square : whole_squares_) total += square;
    return std::sqrt(total);
}

void Gradients::fetch(int bucket, Group& group, Stream& stream) {
    const Bucket& at = params_.buckets.buckets[static_cast<std::size_t>(bucket)];
    const std::int64_t shard = params_.buckets.shard_size(bucket) * b_.param_bytes;
    const View<std::byte> x(b_.param + at.begin * b_.param_bytes, {at.size() * b_.param_bytes});
    group.all_gather(stream, x, View<const std::byte>(x.rows(group.rank() * shard, shard)));
}

void Gradients::gather() {
    std::ranges::fill(fetching_, 0);
    if (ranks_.replicas.size() == 1) return;
    behind_ = backend_.gpu && overlap_gather_;
    if (!behind_) fetch_all();
}

void Gradients::fetch_all() {
    behind_ = false;
    for (int bucket = static_cast<int>(missing_.size()) - 1; bucket >= 0; --bucket) {  // forward reads the last one first
        if (!overlap_gather_) {
            const Spans::Scope span(spans_, "gather", bucket);
            fetch(bucket, ranks_.replicas, stream_);
            continue;
        }
        fetching_[static_cast<std::size_t>(bucket)] = worker_->post(
            [](void* self, int b, Stream& s) {
                auto& g = *static_cast<Gradients*>(self);
                const Spans::Scope span(g.spans_beside_, "gather", b);
                g.fetch(b, g.ranks_.beside, s);
            },
            this, bucket);
    }
}

void Gradients::need(int first, int last) {
    if (!worker_) return;
    if (behind_) fetch_all();
    for (int i = first; i < last; ++i) {
        const auto bucket = static_cast<std::size_t>(params_.buckets.bucket_of[static_cast<std::size_t>(i)]);
        if (fetching_[bucket]) wait(std::exchange(fetching_[bucket], 0));
    }
}

void Gradients::need_all() { need(0, static_cast<int>(params_.specs.size())); }

void Gradients::wait(std::int64_t task) {
    const Spans::Scope span(spans_, "wait");
    const auto start = std::chrono::steady_clock::now();
    worker_->wait(task);
    exposed_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace keel
