#!/usr/bin/env python3
"""Writes tests/golden/tokenizer_corpus/: small tokenizers of every kind keel reads, and hashes of what the reference programs
make of a corpus of two megabytes. Needs `pip install tokenizers sentencepiece tiktoken regex xxhash`; the tests need none.

    tests/golden/make_tokenizer_corpus.py

The corpus is made here and, by the same steps, in tests/data/tokenizer_corpus_test.cpp: documents of words in many scripts,
code, control characters, special tokens as text, random characters, and bytes that are no UTF-8. It keeps to characters that
every Unicode version since 10 classifies alike. Texts are decoded with U+FFFD for bad sequences before the reference sees them.
"""
import array
import base64
import io
import json
import pathlib

import sentencepiece
import tiktoken
import xxhash
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

import make_tokenizer as small

OUT = pathlib.Path(__file__).parent / "tokenizer_corpus"
DOCUMENTS, GROUPS = 4000, 8
POOL = sorted(set(small.POOL + [w for line in small.LEARN.split("\n") for w in line.split(" ")]) - {""}) + [
    "<s>", "</s>", "<unk>", "<|im_start|>", "▁", "▁▁", "<0x41>", "<0x", "Ġ", "iPhone", "HTTPServer", "O'Neill", "'Ve", "don't", "I'M",
    "int main() {\n    return 0;\n}\n", "\t\tif (x != y && a[i] == '\\0')", "// ----------\n", "def f(self, *args):\n        pass\n",
    "<div class=\"a\">", "</div>", "https://example.org/a?b=c&d=1", "1,234,567.89", "0x7fff", "2024-01-31", "a_b_c", "x=y+z", "$9.99",
    "    ", "\n\n\n", " \n \n", "\t", "一二三四五", "これはテストです。", "한국어문장입니다", "Это предложение.", "Ελληνικά", "العربية",
    "हिन्दी", "ภาษาไทย", "ქართული", "…", "—", "“quoted”", "¿Qué?", "naïve", "Å", "A\u030a", "ﬁ", "²", "½", "Ⅷ", "👩\u200d👧", "🇩🇪"]
RANGES = [(0x20, 0x7e), (0xa1, 0x17f), (0x391, 0x3a1), (0x3b1, 0x3c9), (0x410, 0x44f), (0x5d0, 0x5ea), (0x621, 0x63a), (0x660, 0x669),
          (0x905, 0x939), (0xe01, 0xe30), (0x1100, 0x1112), (0x2010, 0x2027), (0x2190, 0x21ff), (0x3041, 0x3096), (0x30a1, 0x30fa),
          (0x4e00, 0x9fa5), (0xac00, 0xd7a3), (0x1d400, 0x1d454), (0x1f600, 0x1f64f), (0x20000, 0x2a6d6)]
MASK = (1 << 64) - 1


class SplitMix:
    def __init__(self, seed):
        self.state = seed

    def below(self, n):
        self.state = (self.state + 0x9e3779b97f4a7c15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xbf58476d1ce4e5b9) & MASK
        z = ((z ^ (z >> 27)) * 0x94d049bb133111eb) & MASK
        return (z ^ (z >> 31)) % n


def document(number):
    r = SplitMix(number)
    out = bytearray()
    for _ in range(20 + r.below(120)):
        kind = r.below(100)
        if kind < 70:
            out += POOL[r.below(len(POOL))].encode()
            if r.below(2) == 0:
                out += b" "
        elif kind < 88:
            first, last = RANGES[r.below(len(RANGES))]
            for _ in range(1 + r.below(5)):
                out += chr(first + r.below(last - first + 1)).encode()
        elif kind < 94:
            code = r.below(33)
            out.append(127 if code == 32 else code)
        elif kind < 97:
            out += b" " * (1 + r.below(40))
        else:
            for _ in range(1 + r.below(4)):
                out.append(128 + r.below(128))
    return bytes(out)


LLAMA2_BYTES = [f"<0x{b:02X}>" for b in range(256)]
O200K = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])


def byte_level(*before, regex=False, prefix=False, normalizer=None):
    last = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex)
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Sequence([*before, last]) if before else last
    t.train_from_iterator([small.LEARN], trainers.BpeTrainer(
        vocab_size=560, special_tokens=["<|endoftext|>"], initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False))
    if normalizer:
        t.normalizer = normalizer
    t.decoder = decoders.ByteLevel()
    return t


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def characters(byte_fallback=True):
    t = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=byte_fallback, fuse_unk=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    special = ["<unk>", "<s>", "</s>"] + (LLAMA2_BYTES if byte_fallback else [])
    t.train_from_iterator(small.LEARN.split(), trainers.BpeTrainer(
        vocab_size=700, special_tokens=special, show_progress=False, limit_alphabet=120))
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return t


def metaspace(scheme, cut):
    t = characters()
    t.normalizer = normalizers.Sequence([])
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=cut)
    return t


def unigram(byte_fallback):
    t = Tokenizer(models.Unigram())
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    t.train_from_iterator(small.LEARN.split("\n"), trainers.UnigramTrainer(
        vocab_size=300, special_tokens=["<unk>", "<s>"] + (LLAMA2_BYTES if byte_fallback else []), unk_token="<unk>", show_progress=False))
    t.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    return t


