#include "data/tokenize.h"

#include <gtest/gtest.h>

#include "data/bpe_train.h"
#include "data/utf8.h"
#include "tests/data/helpers.h"

namespace keel {
namespace {

std::string lines(int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += concat("line ", i, ": the word isn't the thing, na\u00efve \U0001f642 ", i * i, "\n");
    return text;
}

Tokenizer tokenizer() {
    BpeTrainer trainer;
    trainer.add(lines(200));
    return trainer.train({.vocab_size = 400});
}

std::vector<std::int32_t> ids_of(const std::string& path) {
    const TokenFile file(path);
    file.verify();
    std::vector<std::int32_t> ids(static_cast<std::size_t>(file.tokens()));
    file.read(0, ids);
    return ids;
}

TEST(Tokenize, IdsAreThoseOfTheWholeTextWithOneEosPerDocument) {
    const TempFolder temp;
    const Tokenizer t = tokenizer();
    const std::string one = lines(3000), two = "short";
    TokenizeOptions o;
    o.inputs = {temp.write("1.txt", one), temp.write("2.txt", two)};
    o.out = temp / "a.tok";
    o.text.piece_bytes = 500;  // many pieces, and ids as if there were none
    o.threads = 2;
    const TokenizeReport report = tokenize(t, o);
    std::vector<std::int32_t> want = t.encode(one);
    want.push_back(*t.eos_id());
    t.encode(two, want);
    want.push_back(*t.eos_id());
    EXPECT_EQ(ids_of(temp / "a.tok"), want);
    EXPECT_EQ(report.body.documents, 2);
    EXPECT_EQ(report.body.source_bytes, static_cast<std::int64_t>(one.size() + two.size()));
    EXPECT_EQ(TokenFile(temp / "a.tok").info().tokenizer_hash, t.hash());
    EXPECT_TRUE(TokenFile(temp / "a.tok").info().ends_with_eos);
}

TEST(Tokenize, FilesAreTheSameForAnyNumberOfThreads) {
    const TempFolder temp;
    const Tokenizer t = tokenizer();
    std::string json;
    for (int i = 0; i < 2000; ++i) json += concat("{\"text\": \"document ", i, " ", std::string(static_cast<std::size_t>(i % 50), 'x'), "\"}\n");
    std::string first;
    for (const int threads : {1, 2, 3}) {
        TokenizeOptions o;
        o.inputs = {temp.write("a.jsonl", json), temp.write("b.txt", lines(500))};
        o.out = temp / "a.tok";
        o.tail = Tail::parse("10%");
        o.tail_out = temp / "b.tok";
        o.threads = threads;
        tokenize(t, o);
        const std::string bytes = read_file(temp / "a.tok") + read_file(temp / "b.tok");
        if (first.empty()) first = bytes;
        EXPECT_EQ(bytes == first, true) << threads;
    }
}

TEST(Tokenize, TheTailOfAPlainTextBeginsAtALineAndIsNotInTheBody) {
    const TempFolder temp;
    const Tokenizer t = tokenizer();
    const std::string text = lines(1000);
    for (const std::int64_t piece : {100, 1000, 1 << 20})
        for (const std::int64_t bytes : {200, 5000, 20000}) {
            TokenizeOptions o;
            o.inputs = {temp.write("a.txt", text)};
            o.out = temp / "body.tok";
            o.tail.bytes = bytes;
            o.tail_out = temp / "tail.tok";
            o.tail_text = temp / "tail.txt";
            o.text.piece_bytes = piece;
            const TokenizeReport report = tokenize(t, o);
            const std::string tail = read_file(temp / "tail.txt");
            ASSERT_TRUE(text.ends_with(tail));
            EXPECT_EQ(text[text.size() - tail.size() - 1], '\n');
            EXPECT_LE(static_cast<std::int64_t>(tail.size()), bytes);
            EXPECT_GT(static_cast<std::int64_t>(tail.size()), bytes - 100);  // one line at most is lost to the body
            EXPECT_EQ(t.decode(ids_of(temp / "tail.tok"), true), tail);
            EXPECT_EQ(t.decode(ids_of(temp / "body.tok"), true) + tail, text);
            EXPECT_EQ(report.body.documents, 1);
            EXPECT_EQ(report.tail->documents, 1);
            EXPECT_EQ(report.tail->source_bytes, static_cast<std::int64_t>(tail.size()));
        }
}

TEST(Tokenize, TheTailOfJsonLinesBeginsWithADocument) {
    const TempFolder temp;
    const Tokenizer t = tokenizer();
    TokenizeOptions o;
    o.inputs = {temp.write("a.jsonl", "{\"text\": \"one\\nand more\"}\n{\"text\": \"two\"}\n{\"text\": \"three\"}\n")};
    o.out = temp / "body.tok";
    o.tail.bytes = 7;  // cuts into "two", which therefore stays in the body with "one"
    o.tail_out = temp / "tail.tok";
    tokenize(t, o);
    EXPECT_EQ(t.decode(ids_of(temp / "tail.tok"), true), "three");
    EXPECT_EQ(TokenFile(temp / "body.tok").documents(), 2);
    o.tail.bytes = 8;  // exactly the last document and "two"
    tokenize(t, o);
    EXPECT_EQ(t.decode(ids_of(temp / "tail.tok"), true), "twothree");
}

TEST(Tokenize, ATailThatIsAllOrNothingIsRefused) {
    const TempFolder temp;
    const Tokenizer t = tokenizer();
    TokenizeOptions o;
    o.inputs = {temp.write("a.txt", "one line without an end")};
    o.out = temp / "body.tok";
    o.tail_out = temp / "tail.tok";
    o.tail.bytes = 5;
    EXPECT_SAYS(message_of([&] { tokenize(t, o); }), "tail is empty");
    o.tail.bytes = 1000;
    EXPECT_SAYS(message_of([&] { tokenize(t, o); }), "leaves nothing");
    EXPECT_FALSE(std::filesystem::exists(temp / "body.tok"));
    EXPECT_FALSE(std::filesystem::exists(temp / "tail.tok"));
}

TEST(Tokenize, TailsAreBytesOrPercentages) {
    EXPECT_EQ(Tail::parse("200000").bytes, 200000);
    EXPECT_EQ(Tail::parse("2.5%").percent, 2.5);
    EXPECT_TRUE(Tail::parse("0").none());
    for (const char* bad : {"", "x", "-1", "100%", "5 %", "%", "1e3", "nan%"})
        EXPECT_SAYS(message_of([&] { Tail::parse(bad); }), "is no size of a tail") << bad;
}

TEST(Tokenize, BosIsExplicitAndNeverTwiceInARow) {
    const TempFolder temp;
    BpeTrainer trainer;
    trainer.add(lines(10));
    TokenizerModel model = parse_tokenizer_json(trainer.train({.vocab_size = 300, .special = {"<|endoftext|>", "<s>"}}).to_json(), "t");
    const Tokenizer t(std::move(model));
    ASSERT_EQ(t.bos_id(), 1);
    TokenizeOptions o;
    o.inputs = {temp.write("a.txt", "line")};
    o.out = temp / "a.tok";
    o.prepend_bos = true;
    tokenize(t, o);
    const auto ids = ids_of(temp / "a.tok");
    EXPECT_EQ(ids.front(), 1);
    EXPECT_EQ(ids.back(), 0);
    EXPECT_EQ(std::count(ids.begin(), ids.end(), 1), 1);
    o.inputs = {temp.write("b.txt", "<s>line")};
    EXPECT_SAYS(message_of([&] { tokenize(t, o); }), "--prepend-bos");
    o.special = SpecialText::plain;
    tokenize(t, o);
    EXPECT_SAYS(message_of([&] {
        TokenizeOptions bos = o;
        tokenize(tokenizer(), bos);
    }), "no beginning-of-text token");
}

TEST(Tokenize, BadUtf8IsReplacedCountedAndRecorded) {
    const TempFolder temp;
    const Tokenizer t = tokenizer();
    TokenizeOptions o;
    o.inputs = {temp.write("a.txt", "a\xff\xfe" "b")};
    o.out = temp / "a.tok";
    tokenize(t, o);
    EXPECT_EQ(TokenFile(temp / "a.tok").info().replaced, 2);
    EXPECT_EQ(t.decode(ids_of(temp / "a.tok"), true), "a\ufffd\ufffd" "b");
}

TEST(Tokenize, EmptyTextAndUnwritableFoldersAreRefused) {
    const TempFolder temp;
    const Tokenizer t = tokenizer();
    TokenizeOptions o;
    o.inputs = {temp.write("a.txt", "")};
    o.out = temp / "a.tok";
    EXPECT_SAYS(message_of([&] { tokenize(t, o); }), "there is no text");
    EXPECT_FALSE(std::filesystem::exists(temp / "a.tok"));
    o.inputs = {temp.write("b.txt", "text")};
    o.out = temp / "nowhere/a.tok";
    EXPECT_SAYS(message_of([&] { tokenize(t, o); }), "nowhere");
}

}  // namespace
}  // namespace keel
