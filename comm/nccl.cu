// The bodies of comm/nccl.h, once over NCCL and once over the model of it: the world, and collectives. Messages are in
// nccl_mail.cu.
#include <algorithm>
#include <chrono>
#include <cstring>

#include "comm/nccl_group.cuh"
#include "comm/nccl_sum.cuh"

namespace keel::KEEL_DEVICE {
namespace {

cudaStream_t native(Stream& stream) { return static_cast<cudaStream_t>(stream.native()); }

constexpr std::chrono::microseconds longest_nap(1000);  // between two looks at what NCCL does in the background
constexpr std::chrono::seconds telling(5);              // from a rank's leaving until everybody knows why, with room

[[noreturn]] void fail_peer(const std::string& text, std::source_location where = std::source_location::current()) {
    throw Error(text, where, ExitCode::peer);
}

// What follows the description in an error of `control`: "… (#12): rank 2 left: out of memory" is "rank 2 left: …".
std::string reason_of(const std::string& text) {
    const auto number = text.find("(#");
    const auto end = number == std::string::npos ? number : text.find("): ", number);
    return end == std::string::npos ? text : text.substr(end + 3);
}

class NcclWorld final : public World {
public:
    explicit NcclWorld(std::shared_ptr<NcclRank> shared) : shared_(std::move(shared)) {}
    int rank() const override { return shared_->control.rank(); }
    int size() const override { return shared_->control.size(); }
    const char* transport() const override { return "nccl"; }
    int local_rank() const override { return shared_->control.local_rank(); }
    int local_size() const override { return shared_->control.local_size(); }
    void abort(const std::string& why) noexcept override {
        shared_->control.abort(why);
        shared_->abort_all();
    }
    bool aborted() override { return shared_->control.aborted(); }
    std::string departure() override { return shared_->control.departure(); }

protected:
    std::unique_ptr<Group> make_group(const std::string& name, std::vector<int> members, int rank) override {
        return std::make_unique<NcclGroup>(shared_, name, std::move(members), rank);
    }

private:
    std::shared_ptr<NcclRank> shared_;
};

}  // namespace

bool lies_on_gpu(const void* data) {
    cudaPointerAttributes attributes{};
    check(cudaPointerGetAttributes(&attributes, data));
    return attributes.type == cudaMemoryTypeDevice;
}

// ---- what groups share ----------------------------------------------------------------------------------------------

NcclRank::NcclRank(World& w, int g, const NcclOptions& o)
    : control(w), gpu(g), options(o), direct(o.direct && std::strcmp(w.transport(), "mpi") != 0) {
#if !defined(__CUDACC__)
    if (std::strcmp(w.transport(), "mpi") == 0)
        fail("nccl: simulated GPUs meet as threads of one process, not under MPI");
#endif
    check(cudaSetDevice(gpu));
    watcher_ = std::thread([this] { watch(); });
}
NcclRank::~NcclRank() {
    {
        const std::lock_guard lock(mutex_);
        ended_ = true;
    }
    changed_.notify_all();
    watcher_.join();
    for (std::thread& thread : ending_) thread.join();
}

std::shared_ptr<NcclRank::Communicator> NcclRank::add(const ncclUniqueId& id, int ranks, int rank,
                                                      const std::string& what) {
    auto one = std::make_shared<Communicator>();
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    finish(nccl().ncclCommInitRankConfig(&one->comm, ranks, id, rank, &config), *one, [&] { return what; });
    const std::lock_guard lock(mutex_);
    communicators_.push_back(one);
    return one;
}

void NcclRank::finish(ncclResult_t result, Communicator& one, const std::function<std::string()>& what) {
    const auto give_up = [&](const std::string& why) {
        if (one.comm) end(std::exchange(one.comm, nullptr));
        fail_peer(concat(what(), ": ", why));
    };
    using Clock = std::chrono::steady_clock;
    const auto until = Clock::now() + std::chrono::duration<double>(options.deadline_s);
    for (auto nap = std::chrono::microseconds(1); result == ncclInProgress; nap = std::min(2 * nap, longest_nap)) {
        if (control.aborted()) give_up(why_over());
        if (Clock::now() > until) give_up(concat("not every rank came to NCCL within ", options.deadline_s, " s"));
        std::this_thread::sleep_for(nap);
        if (const ncclResult_t asked = nccl().ncclCommGetAsyncError(one.comm, &result); asked != ncclSuccess)
            result = asked;
    }
    if (result == ncclRemoteError) {  // a peer has aborted, and why the world is being told; or it is gone, and tells nobody
        const auto told = Clock::now() + telling;
        while (!control.aborted() && Clock::now() < told && Clock::now() < until) std::this_thread::sleep_for(longest_nap);
        give_up(control.aborted() ? control.departure() : nccl().ncclGetErrorString(result));
    }
    check(result);
}

std::string NcclRank::why_over() { return control.aborted() ? control.departure() : "its communicator has been aborted"; }

void NcclRank::abort_all() noexcept {
    abort_wanted_ = true;
    const std::lock_guard lock(mutex_);
    for (const auto& weak : communicators_)
        if (const auto one = weak.lock()) {
            // Whoever holds it is queueing, and does not wait; if it does (a model that does everything at once), the
            // watcher's next look finds it.
            const std::unique_lock held(one->mutex, std::try_to_lock);
            if (held && one->comm) end(std::exchange(one->comm, nullptr));
        }
}

void NcclRank::end(ncclComm_t comm) noexcept {
    const std::lock_guard lock(ending_mutex_);
    ending_.emplace_back([this, comm] {
        (void)cudaSetDevice(gpu);
        (void)nccl().ncclCommAbort(comm);
    });
}

void NcclRank::watch() {
    constexpr std::chrono::milliseconds nap(20);
    (void)cudaSetDevice(gpu);
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, nap, [this] { return ended_; })) {
        lock.unlock();
        if (abort_wanted_ || control.aborted()) abort_all();
        lock.lock();
    }
}

