// Files under a failing disk and a process that dies at any step: what kernels/base/file.h promises to all its users.
#include "kernels/base/file_faults.h"

#include <cerrno>

#include "tests/data/helpers.h"

namespace keel {
namespace {

namespace fs = std::filesystem;

std::int64_t entries(const TempFolder& temp) {
    return std::distance(fs::directory_iterator(temp.path()), fs::directory_iterator());
}

void publish(const TempFolder& temp) {
    AtomicFile a(temp / "a"), b(temp / "b");
    a.write("one"), b.write("two");
    AtomicFile* const both[] = {&a, &b};
    commit_together(both);
}

TEST(FileFaults, FilesThatBelongTogetherAppearTogetherOrNotAtAll) {
    const TempFolder temp;
    int steps = 0;
    {
        const FileFaults count([&](FileStep, const fs::path&) { return ++steps, 0; });
        publish(temp);
    }
    EXPECT_EQ(steps, 2 * 4 + 2);  // create, write, sync, rename of each, and the folder of each
    EXPECT_EQ(read_file(temp / "a") + read_file(temp / "b"), "onetwo");
    fs::remove(temp / "a"), fs::remove(temp / "b");
    for (int bad = 1; bad <= 8;
         ++bad) {  // the folder is synced when both names stand, and what failed then is only durability
        int step = 0;
        const FileFaults full([&](FileStep, const fs::path&) { return ++step == bad ? ENOSPC : 0; });
        EXPECT_SAYS(message_of([&] { publish(temp); }), "No space left on device");
        EXPECT_EQ(entries(temp), 0) << "step " << bad;
    }
}

TEST(FileFaults, EveryKindOfStepNamesItsFileAndTheReason) {
    const TempFolder temp;
    for (const auto& [kind, says] :
         {std::pair{FileStep::create, "cannot create"}, std::pair{FileStep::write, "cannot write 3 bytes"},
          std::pair{FileStep::sync, "cannot bring the 3 bytes"}, std::pair{FileStep::rename, "cannot rename"}}) {
        const FileFaults broken([&, k = kind](FileStep step, const fs::path&) { return step == k ? EIO : 0; });
        const std::string message = message_of([&] { write_file_atomically(temp / "file", "abc"); });
        EXPECT_SAYS(message, says);
        EXPECT_SAYS(message, "file");
        EXPECT_SAYS(message, "Input/output error");
        EXPECT_EQ(entries(temp), 0);
    }
}

}  // namespace
}  // namespace keel