def json_kinds():
    bpe = pre_tokenizers
    yield "o200k", byte_level(split(O200K))
    yield "sequence", byte_level(split(r"\p{N}{1,3}"), split(r"[一-龥぀-ゟ゠-ヿ]+"), split(
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"))
    yield "prefix", byte_level(regex=True, prefix=True)
    yield "words", byte_level(split(r"\p{Han}+|\w+|[^\w\s]+|\s+"))
    yield "lines", byte_level(split(r"^.*$", "merged_with_next"))
    yield "behaviors", byte_level(split(r"\s", "removed", True), pre_tokenizers.Split("the", "merged_with_previous"), split("[aeiou]", "contiguous"))
    yield "normalizers", byte_level(regex=True, normalizer=normalizers.Sequence([
        normalizers.NFKC(), normalizers.Replace("a", "bb"), normalizers.Replace(Regex(r"\s{2,}"), "\n"), normalizers.Strip(),
        normalizers.Prepend("<")]))
    after = byte_level(bpe.Punctuation("contiguous"))
    after.pre_tokenizer = bpe.Sequence([bpe.Punctuation("contiguous"), bpe.ByteLevel(add_prefix_space=False), bpe.Digits(), split("[0-9][0-9][0-9]")])
    yield "after_bytes", after
    yield "whitespace", byte_level(bpe.Whitespace())
    yield "llama2", characters()
    yield "unknown", characters(False)
    yield "meta_first", metaspace("first", True)
    yield "meta_never", metaspace("never", False)
    yield "unigram", unigram(False)
    yield "unigram_bytes", unigram(True)


def sentencepiece_kinds():
    lines = [line for line in small.LEARN.split("\n") * 3 if line.strip()]
    common = dict(vocab_size=600, num_threads=1, minloglevel=2, hard_vocab_limit=False, character_coverage=0.98)
    kept = dict(normalization_rule_name="identity", remove_extra_whitespaces=False)
    for name, options in {
            "spm_llama": dict(model_type="bpe", byte_fallback=True, split_digits=True, allow_whitespace_only_pieces=True, **kept),
            "spm_user": dict(model_type="bpe", byte_fallback=True, user_defined_symbols=["<a>", "the", " b", "ab", "abc", "▁▁▁"], **kept),
            "spm_unigram": dict(model_type="unigram", byte_fallback=True, **kept),
            "spm_nfkc": dict(model_type="unigram", vocab_size=400)}.items():
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=model, **{**common, **options})
        yield name, model.getvalue()


def main():
    OUT.mkdir(exist_ok=True)
    texts = [document(i).decode(errors="replace") for i in range(DOCUMENTS)]
    golden = {"pool": POOL, "ranges": RANGES, "documents": DOCUMENTS, "bytes": sum(len(document(i)) for i in range(DOCUMENTS)),
              "tokenizers": {}}

    def record(name, encode, decode):
        size = DOCUMENTS // GROUPS
        rows = []
        for g in range(GROUPS):
            ids = [encode(t) for t in texts[g * size:(g + 1) * size]]
            hashes = xxhash.xxh3_64(), xxhash.xxh3_64()
            for i in ids:
                hashes[0].update(array.array("i", [*i, -1]).tobytes())  # -1 ends a document
                hashes[1].update((decode(i) if i else "").encode() + b"\n")
            rows.append([h.hexdigest() for h in hashes])
        golden["tokenizers"][name] = rows
        print(name, flush=True)

    for name, t in json_kinds():
        data = json.loads(t.to_str())
        data["added_tokens"] = [a for a in data["added_tokens"] if not a["content"].startswith("<0x")]
        if name == "unigram_bytes":
            data["model"]["byte_fallback"] = True
        (OUT / f"{name}.json").write_text(json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n")
        t = Tokenizer.from_file(str(OUT / f"{name}.json"))
        record(f"{name}.json", lambda x: t.encode(x, add_special_tokens=False).ids, lambda i: t.decode(i, skip_special_tokens=False))
    for name, model in sentencepiece_kinds():
        (OUT / f"{name}.model").write_bytes(model)
        s = sentencepiece.SentencePieceProcessor(model_proto=model)
        record(f"{name}.model", s.encode, s.decode)

    # The same vocabulary as a tiktoken file and as vocab.json with merges.txt.
    data = json.loads(byte_level(regex=True).to_str())
    alphabet = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    spelt = {chr(b): b for b in alphabet} | {chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in alphabet)}
    tokens = [t for t, _ in sorted(data["model"]["vocab"].items(), key=lambda x: x[1]) if t != "<|endoftext|>"]
    ranks = {bytes(spelt[c] for c in t): i for i, t in enumerate(tokens)}
    for name, pattern in (("tiktoken_llama3", small.LLAMA3), ("tiktoken_o200k", O200K)):
        folder = OUT / name
        folder.mkdir(exist_ok=True)
        special = {"<|endoftext|>": len(ranks), "<a>": len(ranks) + 3}
        (folder / "tokenizer.model").write_text("".join(f"{base64.b64encode(t).decode()} {i}\n" for t, i in ranks.items()))
        (folder / "tokenizer_config.json").write_text(json.dumps({
            "pat_str": pattern, "added_tokens_decoder": {str(i): {"content": t, "special": True} for t, i in special.items()}}) + "\n")
        e = tiktoken.Encoding("small", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)
        record(name, lambda x: e.encode(x, allowed_special="all"), e.decode)
    folder = OUT / "vocab_merges"
    folder.mkdir(exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps(data["model"]["vocab"], separators=(",", ":")) + "\n")
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(" ".join(m) + "\n" for m in data["model"]["merges"]))
    t = Tokenizer(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens(["<|endoftext|>"])
    record("vocab_merges", lambda x: t.encode(x).ids, lambda i: t.decode(i, skip_special_tokens=False))

    with open(OUT / "golden.json", "w") as f:
        json.dump(golden, f, ensure_ascii=True, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    main()
