#include "data/inputs.h"

#include "tests/data/helpers.h"

namespace keel {
namespace {

namespace fs = std::filesystem;

struct Tree {
    TempFolder temp;
    Tree() {
        for (const char* folder : {"docs/a/deep", "docs/.git", "docs/b"}) fs::create_directories(temp.path() / folder);
        for (const char* file : {"docs/z.md", "docs/a/1.md", "docs/a/deep/2.md", "docs/a/deep/2.txt", "docs/b/B.md",
                                 "docs/.git/x.md", "docs/b/.hidden.md", "docs/what?.md"})
            temp.write(file, "x");
    }
    std::string expand(std::vector<std::string> inputs, const std::vector<std::string>& endings = {}) const {
        for (std::string& input : inputs)
            if (!input.starts_with("@")) input = temp / input;
        std::string text;
        for (const fs::path& path : expand_inputs(inputs, endings))
            text += fs::relative(path, temp.path()).string() + " ";
        return text;
    }
};

TEST(Inputs, FoldersStandForTheirWholeTreeInTheOrderOfPathsWithoutHiddenFiles) {
    const Tree t;
    EXPECT_EQ(t.expand({"docs"}),
              "docs/a/1.md docs/a/deep/2.md docs/a/deep/2.txt docs/b/B.md docs/what?.md docs/z.md ");
    EXPECT_EQ(t.expand({"docs"}, {".txt"}), "docs/a/deep/2.txt ");
    EXPECT_EQ(t.expand({"docs/z.md", "docs/a"}), "docs/z.md docs/a/1.md docs/a/deep/2.md docs/a/deep/2.txt ");
}

TEST(Inputs, PatternsReachIntoFolders) {
    const Tree t;
    EXPECT_EQ(t.expand({"docs/*.md"}), "docs/what?.md docs/z.md ");
    EXPECT_EQ(t.expand({"docs/**/*.md"}), "docs/a/1.md docs/a/deep/2.md docs/b/B.md docs/what?.md docs/z.md ");
    EXPECT_EQ(t.expand({"docs/a/**"}), "docs/a/1.md docs/a/deep/2.md docs/a/deep/2.txt ");
    EXPECT_EQ(t.expand({"docs/**"}), t.expand({"docs"}));
    EXPECT_EQ(t.expand({"docs/[ab]/*"}), "docs/a/1.md docs/b/B.md ");
    EXPECT_EQ(t.expand({"docs/b/.h*"}), "docs/b/.hidden.md ");
    EXPECT_EQ(t.expand({"docs/what?.md"}), "docs/what?.md ");  // a file of that name is that file
}

TEST(Inputs, ListsNameFilesRelativeToThemselves) {
    const Tree t;
    t.temp.write("docs/list.txt", "# the corpus\nb/*.md\r\n\n  \nz.md\n");
    EXPECT_EQ(t.expand({"@" + t.temp / "docs/list.txt"}), "docs/b/B.md docs/z.md ");
    t.temp.write("docs/empty.txt", "# nothing\n");
    EXPECT_SAYS(message_of([&] { t.expand({"@" + t.temp / "docs/empty.txt"}); }), "names no files");
    EXPECT_SAYS(message_of([&] { t.expand({"@nowhere.txt"}); }), "cannot open nowhere.txt");
}

TEST(Inputs, NamesThatStandForNothingOrTheSameFileTwiceAreRefused) {
    const Tree t;
    EXPECT_SAYS(message_of([&] { t.expand({"docs/*.json"}); }), "no file matches");
    EXPECT_SAYS(message_of([&] { t.expand({"docs"}, {".tok"}); }), "no files of the kind");
    EXPECT_SAYS(message_of([&] { t.expand({"docs/z.md", "docs/*.md"}); }), "named twice");
    EXPECT_SAYS(message_of([&] { t.expand({"docs/z.md", "docs/a/../z.md"}); }), "named twice");
}

}  // namespace
}  // namespace keel
