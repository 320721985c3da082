// Converted model folders under a full disk: at whatever step it fails, there is no folder, and the message says why.
#include <gtest/gtest.h>

#include <cerrno>

#include "ckpt/model_folder.h"
#include "kernels/base/file_faults.h"
#include "tests/ckpt/support.h"

namespace keel::test {
namespace {

namespace fs = std::filesystem;

TEST(ModelFolderFaults, AFullDiskAtAnyStepLeavesNoFolderAndIsSaid) {
    const fs::path from = fs::path(KEEL_TEST_DIR) / "golden/folders/llama";
    const ModelShape shape = read_model_shape(from);
    OwnedTensors params;
    for (const ParamSpec& spec : param_specs(shape)) params.add(spec.name, Dtype::bf16, spec.shape);
    const TempFolder temp;
    SaveFolderOptions options;
    options.shard_limit_bytes = 6'000;  // several files and an index
    const auto save = [&] { save_model_folder(temp / "out", shape, params.all(), options); };
    int steps = 0;
    {
        const FileFaults count([&](FileStep, const fs::path&) { return ++steps, 0; });
        save();
    }
    ASSERT_GT(steps, 20);
    fs::remove_all(temp / "out");
    for (int bad = 1; bad < steps; ++bad) {  // the last brings the name of the folder, which stands already, to the disk
        int step = 0;
        const FileFaults full([&](FileStep, const fs::path&) { return ++step == bad ? ENOSPC : 0; });
        expect_error(save, {"No space left on device"});
        EXPECT_TRUE(fs::is_empty(temp.path())) << "step " << bad;
    }
    save();
    EXPECT_EQ(parameter_count(read_model_shape(temp / "out")), parameter_count(shape));
}

}  // namespace
}  // namespace keel::test
