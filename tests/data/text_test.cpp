#include "data/text.h"

#include <gtest/gtest.h>
#include <zstd.h>

#include "data/utf8.h"
#include "tests/data/helpers.h"

namespace keel {
namespace {

std::string zstd(std::string_view text, int window_log = 0) {
    std::string out(ZSTD_compressBound(text.size()), '\0');
    ZSTD_CCtx* context = ZSTD_createCCtx();
    if (window_log > 0) {
        ZSTD_CCtx_setParameter(context, ZSTD_c_enableLongDistanceMatching, 1);
        ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, window_log);
    }
    ZSTD_inBuffer from{text.data(), text.size(), 0};
    ZSTD_outBuffer to{out.data(), out.size(), 0};
    // In two steps, so that the size is unknown when the frame begins and the window is written into it.
    ZSTD_compressStream2(context, &to, &from, ZSTD_e_continue);
    ZSTD_compressStream2(context, &to, &from, ZSTD_e_end);
    ZSTD_freeCCtx(context);
    out.resize(to.pos);
    return out;
}

// Documents, with pieces joined.
std::vector<std::string> documents(const std::vector<std::filesystem::path>& paths, TextOptions options = {},
                                   std::int64_t* replaced = nullptr, std::int64_t* bad_lines = nullptr) {
    TextReader reader(paths, options);
    std::vector<std::string> out;
    bool open = false;
    for (TextPiece piece; reader.next(piece);) {
        if (!open) out.emplace_back();
        out.back() += piece.text;
        open = !piece.ends_document;
        EXPECT_EQ(utf8_valid_prefix(piece.text), piece.text.size());
    }
    EXPECT_FALSE(open);
    if (replaced) *replaced = reader.replaced();
    if (bad_lines) *bad_lines = reader.bad_lines();
    return out;
}
using Documents = std::vector<std::string>;

TEST(Text, APlainFileIsOneDocumentAndAnEmptyOneIsNone) {
    const TempFolder temp;
    EXPECT_EQ(documents({temp.write("a.txt", "one\n\ntwo\n"), temp.write("b.txt", ""), temp.write("c.txt", "\xef\xbb\xbf"), temp.write("d.txt", "\xef\xbb\xbfx")}),
              (Documents{"one\n\ntwo\n", "x"}));
}

TEST(Text, BlankLinesSplitPlainTextOnRequest) {
    const TempFolder temp;
    const std::string path = temp.write("a.txt", "\n\none\nstill one\n\n\n\ntwo\r\n\r\nthree\n\n");
    for (const std::int64_t piece : {1, 2, 3, 5, 1000}) {
        TextOptions options;
        options.split_at_blank_lines = true;
        options.piece_bytes = piece;
        EXPECT_EQ(documents({path}, options), (Documents{"one\nstill one\n", "two\r\n", "three\n"})) << piece;
    }
}

TEST(Text, PiecesAddUpToTheDocumentAndAreCutOnlyWhereNoTokenCanReach) {
    const TempFolder temp;
    std::string text;
    for (int i = 0; i < 3000; ++i) text += i % 7 == 0 ? "end.\n" : i % 5 == 0 ? "na\u00efve  x " : "word3 'll \xff";
    const std::string path = temp.write("a.txt", text);
    std::string repaired;
    const std::int64_t bad = append_repaired(text, repaired);
    for (const std::int64_t piece : {1, 7, 100, 4096}) {
        TextOptions options;
        options.piece_bytes = piece;
        std::int64_t replaced;
        EXPECT_EQ(documents({path}, options, &replaced), Documents{repaired});
        EXPECT_EQ(replaced, bad);
        TextReader reader({path}, options);
        int pieces = 0;
        for (TextPiece p; reader.next(p); ++pieces)
            if (!p.ends_document) {
                const auto last = static_cast<unsigned char>(p.text.back());
                EXPECT_TRUE(last < 128 && std::isalnum(last)) << p.text;
            }
        EXPECT_GT(pieces, 5);
        options.cut_documents = false;
        TextReader whole({path}, options);
        TextPiece p;
        EXPECT_TRUE(whole.next(p) && p.ends_document);
    }
}

TEST(Text, AWordWithoutEndIsReadInBoundedTime) {
    const TempFolder temp;
    const std::string path = temp.write("a.txt", std::string(3 << 20, 'a'));
    TextOptions options;
    options.piece_bytes = 4096;
    EXPECT_EQ(documents({path}, options), Documents{std::string(3 << 20, 'a')});
}

TEST(Text, JsonLinesGiveTheFieldOfEachObject) {
    const TempFolder temp;
    const std::string path = temp.write("a.jsonl",
                                        "\xef\xbb\xbf{\"text\": \"one\", \"id\": 1}\r\n\n   \n{\"a\": {\"text\": \"no\"}, \"b\": [\"text\"], \"text\": \"t\\u00e9\\n\"}\n"
                                        "{\"text\": \"\"}\n{\"text\": \"last \xff\"}");
    for (const std::int64_t piece : {1, 3, 1000}) {
        TextOptions options;
        options.piece_bytes = piece;
        std::int64_t replaced;
        EXPECT_EQ(documents({path}, options, &replaced), (Documents{"one", "t\u00e9\n", "last \ufffd"}));
        EXPECT_EQ(replaced, 1);
    }
    TextOptions other;
    other.format = TextFormat::jsonl;
    other.field = "b";
    EXPECT_EQ(documents({temp.write("x.txt", "{\"b\": \"x\"}\n")}, other), Documents{"x"});
}

TEST(Text, ABadLineIsNamedOrCounted) {
    const TempFolder temp;
    const std::pair<std::string, std::string> rows[] = {
        {"{\"text\": 3}", "is not a text"}, {"{\"text\": [\"a\"]}", "is not a text"}, {"{\"txt\": \"a\"}", "no field \"text\""},
        {"[\"text\"]", "not a JSON object"}, {"\"text\"", "not a JSON object"}, {"{\"text\": \"a\"", "not valid JSON"},
        {"{\"text\": \"a\"} x", "not valid JSON"}, {"{\"text\": \"\\ud800\"}", "not valid JSON"}, {"nonsense", "not valid JSON"}};
    for (const auto& [line, message] : rows) {
        const std::string path = temp.write("a.jsonl", "{\"text\": \"good\"}\n\n" + line + "\n{\"text\": \"more\"}\n");
        const std::string said = message_of([&] { documents({path}); });
        EXPECT_SAYS(said, "a.jsonl, line 3: ");
        EXPECT_SAYS(said, message);
        TextOptions skip;
        skip.skip_bad_lines = true;
        std::int64_t bad;
        EXPECT_EQ(documents({path}, skip, nullptr, &bad), (Documents{"good", "more"}));
        EXPECT_EQ(bad, 1);
    }
}

TEST(Text, DeepNestingIsNoProblem) {
    const TempFolder temp;
    const std::string deep = std::string(1 << 20, '[') + std::string(1 << 20, ']');
    EXPECT_EQ(documents({temp.write("a.jsonl", "{\"x\": " + deep + ", \"text\": \"a\"}\n")}), Documents{"a"});
}

TEST(Text, ZstdIsKnownByItsContentAndFramesAreJoined) {
    const TempFolder temp;
    const std::string skippable("\x50\x2a\x4d\x18\x03\0\0\0abc", 11);
    EXPECT_EQ(documents({temp.write("a.txt", zstd("one ") + zstd("two") + skippable + zstd(" three"))}), Documents{"one two three"});
    EXPECT_EQ(documents({temp.write("b.jsonl.zst", skippable + zstd("{\"text\": \"x\"}\n"))}), Documents{"x"});
    EXPECT_EQ(documents({temp.write("c.txt", zstd(""))}), Documents{});
}

TEST(Text, WindowsPastTheUsualLimitAreRead) {
    const TempFolder temp;
    EXPECT_EQ(documents({temp.write("a.txt", zstd("hello", 30))}), Documents{"hello"});
}

TEST(Text, ACutOrDamagedStreamIsAnErrorAndNeverASilentEnd) {
    const TempFolder temp;
    const std::string whole = zstd("one two three four five") + zstd("six seven eight nine ten");
    const std::size_t first = zstd("one two three four five").size();
    for (std::size_t size = 4; size < whole.size(); ++size) {
        if (size == first) continue;  // a border between frames
        const std::string path = temp.write("a.txt", std::string_view(whole).substr(0, size));
        EXPECT_SAYS(message_of([&] { documents({path}); }), "is cut") << size;
    }
    std::string damaged = whole;
    damaged[first] ^= 1;
    EXPECT_SAYS(message_of([&] { documents({temp.write("a.txt", damaged)}); }), "damaged");
    EXPECT_SAYS(message_of([&] { documents({temp.write("a.gz", "\x1f\x8b\x08")}); }), "gzip");
    EXPECT_SAYS(message_of([&] { documents({temp / "nowhere"}); }), "nowhere");
    EXPECT_SAYS(message_of([&] { documents({}); }), "no text files");
}

TEST(Text, OtherFormatsAreNamedAndNotReadAsText) {
    const TempFolder temp;
    const auto said = [&](const char* name, std::string_view bytes) {
        return message_of([&] { documents({temp.write(name, bytes)}); });
    };
    EXPECT_SAYS(said("a.jsonl.xz", "\xfd""7zXZ"), "a.jsonl.xz is compressed with xz; plain text and zstd are read: xz -dc ");
    EXPECT_SAYS(said("a.txt.bz2", "BZh91AY"), "is compressed with bzip2");
    EXPECT_SAYS(said("a.zip", "PK\x03\x04more"), "is compressed with zip");
    EXPECT_SAYS(said("a.parquet", "PAR1 columns PAR1"), "is a Parquet table; plain text and JSON lines are read");
    EXPECT_SAYS(said("a.txt.zst", "this was never compressed"), "is named as zstd, but does not begin like it");
    EXPECT_EQ(documents({temp.write("b.txt", "PAR1 is a word, and BZhang a name")}), Documents{"PAR1 is a word, and BZhang a name"});
}

TEST(Text, AFolderStandsForItsFilesInTheOrderOfTheirNames) {
    const TempFolder temp;
    for (const char* name : {"b.txt", "a.txt", "Z.txt"}) temp.write(name, "x");
    const auto files = expand_inputs({temp.path().string()});
    ASSERT_EQ(files.size(), 3u);
    EXPECT_EQ(files[0].filename(), "Z.txt");
    EXPECT_EQ(files[2].filename(), "b.txt");
    std::filesystem::create_directory(temp / "empty");
    EXPECT_SAYS(message_of([&] { expand_inputs({temp / "empty"}); }), "holds no files");
}

}  // namespace
}  // namespace keel
