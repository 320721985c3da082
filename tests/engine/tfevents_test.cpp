// TensorBoard's files, byte for byte. Vectors were made, and parsed back, by a protobuf library.
#include "engine/observe/tfevents.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "tests/temp_folder.h"

using namespace keel;
namespace fs = std::filesystem;

namespace {

std::string hex_of(std::string_view bytes) {
    std::string out;
    for (const char c : bytes) {
        char digits[3];
        std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(c));
        out += digits;
    }
    return out;
}
std::string packed(std::string text) {
    std::erase(text, ' ');
    return text;
}
const Warn no_warning = [](const std::string& text) { ADD_FAILURE() << text; };

}  // namespace

TEST(MaskedCrc, IsTensorflows) {
    EXPECT_EQ(masked_crc32c(""), 0xa282ead8u);
    EXPECT_EQ(masked_crc32c("a"), 0x28e46e78u);
    EXPECT_EQ(masked_crc32c("123456789"), 0xc78ab0e5u);
    EXPECT_EQ(masked_crc32c(std::string(32, '\0')), 0x0fd7fffau);
    EXPECT_EQ(masked_crc32c(std::string(32, '\xff')), 0xf909b029u);
    std::string rising;
    for (int i = 0; i < 32; ++i) rising += static_cast<char>(i);
    EXPECT_EQ(masked_crc32c(rising), 0x951f7892u);
}

TEST(EventRecord, IsFramedAsTensorBoardReadsIt) {
    EventRecord record;
    EXPECT_EQ(hex_of(record.begin(1700000000.0).file_version().finish()),
              packed("1800000000000000 a37f4b22 0900000040fc54d9411a0d627261696e2e4576656e743a32 eced8f9d"));
    EXPECT_EQ(
        hex_of(record.begin(1700000000.5, 10).scalar("train/loss", 2.5).finish()),
        packed("2000000000000000 29eda950 0900002040fc54d941100a2a130a110a0a747261696e2f6c6f73731500002040 8512ce0b"));
    EXPECT_EQ(hex_of(record.begin(1700000001.0, 0).text("config/text_summary", "hello").finish()),
              packed("4100000000000000 00a9c2ab "
                     "0900004040fc54d94110002a340a320a13636f6e6669672f746578745f73756d6d6172794a0a0a060a"
                     "04746578742002420f0807120412020801420568656c6c6f fe5a7bc4"));
    EXPECT_EQ(hex_of(record.begin(1700000001.0, 10).session_start().finish()),
              packed("0f00000000000000 6d532b09 0900004040fc54d941100a3a020801 2582cdb3"));
}

TEST(EventRecord, HoldsSeveralNumbersAndWhatIsNotFiniteAsItIs) {
    EventRecord record;
    // Two values of one summary; a step of two bytes; NaN and -Inf as floats, 00 00 c0 7f and 00 00 80 ff.
    EXPECT_EQ(hex_of(record.begin(0.0, 300).scalar("a", NAN).scalar("b", -INFINITY).finish()).substr(24, 2 * 34),
              packed("09 0000000000000000 10 ac02 2a 14 0a08 0a0161 150000c07f 0a08 0a0162 15000080ff"));
}

TEST(EventRecord, ThatIsUsedAgainForgetsTheOneBefore) {
    EventRecord once, again;
    again.begin(5, 1).scalar("long/tag/of/the/first", 1).finish();
    EXPECT_EQ(again.begin(7, 2).scalar("x", 3).finish(), once.begin(7, 2).scalar("x", 3).finish());
}

TEST(EventFile, BeginsWithItsVersionAndWhereTheSessionStarts) {
    const test::TempFolder folder;
    fs::path path;
    {
        EventFile file(folder.path() / "tensorboard", 11, 1700000000.0, no_warning);
        path = file.path();
        EXPECT_TRUE(path.filename().string().starts_with("events.out.tfevents.1700000000.")) << path;
        file.write(file.record().begin(1700000000.5, 11).scalar("train/loss", 2.5));
        file.flush();  // a reader sees it while the run goes on
        EventRecord record;
        std::string expected(record.begin(1700000000.0).file_version().finish());
        expected += record.begin(1700000000.0, 11).session_start().finish();
        expected += record.begin(1700000000.5, 11).scalar("train/loss", 2.5).finish();
        EXPECT_EQ(read_file(path), expected);
    }
    EventFile next(folder.path() / "tensorboard", 21, 1700000000.0, no_warning);  // within the same second
    EXPECT_NE(next.path(), path);
}

TEST(EventFile, InAFolderThatCannotBeMadeIsToldBeforeTheRun) {
    try {
        const EventFile file("/proc/none", 1, 1.0, no_warning);
        FAIL();
    } catch (const Error& e) {
        EXPECT_NE(std::string(e.what()).find("/proc/none cannot be made"), std::string::npos) << e.what();
        EXPECT_NE(std::string(e.what()).find("--run.dir"), std::string::npos) << e.what();
    }
}

TEST(AppendFile, ThatCannotBeWrittenIsToldOnceAndLeftAlone) {
    std::vector<std::string> warnings;
    AppendFile file("/dev/full", "a", [&](const std::string& text) { warnings.push_back(text); });
    for (int i = 0; i < 3; ++i) file.write("a line\n"), file.flush();
    ASSERT_EQ(warnings.size(), 1u);
    EXPECT_EQ(warnings[0], "/dev/full: No space left on device; the run goes on without it");
}