// ---- the group ------------------------------------------------------------------------------------------------------

NcclGroup::NcclGroup(std::shared_ptr<NcclRank> shared, const std::string& name, std::vector<int> members, int rank)
    : Group(name, members, rank),
      shared_(std::move(shared)),
      control_(shared_->control.group(name, members)),
      greetings_(members.size()) {
    if (size() == 1) return;
    receipts_ = shared_->control.group(name + " receipts", members);
    if (shared_->options.buffer_bytes == 0) return;
    const std::int64_t bytes = std::max(shared_->options.buffer_bytes, nccl_buffer_bytes(0, size()));
    check(cudaSetDevice(shared_->gpu));
    std::byte* own = nullptr;
    check(cudaMalloc(&own, static_cast<std::size_t>(bytes)));
    own_buffer_.reset(own);
    lend(View<std::byte>(own, {bytes}));
}

void NcclGroup::lend(View<std::byte> buffer) {
    if (size() == 1) return;
    if (buffer.size() < nccl_buffer_bytes(0, size()))
        fail(name(), " group of ", rank_list(members()), ": it is lent ", buffer.size(), " bytes of a GPU, and needs ",
             nccl_buffer_bytes(0, size()));
    buffer_ = buffer.data(), buffer_bytes_ = buffer.size();
    if (communicator_) return;
    check(cudaSetDevice(shared_->gpu));
    ncclUniqueId id{};
    if (rank() == 0) check(nccl().ncclGetUniqueId(&id));
    control_->broadcast(host_, View<char>(id.internal, {sizeof id.internal}), 0);
    communicator_ =
        shared_->add(id, size(), rank(), concat(name(), " group of ", rank_list(members()), ": making its communicator"));
    control_->barrier();  // nobody goes on, or leaves, while others are still being connected
}

