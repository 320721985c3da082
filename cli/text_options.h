// cli/text_options.h: the flags that say how text is read, shared by `tokenize` and `tokenizer train`.
#pragma once

#include <CLI/App.hpp>
#include <memory>
#include <string>
#include <vector>

#include "cli/progress_bar.h"
#include "data/parted.h"
#include "data/text.h"

namespace keel {

struct TextFlags {
    std::vector<std::string> inputs;
    std::string format = "by-name", field = "text", tail, on_bad_line = "refuse";
    bool split_at_blank_lines = false;

    void add_to(CLI::App& app) {
        app.add_option("inputs", inputs,
                       "text files, plain, zstd or gzip; folders, 'patterns/**/*.md' and @lists stand for the files in "
                       "them, in the order of"
                       " their paths")
            ->required();
        app.add_option("--format", format,
                       "plain, lines (each a document), jsonl, or by-name: *.jsonl is JSON lines, anything else plain")
            ->check(CLI::IsMember({"by-name", "plain", "lines", "jsonl"}))
            ->capture_default_str();
        app.add_option("--field", field, "which text of a JSON line is the document")->capture_default_str();
        app.add_option("--split-at-blank-lines", split_at_blank_lines,
                       "true: a blank line of plain text ends a document; false: a file is one document")
            ->default_str("false");
        app.add_option(
               "--on-bad-line", on_bad_line,
               "a JSON line that is no document: refuse stops there, skip counts it, lists the first and goes on")
            ->check(CLI::IsMember({"refuse", "skip"}))
            ->capture_default_str();
    }
    TextOptions options() const {
        TextOptions o;
        o.format = format == "plain" ? TextFormat::plain : format == "jsonl" ? TextFormat::jsonl
                 : format == "lines" ? TextFormat::lines : TextFormat::by_name;
        o.field = field;
        o.split_at_blank_lines = split_at_blank_lines;
        o.skip_bad_lines = on_bad_line == "skip";
        return o;
    }
    Tail parsed_tail() const { return tail.empty() ? Tail{} : Tail::parse(tail); }
};

// A bar that is made when its total is first known.
class LateBar {
public:
    LateBar(std::string label, std::string unit) : label_(std::move(label)), unit_(std::move(unit)) {}
    void update(std::int64_t done, std::int64_t total) {
        if (!bar_) bar_ = std::make_unique<ProgressBar>(label_, total, unit_);
        bar_->update(done);
    }
    void finish() { bar_.reset(); }

private:
    std::string label_, unit_;
    std::unique_ptr<ProgressBar> bar_;
};

}  // namespace keel
