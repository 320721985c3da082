// Local checkpoints: used when whole, brought back when a node is lost, never trusted otherwise.
#include "ckpt/local_checkpoints.h"

#include "ckpt/async_save.h"
#include "comm/threads.h"
#include "kernels/base/file_faults.h"
#include "tests/ckpt/kill.h"
#include "tests/ckpt/layouts.h"

namespace keel::test {
namespace {

namespace fs = std::filesystem;

OwnedTensors model(std::uint64_t seed = 1) {
    OwnedTensors t = one_matrix(seed);
    t.add("norm", Dtype::bf16, {16}, seed);  // whole on rank 0 of tp: parts differ in size
    return t;
}

// Four ranks on two nodes, each node with storage of its own, as T13.3 of the reference in small.
class LocalCheckpointsTest : public testing::Test {
protected:
    fs::path node(int rank) const { return storage_ / concat("node-", rank / 2); }
    LocalCheckpoints local(Group& world) const { return {world, node(world.rank()), storage_ / "run/checkpoints", 2}; }

    void save(std::int64_t step, std::uint64_t seed) const {
        run_threads(4, {.deadline_s = 30}, [&](World& w) { save(*w.everyone(), step, seed); });
    }
    void save(Group& world, std::int64_t step, std::uint64_t seed) const {
        const RankMemory memory(four, world.rank(), model(seed).all(), true);
        local(world).save(world, step, concat("{\"seed\":", seed, "}"), memory.pieces());
    }
    // The step that all ranks find, each with its own part of model(seed); -1 if they find none.
    std::int64_t found(std::uint64_t seed, const CutLayout& layout = four) {
        warnings_.clear();
        std::int64_t steps[4] = {-1, -1, -1, -1};
        run_threads(4, {.deadline_s = 30}, [&](World& w) {
            const auto world = w.everyone();
            LocalCheckpoints checkpoints = local(*world);
            const OwnedTensors tensors = model(seed);
            const RankMemory memory(layout, w.rank(), tensors.all(), false);
            const auto newest = checkpoints.find_newest(*world, memory.pieces(),
                                                        [&](const std::string& text) { warnings_ += text + "\n"; });
            if (!newest) return;
            EXPECT_EQ(newest->state, concat("{\"seed\":", seed, "}"));
            checkpoints.load(*world, *newest, memory.pieces());
            EXPECT_TRUE(memory.equals(tensors.all())) << "rank " << w.rank();
            steps[w.rank()] = newest->step;
        });
        for (const std::int64_t step : steps) EXPECT_EQ(step, steps[0]);
        return steps[0];
    }
    // The one folder with `name` anywhere under a node.
    fs::path step_of(int rank, const std::string& name, std::int64_t step) const {
        for (const auto& entry : fs::recursive_directory_iterator(node(rank)))
            if (entry.path().filename() == name) return entry.path() / concat("step-0000000", step);
        return {};
    }
    static void flip_last_byte(const fs::path& folder) {
        for (const auto& entry : fs::directory_iterator(folder))
            if (entry.path().extension() == ".safetensors") {
                std::string bytes = read_file(entry.path());
                bytes.back() = static_cast<char>(bytes.back() ^ 1);
                write_bytes(entry.path(), bytes);
                return;
            }
        FAIL() << "nothing to damage in " << folder;
    }

