// tests/data/helpers.h: what several tests of data/ need: a folder of their own, small token files, messages of errors.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "data/token_file.h"
#include "data/token_writer.h"
#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "kernels/base/random.h"
#include "tests/temp_folder.h"

namespace keel {

using test::TempFolder;

// Documents of the given lengths; token i of the file is i modulo `vocab`.
inline std::string make_tokens(const std::string& path, const std::vector<std::int64_t>& lengths, std::int64_t vocab = 50000,
                               std::uint64_t hash = 7) {
    TokenFileInfo info;
    info.vocab_size = vocab;
    info.tokenizer_hash = hash;
    TokenFileWriter writer(path, info);
    std::int64_t at = 0;
    for (const std::int64_t length : lengths) {
        std::vector<std::int32_t> ids;
        for (std::int64_t i = 0; i < length; ++i) ids.push_back(static_cast<std::int32_t>(at++ % vocab));
        writer.append(ids);
        writer.count_source(length * 3);
        writer.end_document();
    }
    writer.finish();
    return path;
}

// What the Error of `body` says; "" if there is none.
inline std::string message_of(const std::function<void()>& body) {
    try {
        body();
    } catch (const Error& e) {
        return e.what();
    }
    return "";
}

}  // namespace keel

#define EXPECT_SAYS(text, part) EXPECT_NE((text).find(part), std::string::npos) << "the message is: " << (text)
