#include "cli/data_sample.h"
#include "engine/observe/html.h"
#include "kernels/base/error.h"

namespace keel {
namespace {

constexpr int colours = 6;
constexpr const char* style =
    ":root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:70em;padding:0 "
    "1em}"
    "pre{white-space:pre-wrap;overflow-wrap:anywhere;font:13px/1.6 ui-monospace,monospace;border:1px solid "
    "#8884;padding:.6em}"
    ".d0{background:#4e9af133}.d1{background:#f1a34e33}.d2{background:#5bc46a33}.d3{background:#d65bc433}.d4{"
    "background:#c4b95b33}"
    ".d5{background:#5bc4c433}.no{opacity:.45}svg{width:100%;height:1.4em;display:block;margin:.2em 0}"
    "svg .d0{fill:#4e9af1}svg .d1{fill:#f1a34e}svg .d2{fill:#5bc46a}svg .d3{fill:#d65bc4}svg .d4{fill:#c4b95b}svg "
    ".d5{fill:#5bc4c4}"
    ".pad{fill:#8883}.note{opacity:.7}";

// The row as a bar: documents in their colours, what is not predicted paler, padding grey.
std::string bar(const ShownSample& s) {
    std::string out = concat("<svg viewBox=\"0 0 ", s.places, " 10\" preserveAspectRatio=\"none\">");
    for (const ShownRun& run : s.runs)
        out += concat("<rect class=\"d", run.document % colours, run.predicted ? "" : " no", "\" x=\"", run.begin,
                      "\" width=\"", run.end - run.begin, "\" height=\"10\"><title>",
                      html_escape(s.origins[static_cast<std::size_t>(run.document)]), "</title></rect>");
    const auto filled = static_cast<std::int64_t>(s.tokens.size());
    if (filled < s.places)
        out += concat("<rect class=\"pad\" x=\"", filled, "\" width=\"", s.places - filled,
                      "\" height=\"10\"><title>padding</title></rect>");
    return out + "</svg>\n";
}

std::string token_span(const ShownSample& s, const ShownRun& run, std::int64_t t,
                       const std::optional<Tokenizer>& tokenizer) {
    const ShownToken& token = s.tokens[static_cast<std::size_t>(t)];
    const std::string text = tokenizer ? tokenizer->decode(std::span(&token.id, 1)) : std::to_string(token.id) + " ";
    return concat("<span class=\"d", run.document % colours, run.predicted ? "" : " no", "\" title=\"place ", t,
                  ", id ", token.id, ", position ", token.position, ", sees ", token.sees_from, "…", t, ", predicts ",
                  token.label < 0 ? "nothing" : std::to_string(token.label), "\">", html_escape(text), "</span>");
}

}  // namespace

std::string samples_html(const std::vector<ShownSample>& samples, const std::string& title,
                         const std::optional<Tokenizer>& tokenizer) {
    std::string out = concat(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<meta name=\"viewport\" "
        "content=\"width=device-width\">\n"
        "<title>keel: samples</title>\n<style>",
        style, "</style></head><body>\n<h1>Samples as the model sees them</h1>\n<pre>", html_escape(title),
        "</pre>\n<p class=\"note\">A colour is a document, pale is read and not predicted, grey is padding."
        " Hover for the numbers of a token.</p>\n");
    for (const ShownSample& s : samples) out += bar(s);
    for (const ShownSample& s : samples) {
        out += concat("<h2>Sample ", s.number, "</h2>\n<p class=\"note\">", s.tokens.size(), " tokens of ", s.places,
                      " places, ", s.predicted, " predicted, ", s.origins.size(), " documents</p>\n", bar(s), "<pre>");
        int document = -1;
        for (const ShownRun& run : s.runs) {
            if (run.document != document) {
                document = run.document;
                out += concat(document == 0 ? "" : "\n\n", "<b>",
                              html_escape(s.origins[static_cast<std::size_t>(document)]), "</b>\n");
            }
            for (std::int64_t t = run.begin; t < run.end; ++t) out += token_span(s, run, t, tokenizer);
        }
        out += "</pre>\n";
    }
    return out + "</body></html>\n";
}

}  // namespace keel
