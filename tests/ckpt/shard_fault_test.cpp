// Checkpoints of several ranks under full disks, damage, and killed processes: one answer on every rank.
#include <atomic>

#include "ckpt/checkpoint.h"
#include "ckpt/checkpoint_tensors.h"
#include "ckpt/manifest.h"
#include "comm/threads.h"
#include "kernels/base/file_faults.h"
#include "tests/ckpt/kill.h"
#include "tests/ckpt/layouts.h"

namespace keel::test {
namespace {

namespace fs = std::filesystem;

OwnedTensors model(std::uint64_t seed = 1) { return one_matrix(seed); }

// Runs `body` on every rank, where it must throw Error, the same text everywhere.
template <class Body>
std::string error_of_all(int ranks, Body body) {
    std::vector<std::string> texts(static_cast<std::size_t>(ranks));
    run_threads(ranks, {.deadline_s = 20}, [&](World& w) {
        const auto world = w.everyone();
        try {
            body(*world);
        } catch (const Error& e) {
            texts[static_cast<std::size_t>(w.rank())] = e.what();
        }
        EXPECT_TRUE(world->all(true));  // the group is as good as before
    });
    for (const std::string& text : texts) EXPECT_EQ(text, texts[0]);
    return texts[0];
}

void save(Group& world, const fs::path& root, std::int64_t step, std::uint64_t seed = 1) {
    const RankMemory memory(four, world.rank(), model(seed).all(), true);
    save_checkpoint(world, root, step, concat("{\"seed\":", seed, "}"), memory.pieces(), {{"tokenizer.json", "{}"}});
}

void save(const fs::path& root, std::int64_t step, std::uint64_t seed = 1) {
    run_threads(4, {}, [&](World& w) { save(*w.everyone(), root, step, seed); });
}

std::string load_error(const fs::path& path) {
    return error_of_all(4, [&](Group& world) {
        const RankMemory memory(four, world.rank(), model().all(), false);
        load_checkpoint(world, path, memory.pieces());
    });
}

void expect_has(const std::string& text, std::initializer_list<std::string> parts) {
    for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << text << "\nlacks: " << part;
}

TEST(ShardFault, AFaultOnOneRankIsToldByAllAndLeavesTheOlderOne) {
    const TempFolder root;
    save(root.path(), 1);
    const std::string second = "weights-rank-00002-of-00004.safetensors";
    struct Case {
        FileStep step;
        std::string file;
        int rank, reason;
    };
    const Case cases[] = {{FileStep::create, second, 2, EACCES},
                          {FileStep::write, second, 2, ENOSPC},
                          {FileStep::sync, second, 2, EIO},
                          {FileStep::write, "optimizer-rank-00003-of-00004.safetensors", 3, ENOSPC},
                          {FileStep::write, "state.json", 0, ENOSPC},
                          {FileStep::write, "tokenizer.json", 0, EDQUOT},
                          {FileStep::write, "manifest.json", 0, ENOSPC},
                          {FileStep::sync, "manifest.json", 0, EIO},
                          {FileStep::rename, "step-00000002", 0, EACCES}};
    for (const Case& c : cases) {
        SCOPED_TRACE(concat(c.file, ", step ", static_cast<int>(c.step)));
        const FileFaults faults([&](FileStep step, const fs::path& path) {
            return step == c.step && path.filename() == c.file ? c.reason : 0;
        });
        expect_has(error_of_all(4, [&](Group& world) { save(world, root.path(), 2); }),
                   {"saving the checkpoint of step 2 failed on rank " + std::to_string(c.rank), c.file,
                    std::strerror(c.reason)});
        EXPECT_EQ(std::distance(fs::directory_iterator(root.path()), fs::directory_iterator()), 1)
            << "something is left";
        EXPECT_EQ(find_newest_checkpoint(root.path(), {})->step, 1);
    }
    save(root.path(), 2);
    EXPECT_EQ(find_newest_checkpoint(root.path(), {})->step, 2);
}

TEST(ShardFault, AFaultWhileReplacingAStepKeepsWhatWasThere) {
    const TempFolder root;
    save(root.path(), 1, 5);
    const FileFaults faults([](FileStep step, const fs::path& path) {
        return step == FileStep::rename && path.filename() == "step-00000001" ? EIO : 0;
    });
    expect_has(error_of_all(4, [&](Group& world) { save(world, root.path(), 1, 6); }),
               {"cannot rename", "step-00000001"});
    EXPECT_EQ(find_newest_checkpoint(root.path(), {})->state, "{\"seed\":5}");
}

TEST(ShardFault, AFullDiskOnManyRanksIsToldInFewLines) {
    const TempFolder root;
    const FileFaults faults([](FileStep step, const fs::path&) { return step == FileStep::write ? ENOSPC : 0; });
    const std::string text = error_of_all(8, [&](Group& world) {
        const RankMemory memory({"zero8", 1, 1, 8}, world.rank(), model().all(), true);
        save_checkpoint(world, root.path(), 1, "{}", memory.pieces());
    });
    expect_has(text, {"on rank 0: ", "\n  on rank 3: ", "\n  and on 4 more"});
}

TEST(ShardFault, WhatRanksTogetherDoNotOwnOnceIsNotPublished) {
    const TempFolder root;
    const OwnedTensors tensors = model();
    const auto attempt = [&](auto change) {
        return error_of_all(2, [&](Group& world) {
            const RankMemory memory({"zero2", 1, 1, 2}, world.rank(), tensors.all(), true);
            std::vector<TensorPiece> pieces = memory.pieces();
            if (world.rank() == 1) change(pieces);
            save_checkpoint(world, root.path(), 1, "{}", pieces);
        });
    };
    expect_has(attempt([](auto& pieces) { pieces.erase(pieces.begin()); }),
               {"does not hold each tensor exactly once", "embed [50, 16]: rows", "are in no file"});
    expect_has(attempt([](auto& pieces) { pieces[1].row -= 1; }),
               {"embed [50, 16]: rows",
                "are in weights-rank-00000-of-00002.safetensors and in weights-rank-00001-of-00002.safetensors"});
    expect_has(attempt([](auto& pieces) {
                   pieces[0].shape = {51, 16};
               }),
               {"\"embed\" is BF16 [51, 16] here, but BF16 [50, 16] in weights-rank-00000"});
    expect_has(attempt([](auto& pieces) { pieces[0].cols = 40; }),
               {"on rank 1: a piece of \"embed\"", "must lie inside 50 rows of 16"});
    EXPECT_TRUE(fs::is_empty(root.path()));
}

TEST(ShardFault, DamagedMissingAndForeignShardsAreNamed) {
    const TempFolder root;
    save(root.path(), 1);
    const fs::path path = root / "step-00000001", shard = path / "weights-rank-00003-of-00004.safetensors";
    const std::string good = read_file(shard);
    std::string bytes = good;
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    write_bytes(shard, bytes);
    expect_has(load_error(path), {"loading", "weights-rank-00003-of-00004.safetensors is damaged: XXH3-128"});
    fs::resize_file(shard, good.size() - 1);
    expect_has(load_error(path),
               {"weights-rank-00003-of-00004.safetensors is damaged: it should have", "bytes, found"});
    fs::remove(shard);
    expect_has(load_error(path),
               {"failed on every rank: ",
                "weights-rank-00003-of-00004.safetensors is listed in the manifest, but cannot be read"});
    write_bytes(shard, good);
    EXPECT_EQ(load_error(path), "");

    // A manifest that lists one file too few, or one too many: a hole and an overlap, found before anything is read.
    const CheckpointInfo info = open_checkpoint(path);
    auto fewer = info.files;
    std::erase_if(fewer, [&](const auto& f) { return f.name == shard.filename(); });
    write_bytes(path / "manifest.json", manifest_text(1, fewer));
    expect_has(load_error(path), {"embed [50, 16]: rows", "are in no file"});
    auto more = info.files;
    fs::copy(shard, path / "weights-rank-00004-of-00004.safetensors");
    more.push_back({"weights-rank-00004-of-00004.safetensors", static_cast<std::int64_t>(good.size()), hash_of(good)});
    write_bytes(path / "manifest.json", manifest_text(1, more));
    expect_has(load_error(path),
               {"are in weights-rank-00003-of-00004.safetensors and in weights-rank-00004-of-00004.safetensors"});
}

TEST(ShardFault, PlacesThatCannotBeAreNamed) {
    const TempFolder root;
    save(root.path(), 1);
    const fs::path path = root / "step-00000001", shard = path / "weights-rank-00003-of-00004.safetensors";
    const CheckpointInfo info = open_checkpoint(path);
    const std::string good = read_file(shard);
    const auto forged = [&](const std::string& from, const std::string& to) {
        EXPECT_EQ(from.size(), to.size());
        std::string bytes = good;
        bytes.replace(bytes.find(from), from.size(), to);
        write_bytes(shard, bytes);
        auto files = info.files;
        for (auto& f : files)
            if (f.name == shard.filename()) f.hash = hash_of(bytes);
        write_bytes(path / "manifest.json", manifest_text(1, files));
        return load_error(path);
    };
    expect_has(forged("\\\"row\\\":2", "\\\"row\\\":9"), {"keel.pieces of \"embed@", "is not inside [50, 16]"});
    expect_has(forged("\\\"row\\\"", "\\\"rov\\\""), {"keel.pieces of \"embed@", "is not {tensor, shape, row, col}"});
    expect_has(forged("[50,16]", "[-5,16]"), {"keel.pieces of \"embed@", "has the shape [-5, 16]"});
}

TEST(ShardFault, TensorsOfAnotherModelAreListedByEveryRank) {
    const TempFolder root;
    save(root.path(), 1);
    const std::string text = error_of_all(2, [&](Group& world) {
        OwnedTensors other;
        other.add("embed", Dtype::bf16, {51, 16});
        other.add("head", Dtype::bf16, {50, 16});
        const RankMemory memory({"pp2", 2, 1, 1}, world.rank(), other.all(), false);
        load_checkpoint(world, root / "step-00000001", memory.pieces());
    });
    expect_has(text, {"on rank 0: ", "misshapen  embed is [50, 16], the run's is [51, 16]",
                      "on rank 1: ", "missing    head [50, 16]"});
    EXPECT_EQ(text.find("optimizer"), std::string::npos) << text;  // nobody asked for it
}

TEST(ShardFault, TheNewestGoodOneIsTheSameForAllRanks) {
    const TempFolder root;
    save(root.path(), 1);
    save(root.path(), 2);
    const fs::path shard = root / "step-00000002/optimizer-rank-00001-of-00004.safetensors";
    std::string bytes = read_file(shard);
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    write_bytes(shard, bytes);
    std::atomic<int> told{0};
    run_threads(3, {}, [&](World& w) {
        const auto newest = find_newest_checkpoint(*w.everyone(), root.path(), [&](const std::string& text) {
            ++told;
            expect_has(text, {"skipping", "step-00000002", "optimizer-rank-00001-of-00004.safetensors is damaged"});
        });
        ASSERT_TRUE(newest);
        EXPECT_EQ(newest->step, 1);
    });
    EXPECT_EQ(told, 1);
}

TEST(ShardFault, WhateverWasAnnouncedLoadsAfterAKillAtAnyMoment) {
    const TempFolder root;
    Killer killer(7);
    std::int64_t announced = 0;
    int amid = 0;
    for (int kill = 0; kill < 12; ++kill) {
        const auto done = killer.run([&](const auto& announce) {
            prepare_checkpoint_root(root.path());
            run_threads(4, {}, [&](World& w) {
                const auto world = w.everyone();
                for (std::int64_t step = announced + 1;; ++step) {
                    save(*world, root.path(), step, static_cast<std::uint64_t>(step));
                    if (w.rank() == 0) announce(step);
                }
            });
        });
        if (!done.empty()) announced = done.back();
        for (const auto& entry : fs::directory_iterator(root.path()))
            amid += entry.path().filename().string().starts_with(".tmp-");
        const auto newest = find_newest_checkpoint(root.path(), [](const std::string& text) { ADD_FAILURE() << text; });
        ASSERT_TRUE(newest);
        EXPECT_GE(newest->step, announced);
        const OwnedTensors want = model(static_cast<std::uint64_t>(newest->step)), got = want.blank();
        load_checkpoint(newest->path, got.all());
        EXPECT_EQ(got.memory(), want.memory()) << "a mixture of saves";
        announced = std::max(announced, newest->step);
    }
    EXPECT_GT(announced, 2);
    EXPECT_GT(amid, 2) << "too few kills fell into a save for this test to mean anything";
}

}  // namespace
}  // namespace keel::test
