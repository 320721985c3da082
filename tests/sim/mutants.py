"""tests/sim/mutants.py: finds the mutations of a CUDA source, and writes the source with all of them in it, asleep.

Every place that orders, waits, guards or bounds becomes a switch, and the environment variable KEEL_MUTANT turns one of them on: so the
kernels are compiled once for all their mutants, and not once for each. `a < b` becomes `a <keel_mutant::op(7, 8, "<")> b`, which parses
just as before: an operator on the left makes a pair, the one on the right answers what the switches say.
"""
import re

# Statements that order or wait. A named barrier, an mbarrier or a wgmma is one, too.
ORDER = re.compile(
    r"\b(?:__syncthreads|__syncwarp|barrier_sync|barrier_arrive|cp_async_commit|cp_async_wait<[^;]*?>|commit_stores|wait_stores<[^;]*?>|"
    r"mbarrier_\w*(?:wait|arrive)\w*(?:<[^;]*?>)?|wgmma_(?:wait|fence|commit|arrive)\w*(?:<[^;]*?>)?|fence_\w+)\s*\([^;]*?\)\s*;|"
    r"\b(?:check\((?:cudaStreamWaitEvent|cudaEventRecord)\([^;]*\)\)|stream\.synchronize\(\)|\(void\)cudaDeviceSynchronize\(\)|"
    r"settle_receipts\(\)|receipts_->wait\([^;]*\)|control_->wait\([^;]*\))\s*;")
LEAVE = re.compile(r"\bif\s*\(((?:[^;()]|\((?:[^;()]|\([^;()]*\))*\))*)\)\s*(?:return|continue|break)\b[^;{}]*;")
COMPARE = re.compile(r" (<=|>=|<|>) (?![^\n]*\\$)")
CLAMP = re.compile(r"\b(?:std::)?(min|max)(?:<[\w:]+>)?\(((?:[^(),;]|\((?:[^();]|\([^();]*\))*\))*), ((?:[^(),;]|\((?:[^();]|\([^();]*\))*\))*)\)")
NEGATED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}

HEADER = """// Written by tests/sim/mutants.py.
#pragma once
#include <cstdlib>
#include <fstream>

namespace keel_mutant {
inline constexpr int count = %d;
inline const int chosen = [] {
    const char* const text = std::getenv("KEEL_MUTANT");
    return text ? std::atoi(text) : 0;
}();
inline unsigned char reached[count + 1];
inline bool on(int id) {
    reached[id] = 1;
    return id == chosen;
}
struct Report {  // which switches a program passed, for KEEL_MUTANT_REACHED=FILE
    ~Report() {
        if (const char* const path = std::getenv("KEEL_MUTANT_REACHED")) {
            std::ofstream out(path);
            for (int i = 1; i <= count; ++i)
                if (reached[i]) out << i << '\\n';
        }
    }
};
inline const Report report;
// `near` moves the bound by one, `drop` answers `dropped` whatever the operands say.
struct Op {
    int near, drop;
    bool less, equal, dropped;
};
template <class A>
struct Left {
    A a;
    Op op;
};
constexpr Op op(int near, int drop, bool less, bool equal, bool dropped) { return {near, drop, less, equal, dropped}; }
template <class A> Left<A> operator<(A a, Op o) { return {a, o}; }
template <class A> Left<A> operator>(A a, Op o) { return {a, o}; }
template <class A> Left<A> operator<=(A a, Op o) { return {a, o}; }
template <class A> Left<A> operator>=(A a, Op o) { return {a, o}; }
template <class A, class B>
bool answer(const Left<A>& l, B b) {
    if (l.op.drop && on(l.op.drop)) return l.op.dropped;
    const bool equal = l.op.equal != on(l.op.near);
    return l.op.less ? (equal ? l.a <= b : l.a < b) : (equal ? l.a >= b : l.a > b);
}
template <class A, class B> bool operator<(const Left<A>& l, B b) { return answer(l, b); }
template <class A, class B> bool operator>(const Left<A>& l, B b) { return answer(l, b); }
template <class A, class B> bool operator<=(const Left<A>& l, B b) { return answer(l, b); }
template <class A, class B> bool operator>=(const Left<A>& l, B b) { return answer(l, b); }
}  // namespace keel_mutant
"""


def blanked(text):
    """The text with comments, strings and what only nvcc sees turned into spaces: positions stay."""
    blank = lambda m: re.sub(r"[^\n]", " ", m.group(0))
    text = re.sub(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"", blank, text, flags=re.S)
    text = re.sub(r"#if defined\(__CUDACC__\)\n.*?(?=#else|#endif)", blank, text, flags=re.S)
    # Loops over registers, whose bounds are constants.
    text = re.sub(r"(?<=#pragma unroll\n)( *)for \([^;]*;[^;]*;[^;{)]*\)", blank, text)
    # What is decided when it is compiled cannot be switched, nor what a macro is made of.
    text = re.sub(r"^[^\n]*\\\n(?:[^\n]*\\\n)*[^\n]*", blank, text, flags=re.M)
    text = re.sub(r"^\s*#[^\n]*", blank, text, flags=re.M)
    return re.sub(r"\b(?:constexpr|static_assert|template <|requires)\b[^;{]*[;{]", blank, text)


def enclosing(code, at):
    """(what opens, its position) of the parenthesis around a position: 'for', 'while', 'if', or ''."""
    depth = 0
    for i in range(at - 1, -1, -1):
        if code[i] in ")]}":
            depth += 1
        elif code[i] in "([{":
            if depth == 0:
                word = re.search(r"\b(for|while|if)\s*\Z", code[:i])
                if word or code[i] == "{":
                    return (word.group(1) if word else ""), i
                continue
            depth -= 1
        elif code[i] == ";" and depth == 0 and enclosing_for(code, i):
            return "for", i
    return "", 0


