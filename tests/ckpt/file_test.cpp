// Files replaced whole or not at all, and errors that name path, bytes and reason.
#include "kernels/base/file.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/base/mapped_file.h"
#include "tests/ckpt/support.h"

namespace keel::test {
namespace {

namespace fs = std::filesystem;

std::string pattern(std::size_t size) {
    std::string text(size, '\0');
    for (std::size_t i = 0; i < size; ++i) text[i] = static_cast<char>(i * 131 >> 3);
    return text;
}

std::size_t entries(const fs::path& folder) {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

TEST(OutputFile, HoldsWhatWasWrittenForSizesAroundItsBlock) {
    const TempFolder folder;
    for (const std::size_t size :
         {std::size_t{0}, std::size_t{1}, std::size_t{4095}, std::size_t{4096}, std::size_t{4097},
          (std::size_t{8} << 20) - 1, std::size_t{8} << 20, (std::size_t{8} << 20) + 4097}) {
        const std::string text = pattern(size);
        const auto path = folder / std::to_string(size);
        OutputFile file(path);
        for (std::size_t at = 0; at < size; at += 1'000'003) file.write(std::string_view(text).substr(at, 1'000'003));
        EXPECT_EQ(file.size_bytes(), static_cast<std::int64_t>(size));
        file.close();
        EXPECT_TRUE(read_file(path) == text) << size;
    }
}

TEST(OutputFile, OverwritesOnDiskInTheBlockAndAcrossBoth) {
    const TempFolder folder;
    std::string text = pattern((std::size_t{8} << 20) + 100);
    OutputFile file(folder / "f");
    file.write(text);
    for (const std::int64_t offset : {std::int64_t{0}, (std::int64_t{8} << 20) - 3, (std::int64_t{8} << 20) + 90}) {
        file.overwrite(offset, std::as_bytes(std::span("headerxxxx", 10)));
        text.replace(static_cast<std::size_t>(offset), 10, "headerxxxx");
    }
    file.write("tail");
    file.close();
    EXPECT_TRUE(read_file(folder / "f") == text + "tail");
}

// Opening a pipe to read waits for somebody who writes to it: for ever, if nobody does.
TEST(InputFile, APipeIsRefusedAndNotWaitedFor) {
    const TempFolder folder;
    ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
    expect_error([&] { InputFile file(folder / "pipe"); }, {"pipe", "is not a regular file"});
    expect_error([&] { MappedFile file(folder / "pipe"); }, {"pipe", "is not a regular file"});
}

TEST(OutputFile, RefusesAnExistingFileAndAMissingFolder) {
    const TempFolder folder;
    write_bytes(folder / "there", "x");
    expect_error([&] { OutputFile file(folder / "there"); }, {"there", "File exists"});
    expect_error([&] { OutputFile file(folder / "no/such"); }, {"no/such", "No such file or directory"});
}

TEST(AtomicFile, ReplacesOnCommitOnlyAndLeavesNothingElse) {
    const TempFolder folder;
    write_bytes(folder / "f", "old");
    {
        AtomicFile file(folder / "f");
        file.write("new");
        EXPECT_EQ(read_file(folder / "f"), "old");
    }
    EXPECT_EQ(read_file(folder / "f"), "old");
    EXPECT_EQ(entries(folder.path()), 1u);
    write_file_atomically(folder / "f", "new");
    EXPECT_EQ(read_file(folder / "f"), "new");
    EXPECT_EQ(entries(folder.path()), 1u);
}

TEST(AtomicFile, RemovesWhatKilledProcessesLeftOfTheSameFileAndNothingElse) {
    const TempFolder folder;
    const pid_t gone = ::fork();  // a number that was a process and is none
    if (gone == 0) ::_exit(0);
    ASSERT_EQ(::waitpid(gone, nullptr, 0), gone);
    write_bytes(folder / concat(".f.tmp-", gone, "-0"), "left");
    fs::create_directories(folder / concat(".f.tmp-", gone, "-7/deep"));
    // Killed under the number that is ours now, as the first process of a container is.
    write_bytes(folder / concat(".f.tmp-", ::getpid(), "-123456789"), "left");
    const std::vector<std::string> others{concat(".g.tmp-", gone, "-0"), concat(".f.tmp-", ::getppid(), "-0"), ".f.tmp-",
                                          ".f.tmp-x-0", concat(".f.tmp-", gone, "-0.txt")};
    for (const std::string& other : others) write_bytes(folder / other, "kept");
    AtomicFile first(folder / "f");
    AtomicFile second(folder / "f");  // one at work in this process is no leftover
    first.write("first"), second.write("second");
    first.commit(), second.commit();
    EXPECT_EQ(read_file(folder / "f"), "second");
    for (const std::string& other : others) EXPECT_TRUE(fs::exists(folder / other)) << other;
    EXPECT_EQ(entries(folder.path()), 1 + others.size());
}

TEST(AtomicFile, AFullDiskIsNamedAndTheOldFileStays) {
    const TempFolder folder;
    write_bytes(folder / "f", "old");
    ::signal(SIGXFSZ, SIG_IGN);
    rlimit before{};
    ::getrlimit(RLIMIT_FSIZE, &before);
    const std::string text = pattern(20'000'000);
    for (const rlim_t limit : {rlim_t{0}, rlim_t{5000}, rlim_t{9'000'000}, rlim_t{19'999'999}}) {
        const rlimit small{limit, before.rlim_max};
        ::setrlimit(RLIMIT_FSIZE, &small);
        expect_error([&] { write_file_atomically(folder / "f", text); },
                     {"cannot write", "bytes at offset", "/.f.tmp-", "File too large"});
        ::setrlimit(RLIMIT_FSIZE, &before);
        EXPECT_EQ(read_file(folder / "f"), "old");
        EXPECT_EQ(entries(folder.path()), 1u);
    }
}

TEST(InputFile, NamesTheOffsetWhereAFileEnds) {
    const TempFolder folder;
    write_bytes(folder / "f", "0123456789");
    const InputFile file(folder / "f");
    std::byte out[8];
    file.read_at(2, out);
    EXPECT_EQ(std::memcmp(out, "23456789", 8), 0);
    expect_error([&] { file.read_at(5, out); }, {"ends at byte 10", "8 bytes were expected at offset 5"});
    expect_error([&] { InputFile missing(folder / "g"); }, {"cannot open", "No such file"});
    expect_error([&] { InputFile directory(folder.path()); }, {"is not a regular file"});
}

TEST(MappedFile, ShowsTheBytesAndMovesItsOwnership) {
    const TempFolder folder;
    write_bytes(folder / "f", "abc");
    write_bytes(folder / "empty", "");
    MappedFile a(folder / "f");
    MappedFile b = std::move(a);
    EXPECT_EQ(a.bytes().size(), 0u);
    ASSERT_EQ(b.bytes().size(), 3u);
    EXPECT_EQ(std::memcmp(b.bytes().data(), "abc", 3), 0);
    b = MappedFile(folder / "empty");
    EXPECT_EQ(b.size_bytes(), 0);
    expect_error([&] { MappedFile missing(folder / "g"); }, {"cannot open", "g: No such file"});
    expect_error([&] { MappedFile directory(folder.path()); }, {"is not a regular file"});
}

}  // namespace
}  // namespace keel::test
