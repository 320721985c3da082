// Saves that run while training goes on: what they write is the moment at which they began.
#include "ckpt/async_save.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <thread>

#include "ckpt/checkpoint.h"
#include "comm/threads.h"
#include "kernels/base/file_faults.h"
#include "tests/ckpt/layouts.h"

namespace keel::test {
namespace {

namespace fs = std::filesystem;

OwnedTensors model(std::uint64_t seed = 1) { return one_matrix(seed, {"embed.m", "embed.v", "embed.master"}); }

AsyncSave::Write to(const fs::path& root, std::int64_t step) {
    return [=](Group& writers, std::span<const TensorPiece> snapshot) {
        return save_checkpoint(writers, root, step, "{}", snapshot);
    };
}

// What AsyncSave needs, of one rank.
struct Saver {
    RankMemory state;
    std::vector<std::byte> memory;
    std::unique_ptr<Group> writers, world;
    Stream stream{1};
    AsyncSave save;

    Saver(World& w, const CutLayout& layout, const OwnedTensors& tensors)
        : state(layout, w.rank(), tensors.all(), true),
          memory(static_cast<std::size_t>(AsyncSave::snapshot_bytes(state.pieces()))),
          writers(w.everyone("writers")),
          world(w.everyone()),
          save(*writers, state.pieces(), memory) {}

    void change_weights() {  // as three steps of training would
        for (const TensorPiece& p : state.pieces())
            for (std::int64_t r = 0; r < p.rows; ++r)
                std::memset(p.data + r * p.row_stride * size_bytes(p.dtype), 0x55,
                            static_cast<std::size_t>(p.cols * size_bytes(p.dtype)));
    }
};

// Holds every writer at the creation of its first file, until released.
class PausedWriters {
public:
    PausedWriters()
        : faults_([this](FileStep step, const fs::path&) {
              if (step == FileStep::create) {
                  std::unique_lock lock(mutex_);
                  ++waiting_;
                  changed_.notify_all();
                  changed_.wait(lock, [&] { return released_; });
              }
              return 0;
          }) {}
    void wait_for(int writers) {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return waiting_ >= writers; });
    }
    void release() {
        const std::lock_guard lock(mutex_);
        released_ = true;
        changed_.notify_all();
    }

private:
    std::mutex mutex_;
    std::condition_variable changed_;
    int waiting_ = 0;
    bool released_ = false;
    FileFaults faults_;
};

TEST(AsyncSave, WritesTheMomentOfItsBeginningWhateverTrainingDoesMeanwhile) {
    const TempFolder root;
    const OwnedTensors tensors = model(3), loaded = tensors.blank();
    PausedWriters paused;
    run_threads(4, {.deadline_s = 30}, [&](World& w) {
        Saver s(w, four, tensors);
        EXPECT_FALSE(s.save.begin(s.stream, 7, to(root.path(), 7)));
        paused.wait_for(4);
        s.change_weights();
        EXPECT_FALSE(s.save.poll(*s.world));  // still writing
        EXPECT_TRUE(s.save.in_flight());
        paused.release();
        const auto outcome = s.save.wait();
        ASSERT_TRUE(outcome);
        EXPECT_TRUE(outcome->saved()) << outcome->error;
        EXPECT_EQ(outcome->step, 7);
        EXPECT_EQ(outcome->path, root / "step-00000007");
        EXPECT_GT(outcome->seconds, 0);
        EXPECT_FALSE(s.save.wait());
    });
    load_checkpoint(root / "step-00000007", loaded.all());
    EXPECT_EQ(loaded.memory(), tensors.memory());
}

TEST(AsyncSave, AllRanksHearOfASaveAtTheSameDecision) {
    const TempFolder root;
    std::atomic<int> heard_at[3] = {-1, -1, -1};
    run_threads(3, {.deadline_s = 30}, [&](World& w) {
        Saver s(w, {"zero3", 1, 1, 3}, model());
        s.save.begin(s.stream, 1, to(root.path(), 1));
        for (int step = 0;; ++step) {
            std::this_thread::sleep_for(
                std::chrono::milliseconds(w.rank()));  // ranks see the writer at different moments
            if (const auto outcome = s.save.poll(*s.world)) {
                EXPECT_TRUE(outcome->saved()) << outcome->error;
                heard_at[w.rank()] = step;
                break;
            }
        }
        EXPECT_FALSE(s.save.poll(*s.world));
    });
    EXPECT_GE(heard_at[0], 0);
    EXPECT_EQ(heard_at[0], heard_at[1]);
    EXPECT_EQ(heard_at[0], heard_at[2]);
}

