// data/tokenize_parts.h: what a long `keel tokenize` has done so far, so that a killed one goes on where it was.
//
// .NAME.parts/ beside the output holds part-000000.tok, …, each a whole token file, and with each a .json that says
// where reading stood behind it. The .json is published after its part; a part without one does not count. The
// fingerprint covers the tokenizer, every option that decides ids, and names, sizes and times of the inputs: other
// parts are thrown away.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

#include "data/parted.h"
#include "data/token_writer.h"

namespace keel {

class TokenizeParts {
public:
    struct State {
        PartedReader::Position position;
        BadLines bad;
    };

    // Finds what is there; `resume` false throws it away. A folder that another process works in is an error.
    TokenizeParts(const std::filesystem::path& out, std::uint64_t fingerprint, const TokenFileInfo& info, bool resume);
    ~TokenizeParts();

    const std::optional<State>& last() const { return last_; }  // where the parts that are there end
    TokenWriter& writer();                                      // of the part being made
    void finish_part(const State& state);
    void copy_to(TokenWriter& out);  // all parts, the one being made too
    void remove();

private:
    std::filesystem::path part(std::int64_t number, const char* ending) const;

    std::filesystem::path folder_;
    std::uint64_t fingerprint_;
    TokenFileInfo info_;
    int lock_ = -1;
    std::int64_t parts_ = 0;
    std::optional<State> last_;
    std::vector<bool> open_;  // of each part: its last document goes on in the next
    std::unique_ptr<TokenFileWriter> writer_;
};

}  // namespace keel
