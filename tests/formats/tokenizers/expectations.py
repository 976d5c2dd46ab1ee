#!/usr/bin/env python3
"""Small tokenizers for api_tokenizer_files.c in this folder, and what the packages tokenizers and sentencepiece make of
hard cases with them.

  expectations.py --make       trains the tokenizers again (with the package gguf, too), in this folder
  expectations.py              prints the expectations, which expected.tsv has

A line: file, options (n: no begin and end, p: special tokens are text), text, ids, decoded text; texts in
hexadecimal."""
import json, os, sys
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors,
                        trainers)
import sentencepiece

here = os.path.dirname(os.path.abspath(__file__))
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")
CORPUS = ["the quick brown fox jumps over the lazy dog; the fox's den isn't there, they'll see.", "Hello, world! hello",
          "for (int i = 0; i < n; i++) { sum += a[i]; }  return sum;\n\n", "naïve café 12345 3.14 日本語 中文 한국어 😀",
          "tokens and tokenizers tokenize text into tokens; text is split into words"] * 4
TEXTS = ["", "a", " a", "  the  fox   ", "Hello, world!", "I'LL say we've it's don'T 'S 'ſ", "\n", "\n\n\n a\n \n",
         "\t\ttab\r\nline\r\rx", "1234567 3.14 1,000 ２３ ½ ②", "naïve cafe\u0301 A\u030a \u1ec7e\u0323\u0302",
         "q\u0307\u0323", "日本語、中文。한국어 \u1112\u1161\u11ab ไทย हिन्दी العربية",
         "😀👍🏽👨\u200d👩\u200d👧 ❤️", "for(i=0;i<n;i++){ a[i]+=b->c; }  // x",
         "<s>the</s> <unk>", "<|begin_of_text|>hi<|eot_id|> <|eot_id|>\n", "[CLS] the fox [SEP][MASK]",
         "a\u00a0b\u2003c\u200bd\ufeffe\u2028f\u0085g\x0bh", "x" * 70, " " * 20, "Straße İstanbul ΣΊΣ ǅ",
         "http://a.b/c?q=1&r=2#x u@m.com", "▁▁x▁ y", "<0x41><0x0A>", "Ġ Ċ", "!!!???...,,,", "\"'(]\u2019\u201c",
         "\u0300\u0301", "\ue000\ufffd\u0378", "\r\n \r\n", "foo word swords foofoo", "the\x00\x01\x7f"]


def save(name, tokenizer):
    value = json.loads(tokenizer.to_str())
    value["added_tokens"] = [a for a in value["added_tokens"] if not a["content"].startswith("<0x")]
    with open(os.path.join(here, name + ".json"), "w", encoding="utf-8") as f:
        json.dump(value, f, ensure_ascii=False, separators=(",", ":"))
        f.write("\n")


def byte_level(name, split, normalizer, special, post):
    t = Tokenizer(models.BPE(ignore_merges=name == "llama3"))
    t.normalizer = normalizer
    t.pre_tokenizer = (pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(split), "isolated"),
                                                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
                       if split else pre_tokenizers.ByteLevel(add_prefix_space=False))
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=380, special_tokens=special, show_progress=False,
                                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    if name != "llama3":  # llama3.gguf has the same tokens
        t.add_tokens([AddedToken("word", single_word=True), AddedToken("foo", lstrip=True)])
    if post:
        t.post_processor = processors.TemplateProcessing(single=special[0] + " $A", special_tokens=[(special[0], 0)])
    save(name, t)


def fallback(name, normalizer, split, strip):
    t = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    t.normalizer = normalizer
    t.pre_tokenizer = split or pre_tokenizers.Metaspace()
    special = ["<unk>", "<s>", "</s>"]
    t.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=420, special_tokens=special + ["<0x%02X>" % i for i in range(256)], show_progress=False))
    t.pre_tokenizer = split
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()] +
                                  ([decoders.Strip(" ", 1, 0)] if strip else []))
    t.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    value = Tokenizer.from_str(t.to_str())
    save(name, value)


def word_pieces(name, lower):
    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer = normalizers.BertNormalizer(lowercase=lower)
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.decoder = decoders.WordPiece()
    t.train_from_iterator(CORPUS, trainers.WordPieceTrainer(
        vocab_size=200, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], show_progress=False))
    t.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]",
                                                     special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    save(name, t)


def unigram(name):
    t = Tokenizer(models.Unigram())
    t.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    t.decoder = decoders.Metaspace()
    t.train_from_iterator(CORPUS, trainers.UnigramTrainer(vocab_size=200, unk_token="<unk>", show_progress=False,
                                                          special_tokens=["<pad>", "</s>", "<unk>"]))
    t.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    save(name, t)