def enclosing_for(code, at):
    return re.search(r"\bfor \([^;{}]*(?:;[^;{}]*)?\Z", code[:at]) is not None


def side(code, at, step):
    """What ends the operand that begins (step 1) or ends (step -1) at a position: '||', '&&', '?' or another."""
    depth = 0
    while 0 <= at < len(code):
        c = code[at]
        if (c in "([{") == (step > 0) and c in "([{)]}":
            depth += 1
        elif c in "([{)]}":
            if depth == 0:
                return c
            depth -= 1
        elif depth == 0:
            if c in ";,=" and code[at - 1] not in "<>=!" and code[at + 1] != "=":
                return c
            if c in "?:" and code[at - 1] != ":" and code[at + 1] != ":":
                return c
            if code[at:at + 2] in ("&&", "||"):
                return code[at:at + 2]
        at += step
    return ""


class Mutants:
    """All mutations of some sources, numbered from 1. `skip` holds "file:line" of places that cannot be switched."""

    def __init__(self, skip=()):
        self.all = []  # (file, line, what)
        self.skip = skip

    def number(self, file, line, what):
        self.all.append((file, line, what))
        return len(self.all)

    def instrument(self, file, text):
        code = blanked(text)
        edits = []  # (position, order, removed characters, inserted text)
        line_of = lambda at: text.count("\n", 0, at) + 1
        fit = lambda at: f"{file}:{line_of(at)}" not in self.skip
        short = lambda s: re.sub(r"\s+", " ", s).strip()

        def add(at, what):
            return self.number(file, line_of(at), what)

        for m in ORDER.finditer(code):
            if not fit(m.start()) or re.search(r"[\w\])&*]\s+\Z", code[:m.start()]) and not re.search(
                    r"\b(else|do)\s+\Z|\)\s+\Z", code[:m.start()]):  # a declaration
                continue
            off = add(m.start(), "without " + short(m.group(0)))
            wait = re.match(r"(?:cp_async_wait|wgmma_wait|wait_stores)<(.*)>\s*\(", m.group(0))
            if wait:
                more = add(m.start(), f"{short(m.group(0))} waits for one group fewer")
                name = m.group(0)[:wait.start(1)]
                edits.append((m.start(), 0, len(m.group(0)),
                              f"if (keel_mutant::on({off})) {{}} else if (keel_mutant::on({more})) {name}({wait.group(1)}) + 1>(); "
                              f"else {m.group(0)}"))
            else:
                edits.append((m.start(), 0, 0, f"if (!keel_mutant::on({off})) "))
        for m in LEAVE.finditer(code):
            if fit(m.start()) and not re.match(r"if\s+constexpr", m.group(0)):
                edits.append((m.start(), 1, 0, f"if (!keel_mutant::on({add(m.start(), 'without ' + short(m.group(0)))})) "))
        for m in COMPARE.finditer(code):
            if not fit(m.start()):
                continue
            left, right = side(code, m.start(), -1), side(code, m.end(), 1)
            around, _ = enclosing(code, m.start())
            leaves = LEAVE.match(code, max(code.rfind("if (", 0, m.start()), 0)) if around == "if" else None
            operator = m.group(1)
            operands = short(code[max(m.start() - 28, code.rfind("\n", 0, m.start())):m.start()]) + f" {operator} " + short(
                code[m.end():min(m.end() + 20, code.find("\n", m.end()))])
            near = add(m.start(), f"'{operator}' became '{NEGATED[operator]}' in '{operands}'")
            drop, dropped = 0, left != "||" and right != "||" and not leaves
            alone = leaves and left not in ("||", "&&") and right not in ("||", "&&")  # then it is the guard, above
            if around not in ("for", "while") and not alone:
                drop = add(m.start(), f"{'always' if dropped else 'never'} '{operands}'")
            edits.append((m.start(1), 0, len(operator),
                          f"{operator} keel_mutant::op({near}, {drop}, {str('<' in operator).lower()}, "
                          f"{str('=' in operator).lower()}, {str(dropped).lower()}) {operator}"))
        for m in CLAMP.finditer(code):
            if fit(m.start()):
                off = add(m.start(), "without " + short(m.group(0)))
                edits += [(m.start(), 0, 0, f"(keel_mutant::on({off}) ? ({m.group(2)}) : "), (m.end(), -1, 0, ")")]
        # Terms without a comparison of size.
        for m in re.finditer(r"(?<= )(&&|\|\|) ([^&|?:;<>,{}\n]*?)(?=( &&| \|\||\)+\s|\)*;| \?|\n))", code):
            term = m.group(2)
            if term.count("(") != term.count(")") or not fit(m.start()) or not term.strip():
                continue
            off = add(m.start(), f"without the term '{m.group(1)} {short(term)}'")
            end = m.start(2) + len(term)
            if m.group(1) == "&&":
                edits += [(m.start(2), 0, 0, f"(keel_mutant::on({off}) || ("), (end, -1, 0, "))")]
            else:
                edits += [(m.start(2), 0, 0, f"(!keel_mutant::on({off}) && ("), (end, -1, 0, "))")]
        out, at = [], 0
        for position, _, removed, inserted in sorted(edits):
            out += [text[at:position], inserted]
            at = position + removed
        out.append(text[at:])
        whole = "".join(out)
        if file.endswith(".cuh"):
            return whole.replace("#pragma once\n", '#pragma once\n#include "keel_mutant.h"\n', 1)
        return '#include "keel_mutant.h"\n#line 1\n' + whole