    const TempFolder storage_;
    std::string warnings_;
};

TEST_F(LocalCheckpointsTest, LoadEveryBitAndKeepTheNewestOnly) {
    EXPECT_EQ(found(1), -1);
    save(1, 5);
    save(2, 6);
    EXPECT_EQ(found(6), 2);
    EXPECT_EQ(warnings_, "");
    for (int rank = 0; rank < 4; ++rank)
        for (const auto& entry : fs::recursive_directory_iterator(node(rank)))
            EXPECT_NE(entry.path().filename(), "step-00000001");
}

TEST_F(LocalCheckpointsTest, ALostNodeGetsItsPartsFromItsPartners) {
    save(2, 7);
    fs::remove_all(node(2));
    EXPECT_EQ(found(7), 2);
    EXPECT_TRUE(fs::exists(step_of(2, "part-00003-of-00004", 2) / "manifest.json"));  // they came home
    fs::remove_all(node(0));
    EXPECT_EQ(found(7), -1);  // the copies of node 0's parts went with node 1: two losses are too many
}

TEST_F(LocalCheckpointsTest, ADamagedCopyIsNeverTrusted) {
    save(2, 7);
    fs::remove_all(node(2));
    flip_last_byte(step_of(0, "copy-00003-of-00004", 2));
    EXPECT_EQ(found(7), -1);
    EXPECT_NE(warnings_.find("copy-00003-of-00004"), std::string::npos) << warnings_;
    EXPECT_NE(warnings_.find("is damaged: XXH3-128 should be"), std::string::npos) << warnings_;
}

TEST_F(LocalCheckpointsTest, ADamagedPartIsReplacedByItsCopy) {
    save(2, 7);
    flip_last_byte(step_of(1, "part-00001-of-00004", 2));
    EXPECT_EQ(found(7), 2);
    EXPECT_NE(warnings_.find("part-00001-of-00004"), std::string::npos) << warnings_;
    EXPECT_EQ(found(7), 2);
    EXPECT_EQ(warnings_, "");  // mended
}

TEST_F(LocalCheckpointsTest, PartsChangeNodesWithTheirRanks) {
    save(2, 7);
    fs::rename(node(0), storage_ / "aside");
    fs::rename(node(2), node(0));
    fs::rename(storage_ / "aside", node(2));
    EXPECT_EQ(found(7), 2);
}

TEST_F(LocalCheckpointsTest, AFailedSaveLeavesTheOlderOneWhole) {
    save(1, 5);
    struct Case {
        std::string file, folder;
        int rank;
    };
    for (const Case& c :
         {Case{"weights-rank-00003-of-00004.safetensors", "part-00003", 3},
          Case{"weights-rank-00003-of-00004.safetensors", "copy-00003", 1}, Case{"state.json", "part-00002", 2}}) {
        SCOPED_TRACE(c.folder);
        const FileFaults faults([&](FileStep step, const fs::path& path) {
            return step == FileStep::write && path.filename() == c.file &&
                           path.string().find(c.folder) != std::string::npos
                       ? ENOSPC
                       : 0;
        });
        std::string errors[4];
        run_threads(4, {.deadline_s = 30}, [&](World& w) {
            const auto world = w.everyone();
            try {
                save(*world, 2, 6);
            } catch (const Error& e) {
                errors[w.rank()] = e.what();
            }
        });
        for (const std::string& error : errors) EXPECT_EQ(error, errors[0]);
        EXPECT_NE(errors[0].find(concat("the local checkpoint of step 2 failed on rank ", c.rank, ": cannot write")),
                  std::string::npos)
            << errors[0];
        // Every rank had its own part when a copy failed: that is whole, only not yet safe from the loss of a node.
        if (c.folder == "copy-00003")
            EXPECT_EQ(found(6), 2);
        else
            EXPECT_EQ(found(5), 1);
    }
    save(2, 6);
    EXPECT_EQ(found(6), 2);
}

// One step saved twice, the second time by some ranks only: their parts look alike, but are not of one moment.
TEST_F(LocalCheckpointsTest, PartsOfTwoSavesOfOneStepAreNotMixed) {
    save(3, 8);
    fs::copy(node(0), storage_ / "before", fs::copy_options::recursive);
    save(3, 9);
    fs::remove_all(node(0));
    fs::rename(storage_ / "before", node(0));
    fs::remove_all(step_of(0, "copy-00002-of-00004", 3));
    fs::remove_all(step_of(2, "copy-00000-of-00004", 3));
    EXPECT_EQ(found(9), -1);
}

TEST_F(LocalCheckpointsTest, OfTwoSavesOfOneStepTheLaterIsTaken) {
    save(3, 8);
    fs::copy(node(0), storage_ / "before", fs::copy_options::recursive);
    save(3, 9);
    fs::remove_all(node(0));
    fs::rename(storage_ / "before", node(0));  // each node now holds one of them whole, half of it in copies
    EXPECT_EQ(found(9), 3);
}

TEST_F(LocalCheckpointsTest, AnotherLayoutIsToldAndPassedOver) {
    save(2, 7);
    EXPECT_EQ(found(7, {"zero4", 1, 1, 4}), -1);
    EXPECT_NE(warnings_.find("was saved under another layout"), std::string::npos) << warnings_;
    EXPECT_EQ(found(7), 2);
}

TEST_F(LocalCheckpointsTest, AnotherRunAndAnotherNumberOfRanksSeeNothing) {
    save(2, 7);
    run_threads(4, {}, [&](World& w) {
        const auto world = w.everyone();
        LocalCheckpoints other(*world, node(w.rank()), storage_ / "other/checkpoints", 2);
        const RankMemory memory(four, w.rank(), model().all(), false);
        EXPECT_FALSE(other.find_newest(*world, memory.pieces(), {}));
    });
    run_threads(2, {}, [&](World& w) {
        const auto world = w.everyone();
        LocalCheckpoints fewer(*world, node(w.rank()), storage_ / "run/checkpoints");
        const RankMemory memory({"tp2", 1, 2, 1}, w.rank(), model().all(), false);
        EXPECT_FALSE(fewer.find_newest(*world, memory.pieces(), {}));
    });
}

TEST_F(LocalCheckpointsTest, AHistoryThatWasLeftIsDiscarded) {
    save(5, 7);
    run_threads(4, {}, [&](World& w) {
        const auto world = w.everyone();
        local(*world).discard_after(*world, 5);
    });
    EXPECT_EQ(found(7), 5);
    run_threads(4, {}, [&](World& w) {
        const auto world = w.everyone();
        local(*world).discard_after(*world, 4);
    });
    EXPECT_EQ(found(7), -1);
}

TEST_F(LocalCheckpointsTest, AreWrittenFromASnapshotToo) {
    run_threads(4, {.deadline_s = 30}, [&](World& w) {
        const auto world = w.everyone(), writers = w.everyone("writers");
        LocalCheckpoints checkpoints = local(*world);
        const RankMemory memory(four, w.rank(), model(7).all(), true);
        std::vector<std::byte> snapshot(static_cast<std::size_t>(AsyncSave::snapshot_bytes(memory.pieces())));
        AsyncSave async(*writers, memory.pieces(), snapshot);
        Stream stream(1);
        async.begin(stream, 4, [&](Group& group, std::span<const TensorPiece> pieces) {
            return checkpoints.save(group, 4, "{\"seed\":7}", pieces);
        });
        EXPECT_TRUE(async.wait()->saved());
    });
    EXPECT_EQ(found(7), 4);
}

// Parts of several blocks, and of different sizes, so that one side still sends when the other has ended.
TEST_F(LocalCheckpointsTest, LargePartsTravelInBlocks) {
    OwnedTensors tensors;
    tensors.add("a", Dtype::f32, {1000, 2300});  // 9.2 MB
    tensors.add("b", Dtype::f32, {10, 10});
    const CutLayout layout{"pp2", 2, 1, 1};
    const auto each = [&](auto body) {
        run_threads(2, {.deadline_s = 30}, [&](World& w) {
            const auto world = w.everyone();
            LocalCheckpoints checkpoints(*world, storage_ / concat("n", w.rank()), storage_ / "run");
            const RankMemory memory(layout, w.rank(), tensors.all(), true),
                blank(layout, w.rank(), tensors.all(), false);
            body(*world, checkpoints, memory, blank);
        });
    };
    each([](Group& world, auto& checkpoints, auto& memory, auto&) {
        checkpoints.save(world, 1, "{}", memory.pieces());
    });
    fs::remove_all(storage_ / "n0");
    each([&](Group& world, auto& checkpoints, auto&, auto& blank) {
        const auto newest = checkpoints.find_newest(world, blank.pieces(), {});
        ASSERT_TRUE(newest);
        checkpoints.load(world, *newest, blank.pieces());
        EXPECT_TRUE(blank.equals(tensors.all()));
    });
}

TEST_F(LocalCheckpointsTest, AreWholeAfterAKillAtAnyMoment) {
    Killer killer(11);
    std::int64_t last = 0;
    for (int kill = 0; kill < 8; ++kill) {
        const auto done = killer.run([&](const auto& announce) {
            run_threads(4, {}, [&](World& w) {
                const auto world = w.everyone();
                for (std::int64_t step = last + 1;; ++step) {
                    save(*world, step, static_cast<std::uint64_t>(step));
                    if (w.rank() == 0) announce(step);
                }
            });
        });
        if (!done.empty()) last = done.back();
        std::int64_t step = -1;
        run_threads(4, {.deadline_s = 30}, [&](World& w) {
            const auto world = w.everyone();
            LocalCheckpoints checkpoints = local(*world);
            const RankMemory memory(four, w.rank(), model().all(), false);
            const auto newest = checkpoints.find_newest(*world, memory.pieces(), {});
            ASSERT_TRUE(newest);
            checkpoints.load(*world, *newest, memory.pieces());
            EXPECT_TRUE(memory.equals(model(static_cast<std::uint64_t>(newest->step)).all()));
            if (w.rank() == 0) step = newest->step;
        });
        EXPECT_GE(step, last);
        last = step;
    }
    EXPECT_GT(last, 2);
}

}  // namespace
}  // namespace keel::test