TEST(AsyncSave, TheNextSaveWaitsForTheOneBeforeAndTellsOfIt) {
    const TempFolder root;
    OwnedTensors tensors;
    tensors.add("w", Dtype::f32, {8, 8});
    run_threads(1, {}, [&](World& w) {
        Saver s(w, {"one", 1, 1, 1}, tensors);
        s.save.begin(s.stream, 1, to(root.path(), 1));
        s.change_weights();
        const auto before = s.save.begin(s.stream, 2, to(root.path(), 2));
        ASSERT_TRUE(before);
        EXPECT_EQ(before->step, 1);
        EXPECT_TRUE(before->saved()) << before->error;
        EXPECT_TRUE(s.save.wait()->saved());
    });
    const OwnedTensors first = tensors.blank(), second = tensors.blank();
    load_checkpoint(root / "step-00000001", first.all());
    load_checkpoint(root / "step-00000002", second.all());
    EXPECT_EQ(first.memory(), tensors.memory());
    EXPECT_EQ(second.memory()[0], std::vector<std::byte>(256, std::byte{0x55}));
}

TEST(AsyncSave, AFailedWriteIsTheSameValueOnEveryRankAndTheNextOneMaySucceed) {
    const TempFolder root;
    std::atomic<bool> full{true};
    const FileFaults faults([&](FileStep step, const fs::path& path) {
        return full && step == FileStep::write && path.filename() == "weights-rank-00002-of-00004.safetensors" ? ENOSPC
                                                                                                               : 0;
    });
    run_threads(4, {.deadline_s = 30}, [&](World& w) {
        Saver s(w, four, model());
        s.save.begin(s.stream, 5, to(root.path(), 5));
        std::optional<AsyncSave::Outcome> outcome;
        while (!outcome) outcome = s.save.poll(*s.world);
        EXPECT_FALSE(outcome->saved());
        EXPECT_NE(outcome->error.find("step 5 failed on rank 2: cannot write"), std::string::npos) << outcome->error;
        s.world->barrier();
        full = false;
        s.save.begin(s.stream, 6, to(root.path(), 6));
        EXPECT_TRUE(s.save.wait()->saved());
    });
    EXPECT_EQ(find_newest_checkpoint(root.path(), {})->step, 6);
    EXPECT_FALSE(fs::exists(root / "step-00000005"));
}

TEST(AsyncSave, LeavingWaitsForTheWrite) {
    const TempFolder root;
    run_threads(2, {.deadline_s = 30}, [&](World& w) {
        Saver s(w, {"zero2", 1, 1, 2}, model());
        s.save.begin(s.stream, 1, to(root.path(), 1));
    });
    EXPECT_NO_THROW(verify_checkpoint(root / "step-00000001"));
}

TEST(AsyncSave, ADeadRankIsAnOutcomeAndNotAHang) {
    const TempFolder root;
    PausedWriters paused;
    std::string told;
    try {
        run_threads(2, {.deadline_s = 30}, [&](World& w) {
            Saver s(w, {"zero2", 1, 1, 2}, model());
            s.save.begin(s.stream, 1, to(root.path(), 1));
            paused.wait_for(2);
            if (w.rank() == 1) {
                w.abort("rank 1 dies");
                paused.release();
                fail("rank 1 dies");
            }
            const auto outcome = s.save.wait();
            EXPECT_FALSE(outcome->saved());
            told = outcome->error;
        });
    } catch (const Error&) {
    }
    EXPECT_NE(told.find("rank 1 dies"), std::string::npos) << told;
    EXPECT_FALSE(find_newest_checkpoint(root.path(), {}));
}

TEST(AsyncSave, TheSnapshotsSizeIsKnownBeforehandAndTooLittleIsRefused) {
    const OwnedTensors tensors = model();
    const auto pieces = whole(tensors.all());
    EXPECT_EQ(AsyncSave::snapshot_bytes(pieces), 1600 + 3 * 3200);
    SoloGroup writers;
    std::vector<std::byte> memory(1600 + 3 * 3200 - 1);
    expect_error([&] { AsyncSave(writers, pieces, memory); },
                 {"a snapshot of 4 pieces takes 11200 bytes, and 11199 are reserved"});
}

}  // namespace
}  // namespace keel::test