def sentence_pieces(name, **options):
    rules = os.path.join(here, "rules.tsv")
    if name == "uni":
        options["normalization_rule_tsv"] = rules
    with open(rules, "w") as f:  # a few characters: the usual table has 240 KB
        f.write("FF13\t33\nFF12\t32\nA0\t20\nD\t20\n9\t20\nA\t20\n65 301\tE9\n130\t69 307\n")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_prefix=os.path.join(here, name), minloglevel=2, vocab_size=330,
        hard_vocab_limit=False, normalization_rule_name="identity", **options)
    os.remove(rules)
    os.remove(os.path.join(here, name + ".vocab"))


def charsmap(path):
    from sentencepiece import sentencepiece_model_pb2
    m = sentencepiece_model_pb2.ModelProto()
    m.ParseFromString(open(path, "rb").read())
    return m.normalizer_spec.precompiled_charsmap


def gguf_files():
    """GGUF files of bpe.model, uni.model and llama3.json."""
    import gguf
    for name, model in (("bpe", "llama"), ("uni", "t5"), ("llama3", "gpt2")):
        w = gguf.GGUFWriter(os.path.join(here, name + ".gguf"), "llama")
        w.add_tokenizer_model(model)
        if model == "gpt2":
            value = json.load(open(os.path.join(here, "llama3.json"), encoding="utf-8"))
            vocab = value["model"]["vocab"]
            w.add_tokenizer_pre("llama-bpe")
            w.add_token_list([k for k, _ in sorted(vocab.items(), key=lambda x: x[1])])
            w.add_token_types([3 if i < 3 else 1 for i in range(len(vocab))])
            w.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in value["model"]["merges"]])
            w.add_bos_token_id(0)
            w.add_eos_token_id(1)
        else:
            s = sentencepiece.SentencePieceProcessor(model_file=os.path.join(here, name + ".model"))
            n = range(s.get_piece_size())
            w.add_token_list([s.id_to_piece(i) for i in n])
            w.add_token_scores([s.get_score(i) for i in n])
            w.add_token_types([2 if s.is_unknown(i) else 3 if s.is_control(i) else 6 if s.is_byte(i)
                               else 4 if s.id_to_piece(i) == "<sep>" else 1 for i in n])
            if model == "t5":
                w.add_precompiled_charsmap(charsmap(os.path.join(here, "uni.model")))
            w.add_unk_token_id(0)
            w.add_bos_token_id(1)
            w.add_eos_token_id(2)
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.close()


def make():
    byte_level("llama3", LLAMA3, None, ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"], True)
    byte_level("qwen2", LLAMA3.replace("{1,3}", ""), normalizers.NFC(), ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
               False)
    byte_level("gpt2", None, None, ["<|endoftext|>"], False)
    fallback("llama2", normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]), None, True)
    fallback("mistral", None, pre_tokenizers.Metaspace(prepend_scheme="first", split=False), True)
    fallback("gemma", normalizers.Replace(" ", "▁"), pre_tokenizers.Split(" ", "merged_with_previous"), False)
    word_pieces("uncased", True)
    word_pieces("cased", False)
    unigram("unigram")
    sentence_pieces("bpe", model_type="bpe", byte_fallback=True, remove_extra_whitespaces=False, split_digits=True)
    sentence_pieces("uni", model_type="unigram", user_defined_symbols=["<sep>"])
    gguf_files()


def line(name, options, text, ids, decoded):
    if "\ufffd" in decoded:  # bytes of a part of a character: Kiln leaves them
        decoded = "?"
    print(name, options, text.encode().hex() or "-", ",".join(map(str, ids)) or "-",
          decoded if decoded == "?" else decoded.encode().hex() or "-")


def expectations():
    for name in sorted(os.listdir(here)):
        path = os.path.join(here, name)
        if name.endswith(".json"):
            t = Tokenizer.from_file(path)
            for i, text in enumerate(TEXTS):
                for options in "-n" if i < 6 else "-":
                    ids = t.encode(text, add_special_tokens=options == "-").ids
                    line(name, options, text, ids, t.decode(ids, skip_special_tokens=False))
        elif name.endswith(".model"):
            s = sentencepiece.SentencePieceProcessor(model_file=path)
            for text in TEXTS:
                if "\0" not in text:
                    ids = s.encode(text)
                    line(name, "np", text, ids, "\ufffd" if s.unk_id() in ids else s.decode(ids))


if sys.argv[1:] == ["--make"]:
    make()
else:
    expectations()