NcclGroup::~NcclGroup() {
    if (size() == 1) return;  // nothing of it is under way
    settle_receipts();
    (void)cudaSetDevice(shared_->gpu);
    // What is queued may wait for ranks that never come, and then the GPU does, too.
    const bool leaves = std::uncaught_exceptions() > exceptions_ || shared_->control.aborted();
    if (leaves) shared_->abort_all();
    (void)cudaDeviceSynchronize();  // nobody may still be writing here
    for (const Message& message : messages_)
        if (message.written) (void)cudaEventDestroy(message.written);
    for (const Receipt& receipt : *receipts_of_ours_)
        if (receipt.copied) (void)cudaEventDestroy(receipt.copied);
    if (!communicator_) return;
    const std::lock_guard lock(communicator_->mutex);
    if (!communicator_->comm) return;
    ncclComm_t const comm = std::exchange(communicator_->comm, nullptr);
    if (leaves)
        shared_->end(comm);
    else
        (void)nccl().ncclCommDestroy(comm);
}

void NcclGroup::abort(const std::string& why) noexcept {
    control_->abort(why);
    shared_->abort_all();
}

void NcclGroup::meet(const Call& call, bool on_gpu) {
    Greeting mine{call, on_gpu, false};
    if (call.kind == Collective::any || call.kind == Collective::all) std::memcpy(&mine.opinion, call.in, sizeof(bool));
    const Call greeting{Collective::all_gather,
                        Element::raw,
                        sizeof(Greeting),
                        0,
                        1,
                        reinterpret_cast<const std::byte*>(&mine),
                        reinterpret_cast<std::byte*>(greetings_.data())};
    try {
        perform_on(*control_, nullptr, greeting);
    } catch (const Error& e) {
        throw Error(concat(describe(call), ": ", reason_of(e.what())), e.location(), e.code());
    }
    const auto of = [&](int r) -> const Call& { return greetings_[static_cast<std::size_t>(r)].call; };
    for (const Greeting& other : greetings_)
        if (!other.call.agrees(call)) fail_disagreement(of);
    for (const Greeting& other : greetings_)
        if (other.on_gpu != on_gpu)
            fail(describe(call), ": some ranks bring memory of a GPU, and some of the host; all must bring the same");
}

void NcclGroup::run(Stream* stream, const Call& call) {
    const bool gpu = stream && stream->device() == nccl_device && call.count > 0 && lies_on_gpu(call.in);
    meet(call, gpu);
    if (call.kind == Collective::any || call.kind == Collective::all) {
        const auto says = [](const Greeting& g) { return g.opinion; };
        const bool answer = call.kind == Collective::any ? std::any_of(greetings_.begin(), greetings_.end(), says)
                                                         : std::all_of(greetings_.begin(), greetings_.end(), says);
        std::memcpy(call.out, &answer, sizeof answer);
    } else if (gpu) {
        run_on_gpu(*stream, call);
    } else if (call.kind != Collective::barrier) {
        perform_on(*control_, &host_, call);
    }
}

