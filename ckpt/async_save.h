// ckpt/async_save.h: a checkpoint written from a snapshot while training goes on.
//
// begin() copies the state into memory reserved at start-up and returns; a thread then writes what was copied, whatever
// becomes of the weights. One save is in flight at most: the next one, and the end of the run, wait for it. A write
// that fails is a value, which every rank gets at the same decision. While a write is in flight its thread allocates
// (the block of a file, names and hashes); training does not.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "ckpt/piece.h"
#include "comm/group.h"
#include "kernels/base/stream.h"

namespace keel {

class AsyncSave {
public:
    // What the snapshot of these pieces takes, for the memory plan.
    static std::int64_t snapshot_bytes(std::span<const TensorPiece> owned);

    // `owned` stays where it is for the life of this object, and so do `memory`, of at least snapshot_bytes(owned), and
    // `writers`: a group of all ranks that only this object uses, since its thread calls it at any time.
    AsyncSave(Group& writers, std::span<const TensorPiece> owned, std::span<std::byte> memory);
    ~AsyncSave();  // waits for the write
    AsyncSave(const AsyncSave&) = delete;

    // What became of a save. Equal on all ranks, but for `seconds` and what a rank that has left leaves unsaid.
    struct Outcome {
        std::int64_t step = 0;
        std::filesystem::path path;  // of what was published
        std::string error;           // why it was not; then older checkpoints are as they were
        double seconds = 0;          // from begin() to the last byte
        bool saved() const { return error.empty(); }
    };

    // `write` gets the snapshot on the writer's thread: a save_checkpoint, or another collective over `writers`.
    // Returns what became of the save before, if nobody had asked yet. Every rank begins the same saves in the same
    // order.
    using Write = std::function<std::filesystem::path(Group& writers, std::span<const TensorPiece> snapshot)>;
    std::optional<Outcome> begin(Stream& stream, std::int64_t step, Write write);

    // The outcome of the save in flight once every rank has it: one vote, and none while no save is in flight. A
    // decision that all ranks take at the same place.
    std::optional<Outcome> poll(Group& world);

    // The outcome of the save in flight, waited for. nullopt if there is none.
    std::optional<Outcome> wait();

    bool in_flight() const { return begun_; }  // begun, and its outcome not yet handed out

private:
    void run();

    struct Run {  // rows of one piece that are copied at once
        const std::byte* from;
        std::byte* to;
        std::int64_t rows, row_bytes, stride_bytes;
    };
    Group& writers_;
    std::vector<TensorPiece> snapshot_;
    std::vector<Run> runs_;
    bool begun_ = false;

    std::mutex mutex_;
    std::condition_variable changed_;
    Write write_;  // set: the thread is to write, or does
    Outcome outcome_;
    bool leave_ = false;
    std::thread thread_;  // last: it uses all of the above
};

}  // namespace keel
