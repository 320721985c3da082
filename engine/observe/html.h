// engine/observe/html.h: a page that needs nothing else: its style inside, no scripts, nothing from the net, light and
// dark, wide and narrow.
#pragma once

#include <string>

namespace keel {

std::string html_escape(const std::string& text);
// `title` is text, `body` is HTML.
std::string html_page(const std::string& title, const std::string& body);

// <div><dt>label</dt><dd>value</dd></div>, for a <dl class="tiles">.
std::string tile(const std::string& label, const std::string& value);
// 1 234 567
std::string grouped(long long n);

}  // namespace keel
