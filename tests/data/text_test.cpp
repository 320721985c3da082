#include "data/text.h"

#include <gtest/gtest.h>
#include <zlib.h>
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

std::string gzip(std::string_view text) {
    z_stream z{};
    EXPECT_EQ(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    std::string out(deflateBound(&z, text.size()), '\0');
    z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
    z.avail_in = static_cast<uInt>(text.size());
    z.next_out = reinterpret_cast<Bytef*>(out.data());
    z.avail_out = static_cast<uInt>(out.size());
    EXPECT_EQ(deflate(&z, Z_FINISH), Z_STREAM_END);
    out.resize(z.total_out);
    deflateEnd(&z);
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
    if (bad_lines) *bad_lines = reader.bad_lines().count;
    return out;
}
using Documents = std::vector<std::string>;

TEST(Text, APlainFileIsOneDocumentAndAnEmptyOneIsNone) {
    const TempFolder temp;
    EXPECT_EQ(documents({temp.write("a.txt", "one\n\ntwo\n"), temp.write("b.txt", ""),
                         temp.write("c.txt", "\xef\xbb\xbf"), temp.write("d.txt", "\xef\xbb\xbfx")}),
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
                                        "\xef\xbb\xbf{\"text\": \"one\", \"id\": 1}\r\n\n   \n{\"a\": {\"text\": "
                                        "\"no\"}, \"b\": [\"text\"], \"text\": \"t\\u00e9\\n\"}\n"
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
    const std::pair<std::string, std::string> rows[] = {{"{\"text\": 3}", "is not a text"},
                                                        {"{\"text\": [\"a\"]}", "is not a text"},
                                                        {"{\"txt\": \"a\"}", "no field \"text\""},
                                                        {"[\"text\"]", "not a JSON object"},
                                                        {"\"text\"", "not a JSON object"},
                                                        {"{\"text\": \"a\"", "not valid JSON"},
                                                        {"{\"text\": \"a\"} x", "not valid JSON"},
                                                        {"{\"text\": \"\\ud800\"}", "not valid JSON"},
                                                        {"nonsense", "not valid JSON"}};
    for (const auto& [line, message] : rows) {
        const std::string path = temp.write("a.jsonl", "{\"text\": \"good\"}\n\n" + line + "\n{\"text\": \"more\"}\n");
        const std::string said = message_of([&] { documents({path}); });
        EXPECT_SAYS(said, "a.jsonl, line 3 (byte 18): ");
        EXPECT_SAYS(said, "--on-bad-line skip");
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
    EXPECT_EQ(documents({temp.write("a.txt", zstd("one ") + zstd("two") + skippable + zstd(" three"))}),
              Documents{"one two three"});
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
    EXPECT_SAYS(message_of([&] { documents({temp.write("a.gz", "\x1f\x8b\x08")}); }), "in the middle of a gzip member");
    EXPECT_SAYS(message_of([&] { documents({temp / "nowhere"}); }), "nowhere");
    EXPECT_SAYS(message_of([&] { documents({}); }), "no text files");
}

TEST(Text, GzipIsKnownByItsContentAndMembersAreJoined) {
    const TempFolder temp;
    const std::string whole = gzip("one ") + gzip("") + gzip("two");
    EXPECT_EQ(documents({temp.write("a.txt", whole)}), Documents{"one two"});
    EXPECT_EQ(documents({temp.write("b.txt", whole + std::string(700, '\0'))}),
              Documents{"one two"});  // padded to a block
    EXPECT_EQ(documents({temp.write("c.jsonl.gz", gzip("{\"text\": \"x\"}\n"))}), Documents{"x"});
    const std::string large(3 << 20, 'a');
    EXPECT_EQ(documents({temp.write("d.txt", gzip(large))}), Documents{large});
    const std::size_t first = gzip("one ").size(), second = first + gzip("").size();
    for (std::size_t size = 4; size < whole.size(); ++size) {
        if (size == first || size == second) continue;  // a border between members
        EXPECT_SAYS(message_of([&] { documents({temp.write("a.txt", std::string_view(whole).substr(0, size))}); }),
                    "is cut")
            << size;
    }
    std::string damaged = whole;
    damaged[first - 5] ^= 1;  // of the checksum
    EXPECT_SAYS(message_of([&] { documents({temp.write("a.txt", damaged)}); }), "the gzip stream is damaged near byte");
    EXPECT_SAYS(message_of([&] { documents({temp.write("a.txt", whole + "behind")}); }), "is damaged near byte");
    EXPECT_SAYS(message_of([&] { documents({temp.write("a.txt.gz", "never compressed")}); }), "is named as gzip");
}

TEST(Text, EachLineIsADocumentOnRequest) {
    const TempFolder temp;
    TextOptions options;
    options.format = TextFormat::lines;
    for (const std::int64_t piece : {1, 3, 1000}) {
        options.piece_bytes = piece;
        EXPECT_EQ(documents({temp.write("a.txt", "\xef\xbb\xbfone two\r\n\n  \nthree \xff\nlast")}, options),
                  (Documents{"one two", "three \ufffd", "last"}));
    }
}

TEST(Text, BadLinesAreCountedAllAndTheFirstAreLocatedByLineAndByte) {
    const TempFolder temp;
    std::string text = "\xef\xbb\xbf";
    for (int i = 0; i < 30; ++i) text += "{\"text\": \"good\"}\nbad\n\n";
    TextOptions skip;
    skip.skip_bad_lines = true;
    skip.piece_bytes = 50;
    TextReader reader({temp.write("a.jsonl", text), temp.write("b.jsonl.zst", zstd("x\n"))}, skip);
    for (TextPiece piece; reader.next(piece);) {}
    const BadLines& bad = reader.bad_lines();
    EXPECT_EQ(bad.count, 31);
    ASSERT_EQ(bad.first.size(), BadLines::kept);
    for (std::size_t i = 0; i < bad.first.size(); ++i) {
        EXPECT_EQ(bad.first[i].line, static_cast<std::int64_t>(3 * i + 2));
        EXPECT_EQ(text.substr(static_cast<std::size_t>(bad.first[i].byte), 4), "bad\n");
    }
    EXPECT_SAYS(text_of(bad.first[0]), "a.jsonl, line 2 (byte 20): not valid JSON");
}

TEST(Text, ReadingGoesOnWhereAPositionSays) {
    const TempFolder temp;
    std::string plain, json;
    for (int i = 0; i < 200; ++i) plain += concat("word ", i, "\n\n"), json += concat("{\"text\": \"", i, "\"}\n");
    const std::vector<std::filesystem::path> paths{temp.write("a.txt", plain), temp.write("b.jsonl", json),
                                                   temp.write("c.txt", ""), temp.write("d.txt", zstd(plain))};
    TextOptions options;
    options.piece_bytes = 100;
    std::vector<std::string> all;
    std::vector<TextReader::Position> positions;
    TextReader reader(paths, options);
    for (TextPiece piece; reader.next(piece);) all.push_back(piece.text), positions.push_back(reader.position());
    ASSERT_GT(all.size(), 200u);
    for (std::size_t at = 0; at < all.size(); at += 7) {
        TextReader again(paths, options);
        again.seek(positions[at]);
        TextPiece piece;
        for (std::size_t i = at + 1; i < all.size(); ++i) {
            ASSERT_TRUE(again.next(piece));
            ASSERT_EQ(piece.text, all[i]) << at;
        }
        EXPECT_FALSE(again.next(piece));
        EXPECT_EQ(again.file_bytes_read(), again.file_bytes());
    }
    temp.write("b.jsonl", "{\"text\": \"1\"}\n");
    EXPECT_SAYS(message_of([&] { TextReader(paths, options).seek({1, 50}); }), "b.jsonl has fewer than the 50 pieces");
}

TEST(Text, OtherFormatsAreNamedAndNotReadAsText) {
    const TempFolder temp;
    const auto said = [&](const char* name, std::string_view bytes) {
        return message_of([&] { documents({temp.write(name, bytes)}); });
    };
    EXPECT_SAYS(said("a.jsonl.xz",
                     "\xfd"
                     "7zXZ"),
                "a.jsonl.xz is compressed with xz; plain text, zstd and gzip are read: xz -dc ");
    EXPECT_SAYS(said("a.txt.bz2", "BZh91AY"), "is compressed with bzip2");
    EXPECT_SAYS(said("a.zip", "PK\x03\x04more"), "is compressed with zip");
    EXPECT_SAYS(said("a.parquet", "PAR1 columns PAR1"), "is a Parquet table; plain text and JSON lines are read");
    EXPECT_SAYS(said("a.txt.zst", "this was never compressed"), "is named as zstd, but does not begin like it");
    EXPECT_EQ(documents({temp.write("b.txt", "PAR1 is a word, and BZhang a name")}),
              Documents{"PAR1 is a word, and BZhang a name"});
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
