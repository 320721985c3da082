// Tokenizing that is killed or meets a full disk at any step: nothing looks finished, and another run makes the same
// file.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/wait.h>

#include <cerrno>

#include "data/bpe_train.h"
#include "data/tokenize.h"
#include "kernels/base/file_faults.h"
#include "tests/data/helpers.h"

namespace keel {
namespace {

namespace fs = std::filesystem;

struct Scene {
    TempFolder temp;
    Tokenizer tokenizer;
    TokenizeOptions o;
    Scene() : tokenizer(trained()) {
        std::string plain, json;
        for (int i = 0; i < 400; ++i) plain += concat("line ", i, " of a long text that is one document\n");
        for (int i = 0; i < 300; ++i)
            json += i % 40 == 3 ? "no document\n" : concat("{\"text\": \"document ", i, "\"}\n");
        o.inputs = {temp.write("a.txt", plain), temp.write("b.jsonl", json), temp.write("c.txt", plain)};
        o.out = temp / "out/a.tok";
        o.tail = Tail::parse("10%");
        o.tail_out = temp / "out/tail.tok";
        o.tail_text = temp / "out/tail.txt";
        o.text.skip_bad_lines = true;
        o.text.piece_bytes = 700;
        o.part_bytes = 14000;
        o.threads = 1;
        fs::create_directory(temp / "out");
    }
    static Tokenizer trained() {
        BpeTrainer trainer;
        trainer.add("line of a long text that is one document 0123456789");
        return trainer.train({.vocab_size = 300});
    }
    std::string files() const { return read_file(o.out) + read_file(o.tail_out) + read_file(o.tail_text); }
    // What is in the folder under names that do not begin with a dot.
    std::string visible() const {
        std::string names;
        for (const auto& entry : fs::directory_iterator(temp / "out"))
            if (!entry.path().filename().native().starts_with('.')) names += entry.path().filename().string() + " ";
        return names;
    }
    void clear() const {
        fs::remove_all(temp / "out");
        fs::create_directory(temp / "out");
    }
    std::string whole() {  // what one undisturbed run without parts makes
        const std::int64_t parts = std::exchange(o.part_bytes, 1 << 30);
        tokenize(tokenizer, o);
        o.part_bytes = parts;
        const std::string bytes = files();
        clear();
        return bytes;
    }
};

TEST(TokenizeParts, MakeTheSameFilesAsOneRunWithoutThemAndAreGoneAfterwards) {
    Scene s;
    const std::string want = s.whole();
    const TokenizeReport report = tokenize(s.tokenizer, s.o);
    EXPECT_TRUE(s.files() == want);
    EXPECT_EQ(report.resumed_bytes, 0);
    EXPECT_EQ(report.bad_lines.count, 8);
    EXPECT_EQ(std::distance(fs::directory_iterator(s.temp / "out"), fs::directory_iterator()), 3);
}

TEST(TokenizeParts, AKillAtAnyStepLeavesNothingThatLooksFinishedAndTheNextRunGoesOn) {
    Scene s;
    const std::string want = s.whole();
    int steps = 0;
    {
        const FileFaults count([&](FileStep, const fs::path&) { return ++steps, 0; });
        tokenize(s.tokenizer, s.o);
    }
    s.clear();
    ASSERT_GT(steps, 35);
    int went_on = 0;
    for (int kill = 1; kill <= steps; ++kill) {
        const pid_t child = ::fork();
        if (child == 0) {
            int step = 0;
            const FileFaults killed([&](FileStep, const fs::path&) { return ++step == kill ? (::_exit(9), 0) : 0; });
            tokenize(s.tokenizer, s.o);
            ::_exit(0);
        }
        int status = 0;
        ::waitpid(child, &status, 0);
        ASSERT_EQ(WEXITSTATUS(status), 9) << kill;
        const std::string there =
            s.visible();  // the tail may stand without the body for the moment between two renames
        EXPECT_TRUE(there.find("a.tok") == std::string::npos || s.files() == want) << kill << ": " << there;
        const TokenizeReport report = tokenize(s.tokenizer, s.o);
        EXPECT_TRUE(s.files() == want) << kill;
        EXPECT_EQ(report.bad_lines.count, 8) << kill;
        EXPECT_EQ(std::distance(fs::directory_iterator(s.temp / "out"), fs::directory_iterator()), 3) << kill;
        went_on += report.resumed_bytes > 0;
        s.clear();
    }
    EXPECT_GT(went_on, steps / 2);
}

TEST(TokenizeParts, AFullDiskAtAnyStepIsSaidAndLeavesNothingVisible) {
    Scene s;
    const std::string want = s.whole();
    int steps = 0;
    {
        const FileFaults count([&](FileStep, const fs::path&) { return ++steps, 0; });
        tokenize(s.tokenizer, s.o);
    }
    s.clear();
    for (int bad = 1; bad <= steps - 3;
         ++bad) {  // the last three bring the folder of names that stand already to the disk
        int step = 0;
        const FileFaults full([&](FileStep, const fs::path&) { return ++step == bad ? ENOSPC : 0; });
        EXPECT_SAYS(message_of([&] { tokenize(s.tokenizer, s.o); }), "No space left on device");
        EXPECT_EQ(s.visible(), "") << bad;
        if (bad < steps - 3) s.clear();
    }
    EXPECT_GT(tokenize(s.tokenizer, s.o).resumed_bytes, 0);  // what was done before the disk was full is not lost
    EXPECT_TRUE(s.files() == want);
}

TEST(TokenizeParts, PartsOfOtherOptionsInputsOrABeginningAnewAreNotUsed) {
    Scene s;
    const auto interrupt = [&] {
        s.clear();
        int tokens = 0;
        const FileFaults killed([&](FileStep step, const fs::path& path) {
            return step == FileStep::rename && path.extension() == ".json" && ++tokens == 2 ? EIO : 0;
        });
        EXPECT_SAYS(message_of([&] { tokenize(s.tokenizer, s.o); }), "Input/output error");
    };
    const auto resumed = [&] { return tokenize(s.tokenizer, s.o).resumed_bytes; };
    interrupt();
    EXPECT_GT(resumed(), 0);
    interrupt();
    s.o.append_eos = false;
    EXPECT_EQ(resumed(), 0);
    s.o.append_eos = true;
    interrupt();
    s.o.resume = false;
    EXPECT_EQ(resumed(), 0);
    s.o.resume = true;
    interrupt();
    s.temp.write("b.jsonl", read_file(s.temp / "b.jsonl") + "{\"text\": \"more\"}\n");
    EXPECT_EQ(resumed(), 0);
    interrupt();
    const int lock = ::open((s.temp / "out/.a.tok.parts/lock").c_str(), O_RDWR);
    ASSERT_EQ(::flock(lock, LOCK_EX | LOCK_NB), 0);
    EXPECT_SAYS(message_of([&] { tokenize(s.tokenizer, s.o); }), "another `keel tokenize` is writing");
    ::close(lock);
}

TEST(TokenizeParts, OtherFormatsAndMasksComeThroughToo) {
    Scene s;
    s.o.tail = {}, s.o.tail_text.clear();
    for (const TokenFormat to : {TokenFormat::megatron, TokenFormat::llmc}) {
        s.o.to = to;
        s.o.out = s.temp / "out/a.bin";
        std::string want;
        for (const std::int64_t part : {1 << 30, 9000}) {
            s.o.part_bytes = part;
            const TokenizeReport report = tokenize(s.tokenizer, s.o);
            const std::string bytes = read_file(s.o.out);
            EXPECT_EQ(report.body.documents, 2 + 292);
            EXPECT_TRUE(want.empty() || bytes == want);
            want = bytes;
        }
        const TokenFile file(s.o.out, {.vocab_size = s.tokenizer.vocab_size(), .eos_id = *s.tokenizer.eos_id()});
        EXPECT_EQ(file.documents(), 2 + 292) << name(to);
        fs::remove(s.temp / "out/a.idx");
    }
    std::string json;
    for (int i = 0; i < 500; ++i) json += concat("{\"prompt\": \"", i, "\", \"completion\": \"of ", i, "\"}\n");
    s.o.inputs = {s.temp.write("chat.jsonl", json)};
    s.o.to = TokenFormat::keel;
    s.o.chat = ChatFormat::named("prompt");
    std::string want;
    for (const std::int64_t part : {1 << 30, 1500}) {
        s.o.part_bytes = part;
        tokenize(s.tokenizer, s.o);
        EXPECT_TRUE(want.empty() || read_file(s.o.out) == want);
        want = read_file(s.o.out);
    }
    EXPECT_TRUE(TokenFile(s.o.out).info().has_mask);
}

}  // namespace
}  // namespace keel