void NcclGroup::run_on_gpu(Stream& stream, const Call& call) {
    if (!communicator_) fail(describe(call), ": this group was lent no memory of its GPU, and can sum none");
    check(cudaSetDevice(shared_->gpu));
    const std::lock_guard lock(communicator_->mutex);
    ncclComm_t const comm = communicator_->comm;
    if (!comm) fail_peer(concat(describe(call), ": ", shared_->why_over()));
    ncclResult_t state = ncclSuccess;
    check(nccl().ncclCommGetAsyncError(comm, &state));
    finish(state, call);
    const std::int64_t part = call.bytes(), n = size(), self = rank();
    switch (call.kind) {
        case Collective::all_reduce:
        case Collective::all_reduce_max: {
            // Equal parts, and the few elements that are left; all of them if there are few.
            const std::int64_t share = n * part <= nccl_small_bytes ? 0 : call.count / n, bytes = share * call.width;
            if (share > 0) {
                reduce_parts(stream, call, call.out + self * bytes, call.in, share);
                finish(nccl().ncclAllGather(call.out + self * bytes, call.out, static_cast<std::size_t>(bytes),
                                            ncclUint8, comm, native(stream)),
                       call);
            }
            reduce_whole(stream, call, call.out + n * bytes, call.count - n * share);
            break;
        }
        case Collective::reduce_scatter:
            reduce_parts(stream, call, call.out, call.in, call.count);
            break;
        case Collective::all_gather:
            finish(nccl().ncclAllGather(call.in, call.out, static_cast<std::size_t>(part), ncclUint8, comm,
                                        native(stream)),
                   call);
            break;
        case Collective::broadcast:
            finish(nccl().ncclBroadcast(call.in, call.out, static_cast<std::size_t>(part), ncclUint8, call.root, comm,
                                        native(stream)),
                   call);
            break;
        case Collective::all_to_all:
            check(cudaMemcpyAsync(call.out + self * part, call.in + self * part, static_cast<std::size_t>(part),
                                  cudaMemcpyDeviceToDevice, native(stream)));
            exchange(call, native(stream), call.in, call.out, part, part, part);
            break;
        default:
            break;
    }
}

// `bytes` of the part of every other rank r, from in + r * in_stride, are with it; its own for this rank at
// out + r * out_stride.
void NcclGroup::exchange(const Call& call, cudaStream_t stream, const std::byte* in, std::byte* out,
                         std::int64_t in_stride, std::int64_t out_stride, std::int64_t bytes) {
    const auto count = static_cast<std::size_t>(bytes);
    NcclTogether together;
    for (int r = 0; r < size(); ++r) {
        if (r == rank()) continue;
        together.add(nccl().ncclSend(in + r * in_stride, count, ncclUint8, r, communicator_->comm, stream));
        together.add(nccl().ncclRecv(out + r * out_stride, count, ncclUint8, r, communicator_->comm, stream));
    }
    finish(together.end(), call);
}

void NcclGroup::finish(ncclResult_t result, const Call& call) {
    shared_->finish(result, *communicator_, [&] { return describe(call); });
}

// in is n parts of `count` elements; out is this rank's part of the sum, and may be its part of in.
void NcclGroup::reduce_parts(Stream& stream, const Call& call, std::byte* out, const std::byte* in,
                             std::int64_t count) {
    const std::int64_t bytes = count * call.width, room = buffer_bytes_ / size() / nccl_alignment * nccl_alignment;
    const std::byte* const own = in + rank() * bytes;
    for (std::int64_t at = 0; at < bytes; at += room) {
        const std::int64_t here = std::min(room, bytes - at);
        exchange(call, native(stream), in + at, buffer_, bytes, room, here);
        reduce_ranks(stream, call, out + at, own + at, buffer_, room, here / call.width, size(), rank());
    }
}

// Few elements: every rank has all of everybody's.
void NcclGroup::reduce_whole(Stream& stream, const Call& call, std::byte* x, std::int64_t count) {
    if (count == 0) return;
    const std::int64_t bytes = count * call.width;
    finish(nccl().ncclAllGather(x, buffer_, static_cast<std::size_t>(bytes), ncclUint8, communicator_->comm,
                                native(stream)),
           call);
    reduce_ranks(stream, call, x, buffer_ + rank() * bytes, buffer_, bytes, count, size(), rank());
}

std::optional<std::string> why_no_nccl() {
    if (!nccl().missing.empty()) return nccl().missing;
    return std::nullopt;
}
std::string nccl_version() {
    int version = 0;
    check(nccl().ncclGetVersion(&version));  // 22809 is 2.28.9
    return concat("NCCL ", version / 10000, ".", version / 100 % 100, ".", version % 100);
}
std::unique_ptr<World> nccl_world(World& control, int gpu, const NcclOptions& options) {
    return std::make_unique<NcclWorld>(std::make_shared<NcclRank>(control, gpu, options));
}

}  // namespace keel::KEEL_DEVICE
