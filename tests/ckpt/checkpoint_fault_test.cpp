// Checkpoints under a killed process and a full disk.
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>

#include "ckpt/checkpoint.h"
#include "tests/ckpt/kill.h"
#include "tests/ckpt/support.h"

namespace keel::test {
namespace {

namespace fs = std::filesystem;

// About 2 MB, every element of which says which save it belongs to.
class Stamped {
public:
    Stamped() {
        tensors_.add("w", Dtype::bf16, {300, 512});
        for (const char* kind : {"w.m", "w.v", "w.master"}) tensors_.add(kind, Dtype::f32, {300, 512});
    }
    void stamp(std::int64_t save) {
        for (NamedTensor& t : tensors_.all()) std::fill_n(t.data, size_bytes(t), static_cast<std::byte>(save));
    }
    bool carries(std::int64_t save) const {
        return std::all_of(tensors_.all().begin(), tensors_.all().end(), [&](const NamedTensor& t) {
            return std::all_of(t.data, t.data + size_bytes(t),
                               [&](std::byte b) { return b == static_cast<std::byte>(save); });
        });
    }
    const std::vector<NamedTensor>& all() const { return tensors_.all(); }

private:
    OwnedTensors tensors_;
};

// Each step twice.
void save_for_ever(const fs::path& root, std::int64_t save, const Killer::Announce& announce) {
    Stamped tensors;
    prepare_checkpoint_root(root);
    for (;; ++save) {
        tensors.stamp(save);
        save_checkpoint(root, save / 2, concat("{\"save\":", save, "}"), tensors.all(), {{"tokenizer.json", "{}"}});
        announce(save);
    }
}

TEST(CheckpointFault, WhateverWasAnnouncedLoadsAfterAKillAtAnyMoment) {
    const TempFolder root;
    Killer killer(20240229);
    std::int64_t announced = 0, amid = 0;
    Stamped tensors;
    for (int kill = 0; kill < 50; ++kill) {
        const auto done =
            killer.run([&](const auto& announce) { save_for_ever(root.path(), announced + 1, announce); });
        if (!done.empty()) announced = done.back();
        for (const auto& entry : fs::directory_iterator(root.path()))
            amid += entry.path().filename().string().starts_with(".tmp-");
        const auto newest = find_newest_checkpoint(root.path(), [](const std::string& text) { ADD_FAILURE() << text; });
        ASSERT_TRUE(newest) << "announced save " << announced << " is gone";
        const std::int64_t save = std::stoll(newest->state.substr(8));
        EXPECT_GE(save, announced);
        EXPECT_LE(save, announced + 1);  // one more may be published and not yet announced
        load_checkpoint(newest->path, tensors.all());
        EXPECT_TRUE(tensors.carries(save)) << "a mixture of saves";
        announced = std::max(announced, save);
    }
    EXPECT_GT(announced, 5);
    EXPECT_GT(amid, 5) << "too few kills fell into a save for this test to mean anything";
    prepare_checkpoint_root(root.path());
    for (const auto& entry : fs::directory_iterator(root.path()))
        EXPECT_TRUE(entry.path().filename().string().starts_with("step-")) << entry.path();
}

// Lets every file grow to `limit` bytes only, as a full disk would.
class FileSizeLimit {
public:
    explicit FileSizeLimit(std::uint64_t limit) {
        ::signal(SIGXFSZ, SIG_IGN);
        ::getrlimit(RLIMIT_FSIZE, &before_);
        const rlimit small{limit, before_.rlim_max};
        ::setrlimit(RLIMIT_FSIZE, &small);
    }
    ~FileSizeLimit() { ::setrlimit(RLIMIT_FSIZE, &before_); }

private:
    rlimit before_{};
};

void expect_full_disk(const fs::path& root, std::uint64_t limit, const std::string& file, const std::string& state,
                      std::span<const NamedTensor> tensors, const std::vector<ExtraFile>& extra) {
    SCOPED_TRACE(concat("limit ", limit, ", ", file));
    {
        const FileSizeLimit full(limit);
        expect_error([&] { save_checkpoint(root, 2, state, tensors, extra); },
                     {"cannot write", file, "File too large", "bytes at offset"});
    }
    EXPECT_EQ(std::distance(fs::directory_iterator(root), fs::directory_iterator()), 1)
        << "something half-written is left";
    const auto newest = find_newest_checkpoint(root, [](const std::string& text) { ADD_FAILURE() << text; });
    ASSERT_TRUE(newest);
    EXPECT_EQ(newest->step, 1);
}

TEST(CheckpointFault, AFullDiskAtAnyFileLeavesTheOlderCheckpoint) {
    const TempFolder root;
    Stamped tensors;
    tensors.stamp(1);
    // Each file is larger than all before it, so that a limit can be chosen at which exactly this one fails.
    const std::string state = "{\"pad\":\"" + std::string(5'000'000, 'x') + "\"}";
    const std::vector<ExtraFile> extra{{"tokenizer.json", std::string(3'000'000, 'x')}};
    save_checkpoint(root.path(), 1, state, tensors.all(), extra);
    for (const std::uint64_t limit : {0, 1, 4096, 100'000, 307'199})
        expect_full_disk(root.path(), limit, "weights.safetensors", state, tensors.all(), extra);
    for (const std::uint64_t limit : {400'000, 1'000'000, 1'843'200})
        expect_full_disk(root.path(), limit, "optimizer.safetensors", state, tensors.all(), extra);
    for (const std::uint64_t limit : {2'000'000, 2'999'999})
        expect_full_disk(root.path(), limit, "tokenizer.json", state, tensors.all(), extra);
    for (const std::uint64_t limit : {3'000'001, 5'000'000})
        expect_full_disk(root.path(), limit, "state.json", state, tensors.all(), extra);
    load_checkpoint(root / "step-00000001", tensors.all());
    EXPECT_TRUE(tensors.carries(1));
}

TEST(CheckpointFault, AFullDiskAtTheManifestLeavesTheOlderCheckpoint) {
    const TempFolder root;
    OwnedTensors tensors;
    tensors.add("w", Dtype::f32, {2});
    const fs::path path = save_checkpoint(root.path(), 1, "{}", tensors.all());
    const auto size = fs::file_size(path / "manifest.json");
    ASSERT_GT(size, fs::file_size(path / "weights.safetensors") + 2);
    expect_full_disk(root.path(), size - 1, "manifest.json", "{}", tensors.all(), {});
}

}  // namespace
}  // namespace keel::test
